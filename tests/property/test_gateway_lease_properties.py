"""Many holders, lost, late and doubled messages, crashes, clocks set differently: together they never admit
more than one bucket would, and what a crash took comes back.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec
from hypothesis import Phase, example, given, settings
from hypothesis import strategies as st

from holdfast.core.gateway.quota.broker import Ask, Broker, Grants
from holdfast.core.gateway.quota.lent import LAPSE_S, LentPlaces, LentRate, Part, overdraft
from holdfast.core.gateway.quota.local_quota import Purse, PurseTaken, Short
from holdfast.model.gateway import GLOBAL, Key, Limits, Tranche, scope_of_key

KEY = Key(id="k", hash=b"")
TOKENS, PER_S, REQUESTS, REQUESTS_PER_S, BUDGET = 100, 10, 20, 2, 3_000
LIMITS = Limits(
    tokens_per_min=60 * PER_S,
    tokens_burst=TOKENS,
    requests_per_min=60 * REQUESTS_PER_S,
    requests_burst=REQUESTS,
    tokens_total=BUDGET,
)
SLACK = 1e-6
SHARE = 0.25
PHASES = (Phase.explicit, Phase.reuse, Phase.generate)  # to shrink these stories takes minutes


@dataclass
class Admitted:
    at: float
    tokens: float
    requests: float = 1.0


@dataclass
class Running:
    taken: PurseTaken
    admitted: Admitted


@dataclass
class Worker:
    purse: Purse
    skew: float
    running: list[Running] = field(default_factory=list)
    wants: dict[str, float] = field(default_factory=dict)


class Network:
    """A broker and its holders; a message is bytes in a list until it is delivered, in any order, or lost."""

    def __init__(
        self, limits: Limits = LIMITS, workers: int = 3, opens: bool = False, scope: str = GLOBAL
    ) -> None:
        self.limits, self.scope = limits, scope
        self.opens = opens
        self.now = 0.0
        self.skew = 1_000.0
        self.broker = Broker({scope: limits}, self.skew, "b")
        self.written: dict[str, Tranche] = {}
        self.drawn: dict[str, int] = {}
        self.brokers, self.share = 0, 1.0
        self.lives = 0
        self.workers = [self.born() for _ in range(workers)]
        self.asks: list[tuple[Worker, bytes]] = []
        self.answers: list[tuple[Worker, bytes]] = []
        self.admitted: list[Admitted] = []

    def born(self) -> Worker:
        self.lives += 1
        skew = 77.7 * self.lives
        return Worker(Purse(f"h{self.lives}", {self.scope: self.limits}, self.now + skew, self.opens), skew)

    def take(self, worker: Worker, amount: int) -> bool:
        chain = worker.purse.chain(KEY, "m", self.now + worker.skew)
        answer = worker.purse.take(chain, amount, self.now + worker.skew)
        if isinstance(answer, Short):
            worker.wants = answer.wants
        if not isinstance(answer, PurseTaken):
            return False
        self.admitted.append(Admitted(self.now, amount))
        worker.running.append(Running(answer, self.admitted[-1]))
        return True

    def try_to_take(self, worker: Worker, amount: int) -> None:
        self.take(worker, amount)

    def end(self, worker: Worker, how: str, share: float) -> None:
        if not worker.running:
            return
        one = worker.running.pop(0 if share < 0.5 else -1)
        now = self.now + worker.skew
        if how == "refund":
            one.admitted.tokens = one.admitted.requests = 0
            assert worker.purse.refund(one.taken, now)
        elif how == "unknown":
            assert worker.purse.settle(one.taken, None, now)
        else:
            used = int(one.taken.tokens * share)
            one.admitted.tokens = used
            assert worker.purse.settle(one.taken, used, now)
        assert not worker.purse.settle(one.taken, 0, now)
        assert not worker.purse.refund(one.taken, now)

    def send(self, worker: Worker, full: bool) -> None:
        ask = worker.purse.ask(self.now + worker.skew, worker.wants, full)
        worker.wants = {}
        self.asks.append((worker, msgspec.msgpack.encode(ask)))

    def to_broker(self, at: int, keep: bool = False) -> None:
        if self.asks:
            worker, sent = self.asks[at % len(self.asks)]
            if not keep:
                del self.asks[at % len(self.asks)]
            answer = self.broker.ask(msgspec.msgpack.decode(sent, type=Ask), self.now + self.skew)
            if self.write():
                self.answers.append((worker, msgspec.msgpack.encode(answer)))

    def write(self) -> bool:
        """What is due goes to the journal before an answer leaves. False: the broker ends before it can."""
        self.written |= self.broker.due(self.now + self.skew)
        self.drawn = self.broker.drawn()
        return True

    def better(self) -> None:
        found, full = self.broker.better(self.now + self.skew)
        self.written = {name: each for name, each in {**self.written, **found}.items() if name not in full}

    def restart(self, written: bool) -> None:
        """Another broker, with a clock of its own, goes by what the last one has written down."""
        if written:
            self.write()  # but nobody had the answer
        self.skew += 123.4
        self.brokers += 1
        self.broker = Broker(
            {self.scope: self.limits},
            self.now + self.skew,
            f"b{self.brokers}",
            self.drawn,
            resumed=True,
            tranches=self.written,
        )
        self.broker.set_clamp(KEY.id, self.share, self.now + self.skew)

    def to_worker(self, at: int) -> None:
        if self.answers:
            worker, sent = self.answers.pop(at % len(self.answers))
            worker.purse.hear(msgspec.msgpack.decode(sent, type=Grants), self.now + worker.skew)

    def exchange(self, worker: Worker, full: bool = False) -> None:
        self.send(worker, full)
        self.to_broker(-1)
        self.to_worker(-1)

    def work(self, worker: Worker, amount: int) -> None:
        if not self.take(worker, amount) and worker.wants:
            self.exchange(worker)
            self.take(worker, amount)

    def sit(self, seconds: float) -> None:
        """Nobody does anything, and the broker's host calls `lapse` once a second, as it should."""
        end = self.now + seconds
        while self.now < end:
            self.now += 1.0
            self.broker.lapse(self.now + self.skew)

    def clamp(self, share: float) -> None:
        self.share = share
        names = (f"{kind}|{self.scope}" for kind in ("tokens", "requests"))
        self.written = {name: self.written.get(name, Tranche()).used_up() for name in names}
        self.broker.set_clamp(KEY.id, share, self.now + self.skew)
        for worker in self.workers:
            worker.purse.set_clamp(KEY.id, share, self.now + worker.skew)

    def crash(self, at: int) -> None:
        self.workers[at] = self.born()

    def check(self) -> None:
        for first, start in enumerate(self.admitted):
            tokens = requests = 0.0
            for one in self.admitted[first:]:
                tokens += one.tokens
                requests += one.requests
                assert tokens <= TOKENS + PER_S * (one.at - start.at) + SLACK
                assert requests <= REQUESTS + REQUESTS_PER_S * (one.at - start.at) + SLACK
        assert sum(one.tokens for one in self.admitted) <= BUDGET
        used = sum(one.tokens for one in self.admitted)
        assert used <= self.broker.drawn()[self.scope] <= BUDGET
        self.check_broker()

    def check_broker(self) -> None:
        """Nobody holds more than the broker believes, and with that all fits."""
        for kind, capacity in (("tokens", TOKENS), ("requests", REQUESTS)):
            lent = self.broker._counters[f"{kind}|{self.scope}"]
            assert isinstance(lent, LentRate)
            assert lent.bucket.level + lent.bucket.held + lent.out <= capacity + SLACK
            held = 0.0
            for worker in self.workers:
                pocket = worker.purse._pockets.get(f"{kind}|{self.scope}")
                if pocket is not None and self.now + worker.skew < pocket.until:
                    held += pocket.have
            assert held <= lent.out + SLACK


