"""The transcript: one readable line for what matters, and none for what does not."""

from typing import get_args

import pytest

from holdfast.model import action as do
from holdfast.model import event as ev
from holdfast.model.action import Proof
from holdfast.model.finding import Finding, Severity
from holdfast.model.node import Answer
from holdfast.model.place import Place
from holdfast.model.plan import Held, Plan
from holdfast.model.policy import Policy
from holdfast.model.replica import Role
from holdfast.model.resources import Resources
from holdfast.model.units import SECOND
from holdfast.model.verdict import Evidence, Level, Link, Verdict, Word
from holdfast.model.workload import Service, Workload
from holdfast.sim.story import OPENING_MS, QUIET, Line, Story, tell_action, tell_event
from tests.play import pool

NOW = 61 * SECOND
FINDING = Finding("gpu fell off the bus", "n1", Severity.RESET, 1.0, "xid 79", NOW)
PLACE = do.PlaceReplica(
    replica="web/0.2",
    slot="web/0",
    node="n1",
    epoch=2,
    role=Role.ACTIVE,
    needs=Resources(),
    exclusive=False,
    resume_ms=90_000,
    why="w",
)
LAUNCH = do.LaunchNode(
    node="n9",
    pool="p",
    offer="std",
    place=Place("prov"),
    capacity=Resources(),
    price_micro_usd=1,
    spot=False,
    why="w",
)

# Every action, who it is about, and what its line says besides its reason.
ACTIONS: list[tuple[do.Action, str, str]] = [
    (do.AskPeers(node="n1", peers=("n2", "n3"), why="w"), "n1", " n2, n3"),
    (do.AskProvider(node="n1", why="w"), "n1", ""),
    (do.ListPool(pool="p", why="w"), "p", ""),
    (LAUNCH, "n9", " std"),
    (do.TerminateNode(node="n1", why="w"), "n1", ""),
    (do.WatchNode(node="n1", why="w"), "n1", ""),
    (do.CordonNode(node="n1", why="w"), "n1", ""),
    (do.UncordonNode(node="n1", why="w"), "n1", ""),
    (do.DrainNode(node="n1", deadline=1, why="w"), "n1", ""),
    (do.ResetNode(node="n1", why="w"), "n1", ""),
    (do.QuarantineNode(node="n1", why="w"), "n1", ""),
    (do.RaiseFinding(finding=FINDING, why="w"), "n1", " gpu fell off the bus"),
    (PLACE, "web/0.2", " on n1 from 90s"),
    (do.StopReplica(replica="web/0.1", deadline=1, why="w"), "web/0.1", ""),
    (do.PromoteStandby(replica="web/s0.1", slot="web/0", epoch=2, why="w"), "web/0", " web/s0.1"),
    (do.RegroupGang(workload="gang", generation=3, members=(), why="w"), "gang", " generation 3"),
    (do.DeclareGone(replica="job/0.1", proof=Proof.LEASE_OVER, why="w"), "job/0.1", ""),
    (do.AddSlot(slot="web/0", workload="web", index=0, role=Role.ACTIVE, why="w"), "web/0", ""),
    (do.CloseSlot(slot="web/0", why="w"), "web/0", ""),
    (do.RemoveSlot(slot="web/0", why="w"), "web/0", ""),
    (do.GiveUpSlot(slot="web/0", why="w"), "web/0", ""),
    (do.EngageBrake(scope="fleet", why="w"), "fleet", ""),
    (do.ReleaseBrake(scope="fleet", why="w"), "fleet", ""),
]


def judged(level: Level, evidence: Evidence | None = None) -> ev.NodeJudged:
    verdict = Verdict(level, "the rule", evidence or Evidence(), NOW)
    return ev.NodeJudged(at=NOW, node="n1", verdict=verdict, heard_at=NOW)


# Every event and its line; None: no news by itself.
EVENTS: list[tuple[ev.Event, tuple[str, str, str] | None]] = [
    (judged(Level.ALIVE), ("verdict", "n1", "alive: the rule")),
    (judged(Level.DEAD, Evidence(link=Link.CLOSED)), ("verdict", "n1", "dead: the rule (link closed)")),
    (ev.NodeJoined(at=NOW, node="n1"), ("event", "n1", "joined")),
    (ev.NodeJoined(at=NOW, node="n1", running=("web/0.1",)), ("event", "n1", "joined, running 1")),
    (ev.LeaderChanged(at=NOW, leader="cp-2", generation=2), ("leader", "cp-2", "leads, generation 2")),
    (ev.ReplicaReady(at=NOW, replica="web/0.1", node="n1"), ("event", "web/0.1", "ready on n1")),
    (
        ev.ReplicaEnded(at=NOW, replica="web/0.1", node="n1", how=ev.Ended.FAILED, why="exit code 1"),
        ("event", "web/0.1", "failed on n1: exit code 1"),
    ),
    (
        ev.ReplicaEnded(at=NOW, replica="web/0.1", node="n1", how=ev.Ended.DONE),
        ("event", "web/0.1", "done on n1"),
    ),
    (ev.NodeTerminated(at=NOW, node="n1"), ("event", "n1", "its provider confirms that it is gone")),
    (
        ev.ActionFailed(at=NOW, action="p1.0", node="n1", error="Denied", why="no quota"),
        ("event", "n1", "Denied: no quota"),
    ),
    (ev.SpotNoticed(at=NOW, node="n1", deadline=NOW), ("event", "n1", "spot notice")),
    (ev.LinkClosed(at=NOW, node="n1"), ("event", "n1", "its link closed")),
    (ev.NodeSaidGoodbye(at=NOW, node="n1"), ("event", "n1", "said goodbye")),
    (ev.FindingRaised(at=NOW, finding=FINDING), ("finding", "n1", "gpu fell off the bus: xid 79")),
    (
        ev.WorkloadApplied(at=NOW, workload=Workload("web", Service(1), version=3, paused=True)),
        ("user", "web", "applied, version 3, paused"),
    ),
    (ev.WorkloadDeleted(at=NOW, workload="web"), ("user", "web", "deleted")),
    (ev.OperatorOrdered(at=NOW, order=ev.Order.DRAIN, node="n1"), ("user", "n1", "drain: by hand")),
    (ev.NodeReset(at=NOW, node="n1"), ("event", "n1", "was reset")),
    (ev.ProviderAnswered(at=NOW, node="n1", word=Word.RUNNING), None),
    (ev.PeerAnswered(at=NOW, node="n1", peer="n2", answer=Answer.TIMEOUT), None),
    (ev.NodeLaunched(at=NOW, node="n1"), None),
    (ev.PoolListed(at=NOW, pool="p", nodes=(), asked_at=NOW), None),
    (ev.ReplicaStarted(at=NOW, replica="web/0.1", node="n1"), None),
    (ev.CheckpointSaved(at=NOW, replica="web/0.1", progress_ms=1), None),
    (ev.FindingCleared(at=NOW, node="n1", name="f"), None),
    (ev.PoolApplied(at=NOW, pool=pool()), None),
    (ev.PolicyApplied(at=NOW, policy=Policy()), None),
]


