"""What is ended before a control plane ends itself, in how much time, and what is told of it."""

import asyncio

from msgspec.structs import replace

from holdfast.adapters.providers.join import JoinProvider
from holdfast.control.leaving import Leaving
from holdfast.model import event as ev
from holdfast.ports.errors import Denied, NotFound, Unreachable
from tests.play import Play, pool


class Cloud(JoinProvider):
    """Somebody's machines, by name: how each takes it to be ended."""

    def __init__(self, **machines: object) -> None:
        self.machines = machines
        self.asked: list[str] = []

    async def terminate(self, node: str) -> None:
        self.asked.append(node)
        match self.machines.get(node):
            case None:
                raise NotFound(node)
            case Exception() as error:
                raise error
            case asyncio.Event() as never:
                await never.wait()
        del self.machines[node]

    async def list(self, pool: str) -> tuple[str, ...]:
        return tuple(self.machines) if pool == "pool" else ()


def fleet(*names: str) -> Play:
    play = Play()
    play.join(*names)
    play.settle()
    return play


async def ended(play: Play, cloud: Cloud, within_s: float = 5.0) -> tuple[list[str], Leaving, list[str]]:
    told: list[str] = []
    leaving = Leaving(told.append, within_s)
    gone = await leaving.end(play.world, play.world.pools.values(), lambda _: cloud)
    return gone, leaving, told


async def test_all_nodes_are_ended_and_how_far_it_is_is_told() -> None:
    gone, leaving, told = await ended(fleet("a", "b"), Cloud(a=1, b=1))
    assert sorted(gone) == ["a", "b"]
    assert leaving.left == {}
    assert told[0] == "ending 2 nodes of pool: a, b"
    assert sorted(told[1:]) == ["a is gone", "b is gone"]


async def test_what_does_not_end_in_time_is_left_with_its_reason() -> None:
    cloud = Cloud(a=1, b=Denied("no key"), c=Unreachable("down"), d=asyncio.Event())
    gone, leaving, _ = await ended(fleet(*"abcd"), cloud, within_s=0.3)
    assert gone == ["a"]
    assert leaving.left == {"b": "no key", "c": "down", "d": "there was no time for it"}
    assert cloud.asked.count("b") == 1, "a refusal does not change"


async def test_whoever_is_in_a_hurry_does_not_wait() -> None:
    play, cloud = fleet("a"), Cloud(a=asyncio.Event())
    leaving = Leaving(lambda text: leaving.hurry.set())
    async with asyncio.timeout(20):
        assert await leaving.end(play.world, play.world.pools.values(), lambda _: cloud) == []
    assert list(leaving.left) == ["a"]


async def test_a_machine_whose_launch_was_under_way_is_found_and_ended() -> None:
    cloud = Cloud(a=1, late=1)
    gone, _, _ = await ended(fleet("a"), cloud)
    assert sorted(gone) == ["a", "late"]
    assert cloud.machines == {}


async def test_a_pool_that_stands_still_keeps_no_other_from_being_looked_through() -> None:
    play, hung, well = fleet("a"), Cloud(a=asyncio.Event()), Cloud(late=1)
    play.tell(ev.PoolApplied(at=play.now, pool=pool("other")))
    clouds, told = {"other": hung, "pool": well}, list[str]()
    play.world.in_pool["other"], play.world.in_pool["pool"] = play.world.in_pool["pool"], {}
    leaving = Leaving(told.append, 0.3)
    gone = await leaving.end(play.world, play.world.pools.values(), lambda pool: clouds[pool.name])
    assert gone == ["late"]
    assert list(leaving.left) == ["a"]


async def test_a_launch_that_was_never_answered_is_not_told_to_the_journal_as_gone() -> None:
    play = Play(min=1)
    play.settle()
    assert [node.answered for node in play.world.nodes.values()] == [False]
    gone, leaving, _ = await ended(play, Cloud())
    assert (gone, leaving.left) == ([], {}), "it may still come: the next start asks for the same one"


async def test_nodes_that_nobody_can_end_are_left_alone() -> None:
    play, cloud = fleet("a"), Cloud(a=1)
    rules = replace(play.world.pools["pool"], can_terminate=False)
    play.tell(ev.PoolApplied(at=play.now, pool=rules), ev.PoolApplied(at=play.now, pool=pool("empty")))
    assert await ended(play, cloud) is not None
    assert cloud.asked == []
