"""A node that is enrolled and lies: about the replicas of others, about its size, and at full speed."""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from msgspec.structs import replace

from holdfast.control import intake
from holdfast.control.metrics import Metrics
from holdfast.core.agent.machine import Report
from holdfast.model.event import Ended, FindingRaised, PoolApplied
from holdfast.model.finding import Finding, Severity
from holdfast.model.resources import NODE_MAX, Resources
from holdfast.model.workload import Job, Needs, Workload
from holdfast.wire.address import REPLICA_PORTS
from holdfast.wire.messages import Found, Hello, LogPart, Reports, Wrote
from tests.planes import FLEET, World, apply, until, within

SMALL = Needs(Resources(100, 64))
FORGED = [
    Report("once/0.1", "ended", Ended.STOPPED, why="forged"),
    Report("once/0.1", "ended", Ended.DONE, why="forged"),
    Report("once/0.1", "ended", Ended.FAILED, why="forged"),
    Report("once/0.1", "started", port=4711),
    Report("once/0.1", "saved", progress_ms=10**9),
]


def dropped(plane: Any, reason: str) -> float:
    count = plane.metrics.get_sample_value("holdfast_dropped_reports_total", {"reason": reason})
    return count or 0.0


async def one_job(world: World, plane: Any) -> tuple[Any, Any]:
    """The agent on whose node the job runs, and another."""
    agents = await world.joined(plane, "n1", "n2")
    await apply(plane, Workload("once", Job(), SMALL))
    await until(lambda: "once/0.1" in plane.world.replicas and plane.world.replicas["once/0.1"].ready_at)
    home = plane.world.replicas["once/0.1"].node
    owner, other = agents if home == "n1" else agents[::-1]
    return owner, other


@pytest.mark.parametrize("forged", FORGED, ids=lambda report: f"{report.what}-{report.how}")
async def test_a_node_speaks_for_its_own_replicas_only(forged: Report) -> None:
    world = World()
    async with world.plane() as plane:
        _, rogue = await one_job(world, plane)
        before, length = plane.world.replicas["once/0.1"], plane.length
        rogue.send(Reports(rogue.machine.first_report + len(rogue.machine.reports), (forged,)))
        await until(lambda: dropped(plane, "foreign_replica") == 1)
        await until(lambda: rogue.acks >= 2)
        assert plane.world.replicas["once/0.1"] == before
        assert plane.world.slots["once/0"].progress_ms == 0
        assert list(plane.world.of_slot["once/0"]) == ["once/0.1"], "no second copy was started"
        written = await plane.store.read(length)
        assert not [entry for entry in written if getattr(entry, "replica", "") == "once/0.1"]


async def test_the_reports_of_the_node_itself_still_count() -> None:
    world = World()
    async with world.plane() as plane:
        owner, _ = await one_job(world, plane)
        first = owner.machine.first_report + len(owner.machine.reports)
        owner.send(Reports(first, (Report("once/0.1", "ended", Ended.DONE),)))
        await until(lambda: "once/0.1" not in plane.world.replicas)
        assert dropped(plane, "foreign_replica") == 0


@pytest.mark.parametrize("port", [80, 22, 8081, REPLICA_PORTS[0] - 1, REPLICA_PORTS[1] + 1])
async def test_the_port_of_a_replica_is_one_that_agents_allot(port: int) -> None:
    world = World()
    async with world.plane() as plane:
        (rogue,) = await world.joined(plane, "n1")
        world.fleet.lowest_port = port - rogue.port
        await apply(plane, Workload("once", Job(), SMALL))
        await until(lambda: dropped(plane, "foreign_port") >= 1)
        await until(lambda: rogue.acks >= 2)
        assert plane.world.replicas["once/0.1"].port == 0


async def test_the_address_of_a_node_is_where_its_link_comes_from() -> None:
    world = World()
    async with world.plane() as plane:
        world.fleet.address = "169.254.169.254"  # the metadata service of a cloud
        await world.joined(plane, "n1")
        assert plane.world.nodes["n1"].address == "127.0.0.1"
        assert dropped(plane, "foreign_address") == 1


