"""Dry runs are made on threads of which nobody waits for the end."""

import asyncio
import threading

import pytest

from holdfast.api.edge import on_a_thread

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
