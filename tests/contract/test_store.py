"""What every store must do. To hold a new adapter to it, add a rig for it to `STORES`."""

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from holdfast.adapters.stores.store import SqlStore
from holdfast.core.explain.history import lines
from holdfast.core.turn import Entry
from holdfast.model import action as do
from holdfast.model import event as ev
from holdfast.model.plan import Held, Plan
from holdfast.model.policy import Policy
from holdfast.model.replica import Role
from holdfast.model.resources import Resources
from holdfast.model.told import Told
from holdfast.model.units import SECOND, Millis
from holdfast.model.verdict import Evidence, Level, Verdict
from holdfast.model.workload import Training, Workload
from holdfast.ports.errors import Fenced, NotFound, OutcomeUnknown, PortError, Unreachable
from holdfast.ports.store import ABSENT_MS, TAIL_COSTS, TAILS_BYTES_MAX, Leadership, Snapshot, Store, Tail
from holdfast.sim.twins.store import CrashPoint, SimStore
from tests.contract.conftest import Run
from tests.contract.databases import Failing, postgres_database, sqlite_database
from tests.play import pool
from tests.postgres import Postgres

NOW = 1_000_000
TTL = 60 * SECOND
SLACK = 20 * SECOND  # some stores keep real time: what must not run out gets this much


@dataclass
class Rig:
    """A fresh store and the ways to make it fail."""

    store: Store
    wait: Callable[[Millis], None]  # the store's clock goes on
    go_down: Callable[[], None]
    come_back: Callable[[], None]
    lose_next_write: Callable[[], None]  # the next append has no effect and is answered with an error
    lose_next_answer: Callable[[], None]  # the next append takes effect and is answered with an error


class Ground:
    """What a rig may be built on."""

    def __init__(self, request: pytest.FixtureRequest, run: Run) -> None:
        self.request, self.run = request, run


@contextmanager
def simulated(ground: Ground) -> Iterator[Rig]:
    clock = [NOW]
    store = SimStore(lambda: clock[0])
    yield Rig(
        store,
        wait=lambda ms: clock.__setitem__(0, clock[0] + ms),
        go_down=lambda: setattr(store, "down", True),
        come_back=lambda: setattr(store, "down", False),
        lose_next_write=lambda: setattr(store, "crash", CrashPoint.BEFORE),
        lose_next_answer=lambda: setattr(store, "crash", CrashPoint.AFTER),
    )


@contextmanager
def sqlite(ground: Ground) -> Iterator[Rig]:
    with sqlite_database(ground.run, ground.request.getfixturevalue("tmp_path")) as failing:
        yield over_sql(failing)


@contextmanager
def postgres(ground: Ground) -> Iterator[Rig]:
    server: Postgres = ground.request.getfixturevalue("server")
    with postgres_database(ground.run, server) as failing:
        yield over_sql(failing)


def over_sql(failing: Failing) -> Rig:
    return Rig(
        SqlStore(failing.database),
        failing.wait,
        failing.go_down,
        failing.come_back,
        failing.lose_next_write,
        failing.lose_next_answer,
    )


STORES: dict[str, Callable[[Ground], AbstractContextManager[Rig]]] = {
    "simulated": simulated,
    "sqlite": sqlite,
    "postgres": postgres,
}


@pytest.fixture(params=STORES)
def rig(request: pytest.FixtureRequest, run: Run) -> Iterator[Rig]:
    with STORES[request.param](Ground(request, run)) as made:
        yield made


@pytest.fixture
def store(rig: Rig) -> Store:
    return rig.store


def entry(number: int) -> ev.Event:
    return ev.LinkClosed(at=number, node=f"n{number}")


def entries(*numbers: int) -> tuple[Entry, ...]:
    return tuple(entry(number) for number in numbers)


def lead(store: Store, run: Run, name: str = "cp-1", mine: int = 0) -> Leadership:
    return run(store.lead(name, f"http://{name}", TTL, mine=mine))


def led(store: Store, run: Run, name: str = "cp-1") -> int:
    return lead(store, run, name).generation


def told(*written: Entry) -> list[Told]:
    """What a journal of these entries tells."""
    return [line for seq, one in enumerate(written, 1) for line in lines(seq, one)]


