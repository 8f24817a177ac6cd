"""What nodes say of their probes: bounded, and about their own replicas."""

from holdfast.control.probe_answers import LENGTH_MAX, OF_A_NODE_MAX, ProbeAnswers
from holdfast.core.explain.explain import explain_replica, explain_workload
from holdfast.model.workload import Service, Workload
from tests.build import needs
from tests.play import Play


def test_an_answer_is_known_since_it_was_told_until_it_is_taken_back() -> None:
    answers = ProbeAnswers()
    answers.heard("a", {"web/0.1": "HTTP status 503"}, 1_000)
    assert answers.of("a", "web/0.1", 4_000) == ("HTTP status 503", 3_000)
    assert answers.of("b", "web/0.1", 4_000) is None, "a node speaks of its own"
    answers.heard("a", {"web/0.1": ""}, 5_000)
    assert answers.of("a", "web/0.1", 6_000) is None


def test_answers_are_bounded_and_printable() -> None:
    answers = ProbeAnswers()
    answers.heard("a", {f"w/{n}.1": "\x1b[31m\n" + "x" * 9_000 for n in range(3 * OF_A_NODE_MAX)}, 0)
    known = [answers.of("a", f"w/{n}.1", 0) for n in range(3 * OF_A_NODE_MAX)]
    texts = [each[0] for each in known if each is not None]
    assert len(texts) == OF_A_NODE_MAX
    assert {len(text) for text in texts} == {LENGTH_MAX}
    assert texts[0].startswith("?[31m?xxx")
    answers.drop("a")
    assert answers.of("a", "w/0.1", 0) is None


def test_what_the_last_probe_answered_is_in_the_explanation() -> None:
    play = Play(max=1)
    play.join("a")
    play.apply(Workload("web", Service(2), needs(cpu=1)))
    play.settle()
    answers = ProbeAnswers()
    answers.heard("a", {"web/0.1": "readiness probe: HTTP status 503 from /"}, play.now)
    play.now += 2_000

    def probed(node: str, replica: str) -> tuple[str, int] | None:
        return answers.of(node, replica, play.now)

    told = explain_replica(play.world, "web/0.1", play.now, probed)
    assert told.summary.endswith("; readiness probe: HTTP status 503 from /, for 2.0 s")
    lines = explain_workload(play.world, "web", play.now, probed=probed).because
    assert [line.count("503") for line in lines if line.startswith("web/")] == [1, 0]
    play.ready("web/0.1", "web/1.1")
    still = explain_workload(play.world, "web", play.now, probed=probed).because
    assert any("web/0.1 on a has been ready" in line and "503" in line for line in still)
