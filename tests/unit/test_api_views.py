"""How the API shows the world, where it takes more than copying: counts, reasons, what is left out."""

import asyncio

import pytest
from msgspec.structs import replace

from holdfast.api import problems, reads, views
from holdfast.api.tally import Tally
from holdfast.core import spelling
from holdfast.core.state import fold
from holdfast.model.event import WorkloadApplied
from holdfast.model.node import NodeState
from holdfast.model.replica import Phase, Role, Slot, State
from holdfast.model.verdict import Level
from holdfast.model.workload import Needs, Service, Spread, Sweep, Training, Workload
from holdfast.model.world import World
from holdfast.wire.messages import Used
from tests.build import needs, node, run, world
from tests.play import Play

NOW = 100_000


def sight(of: World, used: Used | None = None) -> views.Sight:
    return views.Sight(of, None, lambda name: used, NOW)


def service(replicas: int) -> Workload:
    return Workload("web", Service(replicas))


def fleet(workload: Workload, *states: State) -> World:
    """A node for each replica, and these states of them."""
    made = world([node(f"n{number}") for number in range(len(states))])
    for number, state in enumerate(states):
        run(made, workload, [f"n{number}"], state=state)
    made.workloads[workload.name] = workload
    return made


def seat(of: World, index: int, phase: Phase, why: str = "", role: Role = Role.ACTIVE) -> None:
    slot = Slot(f"web/{'s' if role is Role.STANDBY else ''}{index}", "web", index, role, phase, why=why)
    of.slots[slot.id] = slot
    of.of_workload.setdefault("web", {})[slot.id] = None


@pytest.mark.parametrize(
    ("workload", "states", "why"),
    [
        (service(2), [State.READY, State.READY], ""),
        (service(2), [State.READY, State.STARTING], "1 starting"),
        (service(3), [State.READY, State.PLACED], "1 starting, 1 waiting for a node"),
        (service(2), [State.READY, State.LOST], "1 waiting for a node"),
        (replace(service(2), paused=True), [State.STOPPING], "paused"),
        (Workload("web", Sweep(100, 2)), [State.READY, State.READY], ""),
        (Workload("web", Sweep(100, 4)), [State.READY, State.READY], "2 waiting for a node"),
        (Workload("web", Sweep(100)), [State.READY], "99 waiting for a node"),
    ],
)
def test_a_workload_says_what_keeps_it_from_being_as_wanted(
    workload: Workload, states: list[State], why: str
) -> None:
    assert Tally(fleet(workload, *states), workload, NOW).why() == why


def test_copies_that_are_to_be_spread_and_stand_on_one_node_are_not_as_wanted() -> None:
    made = world([node("n1"), node("n2")])
    run(made, service(2), ["n1", "n1"], state=State.READY)
    made.workloads["web"] = service(2)
    apart = replace(service(2), needs=Needs(spread=Spread.NONE))
    made.joined = 2
    assert Tally(made, service(2), NOW).why() == "all 2 copies are on n1"
    assert Tally(made, apart, NOW).why() == "", "they need not be spread"
    made.joined = 1
    assert Tally(made, service(2), NOW).why() == "", "there is nowhere else"


def test_seats_that_were_given_up_and_seats_that_wait_say_why() -> None:
    made = fleet(service(3), State.READY)
    seat(made, 1, Phase.FAILED, "exit code 1")
    seat(made, 2, Phase.OPEN, "n7 was lost")
    tally = Tally(made, service(3), NOW)
    assert (tally.ready, tally.failed, tally.wanted) == (1, 1, 3)
    assert tally.why() == "1 gave up (exit code 1), 1 waiting for a node (n7 was lost)"


def test_a_gang_that_may_grow_waits_for_nobody() -> None:
    play = Play(can_launch=False)
    play.join("a", "b")
    training = Workload("web", Training(2, 3), needs(cpu=8))
    play.apply(training)
    play.obey()
    assert Tally(play.world, training, play.now).why().startswith("runs with 2, may grow to 3")
    short = Workload("web", Training(3, 3), needs(cpu=8))
    assert "waiting for a node" in Tally(play.world, short, play.now).why()


def test_a_seat_that_backs_off_does_not_wait_for_a_node() -> None:
    made = fleet(service(2), State.READY)
    seat(made, 1, Phase.OPEN, "exit code 3")
    made.slots["web/1"] = replace(made.slots["web/1"], failures=2, retry_at=NOW + 1)
    assert Tally(made, service(2), NOW).why() == "1 failed and will be tried again (exit code 3)"
    assert Tally(made, service(2), NOW + 1).why() == "1 waiting for a node (exit code 3)"


def test_a_new_version_that_fits_nowhere_is_told_though_all_copies_serve() -> None:
    play = Play(can_launch=False)
    play.join("a")
    play.apply(Workload("web", Service(1), needs(cpu=2)))
    play.obey()
    play.reapply("web", needs=needs(cpu=20), version=2)
    play.settle()
    told = Tally(play.world, play.world.workloads["web"], play.now).why()
    assert told.startswith(
        "1 still of an older version than 2 (version 2 cannot take over from version 1; no room:"
    )


def test_a_workload_that_waits_for_others_names_those_that_are_not_settled() -> None:
    made = World()
    for workload in (
        Workload("data", Service(1)),
        Workload("web", Service(1), after=("data", "gone")),
    ):
        fold.observe(made, WorkloadApplied(at=1, workload=workload))
    assert Tally(made, made.workloads["web"], NOW).why() == "waits for data, gone, which was deleted"


