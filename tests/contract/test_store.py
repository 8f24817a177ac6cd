"""What every store must do. To hold a new adapter to it, add a rig for it to `STORES`."""

from collections.abc import Callable
from dataclasses import dataclass

import pytest

from holdfast.core.turn import Entry
from holdfast.model import action as do
from holdfast.model import event as ev
from holdfast.model.plan import Held, Plan
from holdfast.model.policy import Policy
from holdfast.model.units import SECOND
from holdfast.model.verdict import Evidence, Level, Verdict
from holdfast.model.workload import Training, Workload
from holdfast.ports.errors import Fenced, OutcomeUnknown, PortError, Unreachable
from holdfast.ports.store import Leadership, Store
from holdfast.sim.store import CrashPoint, SimStore
from tests.contract.conftest import Run
from tests.play import pool

NOW = 1_000_000
TTL = 3 * SECOND


@dataclass
class Rig:
    """A fresh store and the ways to make it fail."""

    store: Store
    go_down: Callable[[], None]
    come_back: Callable[[], None]
    lose_next_write: Callable[[], None]  # the next append has no effect and is answered with an error
    lose_next_answer: Callable[[], None]  # the next append takes effect and is answered with an error


def simulated() -> Rig:
    store = SimStore()
    return Rig(
        store,
        go_down=lambda: setattr(store, "down", True),
        come_back=lambda: setattr(store, "down", False),
        lose_next_write=lambda: setattr(store, "crash", CrashPoint.BEFORE),
        lose_next_answer=lambda: setattr(store, "crash", CrashPoint.AFTER),
    )


STORES: dict[str, Callable[[], Rig]] = {"simulated": simulated}


@pytest.fixture(params=STORES)
def rig(request: pytest.FixtureRequest) -> Rig:
    return STORES[request.param]()


@pytest.fixture
def store(rig: Rig) -> Store:
    return rig.store


def entry(number: int) -> ev.Event:
    return ev.LinkClosed(at=number, node=f"n{number}")


def entries(*numbers: int) -> tuple[Entry, ...]:
    return tuple(entry(number) for number in numbers)


def led(store: Store, run: Run, name: str = "cp-1", now: int = NOW) -> int:
    return run(store.lead(name, TTL, now)).generation


# leadership


def test_whoever_asks_first_leads(store: Store, run: Run) -> None:
    held = run(store.lead("cp-1", TTL, NOW))
    assert (held.leader, held.until) == ("cp-1", NOW + TTL)
    assert held.generation > 0


def test_whoever_asks_second_is_told_who_leads(store: Store, run: Run) -> None:
    first = run(store.lead("cp-1", TTL, NOW))
    assert run(store.lead("cp-2", TTL, NOW + TTL - 1)) == first


def test_a_leader_that_asks_in_time_stays_under_the_same_generation(store: Store, run: Run) -> None:
    first = run(store.lead("cp-1", TTL, NOW))
    again = run(store.lead("cp-1", TTL, NOW + TTL - 1))
    assert again == Leadership("cp-1", first.generation, NOW + 2 * TTL - 1)
    assert run(store.lead("cp-2", TTL, NOW + TTL)).leader == "cp-1"


def test_a_leadership_that_ran_out_is_taken_over_under_a_higher_generation(store: Store, run: Run) -> None:
    first = run(store.lead("cp-1", TTL, NOW))
    second = run(store.lead("cp-2", TTL, NOW + TTL))
    assert second.leader == "cp-2"
    assert second.generation > first.generation
    assert run(store.lead("cp-1", TTL, NOW + TTL)) == second


def test_a_leader_that_comes_back_too_late_is_a_new_leader(store: Store, run: Run) -> None:
    """It may have missed what another did in between."""
    first = led(store, run)
    assert led(store, run, now=NOW + TTL) > first


