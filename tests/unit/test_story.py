"""The transcript: one readable line for what matters, and none for what does not."""

import pytest

from holdfast.model import action as do
from holdfast.model import event as ev
from holdfast.model.node import Answer
from holdfast.model.plan import Held, Plan
from holdfast.model.policy import Policy
from holdfast.model.units import SECOND
from holdfast.model.verdict import Evidence, Level, Verdict, Word
from holdfast.sim.transcript import OPENING_MS, Line, Story
from tests.play import pool

NOW = 61 * SECOND


def judged(level: Level, evidence: Evidence | None = None) -> ev.NodeJudged:
    verdict = Verdict(level, "the rule", evidence or Evidence(), NOW)
    return ev.NodeJudged(at=NOW, node="n1", verdict=verdict, heard_at=NOW)


def told(story: Story) -> list[str]:
    return story.text().splitlines()


def tell(*entries: ev.Event | Plan, at: int = NOW) -> Story:
    story = Story()
    for entry in entries:
        story.entry(at, entry)
    return story


@pytest.mark.parametrize(
    "entry",
    [
        Plan(1, NOW, (do.AskProvider(node="n1", why="w"), do.ListPool(pool="p", why="w"))),
        Plan(1, NOW, (do.RemoveSlot(slot="web/0", why="w"),)),
        ev.ProviderAnswered(at=NOW, node="n1", word=Word.RUNNING),
        ev.PeerAnswered(at=NOW, node="n1", peer="n2", answer=Answer.TIMEOUT),
        ev.NodeLaunched(at=NOW, node="n1"),
        ev.ReplicaStarted(at=NOW, replica="web/0.1", node="n1"),
        ev.FindingCleared(at=NOW, node="n1", name="f"),
        ev.PoolApplied(at=NOW, pool=pool()),
        ev.PolicyApplied(at=NOW, policy=Policy()),
        ev.CheckpointSaved(at=NOW, replica="web/0.1", progress_ms=1),
    ],
    ids=lambda entry: type(entry).__name__,
)
def test_what_shows_in_a_later_line_is_left_out(entry: ev.Event | Plan) -> None:
    assert tell(entry).lines == []


def test_an_action_and_an_event_are_told_in_the_words_of_the_history() -> None:
    cordon = do.CordonNode(node="n1", why="w")
    ended = ev.ReplicaEnded(at=NOW, replica="web/0.1", node="n1", how=ev.Ended.FAILED, why="exit code 1")
    assert [(line.kind, line.subject, line.text) for line in tell(Plan(1, NOW, (cordon,)), ended).lines] == [
        ("action", "n1", "CordonNode: w"),
        ("event", "web/0.1", "failed on n1: exit code 1"),
    ]


def test_a_line_has_its_time_kind_and_subject_in_columns() -> None:
    assert str(Line(61_040, "action", "n1", "CordonNode: w")) == (
        "     61.0s  action   n1               CordonNode: w"
    )


def test_a_line_has_no_trailing_spaces() -> None:
    assert str(Line(0, "user", "", "")) == "      0.0s  user"


def test_a_story_is_its_lines_each_ended() -> None:
    story = tell(ev.LinkClosed(at=NOW, node="n1"), ev.LinkClosed(at=NOW, node="n2"))
    assert story.text().count("\n") == len(told(story)) == 2


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
