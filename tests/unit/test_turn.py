"""One turn of the loop: journal first, act after; and a crash between any two steps loses and doubles
nothing."""

from typing import Any

import pytest
from msgspec.structs import replace

from holdfast.core import turn as loop
from holdfast.core.agent.desired_set import desired_set
from holdfast.core.turn import Append, Entry, Mind, Perform, Send, Step, resume, touched, turn
from holdfast.model import action as do
from holdfast.model import event as ev
from holdfast.model.node import NodeState
from holdfast.model.place import Place
from holdfast.model.plan import Plan
from holdfast.model.policy import Detection, Policy
from holdfast.model.units import MINUTE, NEVER, SECOND
from holdfast.model.verdict import Level
from holdfast.model.workload import Job, Service, Workload
from holdfast.model.world import World
from tests.build import needs
from tests.play import BIG, START, pool


def joined(name: str, at: int = START, **more: Any) -> ev.NodeJoined:
    there = Place("prov", "here", name, name)
    return ev.NodeJoined(at=at, node=name, pool="pool", offer="std", place=there, capacity=BIG, **more)


def opening(*nodes: str, **rules: Any) -> list[ev.Event]:
    return [
        ev.LeaderChanged(at=START, leader="cp-1", generation=1),
        ev.PoolApplied(at=START, pool=pool(**rules)),
        *(joined(name) for name in nodes),
    ]


class Host:
    """Keeps a journal, performs, sends; dies before a step of our choice."""

    def __init__(self, journal: list[Entry] | None = None) -> None:
        self.journal: list[Entry] = list(journal or ())
        self.mind = Mind.from_journal(self.journal)
        self.performed: list[do.Action] = []
        self.sent: list[str] = []
        self.steps: list[Step] = []

    def turn(self, *inbox: ev.Event, now: int = START, dies_before: int = NEVER) -> "Host":
        for number, step in enumerate(turn(self.mind, inbox, now)):
            if number == dies_before:
                break
            self.do(step)
        return self

    def do(self, step: Step) -> None:
        self.steps.append(step)
        match step:
            case Append(entries=entries):
                self.journal += entries
            case Perform(action=action):
                self.performed.append(action)
            case Send(node=node):
                self.sent.append(node)

    def rest(self, now: int) -> "Host":
        """Turns until there is nothing left to do."""
        for _ in range(20):
            before = len(self.steps)
            self.turn(now=now)
            if len(self.steps) == before:
                return self
        raise AssertionError("it never comes to rest")

    def succeed(self) -> "Host":
        """Another control plane finds the journal and repeats what was not confirmed."""
        heir = Host(self.journal)
        for step in resume(heir.mind.world):
            heir.do(step)
        return heir

    @property
    def world(self) -> World:
        return self.mind.world


def plans(entries: list[Entry]) -> list[Plan]:
    return [entry for entry in entries if isinstance(entry, Plan)]


def launches(host: Host) -> list[str]:
    return [action.node for action in host.performed if isinstance(action, do.LaunchNode)]


def test_the_journal_comes_before_everything_else() -> None:
    host = Host().turn(*opening("a", min=3))
    assert isinstance(host.steps[0], Append)
    assert [type(step) for step in host.steps[1:]].count(Append) == 0
    assert len(launches(host)) == 2


def test_events_and_plan_are_one_append_the_plan_last() -> None:
    events = opening(min=1)
    host = Host().turn(*events)
    (append,) = (step for step in host.steps if isinstance(step, Append))
    assert list(append.entries[:-1]) == events
    assert isinstance(append.entries[-1], Plan)


def test_a_quiet_turn_has_no_steps() -> None:
    host = Host().turn(*opening("a")).rest(START)
    before = len(host.steps)
    host.turn(now=START + 1)
    assert len(host.steps) == before


def test_an_event_that_leads_to_nothing_is_journalled_without_a_plan() -> None:
    host = Host().turn(*opening("a")).rest(START)
    closed = ev.WorkloadDeleted(at=START, workload="nothing")
    host.turn(closed)
    assert host.steps[-1] == Append((closed,))


def test_a_look_in_vain_goes_with_the_next_append_and_asks_for_none() -> None:
    host = Host().turn(*opening("a")).rest(START)
    first, second = joined("b"), joined("c")
    host.turn(first)
    assert host.steps[-1] == Append((first,))
    before = len(host.steps)
    host.turn(now=START + 1)
    assert len(host.steps) == before
    host.turn(second, now=START + 2)
    append = host.steps[-1]
    assert isinstance(append, Append)
    vain, then = append.entries
    assert isinstance(vain, Plan)
    assert (vain.at, vain.actions, then) == (START, (), second)


