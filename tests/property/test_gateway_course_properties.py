"""Whatever happens to a request that must not be carried out twice: one replica sees it at most."""

from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.core.gateway.routing.updates import ReplicaSpec
from tests.unit.test_gateway_course import At, Line, Request

STEPS = ("connects", "refused", "lost", "gone", "timeout", "error", "429", "500", "look", "wake", "restart")


class Order(Request):
    """It is sent when its connection is there."""

    once = True
    sent: list[At]

    def connect(self, attempt: At) -> None:
        """Not yet."""

    def step(self, step: str, number: int) -> list[str]:
        """Who sees it in this step."""
        now = self.now
        if step == "look":
            self.look(now)
        elif step == "wake":
            self.service.pump(now)
        elif step == "restart":
            self.service.set_replicas([ReplicaSpec(name, name) for name in "abcd"[number % 4 :]], (), now)
        elif self.tries and not self.over:
            return self._answered(step, self.tries[number % len(self.tries)])
        return []

    def _answered(self, step: str, attempt: At) -> list[str]:
        if step == "connects":
            seen = [] if attempt in self.sent else [attempt.replica.id]
            self.sent.append(attempt)
            self.asked = True
            return seen
        if attempt not in self.sent:
            self.failed(attempt, "why", "error" if step == "error" else "connect", self.now)
        elif step in ("429", "500"):
            self.passed_over(attempt, 0.0 if step == "429" else None, self.now)
        else:
            self.failed(attempt, "why", "lost" if step == "refused" else step, self.now)
        return []


@settings(max_examples=300, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(STEPS), st.integers(0, 7)), max_size=30))
def test_a_request_that_must_not_be_carried_out_twice_is_seen_by_one_replica(
    steps: list[tuple[str, int]],
) -> None:
    line = Line("abcd", hedge=True, continues=True)
    for _ in range(200):
        line.tries.request(0.0)
        line.tries.first_token.note(0.1)
    course = Order(line)
    course.sent = []
    course.go()
    seen: list[str] = []
    for step, number in steps:
        course.now += 0.5 + number
        seen += course.step(step, number)
    assert len(seen) <= 1
