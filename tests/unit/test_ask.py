"""Whom we ask about a node in doubt: those we hear, in other failure domains, and its provider."""

from holdfast.core.health.peer_probes import choose_peers
from holdfast.model import action as do
from holdfast.model import event as ev
from holdfast.model.node import Answer, NodeState
from holdfast.model.place import Place
from holdfast.model.policy import Detection
from holdfast.model.units import MINUTE, SECOND
from holdfast.model.verdict import Level, Word
from tests.play import Play, of

POLICY = Detection()


def fleet(**racks: str) -> Play:
    """Nodes by name, each in `zone/rack`."""
    play = Play(can_launch=False, can_terminate=False)
    for name, where in racks.items():
        zone, rack = where.split("/")
        play.join(name, place=Place("prov", "here", zone, rack))
    play.settle()
    return play


def peers(play: Play, node: str, count: int = 3) -> tuple[str, ...]:
    return choose_peers(play.world, play.node(node), count)


def asked(actions: list[do.Action]) -> list[str]:
    return [type(action).__name__ for action in actions if isinstance(action, do.AskPeers | do.AskProvider)]


# the choice


def test_nobody_votes_on_itself_or_on_its_own_rack() -> None:
    play = fleet(a="z1/r1", b="z1/r1", c="z1/r2", d="z2/r3", e="z2/r3")
    assert set(peers(play, "a")) == {"c", "d", "e"}


def test_peers_are_of_as_many_zones_as_there_are() -> None:
    play = fleet(a="z1/r1", b="z2/r2", c="z2/r3", d="z2/r4", e="z3/r5", f="z4/r6")
    chosen = peers(play, "a")
    assert len({play.node(name).place.zone for name in chosen}) == 3


def test_no_more_are_asked_than_wanted_and_none_twice() -> None:
    play = fleet(**{f"n{number}": f"z{number % 3}/r{number}" for number in range(12)})
    for count in (1, 3, 5):
        chosen = peers(play, "n0", count)
        assert len(chosen) == len(set(chosen)) == count


def test_fewer_are_asked_when_there_are_fewer() -> None:
    play = fleet(a="z1/r1", b="z2/r2")
    assert peers(play, "a") == ("b",)


def test_a_neighbour_is_better_than_nobody() -> None:
    play = fleet(a="z1/r1", b="z1/r1")
    assert peers(play, "a") == ("b",)


def test_there_may_be_nobody() -> None:
    assert peers(fleet(a="z1/r1"), "a") == ()


def test_those_we_doubt_ourselves_are_not_asked() -> None:
    play = fleet(a="z1/r1", b="z2/r2", c="z3/r3")
    play.judge("b", Level.SUSPECT)
    assert peers(play, "a") == ("c",)


def test_those_that_are_leaving_are_not_asked() -> None:
    play = fleet(a="z1/r1", b="z2/r2", c="z3/r3")
    play.tell(ev.OperatorOrdered(at=play.now, order=ev.Order.CORDON, node="b"))
    assert peers(play, "a") == ("c",)


def test_the_choice_is_the_same_every_time_and_not_the_same_for_everybody() -> None:
    play = fleet(**{f"n{number}": f"z{number}/r{number}" for number in range(20)})
    choices = {name: peers(play, name) for name in play.world.nodes}
    assert choices == {name: peers(play, name) for name in play.world.nodes}
    assert len(set(choices.values())) > 10


def test_a_peer_that_alone_reached_it_is_asked_again_and_each_time_beside_others() -> None:
    play = fleet(**{f"n{number}": f"z{number}/r{number}" for number in range(12)})
    play.judge("n0", Level.SUSPECT)
    play.settle()
    first = play.node("n0").clues.asked
    beside: set[str] = set(first)
    for _ in range(8):
        for peer in play.node("n0").clues.asked:
            answer = Answer.REACHED if peer == first[1] else Answer.TIMEOUT
            play.tell(ev.PeerAnswered(at=play.now, node="n0", peer=peer, answer=answer))
        before = play.node("n0").clues
        while play.node("n0").clues.asked_at == before.asked_at:
            play.later(SECOND)
        asked_now = play.node("n0").clues.asked
        assert asked_now[0] == first[1]
        assert len(set(asked_now)) == 3
        assert not set(asked_now[1:]) & set(before.asked)
        beside |= set(asked_now)
    assert len(beside) >= 8


