"""Whatever is taken, settled, returned and changed, on any clock: no interval holds more than its share."""

from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    invariant,
    multiple,
    rule,
)

from holdfast.core.gateway.quota.limits import (
    Chain,
    Ledger,
    Refusal,
    Taken,
)
from holdfast.core.gateway.quota.token_bucket import Bucket
from holdfast.model.gateway import GLOBAL, Key, Limits

SLACK = 1e-6


@dataclass
class Admitted:
    """One request let through: what the bucket could hold then, what its rate had brought until then, and
    what it came to use (as reserved, while it runs)."""

    capacity: float
    brought: float
    used: float


@dataclass
class Track:
    """The intervals of one bucket, kept apart from its own arithmetic. Time passes when the bucket is told of
    it: of a clock that was ahead for a while, and right again when somebody asked, nobody can know."""

    capacity: float
    rate: float
    at: float = 0.0
    brought: float = 0.0
    found: list[Admitted] = field(default_factory=list)

    def pass_until(self, now: float) -> None:
        if now > self.at:
            self.brought += self.rate * (now - self.at)
            self.at = now

    def admit(self, amount: float) -> Admitted:
        self.found.append(Admitted(self.capacity, self.brought, amount))
        return self.found[-1]

    def check(self) -> None:
        """Every interval that begins and ends with a request; the others are no fuller."""
        for first in range(len(self.found)):
            start, used = self.found[first], 0.0
            for one in self.found[first:]:
                used += one.used
                bound = start.capacity + one.brought - start.brought
                assert used <= bound + SLACK * max(1.0, bound)


# Whole buckets, full refills and returns of all are drawn often: the worst intervals are made of these.
ticks = st.one_of(st.sampled_from([0.0, 20.0, 60.0]), st.floats(-5, 30), st.floats(0, 0.5))
amounts = st.one_of(st.sampled_from([100, 50]), st.integers(0, 120))
shares = st.one_of(st.sampled_from([0.0, 1.0]), st.floats(0, 1))


class OneBucket(RuleBasedStateMachine):
    """Reservations of one bucket, none of which uses more than it reserved."""

    running = Bundle("running")

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.bucket = Bucket(100, 5, 0.0)
        self.track = Track(100, 5)

    @rule(step=ticks)
    def time_passes(self, step: float) -> None:
        self.now += step

    @rule(target=running, amount=amounts)
    def take(self, amount: int) -> object:
        if self.bucket.wait_s(amount, self.now) > 0:
            return multiple()
        self.track.pass_until(self.now)
        return amount, self.bucket.take(amount, self.now), self.track.admit(amount)

    @rule(one=consumes(running), share=shares)
    def settle(self, one: tuple[int, float, Admitted], share: float) -> None:
        self.track.pass_until(self.now)
        amount, mark, admitted = one
        admitted.used = amount * share
        self.bucket.settle(amount, admitted.used, mark, self.now)

    @rule(capacity=st.sampled_from([100, 100, 0, 30, 150]), rate=st.sampled_from([5.0, 5.0, 0.0, 20.0]))
    def change(self, capacity: int, rate: float) -> None:
        self.track.pass_until(self.now)
        self.bucket.change(capacity, rate, self.now)
        self.track.capacity, self.track.rate = capacity, rate

    @rule(share=st.sampled_from([1.0, 0.5, 0.1]))
    def lower(self, share: float) -> None:
        """What a clamp begins with: nothing that comes after it is larger by it."""
        self.track.pass_until(self.now)
        self.bucket.lower(self.bucket.capacity * share, self.now)

    @invariant()
    def level_and_held_fit_in_the_capacity(self) -> None:
        assert self.bucket.level + self.bucket.held <= self.bucket.capacity + SLACK
        assert self.bucket.held >= 0

    @invariant()
    def no_interval_holds_more_than_its_share(self) -> None:
        self.track.check()


OneBucket.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
TestOneBucket = OneBucket.TestCase


def test_a_clock_that_is_ahead_while_nobody_asks_brings_no_less_afterwards() -> None:
    """The second that it was ahead was missing from what this file counted, not from what the bucket did."""
    story = OneBucket()
    story.time_passes(20.0)
    story.time_passes(-1.0)
    story.settle(story.take(100), 0.25)
    story.take(50)
    story.time_passes(15.0)
    story.take(100)
    assert story.bucket.level == 0.0
    story.no_interval_holds_more_than_its_share()


limits = st.builds(
    Limits,
    tokens_per_min=st.one_of(st.none(), st.integers(0, 2_000)),
    requests_per_min=st.one_of(st.none(), st.integers(0, 100)),
    concurrent=st.one_of(st.none(), st.integers(0, 5)),
    tokens_total=st.one_of(st.none(), st.integers(0, 5_000)),
    tokens_burst=st.one_of(st.none(), st.integers(0, 2_000)),
    requests_burst=st.one_of(st.none(), st.integers(0, 20)),
)
SCOPES = ("key:k/model:m", "team:t", "model:m", GLOBAL)


