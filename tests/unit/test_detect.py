"""The judgement of nodes: the rule table row by row, what peers' answers come to, and when we doubt
ourselves."""

from typing import Any

import numpy as np
import pytest

from holdfast.core.evidence import peers_say
from holdfast.core.health.detect import (
    RULES,
    Senses,
    judge,
    weigh,
)
from holdfast.model import event as ev
from holdfast.model.node import Answer, Clues
from holdfast.model.policy import Detection
from holdfast.model.units import SECOND
from holdfast.model.verdict import Doubt, Evidence, Level, Link, Peers, Said, Silence, Word
from tests.play import Play

POLICY = Detection()

# One row for every rule, in the order of the rules: the evidence that it is for, and what it says.
CASES: list[tuple[str, dict[str, Any], Level]] = [
    ("it said goodbye", {"said": Said.GOODBYE}, Level.DEAD),
    (
        "silent, and its provider says it stopped",
        {"silence": Silence.LATE, "provider": Word.STOPPED},
        Level.DEAD,
    ),
    ("heartbeats on time", {}, Level.ALIVE),
    (
        "we cannot hear it, but a peer reached it",
        {"silence": Silence.LONG, "peers": Peers.REACHED},
        Level.UNREACHABLE,
    ),
    (
        "we are new here: grace",
        {"silence": Silence.LONG, "peers": Peers.NOT_REACHED, "doubt": Doubt.GRACE},
        Level.SUSPECT,
    ),
    (
        "our own loop ran late: doubt ourselves first",
        {"silence": Silence.LONG, "peers": Peers.NOT_REACHED, "doubt": Doubt.LATE},
        Level.SUSPECT,
    ),
    (
        "a majority fell silent, and for long, and peers agree",
        {"silence": Silence.LONG, "peers": Peers.NOT_REACHED, "doubt": Doubt.MAJORITY},
        Level.DEAD,
    ),
    (
        "a majority fell silent at once: doubt ourselves first",
        {"silence": Silence.SILENT, "peers": Peers.NOT_REACHED, "doubt": Doubt.MAJORITY},
        Level.SUSPECT,
    ),
    (
        "its host answers, but nothing of ours lives there",
        {"silence": Silence.LATE, "peers": Peers.REFUSED},
        Level.DEAD,
    ),
    (
        "many fell silent at once: ask twice",
        {"silence": Silence.LONG, "peers": Peers.NOT_REACHED, "doubt": Doubt.CROWD},
        Level.SUSPECT,
    ),
    (
        "one peer reached it, and for long nobody else did",
        {"silence": Silence.LONG, "peers": Peers.OUTVOTED},
        Level.DEAD,
    ),
    (
        "silent, and no peer reached it",
        {"silence": Silence.SILENT, "peers": Peers.NOT_REACHED},
        Level.DEAD,
    ),
    (
        "silent for long, nobody to ask, its provider says it runs",
        {"silence": Silence.LONG, "peers": Peers.NOBODY, "provider": Word.RUNNING},
        Level.UNREACHABLE,
    ),
    (
        "silent for long, and nobody to ask",
        {"silence": Silence.LONG, "peers": Peers.NOBODY, "provider": Word.UNKNOWN},
        Level.DEAD,
    ),
    ("late: ask others", {"silence": Silence.LATE}, Level.SUSPECT),
]


@pytest.mark.parametrize(("rule", "evidence", "level"), CASES, ids=[case[0] for case in CASES])
def test_each_rule_decides_the_case_it_is_for(rule: str, evidence: dict[str, Any], level: Level) -> None:
    decided = weigh(Evidence(**evidence))
    assert (decided.name, decided.then) == (rule, level)


def test_no_rule_is_hidden_by_those_before_it() -> None:
    assert [case[0] for case in CASES] == [rule.name for rule in RULES]


