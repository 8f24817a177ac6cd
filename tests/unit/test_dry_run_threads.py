"""Dry runs are made on threads of which nobody waits for the end."""

import asyncio
import copy
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.api.access import Access, Admitted
from holdfast.api.edge import Edge, Lane, on_a_thread
from holdfast.ports.registry import Role

PATIENCE_S = 60.0


def test_a_control_plane_that_ends_does_not_wait_for_a_dry_run() -> None:
    begun, let_go, ended = threading.Event(), threading.Event(), threading.Event()

    def work() -> None:
        begun.set()
        let_go.wait(PATIENCE_S)

    async def serve() -> None:
        on_a_thread(work)
        while not begun.is_set():
            await asyncio.sleep(0)

    def process() -> None:
        asyncio.run(serve())
        ended.set()

    thread = threading.Thread(target=process)
    thread.start()
    try:
        assert ended.wait(PATIENCE_S / 2)
    finally:
        let_go.set()
        thread.join(PATIENCE_S)


def test_what_a_thread_makes_or_raises_comes_back() -> None:
    def fails() -> None:
        raise ValueError("no such thing")

    async def story() -> None:
        assert await on_a_thread(lambda: threading.current_thread().name) == "dry run"
        with pytest.raises(ValueError, match="no such thing"):
            await on_a_thread(fails)

    asyncio.run(story())


async def test_many_dry_runs_of_one_token_hold_up_that_of_another_by_one() -> None:
    nobody: Any = SimpleNamespace(
        name="cp", clock=SimpleNamespace(wall=None), registry=None, audit_dropped=None
    )
    nobody.hub = SimpleNamespace(enrolment=SimpleNamespace(gateway_secret=None))
    edge = Edge(nobody, Access())
    order: list[str] = []

    def of(token: str) -> Edge:
        seen = copy.copy(edge)
        seen.who = Admitted(Role.OPERATOR, token, token)
        return seen

    def noting(token: str) -> Callable[[], Callable[[], None]]:
        def make() -> Callable[[], None]:
            order.append(token)
            return lambda: None

        return make

    greedy = [asyncio.ensure_future(of("greedy").think(noting("greedy"), Lane.DRY)) for _ in range(20)]
    await asyncio.sleep(0)
    other = asyncio.ensure_future(of("other").think(noting("other"), Lane.DRY))
    await asyncio.gather(other, *greedy)
    assert order.index("other") <= 2
    assert len(order) == 21
    assert not edge._thinking_of, "nothing is kept of those that are done"