OPS: dict[str, Callable[[Network, int, int, float], None]] = {
    "tick": lambda net, at, amount, share: setattr(net, "now", net.now + share),
    "wait": lambda net, at, amount, share: setattr(net, "now", net.now + 5 * share),
    "fill": lambda net, at, amount, share: setattr(net, "now", net.now + 10),
    "work": lambda net, at, amount, share: net.work(net.workers[at % 3], amount),
    "work more": lambda net, at, amount, share: net.work(net.workers[at % 3], amount),
    "work most": lambda net, at, amount, share: net.work(net.workers[at % 3], amount),
    "take": lambda net, at, amount, share: net.try_to_take(net.workers[at % 3], amount),
    "settle": lambda net, at, amount, share: net.end(net.workers[at % 3], "settle", share),
    "settle too": lambda net, at, amount, share: net.end(net.workers[at % 3], "settle", share),
    "unknown": lambda net, at, amount, share: net.end(net.workers[at % 3], "unknown", share),
    "refund": lambda net, at, amount, share: net.end(net.workers[at % 3], "refund", share),
    "exchange": lambda net, at, amount, share: net.exchange(net.workers[at % 3], full=True),
    "send": lambda net, at, amount, share: net.send(net.workers[at % 3], full=share < 0.5),
    "deliver": lambda net, at, amount, share: net.to_broker(at),
    "deliver twice": lambda net, at, amount, share: net.to_broker(at, keep=True),
    "answer": lambda net, at, amount, share: net.to_worker(at),
    "drop": lambda net, at, amount, share: net.asks.clear() if share < 0.5 else net.answers.clear(),
    "crash": lambda net, at, amount, share: net.crash(at % 3),
    "lapse": lambda net, at, amount, share: net.broker.lapse(net.now + net.skew),
    "better": lambda net, at, amount, share: net.better(),
    "restart": lambda net, at, amount, share: net.restart(written=share < 0.5),
}
stories = st.lists(
    st.tuples(
        st.sampled_from(sorted(OPS)),
        st.integers(0, 8),
        st.one_of(st.sampled_from([100, 50, 10]), st.integers(0, 100)),
        st.one_of(st.sampled_from([0.0, 1.0]), st.floats(0, 1)),
    ),
    max_size=60,
)
Story = list[tuple[str, int, int, float]]


