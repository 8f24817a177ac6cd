"""What holds for every order of requests, ends, faults and changes of the fleet."""

import random
from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from holdfast.core.gateway.routing.balancer import BOUND, Pool
from holdfast.core.gateway.routing.endpoints import Replica
from holdfast.core.gateway.routing.fair_queue import Hold
from holdfast.core.gateway.routing.outlier import IN, TRIAL
from holdfast.core.gateway.routing.updates import ReplicaSpec

NONE: frozenset[str] = frozenset()
costs = st.integers(1, 50_000)
prefixes = st.one_of(st.none(), st.lists(st.integers(0, 6), min_size=1, max_size=5).map(tuple))


def pool_of(count: int, weights: list[float] | None = None) -> Pool:
    pool = Pool("model")
    each = weights or [1.0] * count
    pool.set_replicas(
        [ReplicaSpec(id=f"r{n}", address=f"r{n}", weight=weight) for n, weight in enumerate(each)], 0.0
    )
    return pool


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.sampled_from([0.5, 1.0, 2.0, 4.0]), min_size=1, max_size=12),
    st.lists(st.tuples(costs, prefixes, st.sampled_from(["", "", "s1", "s2"]), st.booleans()), max_size=150),
    st.randoms(use_true_random=False),
)
def test_no_dispatch_leaves_a_replica_above_the_bound_by_more_than_one_request(
    weights: list[float],
    asked: list[tuple[int, tuple[int, ...] | None, str, bool]],
    dice: random.Random,
) -> None:
    pool = pool_of(len(weights), weights)
    flying: list[tuple[Replica, int]] = []
    for cost, prefix, session, ends in asked:
        replica = pool.pick(cost, prefix, session, 0.0, dice.random, NONE)
        assert replica is not None
        pool.dispatch(replica, cost)
        flying.append((replica, cost))
        total = sum(each for _, each in flying)
        share = replica.weight / sum(weights)
        there = [each for where, each in flying if where is replica]
        assert sum(there) - max(there) <= BOUND * total * share + 1e-6
        if ends:
            pool.release(*flying.pop(dice.randrange(len(flying))))