async def test_the_address_of_a_node_may_lie_inside_the_network_of_its_pool() -> None:
    world = World()
    async with world.plane() as plane:
        await until(lambda: plane.leading)
        await plane.tell(PoolApplied(at=plane.now(), pool=replace(FLEET, network=("10.0.0.0/8",))))
        world.fleet.address = "10.1.2.3"  # it is behind NAT
        await world.joined(plane, "n1")
        world.fleet.address = "11.1.2.3"
        await world.joined(plane, "n2")
        assert plane.world.nodes["n1"].address == "10.1.2.3"
        assert plane.world.nodes["n2"].address == "127.0.0.1"


async def test_a_node_that_claims_to_have_obeyed_a_later_leader_ends_no_term_without_proof() -> None:
    world = World()
    async with world.plane() as plane:
        agents: list[Any] = await world.joined(plane, "n1", "n2")
        rogue, honest = agents
        term, hello = plane._term, rogue._hello
        for led, proof in (
            (0, b""),
            (9, b""),
            (9, plane.hub.claims.proof(1)),
            (1, plane.hub.claims.proof(1)),
        ):
            rogue._hello = partial(claiming, hello, obeyed=9, led=led, proof=proof)
            rogue.hang_up()
            await within(rogue.ended.wait())
            await world.connect(rogue, plane)
            await within(rogue.ended.wait())
            assert rogue.refused is not None
            assert rogue.refused.code == "ahead"
        acks = honest.acks
        await until(lambda: honest.acks > acks)
        assert plane._term is term


async def test_a_node_that_proves_to_have_obeyed_a_later_leader_is_led_above() -> None:
    world = World()
    async with world.plane() as plane:
        agents: list[Any] = await world.joined(plane, "n1")
        (agent,) = agents
        agent._hello = partial(claiming, agent._hello, obeyed=9, led=9, proof=plane.hub.claims.proof(9))
        agent.hang_up()
        await within(agent.ended.wait())
        await world.connect(agent, plane)
        await until(lambda: plane.leading and plane.world.leader.generation > 9)


def claiming(hello: Callable[[bytes], Hello], nonce: bytes, **claims: Any) -> Hello:
    return replace(hello(nonce), **claims)


async def test_findings_are_bounded_in_number_and_size_and_about_the_node_itself() -> None:
    world = World()
    async with world.plane() as plane:
        rogue, _ = await world.joined(plane, "n1", "n2")
        long = "x" * 100_000
        for number in range(3 * intake.FINDINGS_MAX):
            rogue.send(Found(Finding(f"{number}{long}", "n1", Severity.NOTE, 1.0, long, 0, long)))
        rogue.send(Found(Finding("slander", "n2", Severity.REPLACE, 1.0, "forged", 0)))
        await until(lambda: dropped(plane, "foreign_finding") == 1)
        assert dropped(plane, "too_many_findings") == 2 * intake.FINDINGS_MAX
        await until(lambda: len(plane.world.findings) == intake.FINDINGS_MAX)
        assert {node for node, _ in plane.world.findings} == {"n1"}
        for finding in plane.world.findings.values():
            assert len(finding.name) <= intake.NAME_MAX
            assert max(len(finding.evidence), len(finding.remedy)) <= intake.TEXT_MAX


@pytest.mark.parametrize("confidence", [float("nan"), float("inf"), float("-inf"), -0.1, 1.1])
async def test_a_finding_with_a_confidence_that_is_none_ends_that_link_and_is_not_journalled(
    confidence: float,
) -> None:
    """JSON knows no NaN: the journal could not be read again by anybody."""
    world = World()
    async with world.plane() as plane:
        rogue, honest = await world.joined(plane, "n1", "n2")
        rogue.send(Found(Finding("x", "n1", Severity.NOTE, confidence, "e", 0)))
        await within(rogue.ended.wait())
        assert plane.world.findings == {}
        honest.send(Found(Finding("y", "n2", Severity.NOTE, 1.0, "e", 0)))
        await until(lambda: ("n2", "y") in plane.world.findings)