def test_standbys_are_counted_apart_and_done_seats_are_not_missing() -> None:
    made = fleet(Workload("web", Sweep(2)), State.READY)
    seat(made, 1, Phase.DONE)
    seat(made, 0, Phase.OPEN, role=Role.STANDBY)
    tally = Tally(made, made.workloads["web"], NOW)
    assert (tally.ready, tally.done, tally.standby, tally.why()) == (1, 1, 0, "")


def test_of_two_replicas_in_one_seat_the_one_that_serves_is_shown() -> None:
    made = fleet(service(1), State.STOPPING)
    old = made.replicas["web/0.1"]
    made.replicas["web/0.2"] = replace(old, id="web/0.2", epoch=2, state=State.READY)
    made.of_slot["web/0"]["web/0.2"] = None
    shown = views.workload_of(sight(made), "web")
    assert shown is not None
    assert [(each.replica, each.state) for each in shown.seats] == [("web/0.2", "ready")]


def test_a_list_shows_some_seats_of_a_large_workload_and_the_troubled_ones_first() -> None:
    made = fleet(service(100), *[State.READY] * 100)
    seat(made, 100, Phase.OPEN, "no room")
    seat(made, 101, Phase.FAILED, "exit code 1")
    seat(made, 102, Phase.DONE)
    short = views.workload_of(sight(made), "web")
    whole = views.workload_of(sight(made), "web", seats_max=0)
    assert short is not None
    assert whole is not None
    assert [each.slot for each in short.seats][:3] == ["web/101", "web/100", "web/0"]
    assert len(short.seats) == views.SEATS_LISTED_MAX
    assert [each.slot for each in whole.seats] == [f"web/{number}" for number in range(103)]
    assert (short.ready, short.failed) == (whole.ready, whole.failed) == (100, 1)


def test_what_is_free_is_what_is_not_promised_and_what_is_used_is_what_was_measured() -> None:
    made = fleet(Workload("web", Service(1), Needs()), State.READY)
    shown = views.node(sight(made, Used(250, 100, {"web/0.1": (200, 90)})), "n0", ["hot"])
    assert shown is not None
    assert (shown.capacity.cpu_milli, shown.free.cpu_milli) == (8_000, 7_000)
    assert shown.used is not None
    assert (shown.used.cpu_milli, shown.used.memory_mib) == (250, 100)
    assert shown.findings == ["hot"]
    used = Used(250, 100, {"web/0.1": (200, 90)}, {"web/0.1": 400})
    replica = views.replica_of(sight(made, used), "web/0.1")
    assert replica is not None
    assert replica.used is not None
    assert (replica.used.cpu_milli, replica.used.memory_mib, replica.used.gpu_milli) == (200, 90, 400)


def test_what_has_gone_meanwhile_is_left_out() -> None:
    made = fleet(service(1), State.READY)
    assert views.node(sight(made), "gone", []) is None
    assert views.workload_of(sight(made), "gone") is None
    assert views.replica_of(sight(made), "gone/0.1") is None


async def test_others_run_while_a_long_list_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reads, "PART_S", 0.0)
    names = [str(number) for number in range(30)]
    made_so_far = 0
    seen = []

    def make(name: str) -> str | None:
        nonlocal made_so_far
        made_so_far += 1
        return None if name == "7" else name

    async def look() -> None:
        while made_so_far < len(names):
            seen.append(made_so_far)
            await asyncio.sleep(0)

    async with asyncio.TaskGroup() as group:
        group.create_task(look())
        made = await reads.in_parts(names, make)
    assert made == [name for name in names if name != "7"]
    assert set(range(1, 30)) <= set(seen)


def test_a_misspelt_name_is_compared_with_those_that_begin_like_it() -> None:
    names = [f"{letter}-{number:05d}" for letter in "abc" for number in range(20_000)]
    compared = spelling.worth_comparing("b-1234x", names)
    assert len(compared) == spelling.COMPARED_MAX
    assert {name[:2] for name in compared} == {"b-"}
    assert problems.unknown("node", "b-1234x", names).hint.startswith("Did you mean: b-")
    few = problems.unknown("node", "web1", ["web-1", "db-1"])
    assert few.hint == "Did you mean: web-1"


@pytest.mark.parametrize(
    ("level", "state", "shown"),
    [
        (Level.ALIVE, NodeState.READY, "ready"),
        (Level.SUSPECT, NodeState.READY, "ready"),
        (Level.UNREACHABLE, NodeState.READY, "unreachable"),
        (Level.DEAD, NodeState.READY, "dead"),
        (Level.DEAD, NodeState.DRAINING, "dead"),
        (Level.DEAD, NodeState.LAUNCHING, "launching"),
        (Level.DEAD, NodeState.TERMINATING, "terminating"),
    ],
)
def test_the_state_of_a_dead_node_is_dead(level: Level, state: NodeState, shown: str) -> None:
    """`state: ready` is what a script goes by that reads no further."""
    made = node("n1")
    made = replace(made, state=state, joined_at=1, verdict=replace(made.verdict, level=level))
    found = views.node(sight(world([made])), "n1", [])
    assert found is not None
    assert (found.state, found.lifecycle, found.verdict) == (shown, state, level)