class Fleet(RuleBasedStateMachine):
    """Requests, ends, results and changes of the fleet in any order."""

    @initialize(count=st.integers(1, 6), seed=st.integers(0, 100))
    def begin(self, count: int, seed: int) -> None:
        self.now = 0.0
        self.dice = random.Random(seed)
        self.pool = pool_of(count)
        self.flying: list[tuple[Replica, int]] = []

    @rule(seconds=st.sampled_from([0.0, 0.1, 1.0, 5.0, 70.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    @rule(cost=costs, prefix=prefixes, exclude=st.sampled_from([NONE, frozenset({"r0"})]))
    def send(self, cost: int, prefix: tuple[int, ...] | None, exclude: frozenset[str]) -> None:
        tried = [r for r in self.pool.replicas.values() if r.health.state == TRIAL]
        trials_before = {r.id for r in tried if not r.health.early}  # an early one, failing open, is no trial
        out = {r.id for r in self.pool.replicas.values() if r.health.ejected}
        due = {r.id for r in self.pool.replicas.values() if r.health.trial_due(self.now)}
        replica = self.pool.pick(cost, prefix, "", self.now, self.dice.random, exclude)
        if replica is None:
            return
        assert not replica.draining
        assert replica.id not in exclude
        cooling = replica.health.state == IN and replica.health.barred_until > self.now
        assert not cooling
        if 2 * len(out) <= len(self.pool.replicas) and replica.id in out:
            assert replica.id in due, "out, and not yet its time"
            assert replica.id not in trials_before or self.now >= 30, "one trial at a time"
        self.pool.dispatch(replica, cost)
        self.flying.append((replica, cost))

    @precondition(lambda self: bool(getattr(self, "flying", ())))
    @rule(which=st.integers(0), how=st.sampled_from(["good", "bad", "unreachable", "429", "left"]))
    def end(self, which: int, how: str) -> None:
        replica, cost = self.flying.pop(which % len(self.flying))
        match how:
            case "good":
                self.pool.succeeded(replica, self.now)
            case "bad":
                self.pool.failed(replica, self.now)
            case "unreachable":
                self.pool.unreachable(replica, self.now)
            case "429":
                ejected = replica.health.ejected
                self.pool.pushed_back(replica, 1.0, self.now)
                assert ejected or not replica.health.ejected
        assert self.pool.release(replica, cost)

    @precondition(lambda self: hasattr(self, "pool") and bool(self.pool.replicas))
    @rule(which=st.integers(0), good=st.booleans())
    def probe(self, which: int, good: bool) -> None:
        replicas = list(self.pool.replicas.values())
        self.pool.probed(replicas[which % len(replicas)], good, self.now)

    @rule(wanted=st.sets(st.integers(0, 7), max_size=6), priority=st.integers(0, 1))
    def change(self, wanted: set[int], priority: int) -> None:
        specs = [
            ReplicaSpec(id=f"r{n}", address=f"r{n}", priority=priority if n > 4 else 0)
            for n in sorted(wanted)
        ]
        self.pool.set_replicas(specs, self.now)

    @invariant()
    def loads_are_what_is_in_flight(self) -> None:
        if not hasattr(self, "pool"):
            return
        known = {*self.pool.replicas.values(), *self.pool.leaving}
        for replica in known:
            there = [cost for where, cost in self.flying if where is replica]
            assert (replica.streams, replica.outstanding) == (len(there), sum(there))
            assert replica.largest <= max(there, default=0)
        assert {where for where, _ in self.flying} <= known
        assert all(replica.streams for replica in self.pool.leaving)

    @invariant()
    def sums_are_those_of_the_ready(self) -> None:
        if not hasattr(self, "pool"):
            return
        for level in {replica.level for replica in self.pool.replicas.values()}:
            ready = [r for r in level.members if not r.health.ejected]
            assert set(ready) == set(level.ready)
            assert len(level.ready) == len(ready)
            assert abs(level.outstanding - sum(r.outstanding for r in ready)) < 1e-3
            assert abs(level.carries - sum(r.carries for r in ready)) < 1e-6
            assert all(r.level is level and not r.draining for r in level.members)


TestFleet = Fleet.TestCase
TestFleet.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 1_000)), min_size=1, max_size=200),
    st.integers(1, 100),
)
def test_between_two_keys_that_wait_the_tokens_served_differ_by_little(
    asked: list[tuple[str, int]], rounds: int
) -> None:
    hold: Hold[int] = Hold(100_000, 1e9, 1e9)
    key_of, cost_of, left = {}, {}, Counter[str]()
    for number, (key, cost) in enumerate(asked):
        assert hold.add(number, key, cost, 0.0)
        key_of[number], cost_of[number] = key, cost
        left[key] += 1
    waiting, served = set(left), Counter[str]()
    for _ in range(min(rounds, len(asked))):
        item = hold.next(0.0)
        assert item is not None
        key = key_of[item]
        served[key] += cost_of[item]
        left[key] -= 1
        if not left[key]:
            waiting.discard(key)
        tokens = [served[each] for each in waiting]
        assert max(tokens, default=0) - min(tokens, default=0) <= 3 * max(cost_of.values())


@settings(max_examples=80, deadline=None)
@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("add"), st.sampled_from("abc"), st.integers(1, 300)),
            st.tuples(st.sampled_from(["next", "drop", "expired"]), st.just(""), st.integers(0, 50)),
        ),
        max_size=120,
    )
)
def test_everything_that_was_held_comes_out_exactly_once_and_the_counts_agree(
    steps: list[tuple[str, str, int]],
) -> None:
    hold: Hold[int] = Hold(8, 1_000, 10.0)
    held: dict[int, int] = {}
    for at, (what, key, amount) in enumerate(steps):
        now = float(at)
        match what:
            case "add":
                if hold.add(at, key, amount, now):
                    held[at] = amount
            case "next":
                item = hold.next(now)
                if item is not None:
                    assert now - item < 10.0
                    del held[item]
            case "drop":
                assert hold.drop(amount) == (held.pop(amount, None) is not None)
            case "expired":
                for item in hold.expired(now):
                    assert now - item >= 10.0
                    del held[item]
                assert (hold.length, hold.tokens) == (len(held), sum(held.values()))
        assert hold.length <= 8
    for item in hold.expired(1e9):
        del held[item]
    assert held == {}
    assert (hold.length, hold.tokens) == (0, 0)