# leadership


def test_a_leadership_is_of_a_generation_above_what_was_asked_for(store: Store, run: Run) -> None:
    """Agents have obeyed leaders that a restored store does not know of."""
    assert lead(store, run).generation == 1
    above = run(store.lead("cp-1", "http://cp-1", TTL, 41, mine=1))
    assert (above.leader, above.generation, above.granted) == ("cp-1", 42, True)
    assert run(store.lead("cp-1", "http://cp-1", TTL, 41, 42)).generation == 42, "it is above: it goes on"
    with pytest.raises(Fenced):
        run(store.append(1, 0, ()))
    assert run(store.lead("cp-2", "http://cp-2", TTL, 99)).generation == 42, "another leads"


def test_at_first_nobody_leads(store: Store, run: Run) -> None:
    assert run(store.leader()) == Leadership("", 0, 0)


def test_whoever_asks_first_leads(store: Store, run: Run) -> None:
    held = lead(store, run)
    assert (held.leader, held.address, held.left_ms) == ("cp-1", "http://cp-1", TTL)
    assert held.generation > 0


def test_whoever_asks_second_is_told_who_leads(rig: Rig, run: Run) -> None:
    first = lead(rig.store, run)
    rig.wait(TTL - SLACK)
    second = lead(rig.store, run, "cp-2")
    assert (second.leader, second.generation, second.address) == ("cp-1", first.generation, "http://cp-1")
    assert 0 < second.left_ms <= SLACK


def test_who_leads_can_be_asked_without_leading(rig: Rig, run: Run) -> None:
    first = lead(rig.store, run)
    held = run(rig.store.leader())
    assert (held.leader, held.generation, held.address) == ("cp-1", first.generation, "http://cp-1")
    assert TTL - SLACK < held.left_ms <= TTL
    rig.wait(TTL)
    assert run(rig.store.leader()) == Leadership("cp-1", first.generation, 0, "http://cp-1")


def test_a_leader_that_asks_in_time_stays_under_the_same_generation(rig: Rig, run: Run) -> None:
    first = lead(rig.store, run)
    rig.wait(TTL - SLACK)
    assert lead(rig.store, run, mine=first.generation) == first
    rig.wait(TTL - SLACK)
    assert lead(rig.store, run, "cp-2").leader == "cp-1"


def test_a_leader_may_move_to_another_address(store: Store, run: Run) -> None:
    first = lead(store, run)
    run(store.lead("cp-1", "http://elsewhere", TTL, mine=first.generation))
    held = run(store.leader())
    assert (held.generation, held.address) == (first.generation, "http://elsewhere")


def test_another_control_plane_of_the_same_name_does_not_lead_beside_the_first(rig: Rig, run: Run) -> None:
    """Hosts that were made from one image may all be called the same."""
    first = lead(rig.store, run)
    assert first.granted
    second = run(rig.store.lead("cp-1", "http://elsewhere", TTL))
    assert not second.granted
    assert (second.generation, second.address) == (first.generation, "http://cp-1")
    rig.wait(TTL)
    heir = run(rig.store.lead("cp-1", "http://elsewhere", TTL))
    assert heir.granted
    assert heir.generation > first.generation
    assert not lead(rig.store, run, mine=first.generation).granted, "its time was over"


def test_a_leadership_that_ran_out_is_taken_over_under_a_higher_generation(rig: Rig, run: Run) -> None:
    first = lead(rig.store, run)
    rig.wait(TTL)
    second = lead(rig.store, run, "cp-2")
    assert (second.leader, second.address) == ("cp-2", "http://cp-2")
    assert second.generation > first.generation
    again = lead(rig.store, run)
    assert (again.leader, again.generation) == ("cp-2", second.generation)


def test_a_leader_that_comes_back_too_late_is_a_new_leader(rig: Rig, run: Run) -> None:
    """It may have missed what another did in between."""
    first = led(rig.store, run)
    rig.wait(TTL)
    assert led(rig.store, run) > first


