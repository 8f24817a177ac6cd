"""What must not take a control plane's word away from it: damaged snapshots, its own mistakes, namesakes, and
agents that leave at the wrong moment."""

import asyncio
import socket
from typing import Any

import pytest

from holdfast.adapters.clock import HostClock
from holdfast.adapters.providers.join import JoinProvider
from holdfast.control import follow
from holdfast.control import term as term_module
from holdfast.control.enrol import Enrolment
from holdfast.control.metrics import Metrics
from holdfast.control.plane import Plane
from holdfast.core.turn import Perform
from holdfast.model import event as ev
from holdfast.model.action import ResetNode
from holdfast.model.verdict import Evidence, Level, Verdict
from holdfast.model.workload import Job, Workload
from holdfast.ports.errors import Full, OutcomeUnknown
from holdfast.ports.store import Snapshot
from holdfast.sim.twins.store import SimStore
from tests.planes import World, apply, until, within

JOB = Workload("job", Job())


def sim(world: World) -> SimStore:
    assert isinstance(world.store, SimStore)
    return world.store


def damaged(saved: Snapshot) -> Snapshot:
    return Snapshot(saved.length, saved.body[: len(saved.body) // 2])


async def with_snapshots(world: World, count: int) -> None:
    """A journal with a workload in it, and so many snapshots."""
    async with world.plane() as plane:
        await world.joined(plane, "n1")
        for number in range(count):
            await apply(plane, Workload(f"job-{number}", Job()))
            term = plane._term
            assert term is not None
            await term._save()
    assert len(sim(world).snapshots) == count


# snapshots


async def test_a_damaged_snapshot_costs_only_the_time_to_read_the_journal() -> None:
    world = World()
    await with_snapshots(world, 1)
    sim(world).snapshots = [damaged(one) for one in sim(world).snapshots]
    async with world.plane() as plane:
        await until(lambda: plane.leading)
        assert set(plane.world.workloads) == {"job-0"}


async def test_when_the_newest_snapshot_is_damaged_and_the_journal_is_pruned_the_one_before_it_serves() -> (
    None
):
    world = World()
    await with_snapshots(world, 2)
    assert await world.store.prune(10**15) > 0
    first, second = sim(world).snapshots
    sim(world).snapshots = [first, damaged(second)]
    async with world.plane() as plane:
        await until(lambda: plane.leading)
        assert set(plane.world.workloads) == {"job-0", "job-1"}


async def test_terms_that_are_short_still_come_to_a_snapshot(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(term_module, "SNAPSHOT_EVERY", 12)
    world = World()
    for number in range(8):
        async with world.plane() as plane:
            await until(lambda: plane.leading)
            await apply(plane, Workload(f"job-{number}", Job()))
            await apply(plane, Workload(f"task-{number}", Job()))
    assert sim(world).snapshots, f"{len(sim(world).entries)} entries, and no term wrote twelve of them"


async def test_a_snapshot_that_cannot_be_saved_is_no_reason_to_stop_leading(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(term_module, "SNAPSHOT_EVERY", 3)
    world = World()
    tried = []

    async def full(*_: Any) -> None:
        tried.append(1)
        raise Full("the disk is full")

    monkeypatch.setattr(sim(world), "save", full)
    async with world.plane() as plane:
        await until(lambda: plane.leading)
        term = plane._term
        for number in range(5):
            await apply(plane, Workload(f"job-{number}", Job()))
        await until(lambda: tried)
        await apply(plane, JOB)
        assert plane._term is term
        assert len(tried) < 4, "it is not tried at every turn"


# mistakes


async def test_a_mistake_of_ours_leaves_nobody_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    async with world.plane() as plane:
        await world.joined(plane, "n1")
        term = plane._term

        def mistaken(*_: Any) -> Any:
            raise KeyError("a mistake")

        monkeypatch.setattr(term_module, "turn", mistaken)
        with pytest.raises(OutcomeUnknown):
            await within(apply(plane, JOB))
        monkeypatch.undo()
        await until(lambda: plane._term is not term and plane.leading)
        await apply(plane, JOB)


# namesakes


def terms(world: World) -> int:
    return sum(isinstance(entry, ev.LeaderChanged) for entry in sim(world).entries)


async def test_of_two_control_planes_with_one_name_only_one_leads() -> None:
    world = World()
    async with world.plane("cp-1") as first, world.plane("cp-1") as second:
        await until(lambda: first.leading or second.leading)
        for _ in range(40):
            await asyncio.sleep(0.05)
            assert not (first.leading and second.leading)
        assert terms(world) == 1
        assert first.ready
        assert second.ready


async def test_a_control_plane_follows_its_namesake_when_that_ends() -> None:
    world = World()
    async with world.plane("cp-1") as second:
        await until(lambda: second.leading)
        async with world.plane("cp-1") as first:
            await until(lambda: first.ready)
            assert second.leading
            assert not first.leading
        assert second.leading, "leaving, it gave up what it did not have"
    assert terms(world) == 1


# agents that come and go


def links(plane: Any) -> float | None:
    value: float | None = plane.metrics.get_sample_value("holdfast_agent_links")
    return value


async def test_a_control_plane_that_does_not_lead_any_more_counts_no_links() -> None:
    world = World(leader_ttl_ms=3_000)
    async with world.plane() as plane:
        await world.joined(plane, "n1", "n2")
        await until(lambda: links(plane) == 2)
        sim(world).down = True
        await until(lambda: not plane.leading)
        assert links(plane) == 0


async def test_an_agent_that_leaves_while_its_hello_is_being_written_is_known_to_have_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World()
    async with world.plane() as plane:
        await world.joined(plane, "n1")
        agent = await world.known("n2")
        written, append = asyncio.Event(), sim(world).append

        async def slow(*args: Any) -> int:
            await written.wait()
            return await append(*args)

        monkeypatch.setattr(sim(world), "append", slow)
        await world.connect(agent, plane)
        await until(lambda: "n2" in plane.hub._sessions)
        agent.hang_up()
        await within(agent.ended.wait())
        await until(lambda: "n2" not in plane.hub._sessions)
        written.set()
        await until(lambda: any(isinstance(entry, ev.LinkClosed) for entry in sim(world).entries))
        assert links(plane) == 1


async def test_an_agent_whose_machine_is_gone_does_not_keep_a_connection_for_ever() -> None:
    world = World()
    async with world.plane() as plane:
        await world.joined(plane, "n1")
        transport: Any = plane.hub._sessions["n1"]._transport
        assert transport.get_extra_info("socket").getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)


async def test_agents_are_not_sent_to_a_control_plane_that_has_just_stopped_leading() -> None:
    world = World(leader_ttl_ms=3_000)
    async with world.plane() as plane:
        (agent,) = await world.joined(plane, "n1")
        sim(world).down = True
        await within(agent.ended.wait())
        assert agent.moved is not None
        assert agent.moved.leader == ""


# providers


class Noted(JoinProvider):
    def __init__(self) -> None:
        self.called: list[str] = []

    async def reset(self, node: str) -> None:
        self.called.append(node)


async def test_a_leader_whose_time_is_over_asks_nothing_of_a_provider() -> None:
    world = World(provider=Noted())
    async with world.plane() as plane:
        await world.joined(plane, "n1")
        term, reset = plane._term, Perform("1.0", ResetNode(node="n1", why=""))
        assert term is not None
        assert isinstance(world.provider, Noted)
        plane.hub.leads_until = 0
        term.hands.perform(reset)
        await until(lambda: any(isinstance(entry, ev.ActionFailed) for entry in sim(world).entries))
        assert world.provider.called == []
        await until(plane.hub.may_renew)
        term.hands.perform(reset)
        await until(lambda: world.provider.called == ["n1"])  # type: ignore[attr-defined]


# the end


async def test_nodes_that_cannot_be_ended_do_not_keep_the_next_one_from_leading() -> None:
    world = World()

    async def ending(known: object) -> list[str]:
        raise OSError("no more processes")

    enrolment = Enrolment(world.registry, world.clock, b"")
    ports = world.store, world.registry, enrolment, world.clock, lambda pool: world.provider
    plane = Plane("cp-1", "http://127.0.0.1:1", *ports, ending=ending)
    running = asyncio.ensure_future(plane.run())
    await until(lambda: plane.leading)
    running.cancel()
    with pytest.raises(OSError, match="no more processes"):
        await running
    assert (await world.store.leader()).left_ms == 0


async def test_a_follower_whose_place_in_the_journal_was_pruned_begins_with_the_snapshot() -> None:
    world = World()
    async with world.plane("cp-2") as leader:
        await world.joined(leader, "n1")
        async with world.plane("cp-1") as follower:
            await until(lambda: follower.ready)
            for number in range(3):
                await apply(leader, Workload(f"job-{number}", Job()))
                assert leader._term is not None
                await leader._term._save()
            await world.store.prune(10**15)
            follower._follower.length = 1  # as if it had been cut off from the store for months
            await until(lambda: follower.length == leader.length)
            assert follower.ready
            assert set(follower.world.workloads) == {"job-0", "job-1", "job-2"}


async def test_a_long_journal_is_read_beside_other_work_and_nobody_is_shown_half_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(follow, "FOLD_S", 0.0)
    store = SimStore(HostClock().monotonic)
    held = await store.lead("cp-0", "http://cp-0", 60_000)
    begins = ev.LeaderChanged(at=1, leader="cp-0", generation=held.generation)
    jobs = [ev.WorkloadApplied(at=2, workload=Workload(f"job-{n}", Job())) for n in range(500)]
    await store.append(held.generation, 0, (begins, *jobs))
    await store.resign("cp-0", held.generation)
    others, shown = 0, set[int]()
    async with World(store).plane() as plane:
        while not plane.leading:
            others += 1
            shown.add(len(plane.world.workloads))
            await asyncio.sleep(0)
        assert others > 500, "between two entries others have their turn"
        assert shown <= {0, 500}


def test_a_suspect_that_is_gone_is_not_kept_in_mind() -> None:
    metrics = Metrics()
    suspect = Verdict(Level.SUSPECT, "late: ask others", Evidence(), since=1)
    metrics.journalled([ev.NodeJudged(at=1, node="n1", verdict=suspect, heard_at=0)])
    metrics.journalled([ev.NodeTerminated(at=2, node="n1")])
    assert metrics._suspects == set()