def play(net: Network, story: Story) -> None:
    for op, at, amount, share in story:
        OPS[op](net, at, amount, share)
        net.check()


@settings(max_examples=400, deadline=None, phases=PHASES)
@given(stories)
def test_all_holders_together_admit_no_more_than_one_bucket(story: Story) -> None:
    play(Network(), story)


@settings(max_examples=150, deadline=None, phases=PHASES)
@given(stories)
def test_what_was_lent_comes_back_when_the_leases_are_over(story: Story) -> None:
    """However the story went: with nobody left who holds anything, the whole bucket may be had again."""
    net = Network()
    play(net, story)
    for at in range(3):
        net.crash(at)
    net.sit(TOKENS / PER_S + LAPSE_S + 1)
    left = BUDGET - net.broker.drawn()[GLOBAL]
    amount = min(TOKENS, left)
    before = len(net.admitted)
    net.work(net.workers[0], amount)
    assert len(net.admitted) == before + 1
    net.check()


@settings(max_examples=150, deadline=None, phases=PHASES)
@given(stories)
def test_a_living_holder_does_not_starve_the_others(story: Story) -> None:
    """Idle holders return their slices with the next two full asks: one tells what was spent, one returns."""
    net = Network()
    play(net, story)
    net.asks.clear()
    net.answers.clear()
    for worker in net.workers[1:]:
        worker.wants = {}
        net.exchange(worker, full=True)
        net.exchange(worker, full=True)
    net.workers[0].wants = {}
    net.sit(TOKENS / PER_S + LAPSE_S + 1)
    amount = min(TOKENS, BUDGET - net.broker.drawn()[GLOBAL])
    before = len(net.admitted)
    net.work(net.workers[0], amount)
    assert len(net.admitted) == before + 1


@settings(max_examples=150, deadline=None, phases=PHASES)
@given(stories, stories)
@example(
    before=[("fill", 6, 94, 0.0), ("take", 8, 100, 1.0), ("send", 5, 50, 0.0), ("deliver", 8, 3, 0.0)],
    after=[("work more", 5, 72, 0.0), ("restart", 0, 62, 1.0)],
)  # what was out at the clamp, and renewed since, was not known to the next broker
def test_a_clamp_begins_without_a_burst_and_what_fitted_before_fits_again(
    before: Story, after: Story
) -> None:
    net = Network(scope=scope_of_key(KEY.id))
    play(net, before)
    first, began = len(net.admitted), net.now
    net.clamp(SHARE)
    for op, at, amount, share in after:
        OPS[op](net, at, amount, share)
        net.check()
        tokens = requests = 0.0
        for one in net.admitted[first:]:
            tokens += one.tokens
            requests += one.requests
            took = one.at - began
            assert tokens <= SHARE * (TOKENS + PER_S * took) + SLACK
            assert requests <= SHARE * (REQUESTS + REQUESTS_PER_S * took) + SLACK
    for at in range(3):
        net.crash(at)
    net.sit(2 * TOKENS / (PER_S * SHARE) + LAPSE_S + 1)  # it may have had twice as much on its way
    amount = min(TOKENS, BUDGET - net.broker.drawn()[net.scope])
    done = len(net.admitted)
    net.work(net.workers[0], amount)
    assert len(net.admitted) == done + 1
    net.check()