def test_the_generation_only_rises(rig: Rig, run: Run) -> None:
    seen = []
    for number in range(20):
        seen.append(led(rig.store, run, f"cp-{number % 3}"))
        rig.wait(TTL // 2)
    assert seen == sorted(seen)
    assert len(set(seen)) > 5


def test_when_a_leader_resigns_another_leads_at_once(store: Store, run: Run) -> None:
    first = led(store, run)
    run(store.resign("cp-1", first))
    assert run(store.leader()).left_ms == 0
    second = lead(store, run, "cp-2")
    assert second.leader == "cp-2"
    assert second.generation > first


def test_a_leader_that_resigned_and_leads_again_is_a_new_leader(store: Store, run: Run) -> None:
    first = led(store, run)
    run(store.resign("cp-1", first))
    assert led(store, run) > first


@pytest.mark.parametrize(("name", "behind"), [("cp-2", 0), ("cp-1", 1), ("", 0)])
def test_only_the_leader_can_resign(store: Store, run: Run, name: str, behind: int) -> None:
    first = led(store, run)
    run(store.resign(name, first - behind))
    held = run(store.leader())
    assert (held.leader, held.generation) == ("cp-1", first)
    assert held.left_ms > 0


def test_to_resign_before_anybody_led_is_no_error(store: Store, run: Run) -> None:
    run(store.resign("cp-1", 0))
    assert lead(store, run).leader == "cp-1"


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
    assert run(store.read(7)) == ()


def test_as_much_of_the_journal_is_read_as_was_asked_for(store: Store, run: Run) -> None:
    run(store.append(led(store, run), 0, entries(1, 2, 3, 4)))
    assert run(store.read(0, 2)) == entries(1, 2)
    assert run(store.read(2, 2)) == entries(3, 4)
    assert run(store.read(3, 9)) == entries(4)
    assert run(store.read(4, 1)) == ()


def test_a_long_journal_is_read_in_one_piece(store: Store, run: Run) -> None:
    """Longer than any batch in which a store might fetch it."""
    written = entries(*range(1, 9_002))
    run(store.append(led(store, run), 0, written))
    assert run(store.read()) == written
    assert run(store.read(1, 8_500)) == written[1:8_501]


def test_who_asks_meanwhile_is_answered_while_the_journal_is_read(store: Store, run: Run) -> None:
    run(store.append(led(store, run), 0, entries(*range(1, 9_002))))

    async def both() -> tuple[int, Leadership]:
        read, held = await asyncio.gather(store.read(), store.leader())
        return len(read), held

    length, held = run(both())
    assert (length, held.leader) == (9_001, "cp-1")


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


def test_a_leader_of_yesterday_is_fenced(rig: Rig, run: Run) -> None:
    store = rig.store
    old = led(store, run)
    run(store.append(old, 0, entries(1)))
    rig.wait(TTL)
    new = led(store, run, "cp-2")
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


# snapshots


def test_at_first_there_is_no_snapshot(store: Store, run: Run) -> None:
    assert run(store.latest()) is None


def test_the_latest_snapshot_comes_back_as_it_was(store: Store, run: Run) -> None:
    leader = led(store, run)
    run(store.append(leader, 0, entries(1, 2, 3)))
    body = bytes(range(256)) * 8_000
    for snapshot in (Snapshot(1, b"one"), Snapshot(2, b""), Snapshot(3, body)):
        run(store.save(leader, snapshot))
        assert run(store.latest()) == snapshot
    assert run(store.read()) == entries(1, 2, 3)


def test_the_snapshot_before_another_can_be_had(store: Store, run: Run) -> None:
    generation = led(store, run)
    run(store.append(generation, 0, entries(1, 2, 3)))
    for length in (1, 3):
        run(store.save(generation, Snapshot(length, b"world")))
    assert run(store.latest(3)) == Snapshot(1, b"world")
    assert run(store.latest(1)) is None


def test_a_snapshot_saved_again_replaces_the_first(store: Store, run: Run) -> None:
    leader = led(store, run)
    run(store.append(leader, 0, entries(1)))
    run(store.save(leader, Snapshot(1, b"first")))
    run(store.save(leader, Snapshot(1, b"second")))
    assert run(store.latest()) == Snapshot(1, b"second")


def test_an_older_snapshot_does_not_become_the_latest(store: Store, run: Run) -> None:
    leader = led(store, run)
    run(store.append(leader, 0, entries(1, 2, 3)))
    run(store.save(leader, Snapshot(3, b"new")))
    run(store.save(leader, Snapshot(1, b"old")))
    assert run(store.latest()) == Snapshot(3, b"new")


def test_a_leader_of_yesterday_saves_no_snapshot(rig: Rig, run: Run) -> None:
    old = led(rig.store, run)
    run(rig.store.append(old, 0, entries(1)))
    rig.wait(TTL)
    led(rig.store, run, "cp-2")
    with pytest.raises(Fenced):
        run(rig.store.save(old, Snapshot(1, b"old")))
    assert run(rig.store.latest()) is None


def test_a_snapshot_of_more_than_the_journal_is_refused(store: Store, run: Run) -> None:
    leader = led(store, run)
    run(store.append(leader, 0, entries(1)))
    with pytest.raises(Fenced):
        run(store.save(leader, Snapshot(2, b"of the future")))
    assert run(store.latest()) is None


# history

DRAIN = do.DrainNode(node="n2", deadline=NOW, why="by hand")
PLACED = tuple(
    do.PlaceReplica(
        replica=f"web/{number}.1",
        slot=f"web/{number}",
        node="n1",
        epoch=1,
        role=Role.ACTIVE,
        needs=Resources(),
        exclusive=False,
        why="wanted",
    )
    for number in range(3)
)
STORY: tuple[Entry, ...] = (
    ev.NodeJoined(at=NOW, node="n1"),
    ev.NodeJoined(at=NOW + 1, node="n2"),
    Plan(1, NOW + 2, PLACED),
    ev.PoolListed(at=NOW + 3, pool="pool", nodes=("n1",), asked_at=NOW),  # nobody wants to read of it
    ev.ReplicaReady(at=NOW + 4, replica="web/0.1", node="n1"),
    Plan(2, NOW + 5, (), (Held(DRAIN, "brake on fleet"),)),
    ev.WorkloadDeleted(at=NOW + 6, workload="web", actor="alice"),
)


@pytest.fixture
def written(store: Store, run: Run) -> Store:
    leader = led(store, run)
    run(store.append(leader, 0, STORY[:2]))
    run(store.append(leader, 2, STORY[2:]))
    return store


def seqs(lines: tuple[Told, ...]) -> list[int]:
    return [line.seq for line in lines]


def test_an_empty_journal_tells_nothing(store: Store, run: Run) -> None:
    assert run(store.history()) == ()
    assert run(store.history(node="n1", since=3)) == ()


def test_history_tells_every_entry_in_order(written: Store, run: Run) -> None:
    assert list(run(written.history())) == told(*STORY)
    assert seqs(run(written.history())) == [1, 2, 3, 3, 3, 5, 6, 7]


def test_history_names_who_did_what_somebody_did(written: Store, run: Run) -> None:
    assert [line.actor for line in run(written.history())] == ["", "", "", "", "", "", "", "alice"]


def test_history_of_a_node_is_what_concerns_it(written: Store, run: Run) -> None:
    assert seqs(run(written.history(node="n1"))) == [1, 3, 3, 3, 5]
    assert seqs(run(written.history(node="n2"))) == [2, 6]
    assert run(written.history(node="n9")) == ()


def test_history_of_a_workload_is_what_concerns_it(written: Store, run: Run) -> None:
    assert seqs(run(written.history(workload="web"))) == [3, 3, 3, 5, 7]
    assert seqs(run(written.history(workload="web", node="n1"))) == [3, 3, 3, 5]


def test_history_can_be_had_between_two_entries(written: Store, run: Run) -> None:
    assert seqs(run(written.history(since=2))) == [3, 3, 3, 5, 6, 7]
    assert seqs(run(written.history(before=3))) == [1, 2]
    assert seqs(run(written.history(since=1, before=6))) == [2, 3, 3, 3, 5]
    assert run(written.history(since=7)) == ()


def test_history_can_be_had_between_two_instants(written: Store, run: Run) -> None:
    assert seqs(run(written.history(since_at=NOW + 2))) == [3, 3, 3, 5, 6, 7]
    assert seqs(run(written.history(since_at=NOW + 3, until_at=NOW + 5))) == [5]
    assert seqs(run(written.history(until_at=NOW + 2))) == [1, 2]
    assert seqs(run(written.history(since_at=NOW + 2, limit=1))) == [7], "the newest of them"
    assert seqs(run(written.history(since_at=NOW + 2, before=6, limit=1))) == [5]
    assert seqs(run(written.history(node="n1", since_at=NOW + 1, until_at=NOW + 99))) == [3, 3, 3, 5]
    assert run(written.history(since_at=NOW + 7)) == ()
    assert run(written.history(until_at=NOW)) == ()


def test_of_too_much_history_the_newest_is_told(written: Store, run: Run) -> None:
    assert seqs(run(written.history(limit=2))) == [6, 7]
    assert seqs(run(written.history(before=6, limit=1))) == [5]
    assert seqs(run(written.history(since=1, before=7, limit=2))) == [5, 6]
    assert seqs(run(written.history(node="n1", limit=1))) == [5]


def test_who_follows_history_gets_the_oldest_first(written: Store, run: Run) -> None:
    assert seqs(run(written.history(since=4, limit=2))) == [5, 6]
    assert seqs(run(written.history(since=6, limit=2))) == [7]


def test_the_lines_of_one_entry_are_not_torn_apart(written: Store, run: Run) -> None:
    assert seqs(run(written.history(limit=4))) == [3, 3, 3, 5, 6, 7]
    assert seqs(run(written.history(since=1, limit=2))) == [2, 3, 3, 3]


def test_history_followed_from_page_to_page_misses_nothing(written: Store, run: Run) -> None:
    seen: list[Told] = list(run(written.history(before=2)))
    for _ in range(len(STORY)):
        seen += run(written.history(since=seen[-1].seq, limit=1))
    assert seen == told(*STORY)


def test_what_was_not_journalled_is_not_told(rig: Rig, run: Run) -> None:
    leader = led(rig.store, run)
    rig.lose_next_write()
    with pytest.raises(OutcomeUnknown):
        run(rig.store.append(leader, 0, STORY))
    with pytest.raises(Fenced):
        run(rig.store.append(leader, 5, STORY))
    assert run(rig.store.history()) == ()


@pytest.mark.parametrize("text", ["it said \0 and went", "größer ≠ \U0001f419", "'; DROP TABLE journal; --"])
def test_a_programs_last_words_may_be_anything(store: Store, run: Run, text: str) -> None:
    last = ev.ReplicaEnded(at=NOW, replica="job/0.1", node="n1", how=ev.Ended.FAILED, why=text)
    assert run(store.append(led(store, run), 0, (last,))) == 1
    assert run(store.read()) == (last,)
    (line,) = run(store.history(workload="job"))
    assert text.rpartition(" ")[2] in line.text


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


CALLS: dict[str, Callable[[Store], Coroutine[Any, Any, object]]] = {
    "lead": lambda store: store.lead("cp-1", "", TTL),
    "resign": lambda store: store.resign("cp-1", 1),
    "leader": lambda store: store.leader(),
    "append": lambda store: store.append(1, 0, entries(1)),
    "read": lambda store: store.read(),
    "save": lambda store: store.save(1, Snapshot(0, b"")),
    "latest": lambda store: store.latest(),
    "history": lambda store: store.history(),
    "keep_tails": lambda store: store.keep_tails((tail("web/0.1"),)),
    "tail": lambda store: store.tail("web/0.1"),
}


@pytest.mark.parametrize("call", CALLS)
def test_a_store_that_is_down_says_so_and_answers_when_it_is_back(rig: Rig, run: Run, call: str) -> None:
    assert led(rig.store, run) == 1
    rig.go_down()
    with pytest.raises(Unreachable):
        run(CALLS[call](rig.store))
    assert issubclass(Unreachable, PortError)
    rig.come_back()
    run(CALLS[call](rig.store))


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
    rig.wait(TTL)
    new = led(rig.store, run, "cp-2")
    rig.lose_next_write()
    with pytest.raises(Fenced):
        run(rig.store.append(old, 0, entries(1)))
    with pytest.raises(OutcomeUnknown):
        run(rig.store.append(new, 0, entries(2)))


# who is there


def test_control_planes_learn_of_one_another_and_forget_who_stays_away(rig: Rig, run: Run) -> None:
    assert run(rig.store.announce("cp-2", "http://two")) == ("http://two",)
    assert run(rig.store.announce("cp-1", "http://one")) == ("http://one", "http://two")
    rig.wait(ABSENT_MS - SLACK)
    assert run(rig.store.announce("cp-1", "http://uno")) == ("http://uno", "http://two")
    rig.wait(2 * SLACK)
    assert run(rig.store.announce("cp-1", "http://uno")) == ("http://uno",)


# the last words of replicas


def tail(replica: str, data: bytes = b"bye\n", at: int = NOW) -> Tail:
    return Tail(replica, "n1", data, written=10_000, at=at)


def test_the_end_of_what_a_replica_wrote_comes_back_as_it_was(store: Store, run: Run) -> None:
    said = (tail("web/0.1", bytes(range(256))), tail("job/0.1", b""))
    run(store.keep_tails(said))
    assert [run(store.tail(each.replica)) for each in said] == list(said)
    assert run(store.tail("web/0.2")) is None
    run(store.keep_tails((tail("web/0.1", b"again"),)))
    assert run(store.tail("web/0.1")) == tail("web/0.1", b"again")


def test_a_great_many_that_end_together_are_kept_as_far_as_there_is_room(store: Store, run: Run) -> None:
    # already the first are more values than a statement may have, and more than there is room for
    at_once, many = 17_500, 35_000
    for first in range(0, many, at_once):
        numbers = range(first, first + at_once)
        run(store.keep_tails(tuple(tail(f"web/{number}.1", b"x", at=NOW + number) for number in numbers)))
    assert at_once > TAILS_BYTES_MAX // TAIL_COSTS
    assert run(store.tail(f"web/{many - 1}.1")) is not None
    assert run(store.tail("web/0.1")) is None


def test_of_too_much_that_replicas_wrote_the_oldest_goes(store: Store, run: Run) -> None:
    for number in range(20):
        run(store.keep_tails((tail(f"web/0.{number}", b"x" * (TAILS_BYTES_MAX // 16), at=NOW + number),)))
    there = [run(store.tail(f"web/0.{number}")) is not None for number in range(20)]
    assert there == sorted(there), "the newest are kept"
    assert 12 <= sum(there) <= 16


def test_what_replicas_wrote_is_forgotten_with_the_history_of_that_time(store: Store, run: Run) -> None:
    run(store.keep_tails((tail("old/0.1", at=5), tail("new/0.1", at=7))))
    run(store.prune(6))
    assert run(store.tail("old/0.1")) is None
    assert run(store.tail("new/0.1")) is not None


# forgetting


def test_what_two_snapshots_cover_can_be_forgotten_and_nothing_else(store: Store, run: Run) -> None:
    leader = led(store, run)
    run(store.append(leader, 0, entries(1, 2, 3, 4, 5, 6)))
    assert run(store.prune(100)) == 0, "without snapshots all of it is needed"
    run(store.save(leader, Snapshot(4, b"4")))
    assert run(store.prune(100)) == 0, "one snapshot may be damaged"
    run(store.save(leader, Snapshot(6, b"6")))
    assert run(store.prune(3)) == 2, "the younger entries are kept"
    assert run(store.prune(100)) == 1, "and the last entry before the older snapshot"
    assert run(store.read(3)) == entries(4, 5, 6)
    with pytest.raises(NotFound):
        run(store.read(0))
    assert [line.seq for line in run(store.history(limit=100))] == [4, 5, 6]
    assert run(store.append(leader, 6, entries(7))) == 7


def test_history_of_a_project_has_its_own_lines_and_verdicts_on_nodes(store: Store, run: Run) -> None:
    run(store.append(led(store, run), 0, STORY, {"web": "vision"}))
    own = run(store.history(project="vision"))
    assert {line.workload for line in own if line.workload} == {"web"}
    assert {line.kind for line in own if not line.workload} <= {"verdict"}
    assert {line.project for line in own if line.workload} == {"vision"}
    assert all(not line.workload for line in run(store.history(project="default")))
    assert all(not line.workload for line in run(store.history(project="sound")))
    assert own