@pytest.mark.parametrize(
    ("evidence", "level"),
    [
        # goodbye outweighs everything; the provider outweighs our doubts and the peers
        ({"said": Said.GOODBYE, "peers": Peers.REACHED}, Level.DEAD),
        ({"silence": Silence.LATE, "provider": Word.STOPPED, "peers": Peers.REACHED}, Level.DEAD),
        ({"silence": Silence.LATE, "provider": Word.STOPPED, "doubt": Doubt.GRACE}, Level.DEAD),
        # but not our own ears
        ({"provider": Word.STOPPED}, Level.ALIVE),
        ({"peers": Peers.NOT_REACHED}, Level.ALIVE),
        ({"peers": Peers.REFUSED}, Level.ALIVE),
        ({"said": Said.NOTICE}, Level.ALIVE),
        # a peer that reached it outweighs all silence and doubt
        ({"silence": Silence.LONG, "peers": Peers.REACHED, "doubt": Doubt.MAJORITY}, Level.UNREACHABLE),
        # one who could not be asked is no peer that failed
        ({"silence": Silence.LONG, "peers": Peers.WAITING}, Level.SUSPECT),
        ({"silence": Silence.SILENT, "peers": Peers.NOBODY}, Level.SUSPECT),
        ({"silence": Silence.LONG, "peers": Peers.NOBODY, "provider": Word.WAITING}, Level.SUSPECT),
        ({"silence": Silence.LATE, "peers": Peers.NOT_REACHED}, Level.SUSPECT),
        # among many, twice not reached is dead
        (
            {"silence": Silence.SILENT, "peers": Peers.NOT_REACHED_AGAIN, "doubt": Doubt.CROWD},
            Level.DEAD,
        ),
        # a closed link is a reason to ask, no more
        ({"link": Link.CLOSED}, Level.SUSPECT),
        ({"link": Link.CLOSED, "peers": Peers.REFUSED}, Level.DEAD),
        ({"link": Link.CLOSED, "peers": Peers.NOT_REACHED}, Level.SUSPECT),
    ],
)
def test_the_first_rule_that_matches_decides(evidence: dict[str, Any], level: Level) -> None:
    assert weigh(Evidence(**evidence)).then is level


R, X, T, F = Answer.REACHED, Answer.REFUSED, Answer.TIMEOUT, Answer.FAILED


@pytest.mark.parametrize(
    ("answers", "says"),
    [
        ({}, Peers.WAITING),
        ({"a": T}, Peers.WAITING),
        ({"a": R}, Peers.REACHED),  # one that reached it is enough
        ({"a": T, "b": T, "c": R}, Peers.DISPUTED),  # one alone: see below
        ({"a": T, "b": R}, Peers.DISPUTED),
        ({"a": X, "b": T, "c": R}, Peers.DISPUTED),
        ({"a": R, "b": R, "c": X}, Peers.REACHED),
        ({"a": X, "b": X, "c": R}, Peers.REFUSED),  # two hosts were told that nothing is there
        ({"a": T, "b": T}, Peers.NOT_REACHED),  # a quorum of the asked
        ({"a": X}, Peers.WAITING),  # one refusal is no quorum
        ({"a": X, "b": T}, Peers.NOT_REACHED),  # the word of one kills nobody
        ({"a": X, "b": X}, Peers.REFUSED),
        ({"a": X, "b": F, "c": F}, Peers.NOT_REACHED),
        ({"a": F}, Peers.WAITING),  # one that could not try has no voice
        ({"a": F, "b": T}, Peers.WAITING),
        ({"a": F, "b": F, "c": T}, Peers.NOT_REACHED),  # the only one that could
        ({"a": F, "b": F, "c": F}, Peers.NOBODY),
    ],
)
def test_what_the_answers_of_three_peers_come_to(answers: dict[str, Answer], says: Peers) -> None:
    clues = Clues(asked=("a", "b", "c"), asked_at=5, answers=answers)
    assert peers_say(clues, POLICY) is says