places_ops = st.lists(
    st.tuples(
        st.sampled_from(["work", "work", "work", "settle", "crash", "exchange"]),
        st.integers(0, 2),
        st.floats(0, 0.5),
    ),
    max_size=80,
)


@settings(max_examples=150, deadline=None, phases=PHASES)
@given(places_ops)
def test_places_are_never_exceeded_while_holders_are_heard(story: list[tuple[str, int, float]]) -> None:
    net = Network(Limits(concurrent=5))
    for op, at, tick in story:
        net.now += tick
        for worker in net.workers:
            net.exchange(worker, full=True)
        net.broker.lapse(net.now + net.skew)
        OPS[op](net, at, 1, tick)
        assert sum(len(worker.running) for worker in net.workers) <= 5
        lent = net.broker._counters[f"concurrent|{GLOBAL}"]
        assert isinstance(lent, LentPlaces)
        assert 0 <= lent.out <= 5
    for at in range(3):
        net.crash(at)
    net.sit(LAPSE_S + 1)
    for _ in range(5):
        net.work(net.workers[0], 1)
    assert len(net.workers[0].running) == 5


followed = st.lists(
    st.tuples(
        st.sampled_from(["work", "work more", "settle", "exchange", "better", "restart", "tick", "wait"]),
        st.integers(0, 2),
        st.sampled_from([5, 10, 20, 40, 60, 100]),
        st.sampled_from([0.0, 0.5, 1.0]),
    ),
    min_size=4,
    max_size=40,
)


@settings(max_examples=600, deadline=None, phases=PHASES)
@given(followed)
def test_brokers_that_follow_one_another_admit_no_more_than_one_bucket(story: Story) -> None:
    play(Network(), story)


@settings(max_examples=100, deadline=None, phases=PHASES)
@given(stories, stories)
def test_brokers_that_follow_one_another_in_any_story_admit_no_more_than_one_bucket(
    one: Story, two: Story
) -> None:
    net = Network()
    play(net, one)
    net.restart(written=True)
    net.check()
    net.sit(2 * LAPSE_S)
    play(net, two)


def use(net: Network, worker: Worker, amount: int) -> None:
    net.work(worker, amount)
    net.end(worker, "settle", 1.0)
    net.exchange(worker, full=True)
    net.check()


def test_what_was_lent_since_it_was_written_down_is_not_lent_again() -> None:
    net = Network()
    one = net.workers[0]
    for amount in (40, 20, 10, 20):
        use(net, one, amount)
    net.restart(written=False)
    for _ in range(30):
        use(net, one, 5)


def test_what_is_told_to_be_spent_may_not_be_lent_unwritten() -> None:
    net = Network()
    for _ in range(8):
        use(net, net.workers[0], 10)
    net.restart(written=False)
    for _ in range(30):
        use(net, net.workers[0], 5)


def test_a_slice_does_not_live_on_under_the_leases_of_another_broker() -> None:
    net = Network()
    one, two = net.workers[:2]
    one.wants = {"tokens|global": 10.0, "requests|global": 2.0}
    net.exchange(one)
    net.restart(written=True)
    for _ in range(5):
        net.now += 1.0
        net.broker.lapse(net.now + net.skew)
        one.wants = {"tokens|global": 1.0, "requests|global": 1.0}
        net.exchange(one)
    net.sit(1.0)
    net.work(two, 95)
    net.take(one, 10)
    net.check()


def test_a_broker_that_follows_another_lends_at_once_what_was_surely_left() -> None:
    """It began empty, and who had used a fraction of their limit were refused for a minute."""
    net = Network()
    for _ in range(5):
        net.work(net.workers[0], 10)
        net.end(net.workers[0], "settle", 1.0)
        net.now += 2.0  # half of the rate
        net.exchange(net.workers[0], full=True)
    net.restart(written=False)
    net.exchange(net.workers[0], full=True)  # what the last one had lent it is worth nothing
    before = len(net.admitted)
    for _ in range(10):
        net.work(net.workers[0], 10)
        net.end(net.workers[0], "settle", 1.0)
        net.now += 2.0
        net.check()
    assert len(net.admitted) == before + 10