async def test_a_node_cannot_say_when_its_finding_is_over_nor_whose_it_is() -> None:
    world = World()
    async with world.plane() as plane:
        rogue, _ = await world.joined(plane, "n1", "n2")
        names = tuple((f"workload-{number}", number) for number in range(1_000))
        rogue.send(Found(Finding("x", "n1", Severity.NOTE, 1.0, "e", 0, expires=1, raised_by=names)))
        await until(lambda: ("n1", "x") in plane.world.findings)
        found = plane.world.findings["n1", "x"]
        assert (found.expires, found.raised_by) == (0, ())


async def test_a_node_that_reports_at_full_speed_is_held_back_and_others_are_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(intake, "BURST", 50.0)
    monkeypatch.setattr(intake, "PER_S", 20.0)
    world = World()
    async with world.plane() as plane:
        owner, rogue = await one_job(world, plane)
        length, began = plane.length, plane.now()
        flood = Found(Finding("noise", rogue.node, Severity.NOTE, 1.0, "x", 0))
        for _ in range(2_000):
            rogue.send(flood)
            if rogue.ended.is_set():
                break
        await asyncio.sleep(1.0)
        first = owner.machine.first_report + len(owner.machine.reports)
        owner.send(Reports(first, (Report("once/0.1", "ended", Ended.DONE),)))
        await until(lambda: "once/0.1" not in plane.world.replicas)
        seconds = (plane.now() - began) / 1000
        noise = [entry for entry in await plane.store.read(length) if isinstance(entry, FindingRaised)]
        assert len(noise) <= 50 + 20 * seconds + 1, "the journal grows no faster than the rate limit"


@pytest.mark.parametrize(
    "capacity", [Resources(1_000, 1_024, NODE_MAX.gpu_milli + 1, "h100"), Resources(2**40, 1)]
)
async def test_a_node_that_claims_more_than_a_file_may_is_turned_away(capacity: Resources) -> None:
    world = World()
    async with world.plane() as plane:
        await world.joined(plane, "n1")
        term = plane._term
        boaster = await world.known("n2")
        world.fleet.capacity = capacity
        await world.connect(boaster, plane)
        await within(boaster.ended.wait())
        assert plane._term is term
        assert "n2" not in plane.world.nodes


@pytest.mark.parametrize("first", [2**62 + 1, 2**64 - 1])
async def test_reports_with_a_number_that_cannot_be_answered_end_that_link_and_not_the_term(
    first: int,
) -> None:
    world = World()
    async with world.plane() as plane:
        owner, _ = await one_job(world, plane)
        term = plane._term
        owner.send(Reports(first, (Report("once/0.1", "started", port=REPLICA_PORTS[0]),)))
        await within(owner.ended.wait())
        assert plane._term is term


async def test_parts_of_a_log_that_nobody_asked_for_are_read_no_quicker_than_anything_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(intake, "BYTES_PER_S", 1.0)
    monkeypatch.setattr(intake, "BYTES_BURST", 150_000.0)
    world = World()
    async with world.plane() as plane:
        rogue, honest = await world.joined(plane, "n1", "n2")
        session = plane.hub._sessions["n1"]
        for _ in range(100):
            rogue.send(LogPart(4711, b""))
        await until(lambda: session._paused)
        acks = honest.acks
        await until(lambda: honest.acks > acks)


def test_a_part_that_was_asked_for_counts_only_for_being_short() -> None:
    own = intake.Intake(Metrics(), lambda: 0)
    rates = intake.Rates(0)
    own.goes_by(rates)
    own.read(1 << 20, asked=True)
    assert rates.bytes.level == intake.BYTES_BURST
    own.read(10, asked=True)
    assert rates.bytes.level == intake.BYTES_BURST - intake.BYTES_LEAST + 10


def test_empty_reports_and_the_ends_of_logs_take_part_in_the_rate_limit() -> None:
    own, rates = intake.Intake(Metrics(), lambda: 0), intake.Rates(0)
    own.goes_by(rates)
    for message in (Reports(0, ()), Reports(0, (), {f"web/{n}.1": Wrote(b"", 0) for n in range(10)})):
        own.put(message)
    assert len(list(own.take())) == 2
    assert rates.reports.level == intake.BURST - 11