@pytest.mark.parametrize(
    ("answers", "asked_s", "says"),
    [
        ({"a": T, "b": T, "c": R}, 59, Peers.DISPUTED),
        ({"a": T, "b": T, "c": R}, 60, Peers.OUTVOTED),
        ({"a": X, "b": T, "c": R}, 60, Peers.OUTVOTED),
        ({"b": T, "c": R}, 60, Peers.DISPUTED),  # one against one
        ({"b": T, "c": R}, 599, Peers.DISPUTED),
        ({"b": T, "c": R}, 600, Peers.OUTVOTED),
        ({"b": R, "c": R}, 600, Peers.REACHED),
        ({"c": R}, 600, Peers.REACHED),
    ],
)
def test_one_peer_that_nobody_bears_out_is_outvoted_in_time(
    answers: dict[str, Answer], asked_s: int, says: Peers
) -> None:
    clues = Clues(
        asked=("a", "b", "c"),
        asked_at=5 + asked_s * SECOND,
        answers=answers,
        concluded=Peers.DISPUTED,
        disputed_at=5,
    )
    assert peers_say(clues, POLICY) is says


def test_nobody_asked_is_not_the_same_as_nobody_to_ask() -> None:
    assert peers_say(Clues(), POLICY) is Peers.UNASKED
    assert peers_say(Clues(asked=(), asked_at=5), POLICY) is Peers.NOBODY


@pytest.mark.parametrize("before", [Peers.REACHED, Peers.NOT_REACHED, Peers.NOBODY, Peers.REFUSED])
def test_until_a_round_is_decided_the_round_before_it_stands(before: Peers) -> None:
    undecided = Clues(asked=("a", "b", "c"), asked_at=9, answers={"a": T}, concluded=before)
    assert peers_say(undecided, POLICY) is before
    decided = Clues(asked=("a", "b", "c"), asked_at=9, answers={"a": T, "b": T}, concluded=before)
    again = before is Peers.NOT_REACHED
    assert peers_say(decided, POLICY) is (Peers.NOT_REACHED_AGAIN if again else Peers.NOT_REACHED)


class Watch:
    """A play with senses: nodes beat once a second unless they are silent."""

    def __init__(self, *names: str) -> None:
        self.play = Play()
        self.play.join(*names)
        self.senses = Senses(self.play.world.policy.detection)
        for name in names:
            self.senses.beats.add(name, self.play.now)
        self.look()

    def look(self) -> dict[str, Level]:
        judged = judge(self.play.world, self.senses, self.play.now)
        self.play.tell(*judged)
        self.play.settle()
        return {event.node: event.verdict.level for event in judged}

    def passes(self, seconds: int, silent: tuple[str, ...] = ()) -> None:
        for _ in range(seconds):
            self.play.now += SECOND
            beating = [row for name, row in self.senses.beats.row.items() if name not in silent]
            rows = np.array(beating, np.int64)
            self.senses.beats.beat(rows, np.full(len(rows), self.play.now, np.int64))
            self.look()

    def level(self, name: str) -> Level:
        return self.play.node(name).verdict.level

    def peers_answer(self, name: str, answer: Answer, **others: Answer) -> None:
        for peer in self.play.node(name).clues.asked:
            answer_of = others.get(peer, answer)
            self.play.tell(ev.PeerAnswered(at=self.play.now, node=name, peer=peer, answer=answer_of))
        self.look()


FIVE = ("a", "b", "c", "d", "e")


def test_a_node_that_beats_is_alive_and_costs_no_verdict() -> None:
    watch = Watch(*FIVE)
    watch.passes(30)
    assert [entry for entry in watch.play.journal if isinstance(entry, ev.NodeJudged)] == []


def test_a_silent_node_that_no_peer_reached_is_dead() -> None:
    watch = Watch(*FIVE)
    watch.passes(20)
    watch.passes(4, silent=("a",))
    assert watch.level("a") is Level.SUSPECT
    assert watch.play.node("a").clues.asked
    watch.peers_answer("a", Answer.TIMEOUT)
    assert watch.level("a") is Level.DEAD


def test_a_silent_node_that_a_peer_reached_is_unreachable_however_long() -> None:
    watch = Watch(*FIVE)
    watch.passes(4, silent=("a",))
    watch.peers_answer("a", Answer.REACHED)
    watch.passes(300, silent=("a",))
    assert watch.level("a") is Level.UNREACHABLE


