"""What deserves a look: everything noted, everything whose time has come, and nothing else."""

import random

from holdfast.model.agenda import KINDS, Agenda
from holdfast.model.units import NEVER


def looked(agenda: Agenda, now: int) -> dict[str, list[str]]:
    return {kind: list(names) for kind, names in agenda.look(now).items() if names}


def test_an_empty_agenda_is_quiet() -> None:
    agenda = Agenda()
    assert agenda.quiet(NEVER - 1)
    assert agenda.next_due() == NEVER
    assert looked(agenda, NEVER - 1) == {}


def test_what_was_noted_is_looked_at_once_and_in_the_order_of_the_notes() -> None:
    agenda = Agenda()
    for name in ("b", "a", "c", "a"):
        agenda.note("node", name)
    assert not agenda.quiet(0)
    assert looked(agenda, 0) == {"node": ["b", "a", "c"]}


def test_every_kind_can_be_noted() -> None:
    agenda = Agenda()
    for kind in KINDS:
        agenda.note(kind, "x")
    assert looked(agenda, 0) == {kind: ["x"] for kind in KINDS}


def test_a_time_is_ripe_when_it_has_come_and_not_before() -> None:
    agenda = Agenda()
    agenda.at(100, "slot", "s")
    assert agenda.quiet(99)
    assert looked(agenda, 99) == {}
    assert not agenda.quiet(100)
    assert looked(agenda, 100) == {"slot": ["s"]}
    assert agenda.next_due() == 100


def test_a_time_in_the_past_is_ripe_at_once() -> None:
    agenda = Agenda()
    agenda.at(5, "node", "late")
    assert looked(agenda, 10) == {"node": ["late"]}


def test_never_is_not_noted() -> None:
    agenda = Agenda()
    agenda.at(NEVER, "node", "a")
    assert agenda.due == []


def test_what_is_ripe_comes_in_the_order_of_its_times() -> None:
    agenda = Agenda()
    for when, name in ((30, "c"), (10, "a"), (20, "b"), (20, "a2")):
        agenda.at(when, "node", name)
    assert looked(agenda, 30) == {"node": ["a", "a2", "b", "c"]}


def test_looking_changes_nothing() -> None:
    agenda = Agenda()
    agenda.note("pool", "p")
    agenda.at(1, "node", "n")
    first = agenda.look(1)
    first["node"]["planted"] = None
    first["pool"].clear()
    assert looked(agenda, 1) == {"node": ["n"], "pool": ["p"]}


def test_settling_forgets_what_was_ripe_and_keeps_the_rest() -> None:
    agenda = Agenda()
    agenda.note("pool", "p")
    agenda.room_freed = True
    agenda.at(10, "node", "now")
    agenda.at(11, "node", "soon")
    agenda.settle(10)
    assert agenda.quiet(10)
    assert not agenda.room_freed
    assert looked(agenda, 11) == {"node": ["soon"]}


def test_freed_room_alone_is_a_reason_to_look() -> None:
    agenda = Agenda()
    agenda.room_freed = True
    assert not agenda.quiet(0)


def test_the_ripe_are_found_among_many() -> None:
    """The walk over the top of the heap finds exactly those that a search of everything would."""
    dice = random.Random(3)
    agenda = Agenda()
    times = [(dice.randrange(1000), f"n{number}") for number in range(500)]
    for when, name in times:
        agenda.at(when, "node", name)
    for now in (0, 1, 250, 999):
        assert list(agenda.look(now)["node"]) == [name for when, name in sorted(times) if when <= now]
        agenda.settle(now)
        times = [(when, name) for when, name in times if when > now]
        assert agenda.next_due() == min((when for when, _ in times), default=NEVER)
