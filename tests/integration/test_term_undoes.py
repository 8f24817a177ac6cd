"""What cannot be folded in refuses its sender, and ends no term: the turn is undone, and the rest goes on."""

import asyncio
from typing import Any

import pytest

from holdfast.control.term import Unfoldable
from holdfast.core import check
from holdfast.core.decide import decide
from holdfast.core.replay import Replay
from holdfast.core.state import fold, fold_outcomes
from holdfast.model import event as ev
from holdfast.model.finding import Finding, Severity
from holdfast.model.resources import Resources
from holdfast.model.workload import Job, Needs, Service, Workload
from holdfast.model.world import World as Known
from holdfast.ports.errors import OutcomeUnknown
from holdfast.wire.messages import Found
from tests.planes import World, apply, until, within

SMALL = Needs(Resources(100, 64))
POISON = Finding("poison", "n1", Severity.NOTE, 1.0, "x", 0)


@pytest.fixture(autouse=True)
def poison(monkeypatch: pytest.MonkeyPatch) -> None:
    """A mistake of ours: one finding changes half of the world, and then fails."""
    raise_finding = fold_outcomes.raise_finding

    def fails(world: Known, finding: Finding) -> None:
        if finding.name == POISON.name:
            world.workloads.clear()
            world.replicas.clear()
            raise MemoryError("poisoned")
        raise_finding(world, finding)

    monkeypatch.setattr(fold_outcomes, "raise_finding", fails)


async def as_journalled(plane: Any) -> Known:
    known = Known()
    for entry in await plane.store.read(0):
        fold.apply(known, entry)
    return known


async def is_sound(plane: Any) -> None:
    known = await as_journalled(plane)
    assert check.inconsistencies(plane.world) == []
    for name in ("nodes", "replicas", "slots", "workloads", "findings"):
        assert getattr(plane.world, name) == getattr(known, name), name


def left_out(plane: Any) -> float:
    return plane.metrics.get_sample_value("holdfast_unfoldable_events_total") or 0.0


@pytest.mark.parametrize("snapshot", [False, True])
async def test_a_message_that_cannot_be_folded_in_bars_its_node_and_the_term_goes_on(
    *, snapshot: bool
) -> None:
    world = World()
    async with world.plane() as plane:
        rogue, honest = await world.joined(plane, "n1", "n2")
        await apply(plane, Workload("web", Service(2), SMALL))
        await until(lambda: sum(each.ready_at > 0 for each in plane.world.replicas.values()) == 2)
        term = plane._term
        assert term is not None
        if snapshot:
            await term._save()
        rogue.send(Found(POISON))
        await within(rogue.ended.wait())
        await until(lambda: term.sound)
        assert (plane._term, plane.leading, left_out(plane)) == (term, True, 1)
        assert plane.world.leader.generation == 1
        await is_sound(plane)
        written = await plane.store.read(0)
        assert not [entry for entry in written if isinstance(entry, ev.FindingRaised)]
        acks = honest.acks
        await until(lambda: honest.acks > acks)
        await apply(plane, Workload("more", Service(1), SMALL))
        await until(
            lambda: any(each.workload == "more" and each.ready_at for each in plane.world.replicas.values())
        )
        await world.connect(rogue, plane)
        await within(rogue.ended.wait())
        assert rogue.refused is not None
        assert rogue.refused.code == "barred"


async def test_what_came_in_with_it_is_journalled_and_only_the_sender_is_to_blame() -> None:
    world = World()
    async with world.plane() as plane:
        await world.joined(plane, "n1", "n2")
        term = plane._term
        assert term is not None
        told: list[str] = []
        good = Finding("good", "n2", Severity.NOTE, 1.0, "x", 0)
        now = plane.now()
        term.post(
            ev.WorkloadApplied(at=now, workload=Workload("once", Job(), SMALL)),
            done=lambda _: told.append("applied"),
        )
        term.post(
            ev.FindingRaised(at=now, finding=POISON),
            done=lambda _: told.append("wrong"),
            failed=lambda error: told.append(type(error).__name__),
            sender="n1",
        )
        term.post(ev.FindingRaised(at=now, finding=good), done=lambda _: told.append("good"), sender="n2")
        await until(lambda: len(told) == 3)
        assert sorted(told) == ["Unfoldable", "applied", "good"]
        await until(lambda: term.sound)
        assert "once" in plane.world.workloads
        assert ("n2", "good") in plane.world.findings
        assert set(plane.hub._barred) == {"n1"}
        await is_sound(plane)


async def test_reports_that_come_in_while_it_is_undone_are_not_lost() -> None:
    world = World()
    async with world.plane() as plane:
        _, honest = await world.joined(plane, "n1", "n2")
        term = plane._term
        assert term is not None
        read_again, going, go = term._read_again, asyncio.Event(), asyncio.Event()

        async def slowly() -> None:
            await read_again()
            going.set()
            await go.wait()

        term._read_again = slowly  # type: ignore[method-assign]
        term.post(ev.FindingRaised(at=plane.now(), finding=POISON), sender="n1")
        await within(going.wait())
        honest.send(Found(Finding("meanwhile", "n2", Severity.NOTE, 1.0, "x", 0)))
        await until(lambda: plane.hub._later)
        assert not plane.leading, "nobody is answered from half a turn"
        go.set()
        await until(lambda: ("n2", "meanwhile") in plane.world.findings)


async def test_an_order_that_cannot_be_folded_in_is_refused_and_says_so() -> None:
    world = World()
    async with world.plane() as plane:
        await world.joined(plane, "n1")
        term = plane._term
        with pytest.raises(Unfoldable, match="poisoned"):
            await plane.tell(ev.FindingRaised(at=plane.now(), finding=POISON))
        await until(lambda: plane.leading)
        assert plane._term is term
        assert not plane.hub._barred


async def test_a_turn_that_fails_with_nothing_that_came_in_is_no_sender_s_fault(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World()
    async with world.plane() as plane:
        await world.joined(plane, "n1")
        term, broken = plane._term, [True]

        def fails(*args: Any) -> Any:
            if broken:
                raise ZeroDivisionError("a mistake of ours")
            return decide(*args)

        monkeypatch.setattr("holdfast.core.turn.decide", fails)
        with pytest.raises(OutcomeUnknown):
            await apply(plane, Workload("once", Job(), SMALL))
        await until(lambda: plane._term is not term)
        broken.clear()
        await until(lambda: plane.leading)
        assert not plane.hub._barred


async def test_a_journal_with_an_undone_turn_is_decided_the_same_when_it_is_replayed() -> None:
    world = World()
    async with world.plane() as plane:
        rogue, _ = await world.joined(plane, "n1", "n2")
        await apply(plane, Workload("web", Service(3), SMALL))
        await until(lambda: sum(each.ready_at > 0 for each in plane.world.replicas.values()) == 3)
        rogue.send(Found(POISON))
        await until(lambda: left_out(plane) == 1)
        await until(lambda: plane.leading)
        await apply(plane, Workload("more", Service(3), SMALL))
        await until(lambda: sum(each.ready_at > 0 for each in plane.world.replicas.values()) >= 6)
        replay = Replay(Known())
        assert [found for entry in await plane.store.read(0) if (found := replay.feed(entry))] == []