@pytest.mark.parametrize("others", [Answer.TIMEOUT, Answer.REFUSED])
def test_one_peer_that_lies_does_not_keep_a_dead_node_for_long(others: Answer) -> None:
    watch = Watch(*"abcdefgh")
    watch.passes(20)
    silent = ("a",)
    watch.passes(4, silent=silent)
    (liar, *_) = watch.play.node("a").clues.asked
    lasted = 0
    while watch.level("a") is not Level.DEAD:
        watch.peers_answer("a", others, **{liar: Answer.REACHED})
        watch.passes(1, silent=silent)
        lasted += 1
        assert lasted <= 90
    assert lasted <= 1 if others is Answer.REFUSED else lasted >= 59


def test_one_peer_that_is_right_finds_others_that_bear_it_out() -> None:
    """It is asked again, each time beside others: some of them can reach the node too."""
    watch = Watch(*"abcdefgh")
    watch.passes(20)
    silent = ("a",)
    watch.passes(4, silent=silent)
    first = watch.play.node("a").clues.asked
    rest = [name for name in "bcdefgh" if name not in first]
    able = dict.fromkeys((first[0], *rest[:2]), Answer.REACHED)
    for _ in range(300):
        watch.peers_answer("a", Answer.TIMEOUT, **able)
        watch.passes(1, silent=silent)
        assert watch.level("a") is not Level.DEAD
    assert watch.level("a") is Level.UNREACHABLE


def test_the_word_of_one_peer_kills_no_node_whose_link_was_closed() -> None:
    """Its agent may just be starting anew."""
    watch = Watch(*FIVE)
    watch.passes(20)
    watch.play.tell(ev.LinkClosed(at=watch.play.now, node="a"))
    watch.look()
    (liar, *others) = watch.play.node("a").clues.asked
    said = {liar: Answer.REFUSED} | dict.fromkeys(others, Answer.REACHED)
    watch.play.tell(ev.PeerAnswered(at=watch.play.now, node="a", peer=liar, answer=Answer.REFUSED))
    watch.look()
    assert watch.level("a") is Level.SUSPECT
    watch.peers_answer("a", Answer.FAILED, **said)
    assert watch.level("a") is Level.UNREACHABLE


def test_a_suspect_that_beats_again_is_alive() -> None:
    watch = Watch(*FIVE)
    watch.passes(4, silent=("a",))
    assert watch.level("a") is Level.SUSPECT
    watch.passes(1)
    assert watch.level("a") is Level.ALIVE
    assert watch.play.node("a").clues == Clues()


def test_dead_is_final_and_only_a_hello_revives() -> None:
    watch = Watch(*FIVE)
    watch.passes(4, silent=("a",))
    watch.peers_answer("a", Answer.TIMEOUT)
    watch.passes(5)  # late beats
    assert watch.level("a") is Level.DEAD
    watch.play.judge("a", Level.ALIVE)  # not even a verdict does
    assert watch.level("a") is Level.DEAD
    watch.play.join("a")
    assert watch.level("a") is Level.ALIVE


def test_when_a_majority_falls_silent_at_once_we_doubt_ourselves() -> None:
    watch = Watch(*FIVE)
    watch.passes(20)
    watch.passes(5, silent=("a", "b", "c"))
    for name in ("a", "b", "c"):
        watch.peers_answer(name, Answer.TIMEOUT)
    assert {watch.level(name) for name in ("a", "b", "c")} == {Level.SUSPECT}
    assert "majority" in watch.play.node("a").verdict.rule


