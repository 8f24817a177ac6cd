"""A control plane with agents that are emulated over real connections: leading, following, and the hub's
promises."""

from typing import Any

import pytest
from msgspec.structs import replace

from holdfast.adapters.clock import HostClock
from holdfast.control.plane import NotLeading
from holdfast.core.turn import Entry
from holdfast.model import event as ev
from holdfast.model.replica import Phase, Role, State
from holdfast.model.units import HOUR, SECOND
from holdfast.model.verdict import Level
from holdfast.model.workload import Job, Service, Workload
from holdfast.ports.errors import Unreachable
from holdfast.sim.twins.store import CrashPoint, SimStore
from holdfast.wire.messages import Beat
from tests.planes import World, apply, until, within

WEB = Workload("web", Service(3))
JOB = Workload("job", Job())


def ready(plane: Any, workload: str) -> int:
    replicas = plane.world.replicas.values()
    return sum(r.workload == workload and r.state is State.READY for r in replicas)


def entries(world: World) -> list[Entry]:
    assert isinstance(world.store, SimStore)
    return world.store.entries


async def test_what_is_applied_runs_on_the_nodes_that_joined() -> None:
    world = World()
    async with world.plane() as plane:
        agents = await world.joined(plane, "n1", "n2", "n3")
        await apply(plane, WEB)
        await until(lambda: ready(plane, "web") == 3)
        assert sorted(name for agent in agents for name in agent.machine.processes) == [
            "web/0.1",
            "web/1.1",
            "web/2.1",
        ]
        await until(lambda: not any(agent.machine.reports for agent in agents))


async def test_a_node_that_dies_is_replaced_within_moments_because_its_peers_say_so() -> None:
    world = World()
    async with world.plane() as plane:
        agents = await world.joined(plane, "n1", "n2", "n3")
        await apply(plane, WEB)
        await until(lambda: ready(plane, "web") == 3)
        agents[0].die()
        await until(lambda: plane.world.nodes["n1"].verdict.level is Level.DEAD)
        await until(lambda: ready(plane, "web") == 3)
        assert plane.world.nodes["n1"].verdict.rule == "its host answers, but nothing of ours lives there"


async def test_a_connection_that_closes_is_no_reason_to_move_anything_if_the_node_comes_back() -> None:
    world = World()
    async with world.plane() as plane:
        agents = await world.joined(plane, "n1", "n2", "n3")
        await apply(plane, WEB)
        await until(lambda: ready(plane, "web") == 3)
        before = dict(agents[0].machine.processes)
        agents[0].hang_up()
        await until(lambda: plane.world.nodes["n1"].verdict.level is not Level.ALIVE)
        await within(world.linked(agents[0], plane))
        await until(lambda: plane.world.nodes["n1"].verdict.level is Level.ALIVE)
        assert agents[0].machine.processes == before
        assert ready(plane, "web") == 3


async def test_beats_are_acknowledged_and_renew_the_lease() -> None:
    world = World()
    async with world.plane() as plane:
        (agent,) = await world.joined(plane, "n1")
        first = agent.machine.lease_until
        await until(lambda: agent.acks >= 2)
        assert agent.machine.lease_until > first


async def test_a_beat_of_a_node_that_does_not_hear_us_is_not_acknowledged() -> None:
    world = World()
    async with world.plane() as plane:
        (agent,) = await world.joined(plane, "n1")
        acks = agent.acks
        for number in range(100, 110):
            agent.send(Beat(number, 0))
        await until(lambda: agent.acks > acks)  # its own, honest beats
        assert agent._heard < 100


async def test_a_leader_whose_time_is_over_renews_no_lease() -> None:
    """It may have been paused: another may lead by now."""
    world = World()
    assert isinstance(world.store, SimStore)
    async with world.plane() as plane:
        (agent,) = await world.joined(plane, "n1")
        await until(lambda: agent.acks >= 1)
        world.store.down = True  # else it would renew its own time before the beat comes
        plane.hub.leads_until = world.clock.monotonic()
        agent.send(Beat(1_000, 1_000))
        await within(agent.ended.wait())
        assert agent._heard < 1_000


