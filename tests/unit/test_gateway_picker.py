"""Which replica gets a request, and what each has to do."""

import math
import random
from collections import Counter
from collections.abc import Callable

import pytest

from holdfast.core.gateway.routing.balancer import Pool
from holdfast.core.gateway.routing.endpoints import Replica
from holdfast.core.gateway.routing.updates import ReplicaSpec

NONE: frozenset[str] = frozenset()


def spec(name: str, **changes: float) -> ReplicaSpec:
    return ReplicaSpec(
        id=name,
        address=f"{name}:80",
        weight=changes.get("weight", 1.0),
        priority=int(changes.get("priority", 0)),
        streams_max=int(changes.get("streams_max", 0)),
    )


def pool_of(*specs: ReplicaSpec | str, now: float = 0.0) -> Pool:
    pool = Pool("model")
    pool.set_replicas([spec(each) if isinstance(each, str) else each for each in specs], now)
    return pool


def names(count: int) -> list[str]:
    return [f"r{number}" for number in range(count)]


class Caller:
    """Sends requests as the shell does."""

    def __init__(self, pool: Pool, seed: int = 1) -> None:
        self.pool = pool
        self.draw: Callable[[], float] = random.Random(seed).random
        self.now = 0.0

    def pick(
        self,
        cost: float = 100,
        prefix: tuple[int, ...] | None = None,
        session: str = "",
        exclude: frozenset[str] = NONE,
    ) -> Replica | None:
        return self.pool.pick(cost, prefix, session, self.now, self.draw, exclude)

    def send(self, cost: float = 100, prefix: tuple[int, ...] | None = None, session: str = "") -> Replica:
        replica = self.pick(cost, prefix, session)
        assert replica is not None
        self.pool.dispatch(replica, cost)
        return replica

    def spread(self, count: int) -> Counter[str]:
        """Where so many requests go, each ended before the next begins."""
        found: Counter[str] = Counter()
        for _ in range(count):
            replica = self.send()
            self.pool.release(replica, 100)
            found[replica.id] += 1
        return found


def test_an_empty_pool_has_nobody() -> None:
    assert Caller(pool_of()).pick() is None


def test_load_is_counted_at_dispatch_and_released_at_the_end() -> None:
    pool = pool_of("a")
    caller = Caller(pool)
    replica = caller.send(700)
    caller.send(300)
    assert (replica.outstanding, replica.streams, pool.outstanding) == (1_000, 2, 1_000)
    assert pool.release(replica, 700)
    assert (replica.outstanding, replica.streams) == (300, 1)


def test_a_release_too_many_is_refused_and_no_load_is_ever_negative() -> None:
    pool = pool_of("a")
    replica = Caller(pool).send(100)
    assert pool.release(replica, 100)
    assert not pool.release(replica, 100)
    assert (replica.outstanding, replica.streams, replica.load) == (0, 0, 0)


def test_neither_probes_nor_ejection_nor_a_new_list_change_what_is_in_flight() -> None:
    pool = pool_of("a", "b")
    caller = Caller(pool)
    replica = caller.send(500)
    pool.probed(replica, True, 1.0)
    pool.unreachable(replica, 1.0)
    pool.probed(replica, False, 1.5)
    pool.set_replicas([spec("a"), spec("b"), spec("c")], 2.0)
    assert (replica.outstanding, replica.streams) == (500, 1)


def test_requests_without_a_prefix_go_to_the_less_loaded_of_two() -> None:
    caller = Caller(pool_of(*names(8)))
    for _ in range(800):
        caller.send(100)
    loads = [replica.outstanding for replica in caller.pool.replicas.values()]
    assert max(loads) <= 1.25 * sum(loads) / 8 + 100
    assert min(loads) > 0


def test_a_heavier_and_a_faster_replica_get_their_share() -> None:
    pool = pool_of(spec("light"), spec("heavy", weight=3.0))
    for _ in range(400):
        Caller(pool, seed=pool.replicas["light"].streams + 1).send(10)
    assert pool.replicas["heavy"].outstanding == pytest.approx(3_000, rel=0.1)

    pool = pool_of("slow", "fast")
    for _ in range(200):
        pool.learn_speed(pool.replicas["slow"], 20, 1.0, 0.0)
        pool.learn_speed(pool.replicas["fast"], 60, 1.0, 0.0)
    caller = Caller(pool)
    for _ in range(400):
        caller.send(10)
    share = pool.replicas["fast"].outstanding / 4_000
    assert 0.65 <= share <= 0.85


def test_a_replica_without_weight_is_refused() -> None:
    with pytest.raises(ValueError, match="must be above 0"):
        spec("a", weight=0.0)