def test_what_is_not_used_for_a_while_is_written_down_as_full() -> None:
    net = Network()
    net.work(net.workers[0], 100)
    net.end(net.workers[0], "settle", 1.0)
    net.better()
    assert net.written["tokens|global"].out == TOKENS
    net.exchange(net.workers[0], full=True)
    net.sit(8)
    net.better()
    assert net.written["tokens|global"].level > TOKENS / 2
    net.sit(20)
    net.better()
    assert net.written == {}
    net.restart(written=False)
    net.work(net.workers[1], 100)
    assert len(net.admitted) == 2
    net.check()


AMOUNTS = st.sampled_from([0.0, 0.5, 1.0, 50.0, 1e3, 1e9, 1e15])
lies = st.lists(
    st.one_of(
        st.tuples(st.just("tick"), st.integers(0, 2), st.just(0), st.floats(0, 1)),
        st.tuples(
            st.sampled_from(["work", "settle"]), st.integers(0, 2), st.integers(1, 100), st.floats(0, 1)
        ),
        st.tuples(st.sampled_from(["anew", "restart"]), st.just(0), st.just(0), st.floats(0, 1)),
        st.tuples(
            st.just("lie"),
            st.sampled_from(["tokens", "requests", "concurrent", "total"]),
            st.sampled_from(["l1", "l2", "h1", "h2", ""]),
            st.builds(Part, AMOUNTS, AMOUNTS, AMOUNTS, AMOUNTS),
        ),
    ),
    max_size=30,
)
SHARED = Limits(
    tokens_per_min=60 * PER_S,
    tokens_burst=TOKENS,
    requests_per_min=60 * REQUESTS_PER_S,
    requests_burst=REQUESTS,
    concurrent=5,
)


def lied_to(net: Network, story: list[tuple[str, Any, Any, Any]]) -> None:
    for number, (op, at, amount, share) in enumerate(story):
        if op == "lie":
            ask = Ask(amount, number, net.broker.term, False, {f"{at}|{net.scope}": share})
            net.broker.ask(ask, net.now + net.skew, "evil")
            net.write()
        elif op == "anew":
            net.broker._owe_nothing(net.scope, net.now + net.skew)
        else:
            OPS[op](net, at, amount, share)
            net.broker.lapse(net.now + net.skew)
        for first, start in enumerate(net.admitted):
            used = sum(one.tokens for one in net.admitted[first:])
            assert used <= TOKENS + PER_S * (net.admitted[-1].at - start.at) + SLACK


@settings(max_examples=300, deadline=None, phases=PHASES)
@given(lies)
@example([("lie", "tokens", "l1", Part(0.0, debt=1e15)), ("lie", "concurrent", "l1", Part(1e15))])
def test_whatever_one_holder_says_the_limits_of_others_recover_within_their_own_window(
    story: list[tuple[str, Any, Any, Any]],
) -> None:
    net = Network(SHARED)
    lied_to(net, story)
    for at in range(3):
        net.crash(at)
    net.sit(TOKENS / PER_S + LAPSE_S + 1)
    before = len(net.admitted)
    net.work(net.workers[0], 1)
    assert len(net.admitted) == before + 1
    net.end(net.workers[0], "settle", 1.0)
    net.sit(TOKENS / PER_S + LAPSE_S + 1)
    net.work(net.workers[1], TOKENS)
    assert len(net.admitted) == before + 2, "and after as long again all of it"


@settings(max_examples=150, deadline=None, phases=PHASES)
@given(lies)
def test_whatever_one_holder_says_a_budget_is_whole_again_when_it_is_reset(
    story: list[tuple[str, Any, Any, Any]],
) -> None:
    net = Network()
    lied_to(net, story)
    assert net.broker.drawn()[GLOBAL] <= BUDGET + overdraft(BUDGET) + 1
    for worker in net.workers:
        worker.wants = {}
        worker.running.clear()
    net.sit(TOKENS / PER_S + 2 * LAPSE_S)
    total = net.broker._counters[f"total|{GLOBAL}"]
    out = sum(
        h.leases[total_name].out
        for h in net.broker._holders.values()
        if (total_name := f"total|{GLOBAL}") in h.leases
    )
    net.broker.reset(GLOBAL, net.now + net.skew)
    assert total.left == BUDGET - out, "what is lent may still be used"