async def test_reports_are_forgotten_by_the_agent_only_when_they_are_journalled() -> None:
    world = World()
    async with world.plane() as plane:
        (agent,) = await world.joined(plane, "n1")
        await apply(plane, JOB)
        await until(lambda: not agent.machine.reports and agent.machine.first_report == 2)
        told = [type(entry).__name__ for entry in entries(world)]
        assert told.count("ReplicaStarted") == told.count("ReplicaReady") == 1


async def test_a_store_that_fails_ends_the_term_and_nothing_acknowledged_is_lost() -> None:
    world = World()
    assert isinstance(world.store, SimStore)
    async with world.plane() as plane:
        agents = await world.joined(plane, "n1", "n2")
        await apply(plane, Workload("web", Service(2)))
        await until(lambda: ready(plane, "web") == 2)
        world.store.crash, term = CrashPoint.BEFORE, plane._term
        with pytest.raises(Exception, match="went away"):
            await apply(plane, JOB)
        await until(lambda: plane._term is not term and plane.leading)
        assert set(plane.world.workloads) == {"web"}
        for agent in agents:
            await within(agent.ended.wait())
            await within(world.linked(agent, plane))
        assert ready(plane, "web") == 2


async def test_a_write_whose_answer_was_lost_is_found_in_the_journal_afterwards() -> None:
    world = World()
    assert isinstance(world.store, SimStore)
    async with world.plane() as plane:
        await world.joined(plane, "n1")
        world.store.crash, term = CrashPoint.AFTER, plane._term
        with pytest.raises(Exception, match="went away"):
            await apply(plane, JOB)
        await until(lambda: plane._term is not term and plane.leading)
        assert set(plane.world.workloads) == {"job"}


async def test_while_the_store_is_down_nothing_is_promised_and_afterwards_it_goes_on() -> None:
    world = World()
    assert isinstance(world.store, SimStore)
    async with world.plane() as plane:
        await world.joined(plane, "n1")
        world.store.down = True
        with pytest.raises((Unreachable, NotLeading)):
            await apply(plane, JOB)
        await until(lambda: not plane.ready)
        assert "does not answer" in plane.trouble
        world.store.down = False
        await until(lambda: plane.leading)
        await apply(plane, JOB)


async def test_a_second_control_plane_reads_along_and_sends_agents_to_the_leader() -> None:
    world = World()
    async with world.plane("cp-1") as first:
        await world.joined(first, "n1")
        await apply(first, JOB)
        async with world.plane("cp-2") as second:
            await until(lambda: second.ready and "job" in second.world.workloads)
            assert not second.leading
            with pytest.raises(NotLeading) as refused:
                await apply(second, WEB)
            assert refused.value.url == first.url
            stray = await world.known("n2")
            await world.connect(stray, second)
            await within(stray.ended.wait())
            assert stray.moved is not None
            assert stray.moved.leader == first.url


async def test_when_the_leader_goes_another_leads_and_no_replica_is_started_twice() -> None:
    world = World()
    async with world.plane("cp-2") as second:
        await until(lambda: second.leading)
        agents = await world.joined(second, "n1", "n2", "n3")
        await apply(second, WEB)
        await apply(second, JOB)
        await until(lambda: ready(second, "web") == 3 and ready(second, "job") == 1)
        async with world.plane("cp-1") as heir:
            await until(lambda: heir.ready)
            running = {agent.node: agent.machine.running() for agent in agents}
            assert isinstance(world.store, SimStore)
            world.store.until = 0  # as if it had been paused for long: its leadership runs out
            await until(lambda: heir.leading)
            for agent in agents:
                await within(agent.ended.wait())
                await within(world.linked(agent, heir))
            await until(lambda: ready(heir, "web") == 3 and ready(heir, "job") == 1)
            assert {agent.node: agent.machine.running() for agent in agents} == running


async def test_everybody_leaves_when_the_control_plane_ends_and_nothing_on_the_nodes_does() -> None:
    world = World()
    async with world.plane() as plane:
        agents = await world.joined(plane, "n1")
        await apply(plane, JOB)
        await until(lambda: ready(plane, "job") == 1)
    await within(agents[0].ended.wait())
    assert agents[0].machine.running() == ("job/0.1",)
    last = [entry for entry in entries(world) if isinstance(entry, ev.LinkClosed | ev.NodeJudged)]
    assert last == [], "its own leaving is no news about the nodes"