def test_a_prompt_goes_where_its_beginning_went() -> None:
    caller = Caller(pool_of(*names(8)))
    home = caller.send(100, (1, 2, 3))
    for length in range(4, 12):
        caller.pool.release(home, 100)
        assert caller.send(100, tuple(range(1, length + 1))) is home


def test_a_prompt_goes_elsewhere_when_its_replica_is_above_the_bound_and_is_known_there_too() -> None:
    caller = Caller(pool_of(*names(4)))
    home = caller.send(100, (1, 2, 3))
    for _ in range(3):
        caller.pool.dispatch(home, 100)
    other = caller.send(100, (1, 2, 3))
    assert other is not home
    for _ in range(4):
        caller.pool.release(home, 100)
    assert caller.send(100, (1, 2, 3)) in (home, other)


def test_a_new_prompt_leaves_the_room_above_the_mean_to_those_who_are_known_there() -> None:
    caller = Caller(pool_of("a", "b"))
    home = caller.send(100, (1, 2, 3))
    other = next(replica for replica in caller.pool.replicas.values() if replica is not home)
    for replica, count in ((home, 11), (other, 9)):
        for _ in range(count - replica.streams):
            caller.pool.dispatch(replica, 100)
    assert caller.pick(100, (1, 2, 3, 4)) is home
    assert {caller.pick(100, (number, 5)) for number in range(10, 60)} == {other}


def test_a_prompt_known_to_a_replica_that_is_leaving_goes_elsewhere() -> None:
    caller = Caller(pool_of("a", "b"))
    home = caller.send(100, (1, 2, 3))
    caller.pool.set_replicas([spec("a" if home.id == "b" else "b")], 1.0)
    assert caller.pick(100, (1, 2, 3)) not in (home, None)


def test_one_long_prompt_does_not_drive_away_those_whose_prompts_are_known_there() -> None:
    caller = Caller(pool_of(*names(4)))
    home = caller.send(100, (1, 2, 3))
    for replica in caller.pool.replicas.values():
        for _ in range(5):
            caller.pool.dispatch(replica, 100)
    caller.pool.dispatch(home, 400)
    assert home.outstanding == 1_000, "1.5 x the mean"
    assert caller.pick(100, (1, 2, 3, 4)) is home
    caller.pool.dispatch(home, 50_000)
    assert caller.pick(100, (1, 2, 3, 4)) is not home, "one that takes all of it does"


def test_a_beginning_shared_by_all_does_not_send_all_to_one_replica() -> None:
    caller = Caller(pool_of(*names(8)))
    for number in range(1, 400):
        caller.send(100, (0, 10 * number, 10 * number + 1))
    loads = [replica.outstanding for replica in caller.pool.replicas.values()]
    assert max(loads) <= 1.25 * sum(loads) / 8 + 100


def test_a_session_stays_with_its_replica_as_long_as_that_has_room() -> None:
    caller = Caller(pool_of(*names(8)))
    homes = {}
    for number in range(40):
        replica = homes[number] = caller.send(100, session=f"s{number}")
        caller.pool.release(replica, 100)
    for _ in range(10):
        for number, home in homes.items():
            assert caller.send(100, (number, 77), session=f"s{number}") is home
            caller.pool.release(home, 100)
    assert len({home.id for home in homes.values()}) > 4
    for _ in range(3):
        caller.pool.dispatch(homes[0], 1_000)
    assert caller.send(100, session="s0") is not homes[0]


@pytest.mark.parametrize("change", ["comes", "goes"])
def test_few_prefixes_move_when_a_replica_comes_or_goes(change: str) -> None:
    small, large = names(9), names(10)
    before, after = (small, large) if change == "comes" else (large, small)

    def homes(of: list[str]) -> dict[int, str]:
        found = {}
        caller = Caller(pool_of(*of))
        for number in range(2_000):
            replica = caller.pick(100, (number,))
            assert replica is not None
            found[number] = replica.id
        return found

    old, new = homes(before), homes(after)
    moved = [number for number in old if old[number] != new[number]]
    assert 0.05 * 2_000 <= len(moved) <= 0.16 * 2_000, "a tenth of them"
    assert all("r9" in (old[number], new[number]) for number in moved)


def test_an_ejected_replica_gets_nothing_and_its_prefixes_come_back_with_it() -> None:
    caller = Caller(pool_of(*names(4)))
    key = next(k for k in range(100) if (r := caller.pick(1, (k,))) is not None and r.id == "r2")
    home = caller.pool.replicas["r2"]
    caller.pool.unreachable(home, 0.0)
    caller.now = 0.5
    assert "r2" not in caller.spread(200)
    assert caller.pick(1, (key,)) is not home
    caller.now = 1.0
    assert caller.pick(1) is home, "the trial"
    caller.pool.succeeded(home, 1.1)
    caller.now = 60.0
    fresh = Caller(caller.pool)
    fresh.now = 60.0
    assert fresh.pick(1, (key, 5)) is not None
    assert "r2" in fresh.spread(200)