def test_the_generation_only_rises(store: Store, run: Run) -> None:
    seen = [led(store, run, f"cp-{number % 3}", NOW + number * TTL // 2) for number in range(20)]
    assert seen == sorted(seen)
    assert len(set(seen)) > 5


# appending


def test_what_is_appended_is_read_back_in_order(store: Store, run: Run) -> None:
    leader = led(store, run)
    assert run(store.append(leader, 0, entries(1, 2))) == 2
    assert run(store.append(leader, 2, entries(3))) == 3
    assert run(store.read()) == entries(1, 2, 3)


def test_the_journal_can_be_read_from_anywhere(store: Store, run: Run) -> None:
    run(store.append(led(store, run), 0, entries(1, 2, 3)))
    assert run(store.read(1)) == entries(2, 3)
    assert run(store.read(3)) == ()


def test_every_kind_of_entry_comes_back_as_it_was(store: Store, run: Run) -> None:
    verdict = Verdict(Level.SUSPECT, "late: ask others", Evidence(silent_ms=2_300), NOW)
    terminate = do.TerminateNode(node="n1", why="it has been dead for too long", cause="silent")
    written: tuple[Entry, ...] = (
        ev.PolicyApplied(at=NOW, policy=Policy()),
        ev.PoolApplied(at=NOW, pool=pool(labels={"gpu": "yes"}, taints=("spot",))),
        ev.WorkloadApplied(at=NOW, workload=Workload("gang", Training(2, 4), after=("data",))),
        ev.NodeJudged(at=NOW, node="n1", verdict=verdict, heard_at=NOW - 2_300),
        ev.ReplicaEnded(at=NOW, replica="job/0.1", node="n1", how=ev.Ended.FENCED, why="größer ≠ ok"),
        Plan(1, NOW, (terminate,), (Held(terminate, "brake on fleet"),)),
    )
    run(store.append(led(store, run), 0, written))
    assert run(store.read()) == written


def test_an_empty_append_changes_nothing(store: Store, run: Run) -> None:
    leader = led(store, run)
    run(store.append(leader, 0, entries(1)))
    assert run(store.append(leader, 1, ())) == 1
    assert run(store.read()) == entries(1)


def test_what_was_read_does_not_change_when_more_is_written(store: Store, run: Run) -> None:
    leader = led(store, run)
    run(store.append(leader, 0, entries(1)))
    before = run(store.read())
    run(store.append(leader, 1, entries(2)))
    assert before == entries(1)


def test_a_leader_of_yesterday_is_fenced(store: Store, run: Run) -> None:
    old = led(store, run)
    run(store.append(old, 0, entries(1)))
    new = led(store, run, "cp-2", NOW + TTL)
    with pytest.raises(Fenced):
        run(store.append(old, 1, entries(2)))
    assert run(store.read()) == entries(1)
    assert run(store.append(new, 1, entries(3))) == 2


def test_a_generation_that_nobody_was_given_is_fenced(store: Store, run: Run) -> None:
    leader = led(store, run)
    with pytest.raises(Fenced):
        run(store.append(leader + 1, 0, entries(1)))
    assert run(store.read()) == ()


@pytest.mark.parametrize("expected", [0, 1, 3, 99])
def test_a_leader_that_has_not_read_everything_is_fenced(store: Store, run: Run, expected: int) -> None:
    leader = led(store, run)
    run(store.append(leader, 0, entries(1, 2)))
    with pytest.raises(Fenced):
        run(store.append(leader, expected, entries(3)))
    assert run(store.read()) == entries(1, 2)


# failing


def test_a_lost_write_is_an_unknown_outcome_and_can_be_repeated(rig: Rig, run: Run) -> None:
    leader = led(rig.store, run)
    run(rig.store.append(leader, 0, entries(1)))
    rig.lose_next_write()
    with pytest.raises(OutcomeUnknown):
        run(rig.store.append(leader, 1, entries(2, 3)))
    assert run(rig.store.read()) == entries(1)
    assert run(rig.store.append(leader, 1, entries(2, 3))) == 3


def test_a_lost_answer_is_an_unknown_outcome_and_repeating_it_doubles_nothing(rig: Rig, run: Run) -> None:
    leader = led(rig.store, run)
    rig.lose_next_answer()
    with pytest.raises(OutcomeUnknown):
        run(rig.store.append(leader, 0, entries(1, 2)))
    with pytest.raises(Fenced):
        run(rig.store.append(leader, 0, entries(1, 2)))
    assert run(rig.store.read()) == entries(1, 2)


@pytest.mark.parametrize("call", ["lead", "append", "read"])
def test_a_store_that_is_down_says_so(rig: Rig, run: Run, call: str) -> None:
    leader = led(rig.store, run)
    calls: dict[str, Callable[[], object]] = {
        "lead": lambda: run(rig.store.lead("cp-1", TTL, NOW)),
        "append": lambda: run(rig.store.append(leader, 0, entries(1))),
        "read": lambda: run(rig.store.read()),
    }
    rig.go_down()
    with pytest.raises(Unreachable):
        calls[call]()
    assert issubclass(Unreachable, PortError)


def test_an_outage_loses_no_acknowledged_entry_and_no_leadership(rig: Rig, run: Run) -> None:
    leader = led(rig.store, run)
    run(rig.store.append(leader, 0, entries(1, 2)))
    rig.go_down()
    with pytest.raises(Unreachable):
        run(rig.store.append(leader, 2, entries(3)))
    rig.come_back()
    assert run(rig.store.read()) == entries(1, 2)
    assert run(rig.store.append(leader, 2, entries(3))) == 3


def test_a_fenced_leader_does_not_use_up_the_failure_of_another(rig: Rig, run: Run) -> None:
    old = led(rig.store, run)
    new = led(rig.store, run, "cp-2", NOW + TTL)
    rig.lose_next_write()
    with pytest.raises(Fenced):
        run(rig.store.append(old, 0, entries(1)))
    with pytest.raises(OutcomeUnknown):
        run(rig.store.append(new, 0, entries(2)))