def told(story: Story) -> list[str]:
    return story.text().splitlines()


def tell(*entries: ev.Event | Plan, at: int = NOW) -> Story:
    story = Story()
    for entry in entries:
        story.entry(at, entry)
    return story


def test_every_action_and_every_event_is_here() -> None:
    assert {type(action) for action, _, _ in ACTIONS} == set(get_args(do.Action))
    assert {type(event) for event, _ in EVENTS} == set(get_args(ev.Event))


@pytest.mark.parametrize(
    ("action", "subject", "text"), ACTIONS, ids=[type(action).__name__ for action, _, _ in ACTIONS]
)
def test_an_action_is_told_with_its_subject_and_its_reason(
    action: do.Action, subject: str, text: str
) -> None:
    assert tell_action(action) == (subject, text)
    lines = tell(Plan(1, NOW, (action,))).lines
    if isinstance(action, QUIET):
        assert lines == []
    else:
        (line,) = lines
        assert (line.kind, line.subject, line.text) == (
            "action",
            subject,
            f"{type(action).__name__}{text}: w",
        )


@pytest.mark.parametrize(("event", "line"), EVENTS, ids=[type(event).__name__ for event, _ in EVENTS])
def test_an_event_is_told_in_one_line_or_not_at_all(
    event: ev.Event, line: tuple[str, str, str] | None
) -> None:
    assert tell_event(event) == line
    assert [(told.kind, told.subject, told.text) for told in tell(event).lines] == ([line] if line else [])


def test_a_line_has_its_time_kind_and_subject_in_columns() -> None:
    assert str(Line(61_040, "action", "n1", "CordonNode: w")) == (
        "     61.0s  action   n1               CordonNode: w"
    )


def test_a_line_has_no_trailing_spaces() -> None:
    assert str(Line(0, "user", "", "")) == "      0.0s  user"


def test_a_story_is_its_lines_each_ended() -> None:
    story = tell(ev.LinkClosed(at=NOW, node="n1"), ev.LinkClosed(at=NOW, node="n2"))
    assert story.text().count("\n") == len(told(story)) == 2


def test_nobody_to_ask_is_said() -> None:
    assert tell_action(do.AskPeers(node="n1", peers=(), why="w")) == ("n1", " nobody")


def test_a_start_from_the_beginning_does_not_say_from_where() -> None:
    fresh = do.PlaceReplica(
        **{name: getattr(PLACE, name) for name in PLACE.__struct_fields__ if name != "resume_ms"}
    )
    assert tell_action(fresh) == ("web/0.2", " on n1")


def test_those_who_are_there_when_the_story_begins_are_no_news() -> None:
    hello = ev.NodeJoined(at=0, node="n1")
    assert tell(hello, at=OPENING_MS - 1).lines == []
    assert len(tell(hello, at=OPENING_MS).lines) == 1


ASK = Plan(1, NOW, (do.AskPeers(node="n1", peers=("n2",), why="w"),))


def test_asking_again_is_told_once() -> None:
    assert len(tell(ASK, ASK, ASK).lines) == 1


@pytest.mark.parametrize("back", [judged(Level.ALIVE), ev.NodeJoined(at=NOW, node="n1")])
def test_asking_anew_after_the_node_was_back_is_told_again(back: ev.Event) -> None:
    assert [line.kind for line in tell(ASK, back, ASK).lines].count("action") == 2


def test_asking_about_another_node_is_told() -> None:
    other = Plan(1, NOW, (do.AskPeers(node="n2", peers=("n1",), why="w"),))
    assert len(tell(ASK, other).lines) == 2


def held(why: str) -> Plan:
    return Plan(1, NOW, held=(Held(do.TerminateNode(node="n1", why="w"), why),))


def test_what_is_held_is_told_once_for_each_reason() -> None:
    story = tell(held("brake on fleet"), held("brake on fleet"), held("brake on zone"))
    assert [(line.kind, line.text) for line in story.lines] == [
        ("held", "TerminateNode: brake on fleet"),
        ("held", "TerminateNode: brake on zone"),
    ]