def test_looks_in_vain_are_told_by_the_next_that_sees_as_much_unless_they_note_when_to_look_again() -> None:
    host = Host().turn(*opening("a")).rest(START)
    host.mind.vain.clear()
    for passed, kind, name in (
        (1, "node", "a"),
        (2, "node", "a"),
        (3, "fleet", "balance"),
        (4, "node", "a"),
        (5, "pool", "pool"),
        (6, "node", "a"),
        (7, "node", "a"),
        (8, "node", "b"),
    ):
        host.world.agenda.note(kind, name)
        host.turn(now=START + passed)
    assert [plan.at - START for plan in host.mind.vain] == [2, 3, 4, 5, 7, 8]


def test_only_what_has_a_hand_is_performed() -> None:
    host = Host().turn(*opening("a", "b"), ev.WorkloadApplied(at=START, workload=Workload("web", Service(1))))
    host.rest(START)
    kinds = {type(action) for plan in plans(host.journal) for action in plan.actions}
    assert do.PlaceReplica in kinds
    assert {type(action) for action in host.performed} == {do.ListPool}


def test_performed_actions_are_numbered_by_their_plan() -> None:
    host = Host().turn(*opening(min=2))
    (plan,) = plans(host.journal)
    for step in host.steps:
        if isinstance(step, Perform):
            number, index = step.id.removeprefix("p").split(".")
            assert int(number) == plan.number
            assert plan.actions[int(index)] == step.action


def test_a_node_whose_set_changed_is_sent_it_after_the_append() -> None:
    host = Host().turn(*opening("a", "b")).rest(START)
    host.turn(ev.WorkloadApplied(at=START, workload=Workload("web", Service(1))))
    host.rest(START)
    (replica,) = host.world.replicas.values()
    assert host.sent == [replica.node]
    assert isinstance(host.steps[-1], Send)
    assert desired_set(host.world, replica.node, START).wanted[0].replica == replica.id


# refused appends and refused actions


def test_a_refused_append_performs_nothing_and_is_not_accepted() -> None:
    """We are not the leader any more: the generator is dropped where it stands."""
    host = Host()
    steps = turn(host.mind, opening(min=2), START)
    assert isinstance(next(steps), Append)
    del steps
    assert host.world.nodes == {}
    assert (host.performed, host.world.plans) == ([], 0)


def test_a_refused_action_is_neither_journalled_nor_performed_and_is_remembered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    wrong = do.TerminateNode(node="a", why="a bug")
    fine = do.ListPool(pool="pool", why="fine")
    host = Host().turn(*opening("a", can_launch=False)).rest(START)
    host.turn(ev.WorkloadApplied(at=START, workload=Workload("web", Service(1)))).rest(START)
    monkeypatch.setattr(loop, "decide", lambda world, now: Plan(world.plans + 1, now, (wrong, fine)))
    host.turn(now=START + MINUTE)
    assert plans(host.journal)[-1].actions == (fine,)
    assert host.performed[-1] == fine
    assert host.world.nodes["a"].state is NodeState.READY
    assert [refusal.action for refusal in host.mind.refused] == [wrong]


# crashes


def busy() -> tuple[list[Entry], list[ev.Event], int]:
    """A journal, and an inbox that leads to launches, a termination, a stop and a placement in one turn."""
    host = Host().turn(*opening("a", "b", "c", min=3, standby=1)).rest(START)
    web, job = Workload("web", Service(1), needs(cpu=8)), Workload("job", Job(), needs(cpu=8))
    host.turn(*(ev.WorkloadApplied(at=START, workload=each) for each in (web, job))).rest(START)
    now = START + MINUTE
    inbox: list[ev.Event] = [
        ev.NodeSaidGoodbye(at=now, node=next(iter(host.world.replicas.values())).node),
        ev.WorkloadDeleted(at=now, workload="job"),
        ev.WorkloadApplied(at=now, workload=Workload("more", Service(3), needs(cpu=4))),
    ]
    return host.journal, inbox, now


def undisturbed() -> Host:
    journal, inbox, now = busy()
    return Host(journal).turn(*inbox, now=now)


STEPS = len(undisturbed().steps)


def test_the_busy_turn_is_busy() -> None:
    kinds = [type(step) for step in undisturbed().steps]
    assert (kinds.count(Append), kinds.count(Perform) >= 3, kinds.count(Send) >= 1) == (1, True, True)


@pytest.mark.parametrize("number", range(STEPS + 1))
def test_a_crash_at_any_step_loses_nothing_and_doubles_nothing(number: int) -> None:
    journal, inbox, now = busy()
    whole = Host(journal).turn(*inbox, now=now)
    crashed = Host(journal).turn(*inbox, now=now, dies_before=number)
    heir = crashed.succeed()
    if number == 0:  # nothing was decided or acknowledged: everybody says it again
        assert heir.world.plans == Host(journal).world.plans
        heir.turn(*inbox, now=now)
    asked = {*launches(crashed), *launches(heir)}
    assert asked == set(launches(whole)), "each machine was asked for, and none besides"
    ended = {a.node for h in (crashed, heir) for a in h.performed if isinstance(a, do.TerminateNode)}
    assert ended == {a.node for a in whole.performed if isinstance(a, do.TerminateNode)}
    assert heir.world.nodes == whole.world.nodes
    assert heir.world.replicas == whole.world.replicas
    for name in whole.world.nodes:
        assert desired_set(heir.world, name, now) == desired_set(whole.world, name, now)