def test_a_majority_that_stays_silent_for_long_is_dead_if_peers_agree() -> None:
    watch = Watch(*FIVE)
    watch.passes(20)
    silent = ("a", "b", "c")
    watch.passes(5, silent=silent)
    for name in silent:
        watch.peers_answer(name, Answer.TIMEOUT)
    watch.passes(POLICY.alone_ms // SECOND, silent=silent)
    for name in silent:
        watch.peers_answer(name, Answer.TIMEOUT)
    assert {watch.level(name) for name in silent} == {Level.DEAD}


@pytest.mark.parametrize(("fleet", "level"), [(("a", "b", "c"), Level.DEAD), (FIVE, Level.DEAD)])
def test_less_than_a_majority_is_an_ordinary_day(fleet: tuple[str, ...], level: Level) -> None:
    watch = Watch(*fleet)
    watch.passes(20)
    silent = fleet[:2]
    watch.passes(5, silent=silent)
    for name in silent:
        watch.peers_answer(name, Answer.TIMEOUT)
    assert {watch.level(name) for name in silent} == {level}, "three nodes are too few to speak of a majority"


def test_when_many_fall_silent_at_once_peers_must_fail_to_reach_them_twice() -> None:
    fleet = tuple("abcdefghijkl")
    watch = Watch(*fleet)
    watch.passes(20)
    silent = fleet[: POLICY.crowd_nodes_min]
    watch.passes(5, silent=silent)
    watch.peers_answer("a", Answer.TIMEOUT)
    assert watch.level("a") is Level.SUSPECT
    assert "ask twice" in watch.play.node("a").verdict.rule
    watch.passes(POLICY.ask_again_ms // SECOND + 1, silent=silent)
    watch.peers_answer("a", Answer.TIMEOUT)
    assert watch.level("a") is Level.DEAD


def test_after_a_leader_change_nobody_is_dead_until_heard_or_grace_has_passed() -> None:
    watch = Watch(*FIVE)
    play = watch.play
    play.tell(ev.LeaderChanged(at=play.now, leader="cp-2", generation=2))
    watch.passes(5, silent=("a",))
    watch.peers_answer("a", Answer.TIMEOUT)
    assert watch.level("a") is Level.SUSPECT
    assert "grace" in play.node("a").verdict.rule
    watch.passes(POLICY.grace_ms // SECOND, silent=("a",))
    watch.peers_answer("a", Answer.TIMEOUT)
    assert watch.level("a") is Level.DEAD


def test_grace_is_over_for_a_node_that_was_heard() -> None:
    watch = Watch(*FIVE)
    play = watch.play
    play.tell(ev.LeaderChanged(at=play.now, leader="cp-2", generation=2))
    watch.passes(1)
    watch.passes(5, silent=("a",))
    watch.peers_answer("a", Answer.TIMEOUT)
    assert watch.level("a") is Level.DEAD


def test_a_turn_that_comes_late_forgives_everybody_the_time_we_did_not_listen() -> None:
    watch = Watch(*FIVE)
    watch.passes(5)
    expected = watch.play.now
    watch.senses.listened(expected, expected)
    watch.play.now += 30 * SECOND
    watch.senses.listened(watch.play.now, expected)
    assert watch.look() == {}
    assert {watch.level(name) for name in FIVE} == {Level.ALIVE}


def test_a_turn_within_its_time_forgives_nothing() -> None:
    watch = Watch(*FIVE)
    watch.passes(5)
    watch.senses.listened(watch.play.now, watch.play.now)
    watch.play.now += 30 * SECOND
    watch.senses.listened(watch.play.now, watch.play.now - POLICY.late_loop_ms)
    assert set(watch.look().values()) == {Level.SUSPECT}


def test_who_is_silent_just_after_we_ran_late_has_the_benefit_of_the_doubt() -> None:
    watch = Watch(*FIVE)
    watch.passes(5)
    watch.passes(4, silent=("a",))
    watch.senses.listened(watch.play.now, watch.play.now)
    watch.senses.late_until = watch.play.now + 5 * SECOND
    watch.peers_answer("a", Answer.TIMEOUT)
    assert watch.level("a") is Level.SUSPECT
    watch.passes(6, silent=("a",))
    watch.peers_answer("a", Answer.TIMEOUT)
    assert watch.level("a") is Level.DEAD


def test_a_verdict_says_when_the_node_was_last_heard() -> None:
    watch = Watch(*FIVE)
    watch.passes(5)
    heard = watch.play.now
    watch.passes(4, silent=("a",))
    assert watch.play.node("a").heard_at == heard