async def test_a_job_that_was_done_while_nobody_heard_it_is_not_run_again() -> None:
    world = World()
    async with world.plane() as plane:
        agents = await world.joined(plane, "n1", "n2")
        await apply(plane, JOB)
        await until(lambda: ready(plane, "job") == 1)
        runs = next(agent for agent in agents if agent.machine.processes)
        await until(lambda: not runs.machine.reports)
        runs.hang_up()
        await within(runs.ended.wait())
        runs.machine.ended("job/0.1", ev.Ended.DONE, 0, "", world.clock.monotonic())
        await within(world.linked(runs, plane))
        await until(lambda: plane.world.slots["job/0"].phase is Phase.DONE)
        await until(lambda: not runs.machine.reports)
        assert not any(agent.machine.processes for agent in agents)
        starts = [entry for entry in entries(world) if isinstance(entry, ev.ReplicaStarted)]
        assert len(starts) == 1


async def test_when_leases_become_shorter_every_agent_counts_with_the_new_length_from_then_on() -> None:
    """Else it would hold a lease for longer than we think."""
    world = World()
    async with world.plane() as plane:
        (agent,) = await world.joined(plane, "n1")
        await until(lambda: agent.acks >= 1)
        policy = plane.world.policy
        shorter = replace(policy, leases=replace(policy.leases, lease_ms=4_000))
        await plane.tell(ev.PolicyApplied(at=plane.now(), policy=shorter))
        changed_at = world.clock.monotonic()
        await until(lambda: agent.machine.lease_ms == 4_000)
        assert agent.machine.lease_until <= changed_at + 30_000
        assert plane.world.lease_before[1] == 30_000
        acks = agent.acks
        await until(lambda: agent.acks > acks)
        assert agent.machine.lease_until <= changed_at + 30_000


# ---- what is measured


def failovers(plane: Any) -> float:
    return plane.metrics.get_sample_value("holdfast_failover_seconds_count") or 0


async def test_a_first_start_a_pause_and_a_resume_are_no_failovers_and_a_death_is_one() -> None:
    world = World()
    async with world.plane() as plane:
        agents = await world.joined(plane, "n1", "n2", "n3")
        await apply(plane, WEB)
        await until(lambda: ready(plane, "web") == 3)
        await apply(plane, replace(WEB, paused=True))
        await until(lambda: ready(plane, "web") == 0)
        await apply(plane, WEB)
        await until(lambda: ready(plane, "web") == 3)
        assert failovers(plane) == 0
        agents[0].die()
        await until(lambda: plane.world.nodes["n1"].verdict.level is Level.DEAD)
        await until(lambda: ready(plane, "web") == 3)
        assert failovers(plane) == 1


async def test_a_standby_that_takes_over_is_a_failover() -> None:
    world = World()
    async with world.plane() as plane:
        agents = {agent.node: agent for agent in await world.joined(plane, "n1", "n2", "n3")}
        await apply(plane, Workload("web", Service(1, standby=1)))
        await until(lambda: ready(plane, "web") == 2)
        (active,) = (r for r in plane.world.replicas.values() if r.role is Role.ACTIVE)
        agents[active.node].die()
        await until(lambda: failovers(plane) == 1)
        assert plane.world.slots["web/0"].down_since == 0


class SetClock(HostClock):
    """Somebody sets the wall clock of the machine."""

    ahead_ms = 0

    def wall(self) -> int:
        return super().wall() + self.ahead_ms


async def test_a_wall_clock_that_is_set_between_two_terms_is_known_and_journalled() -> None:
    world = World()
    world.clock = clock = SetClock()
    async with world.plane() as plane:
        await world.joined(plane, "n1")
    clock.ahead_ms = HOUR
    async with world.plane() as plane:
        await until(lambda: plane.leading)
        at = plane.now()
    terms = [entry for entry in entries(world) if isinstance(entry, ev.LeaderChanged)]
    assert [term.era for term in terms] == [clock.era()] * len(terms)
    assert terms[0].stepped_ms == 0
    assert abs(terms[-1].stepped_ms - HOUR) < 10 * SECOND
    assert at >= terms[0].at + HOUR, "time itself goes on from what the wall clock says"