@dataclass
class Run:
    """A ledger with fixed limits and what it let through."""

    given: dict[str, Limits]
    now: float = 0.0
    running: list[tuple[Taken, list[Admitted]]] = field(default_factory=list)
    refunded: int = 0

    def __post_init__(self) -> None:
        key = Key(id="k", hash=b"", team="t", limits=self.given["key:k"])
        self.ledger = Ledger({scope: self.given[scope] for scope in SCOPES}, 0.0)
        self.chain = self.ledger.chain(key, "m", 0.0)
        self.tracks = [Track(b.capacity, b.rate) for b in self.chain.tokens + self.chain.requests]
        self.used = 0  # of budgets: what ended requests used

    def state(self) -> tuple[list[float], list[int]]:
        return counters(self.chain, self.now)

    def step(self, what: str, amount: int, share: float) -> None:
        if what == "take":
            self.take(amount)
        elif self.running:
            self.time_passes()
            self.end(what, share)
        self.check()

    def time_passes(self) -> None:
        for track in self.tracks:
            track.pass_until(self.now)

    def take(self, amount: int) -> None:
        before = self.state()
        answer = self.ledger.take(self.chain, amount, self.now)
        if isinstance(answer, Refusal):
            assert self.state() == before
            assert answer.wait_s > 0
            return
        self.time_passes()
        first = len(self.chain.tokens)
        records = [track.admit(amount if at < first else 1) for at, track in enumerate(self.tracks)]
        self.running.append((answer, records))

    def end(self, what: str, share: float) -> None:
        taken, records = self.running.pop(0 if share < 0.5 else -1)
        used = taken.tokens if what == "unknown" else int(taken.tokens * share)
        if what == "refund":
            used = 0
            assert self.ledger.refund(taken, self.now)
        else:
            assert self.ledger.settle(taken, None if what == "unknown" else used, self.now)
        self.used += used
        for at, record in enumerate(records):
            record.used = used if at < len(self.chain.tokens) else 0 if what == "refund" else 1
        before = self.state()
        assert not self.ledger.settle(taken, 0, self.now)
        assert not self.ledger.refund(taken, self.now)
        assert self.state() == before

    def check(self) -> None:
        for track in self.tracks:
            track.check()
        for places in self.chain.places:
            assert places.used == len(self.running) <= places.limit
        reserved = sum(taken.tokens for taken, _ in self.running)
        for total in self.chain.totals:
            assert total.used == self.used + reserved <= total.limit


def counters(chain: Chain, now: float) -> tuple[list[float], list[int]]:
    levels = [bucket.level_at(now) for bucket in chain.tokens + chain.requests]
    return levels, [counter.used for counter in chain.places + chain.totals]


steps = st.tuples(
    st.sampled_from(["take", "take", "take", "settle", "unknown", "refund"]),
    ticks,
    st.integers(0, 700),
    shares,
)


@settings(max_examples=300, deadline=None)
@given(
    st.fixed_dictionaries(dict.fromkeys(("key:k", *SCOPES), limits)),
    st.lists(steps, max_size=60),
)
def test_all_scopes_hold_their_bounds_at_once(
    given: dict[str, Limits], story: list[tuple[str, float, int, float]]
) -> None:
    run = Run(given)
    for what, tick, amount, share in story:
        run.now += tick
        run.step(what, amount, share)


@settings(max_examples=200, deadline=None)
@given(
    st.lists(
        st.tuples(st.floats(0, 30), st.integers(1, 100), st.one_of(st.none(), st.integers(0, 300))),
        max_size=40,
    )
)
def test_every_token_ever_used_is_paid_for(story: list[tuple[float, int, int | None]]) -> None:
    """Overruns too: what is left is at most what there was and came, less all that was used."""
    ledger = Ledger({GLOBAL: Limits(tokens_per_min=300, tokens_burst=100)}, 0.0)
    chain = ledger.chain(Key(id="k", hash=b""), "m", 0.0)
    now, used = 0.0, 0
    for tick, amount, actual in story:
        now += tick
        answer = ledger.take(chain, amount, now)
        if isinstance(answer, Taken):
            ledger.settle(answer, actual, now)
            used += amount if actual is None else actual
        level = chain.tokens[0].level_at(now)
        assert level <= 100 + 5 * now - used + SLACK * (1 + used)
    owed = -min(0.0, chain.tokens[0].level_at(now))
    assert chain.tokens[0].level_at(now + (owed + 100) / 5 + 1) == 100


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.floats(0, 20), st.integers(1, 200)), min_size=1, max_size=30))
def test_who_waits_as_long_as_told_gets_through(story: list[tuple[float, int]]) -> None:
    ledger = Ledger({GLOBAL: Limits(tokens_per_min=600, tokens_burst=200, requests_per_min=20)}, 0.0)
    chain = ledger.chain(Key(id="k", hash=b""), "m", 0.0)
    now = 0.0
    for tick, amount in story:
        now += tick
        answer = ledger.take(chain, amount, now)
        if isinstance(answer, Refusal):
            now += answer.wait_s
            assert isinstance(ledger.take(chain, amount, now), Taken)