def test_a_replica_that_was_out_gets_exactly_one_trial() -> None:
    caller = Caller(pool_of(*names(4)))
    sick = caller.pool.replicas["r1"]
    caller.pool.unreachable(sick, 0.0)
    caller.now = 1.0
    assert caller.spread(500)["r1"] == 1
    caller.pool.failed(sick, 1.5)
    caller.now = 3.4
    assert caller.spread(100)["r1"] == 0
    caller.now = 3.5
    assert caller.spread(500)["r1"] == 1
    caller.pool.succeeded(sick, 3.6)
    caller.now = 40.0
    assert caller.spread(500)["r1"] > 50


def test_who_comes_back_and_who_is_new_starts_slowly() -> None:
    pool = pool_of(*names(4))
    pool.set_replicas([spec(name) for name in names(5)], 100.0)
    caller = Caller(pool)
    shares = []
    for now in (100.0, 115.0, 131.0):
        caller.now = now
        sent = [caller.send(10) for _ in range(400)]
        shares.append(sum(replica.id == "r4" for replica in sent) / 400)
        for replica in sent:
            pool.release(replica, 10)
    assert shares[0] < 0.06
    assert shares[0] < shares[1] < shares[2]
    assert shares[2] == pytest.approx(0.2, abs=0.05)


def test_at_most_half_are_ejected_and_then_everybody_is_asked() -> None:
    caller = Caller(pool_of(*names(4)))
    for name in ("r0", "r1"):
        caller.pool.unreachable(caller.pool.replicas[name], 0.0)
    assert set(caller.spread(400)) == {"r2", "r3"}
    caller.pool.unreachable(caller.pool.replicas["r2"], 0.0)
    assert set(caller.spread(400)) == set(names(4)), "our own link is as likely"
    caller.pool.unreachable(caller.pool.replicas["r3"], 0.0)
    assert set(caller.spread(400)) == set(names(4))


def test_a_single_replica_that_failed_is_asked_again_but_not_by_the_same_request() -> None:
    caller = Caller(pool_of("only"))
    only = caller.pool.replicas["only"]
    caller.pool.unreachable(only, 0.0)
    assert caller.pick() is only
    assert caller.pick(exclude=frozenset({"only"})) is None
    caller.pool.succeeded(only, 0.1)
    assert not only.health.ejected, "it answered: it is in again before its time"


def test_too_many_requests_never_ejects_and_waiting_is_better_than_asking_again() -> None:
    caller = Caller(pool_of("a", "b"))
    for replica in caller.pool.replicas.values():
        for _ in range(50):
            caller.pool.pushed_back(replica, 2.0, 0.0)
    assert caller.pick() is None
    assert not caller.pool.room(1.9)
    caller.now = 2.0
    assert caller.pick() is not None
    assert caller.pool.room(2.0)
    assert not any(replica.health.ejected for replica in caller.pool.replicas.values())


def test_the_second_priority_is_asked_only_while_the_first_has_no_room() -> None:
    caller = Caller(pool_of(spec("a", streams_max=2), spec("b", streams_max=2), spec("far", priority=1)))
    sent = [caller.send() for _ in range(4)]
    assert {replica.id for replica in sent} == {"a", "b"}
    assert caller.send().id == "far"
    caller.pool.release(sent[0], 100)
    assert caller.send().id in ("a", "b"), "room again"


def test_the_second_priority_takes_over_from_an_unhealthy_first_and_gives_back() -> None:
    caller = Caller(pool_of(*names(4), spec("far", priority=1)))
    near = [caller.pool.replicas[name] for name in names(4)]
    for replica in near[:2]:
        caller.pool.unreachable(replica, 0.0)
    assert caller.spread(200)["far"] == 0, "half of them still carry all"
    caller.pool.unreachable(near[2], 0.0)
    assert 60 <= caller.spread(200)["far"] <= 140, "a quarter of them carries half"
    caller.pool.unreachable(near[3], 0.0)
    assert caller.spread(200)["far"] == 200
    caller.now = 1.0
    trials = caller.spread(200)
    assert [trials[name] for name in names(4)] == [1, 1, 1, 1]
    for replica in near:
        caller.pool.succeeded(replica, 1.1)
    caller.now = 1.2
    assert caller.spread(200)["far"] == 0


