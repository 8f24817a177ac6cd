"""What a keeper does with keys that are clamped: also when it, or a worker, starts anew."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx

from holdfast.core.gateway.lease import Ask, Part, counter
from holdfast.gateway import messages, settings
from holdfast.gateway.admin import Admin
from holdfast.gateway.keeper import Keeper
from holdfast.model.gateway import Grade, Limits, scope_of_key
from holdfast.wire.keys import KeyWanted
from tests.gateways import key

LIMITS = Limits(tokens_per_min=1_000)


class Worker:
    """The keeper's end of a link."""

    def __init__(self) -> None:
        self.told: list[Any] = []
        self.on_message: Any = None

    def send(self, message: object) -> None:
        self.told.append(message)

    def abort(self) -> None:
        raise AssertionError("it is one of ours")


def keeper(state: Path, *, shadow: bool = False) -> Keeper:
    return Keeper(settings.Gateway(state=state, keys=(key(limits=LIMITS),), shadow=shadow))


def lent(ours: Keeper, id: str, tokens: float) -> bool:
    """Does the broker lend so much of this key's quota?"""
    name = counter("tokens", scope_of_key(id))
    ask = Ask(f"holder of {tokens}", 1, "", True, {name: Part(0.0, tokens)})
    return ours.broker.ask(ask, ours.now()).grants[name].amount >= tokens


def clamped(ours: Keeper) -> dict[str, float]:
    """What a worker that starts now is told."""
    worker, seat = Worker(), ours.seats[0]
    ours._by_pid[7] = seat
    ours.greet(worker, messages.Hello(7))  # type: ignore[arg-type]
    return {each.key: each.share for each in worker.told if isinstance(each, messages.Clamped)}


def test_a_clamp_holds_in_workers_that_start_later_and_over_a_restart(tmp_path: Path) -> None:
    first = keeper(tmp_path)
    made, _ = first.ring.create(KeyWanted("ci", limits=LIMITS), 1)
    first.put_key(made)
    assert clamped(first) == {}
    first.watch._act(made, Grade.CLAMP, "nobody reads it")
    assert clamped(first) == {"ci": 0.1}
    again = keeper(tmp_path)
    assert clamped(again) == {"ci": 0.1}
    assert (lent(again, "ci", 500), lent(again, "ci", 50)) == (False, True)
    watched = keeper(tmp_path, shadow=True)
    assert clamped(watched) == {}, "who watches only touches nothing"
    assert lent(watched, "ci", 500)
    first.watch.restore("ci")
    assert clamped(first) == {}


def test_a_key_that_is_deleted_leaves_no_clamp(tmp_path: Path) -> None:
    ours = keeper(tmp_path)
    made, _ = ours.ring.create(KeyWanted("ci", limits=LIMITS), 1)
    ours.watch._act(made, Grade.CLAMP, "nobody reads it")
    ours.ring.delete("ci")
    ours.drop_key("ci")
    assert clamped(ours) == {}


@asynccontextmanager
async def admin(ours: Keeper) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(app=Admin(ours).app())
    async with httpx.AsyncClient(transport=transport, base_url="http://admin") as client:
        yield client


async def test_a_clamped_key_of_the_configuration_can_be_restored(tmp_path: Path) -> None:
    ours = keeper(tmp_path)
    ours.watch._act(ours.ring.get("test"), Grade.CLAMP, "nobody reads it")
    assert clamped(ours) == {"test": 0.1}
    async with admin(ours) as client:
        found = await client.post("/v1/keys/test/restore", json={})
        assert found.status_code == 200
        assert found.json()["grade"] == "fine"
        assert (await client.post("/v1/keys/nobody/restore", json={})).status_code == 404
    assert clamped(ours) == {}