def test_a_second_crash_repeats_the_same_ids_again() -> None:
    journal, inbox, now = busy()
    crashed = Host(journal).turn(*inbox, now=now, dies_before=1)
    first = crashed.succeed()
    second = first.succeed()
    assert launches(second) == launches(first) != []


def test_what_was_confirmed_is_not_repeated() -> None:
    host = Host().turn(*opening(min=2))
    one, other = launches(host)
    host.turn(ev.NodeLaunched(at=START, node=one))
    assert launches(host.succeed()) == [other]


def test_a_launch_is_repeated_as_it_was() -> None:
    host = Host().turn(*opening(min=1))
    (launch,) = (a for a in host.performed if isinstance(a, do.LaunchNode))
    (again,) = (a for a in host.succeed().performed if isinstance(a, do.LaunchNode))
    assert replace(again, why=launch.why, cause=launch.cause) == launch


def test_a_standby_launch_is_repeated_as_it_was() -> None:
    host = Host().turn(*opening(standby=1))
    (launch,) = (a for a in host.performed if isinstance(a, do.LaunchNode))
    (again,) = (a for a in host.succeed().performed if isinstance(a, do.LaunchNode))
    assert (again.standby, launch.standby) == (True, True)


# listening


def test_a_node_that_joins_is_listened_to_and_one_that_is_gone_is_not() -> None:
    host = Host().turn(*opening("a", "b"))
    assert set(host.mind.senses.beats.row) == {"a", "b"}
    host.turn(ev.NodeTerminated(at=START, node="a"))
    assert set(host.mind.senses.beats.row) == {"b"}


def test_a_stranger_that_says_hello_is_not_listened_to() -> None:
    host = Host().turn(*opening("a"), ev.NodeJoined(at=START, node="stranger"))
    assert set(host.mind.senses.beats.row) == {"a"}


def test_a_new_leader_listens_to_everybody_it_finds() -> None:
    host = Host().turn(*opening("a", "b", min=3))
    heir = host.succeed()
    assert set(heir.mind.senses.beats.row) == set()
    heir.mind.take_over(START + SECOND)
    assert set(heir.mind.senses.beats.row) == {"a", "b"}, "not to the one that is only launching"


def test_a_policy_reaches_the_senses() -> None:
    host = Host()
    policy = Policy(detection=Detection(beat_ms=7 * SECOND))
    host.turn(ev.PolicyApplied(at=START, policy=policy))
    assert host.mind.senses.beats.policy.beat_ms == 7 * SECOND
    assert Mind.from_journal(host.journal).senses.beats.policy.beat_ms == 7 * SECOND


def test_a_verdict_is_journalled_before_the_plan_it_leads_to() -> None:
    host = Host().turn(*opening("a", "b")).rest(START)
    host.turn(ev.NodeSaidGoodbye(at=START, node="a"))
    (append,) = (step for step in host.steps[-10:] if isinstance(step, Append) and len(step.entries) == 3)
    said, judged, plan = append.entries
    assert isinstance(said, ev.NodeSaidGoodbye)
    assert isinstance(judged, ev.NodeJudged)
    assert judged.verdict.level is Level.DEAD
    assert isinstance(plan, Plan)


def test_the_dead_are_not_listened_to_any_more() -> None:
    host = Host().turn(*opening("a", "b")).rest(START)
    host.turn(ev.NodeSaidGoodbye(at=START, node="a"))
    assert set(host.mind.senses.beats.row) == {"b"}


def test_there_is_a_next_turn_at_once_while_something_changed() -> None:
    host = Host().turn(*opening(min=1))
    assert host.mind.next_due() == 0


def test_the_next_turn_is_when_something_is_due() -> None:
    host = Host().turn(*opening(min=1)).rest(START)
    assert START < host.mind.next_due() <= START + host.world.policy.capacity.list_every_ms


def test_the_nodes_that_a_plan_touches() -> None:
    host = Host().turn(*opening("a", "b"))
    host.turn(ev.WorkloadApplied(at=START, workload=Workload("web", Service(1)))).rest(START)
    (replica,) = host.world.replicas.values()
    stop = do.StopReplica(replica=replica.id, deadline=0, why="")
    plan = Plan(9, START, (stop, stop, do.ListPool(pool="pool", why="")))
    assert touched(host.world, plan) == [replica.node]