def test_a_replica_that_is_not_wanted_ends_its_streams_and_gets_no_more() -> None:
    pool = pool_of("a", "b")
    caller = Caller(pool)
    old = pool.replicas["a"]
    pool.dispatch(old, 100)
    pool.set_replicas([spec("b")], 1.0)
    assert old.draining
    assert old in pool.leaving
    assert set(caller.spread(50)) == {"b"}
    pool.unreachable(old, 1.0)
    pool.succeeded(old, 1.0)
    assert pool.release(old, 100)
    assert not pool.leaving
    assert set(caller.spread(50)) == {"b"}


def test_one_that_is_wanted_again_before_it_was_gone_is_the_same_one() -> None:
    pool = pool_of("a", "b")
    old = pool.replicas["a"]
    pool.dispatch(old, 100)
    pool.set_replicas([spec("b")], 1.0)
    pool.set_replicas([spec("a"), spec("b")], 2.0)
    assert pool.replicas["a"] is old
    assert not old.draining
    assert Caller(pool).pick(exclude=frozenset({"b"})) is old


def test_another_address_is_another_replica() -> None:
    pool = pool_of("a")
    old = pool.replicas["a"]
    pool.dispatch(old, 100)
    pool.set_replicas([ReplicaSpec(id="a", address="elsewhere:80")], 1.0)
    assert pool.replicas["a"] is not old
    assert pool.replicas["a"].outstanding == 0
    assert old.draining


def test_weight_and_limits_change_while_it_runs() -> None:
    pool = pool_of("a", "b")
    kept = pool.replicas["a"]
    pool.dispatch(kept, 100)
    pool.set_replicas([spec("a", weight=2.0, streams_max=1), spec("b")], 50.0)
    assert pool.replicas["a"] is kept
    assert kept.load == 50
    caller = Caller(pool)
    caller.now = 50.0
    assert set(caller.spread(50)) == {"b"}, "a is full"


def test_a_priority_that_changes_makes_it_one_of_that_level() -> None:
    pool = pool_of("a", "b")
    pool.dispatch(pool.replicas["a"], 100)
    pool.set_replicas([spec("a", priority=1), spec("b")], 1.0)
    caller = Caller(pool)
    caller.now = 1.0
    assert set(caller.spread(50)) == {"b"}


def test_tried_replicas_are_not_tried_again() -> None:
    caller = Caller(pool_of(*names(3)))
    tried: set[str] = set()
    for _ in range(3):
        replica = caller.pick(100, (1, 2), exclude=frozenset(tried))
        assert replica is not None
        tried.add(replica.id)
    assert tried == set(names(3))
    assert caller.pick(100, (1, 2), exclude=frozenset(tried)) is None


def test_those_who_wait_are_let_go_for_a_trial_and_not_sooner() -> None:
    pool = pool_of("only")
    pool.unreachable(pool.replicas["only"], 0.0)
    assert not pool.room(0.9), "they would be sent to the dead as fast as they come back"
    assert pool.room(1.0), "without a trial it would stay out for ever"
    assert not pool_of().room(0.0)


def test_sending_again_elsewhere_does_not_make_a_beginning_common() -> None:
    caller = Caller(pool_of(*names(8)))
    home = caller.send(100, (1, 2))
    tried = {home.id}
    for _ in range(6):
        replica = caller.pick(100, (1, 2), exclude=frozenset(tried))
        assert replica is not None
        tried.add(replica.id)
    caller.pool.release(home, 100)
    again = {caller.pick(100, (1, 2)) for _ in range(20)}
    assert len(again) == 1


def test_saturation_is_streams_over_what_those_who_are_ready_allow() -> None:
    assert pool_of("a").saturation() == 0.0
    pool = pool_of(spec("a", streams_max=4), spec("b", streams_max=6), spec("c"))
    for name in "abc":
        pool.dispatch(pool.replicas[name], 10)
    assert pool.saturation() == 0.2
    pool.unreachable(pool.replicas["b"], 0.0)
    assert pool.saturation() == 0.25


def test_a_pick_does_not_look_at_everybody() -> None:
    class Watched(list[Replica]):
        looks = 0

        def __iter__(self):  # type: ignore[no-untyped-def]
            Watched.looks += len(self)
            return super().__iter__()

        def __getitem__(self, at):  # type: ignore[no-untyped-def]
            Watched.looks += 1
            return super().__getitem__(at)

    pool = pool_of(*names(100))
    level = pool.replicas["r0"].level
    level.ready = Watched(level.ready)
    caller = Caller(pool)
    for number in range(3_000):
        replica = caller.send(100 + number % 900)
        if number >= 500:
            busiest = max(pool.replicas.values(), key=lambda each: each.streams)
            pool.release(busiest, busiest.outstanding / busiest.streams)
        assert replica.load < math.inf
    assert Watched.looks < 12 * 3_000