def test_in_a_small_fleet_the_same_are_asked_again() -> None:
    play = fleet(a="z1/r1", b="z2/r2", c="z3/r3")
    play.judge("a", Level.SUSPECT)
    play.settle()
    for peer, answer in (("b", Answer.REACHED), ("c", Answer.TIMEOUT)):
        play.tell(ev.PeerAnswered(at=play.now, node="a", peer=peer, answer=answer))
    play.later(POLICY.ask_again_ms)
    assert set(play.node("a").clues.asked) == {"b", "c"}
    assert play.node("a").clues.disputed_at


# when


def test_a_suspect_is_asked_about_at_once() -> None:
    play = fleet(a="z1/r1", b="z2/r2", c="z3/r3")
    play.judge("a", Level.SUSPECT)
    actions = play.turn()
    assert asked(actions) == ["AskPeers", "AskProvider"]
    (question,) = of(do.AskPeers, actions)
    assert (question.node, set(question.peers)) == ("a", {"b", "c"})
    assert play.node("a").clues.asked == question.peers
    assert play.node("a").clues.word is Word.WAITING


def test_nobody_is_asked_about_a_node_that_is_well() -> None:
    play = fleet(a="z1/r1", b="z2/r2")
    assert asked(play.later(MINUTE)) == []


def test_the_empty_question_is_recorded() -> None:
    play = fleet(a="z1/r1")
    play.judge("a", Level.SUSPECT)
    (question,) = of(do.AskPeers, play.turn())
    assert question.peers == ()
    assert play.node("a").clues.asked_at == play.now


def test_the_question_is_repeated_after_a_while() -> None:
    play = fleet(a="z1/r1", b="z2/r2")
    play.judge("a", Level.UNREACHABLE)
    play.settle()
    assert asked(play.later(POLICY.ask_again_ms - 1)) == []
    assert "AskPeers" in asked(play.later(1))


def test_the_question_is_repeated_ever_more_seldom() -> None:
    play = fleet(a="z1/r1", b="z2/r2")
    play.judge("a", Level.UNREACHABLE)
    early = asked(play.later(MINUTE)).count("AskPeers")
    play.later(20 * MINUTE)
    late = asked(play.later(MINUTE)).count("AskPeers")
    assert early > 3
    assert late <= 1


def test_a_provider_that_has_not_answered_is_not_asked_again_at_once() -> None:
    play = fleet(a="z1/r1", b="z2/r2")
    play.judge("a", Level.UNREACHABLE)
    play.settle()
    assert asked(play.later(POLICY.ask_again_ms)) == ["AskPeers"]
    assert "AskProvider" in asked(play.later(POLICY.alone_ms + 5 * SECOND))


def test_only_the_provider_is_asked_about_the_dead() -> None:
    play = fleet(a="z1/r1", b="z2/r2")
    play.judge("a", Level.DEAD)
    assert asked(play.turn()) == ["AskProvider"]


def test_a_provider_whose_answer_about_the_dead_is_lost_is_asked_again() -> None:
    """Whoever asked may have ended before it heard; and an exclusive job waits for that answer."""
    play = fleet(a="z1/r1", b="z2/r2")
    play.judge("a", Level.DEAD)
    assert asked(play.settle()) == ["AskProvider"]
    assert asked(play.later(POLICY.alone_ms)) == []
    assert asked(play.later(1)) == ["AskProvider"]


def test_nobody_is_asked_about_a_node_that_is_being_terminated() -> None:
    play = Play(idle_ms=MINUTE)
    play.join("a", "b")
    play.judge("a", Level.DEAD)
    play.settle()
    play.tell(ev.ProviderAnswered(at=play.now, node="a", word=Word.STOPPED))
    play.settle()
    assert play.node("a").state is NodeState.TERMINATING
    assert asked(play.later(30 * SECOND)) == []
