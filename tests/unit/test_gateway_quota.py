"""All limits of a request in one step: all or nothing, settled once, and a refusal that tells the truth."""

import math

import pytest
from msgspec.structs import replace

from holdfast.core.gateway.quota.limits import (
    CHAINS_MAX,
    Chain,
    Ledger,
    Refusal,
    Taken,
)
from holdfast.model.gateway import GLOBAL, Key, Limits

KEY = Key(id="k", hash=b"", team="t", limits=Limits(tokens_per_min=600, requests_per_min=60, concurrent=3))


def admitted(answer: Taken | Refusal) -> Taken:
    assert isinstance(answer, Taken), answer
    return answer


def refused(answer: Taken | Refusal) -> Refusal:
    assert isinstance(answer, Refusal)
    return answer


def state(chain: Chain) -> tuple[list[float], list[int]]:
    levels = [bucket.level for bucket in chain.tokens + chain.requests]
    return levels, [counter.used for counter in chain.places + chain.totals]


def test_every_scope_that_has_limits_applies_the_narrowest_first() -> None:
    some = Limits(tokens_per_min=1)
    names = ["key:k/model:m", "team:t", "team:t/model:m", "model:m", GLOBAL]
    ledger = Ledger({**dict.fromkeys(names, some), "model:other": some, "team:u": some}, 0)
    assert [bucket.scope for bucket in ledger.chain(KEY, "m", 0).tokens] == ["key:k", *names]
    assert [bucket.scope for bucket in ledger.chain(KEY, "x", 0).tokens] == ["key:k", "team:t", GLOBAL]


def test_without_limits_everything_is_admitted() -> None:
    ledger = Ledger({}, 0)
    chain = ledger.chain(Key(id="free", hash=b""), "m", 0)
    taken = admitted(ledger.take(chain, 10**12, 0))
    assert ledger.settle(taken, 5, 0)
    standing = ledger.standing(chain, 0)
    assert (standing.limit_tokens, standing.remaining_tokens, standing.limit_requests) == (-1, -1, -1)


@pytest.mark.parametrize(
    ("limits", "kind"),
    [
        (Limits(tokens_per_min=100), "tokens"),
        (Limits(requests_per_min=1), "requests"),
        (Limits(concurrent=1), "concurrent"),
        (Limits(tokens_total=100), "total"),
    ],
)
def test_one_counter_that_says_no_leaves_all_others_as_they_were(limits: Limits, kind: str) -> None:
    ledger = Ledger({GLOBAL: limits}, 0)
    chain = ledger.chain(KEY, "m", 0)
    admitted(ledger.take(chain, 60, 0))
    before = state(chain)
    answer = refused(ledger.take(chain, 60, 0))
    assert (answer.kind, answer.scope) == (kind, GLOBAL)
    assert state(chain) == before


def test_the_wait_is_the_longest_of_all_scopes_and_then_it_fits() -> None:
    ledger = Ledger({"team:t": Limits(tokens_per_min=120), GLOBAL: Limits(tokens_per_min=6_000)}, 0)
    chain = ledger.chain(KEY, "m", 0)
    ledger.settle(admitted(ledger.take(chain, 100, 0)), 100, 0)
    answer = refused(ledger.take(chain, 80, 0))
    assert (answer.scope, answer.kind, answer.needed, answer.limit) == ("team:t", "tokens", 80, 120)
    assert answer.wait_s == pytest.approx(30, abs=1e-3)
    refused(ledger.take(chain, 80, answer.wait_s - 0.01))
    admitted(ledger.take(chain, 80, answer.wait_s))


def test_what_can_never_fit_is_not_told_to_wait() -> None:
    ledger = Ledger({}, 0)
    answer = refused(ledger.take(ledger.chain(KEY, "m", 0), 601, 0))
    assert (answer.kind, answer.scope, answer.wait_s) == ("never", "key:k", math.inf)


def test_a_limit_of_nothing_admits_nothing() -> None:
    for limits in (Limits(tokens_per_min=0), Limits(requests_per_min=0), Limits(concurrent=0)):
        ledger = Ledger({GLOBAL: limits}, 0)
        assert refused(ledger.take(ledger.chain(KEY, "m", 0), 1, 0)).kind == "never"


def test_a_spent_budget_is_told_apart_from_a_rate() -> None:
    ledger = Ledger({GLOBAL: Limits(tokens_total=100)}, 0)
    chain = ledger.chain(KEY, "m", 0)
    ledger.settle(admitted(ledger.take(chain, 100, 0)), 90, 0)
    answer = refused(ledger.take(chain, 11, 0))
    assert (answer.kind, answer.wait_s) == ("total", math.inf)
    ledger.settle(admitted(ledger.take(chain, 10, 0)), 10, 0)
    assert ledger.totals() == {GLOBAL: 100}


def test_a_budget_survives_a_restart() -> None:
    ledger = Ledger({GLOBAL: Limits(tokens_total=100)}, 0, used={GLOBAL: 95, "key:later": 7})
    chain = ledger.chain(KEY, "m", 0)
    assert refused(ledger.take(chain, 6, 0)).kind == "total"
    admitted(ledger.take(chain, 5, 0))
    later = Key(id="later", hash=b"", limits=Limits(tokens_total=10))
    assert ledger.totals()["key:later"] == 7
    assert refused(ledger.take(ledger.chain(later, "m", 0), 4, 0)).scope == "key:later"


def test_a_settled_request_settles_no_second_time() -> None:
    ledger = Ledger({GLOBAL: Limits(tokens_total=1_000)}, 0)
    chain = ledger.chain(KEY, "m", 0)
    taken = admitted(ledger.take(chain, 100, 0))
    assert ledger.settle(taken, 40, 0)
    before = state(chain)
    assert not ledger.settle(taken, 0, 0)
    assert not ledger.settle(taken, None, 0)
    assert not ledger.refund(taken, 0)
    assert not ledger.top_up(taken, 5, 0)
    assert state(chain) == before == ([560, 59], [0, 40])


def test_use_beyond_the_reservation_is_debt_in_every_scope() -> None:
    ledger = Ledger({GLOBAL: Limits(tokens_per_min=600, tokens_total=650)}, 0)
    chain = ledger.chain(KEY, "m", 0)
    ledger.settle(admitted(ledger.take(chain, 500, 0)), 700, 0)
    assert [bucket.level for bucket in chain.tokens] == [-100, -100]
    assert ledger.totals() == {GLOBAL: 700}
    assert ledger.standing(chain, 0).remaining_tokens == 0
    assert refused(ledger.take(chain, 1, 0)).kind == "total"


def test_an_unknown_use_keeps_the_reservation_and_frees_the_place() -> None:
    ledger = Ledger({GLOBAL: Limits(tokens_total=1_000)}, 0)
    chain = ledger.chain(KEY, "m", 0)
    ledger.settle(admitted(ledger.take(chain, 100, 0)), None, 0)
    assert state(chain) == ([500, 59], [0, 100])


def test_what_never_reached_a_replica_comes_back_with_its_request() -> None:
    ledger = Ledger({GLOBAL: Limits(tokens_total=1_000)}, 0)
    chain = ledger.chain(KEY, "m", 0)
    before = state(chain)
    assert ledger.refund(admitted(ledger.take(chain, 100, 0)), 0)
    assert state(chain) == before


def test_more_may_be_taken_while_it_runs() -> None:
    ledger = Ledger({GLOBAL: Limits(tokens_total=1_000)}, 0)
    chain = ledger.chain(KEY, "m", 0)
    taken = admitted(ledger.take(chain, 100, 0))
    assert ledger.top_up(taken, 600, 0)
    assert chain.tokens[0].level == -100
    ledger.settle(taken, 650, 0)
    assert state(chain) == ([-50, 59], [0, 650])


def test_a_late_return_admits_no_second_bucketful() -> None:
    """Reserve 900 of 1,000, wait a minute, settle at 10 after somebody took the full bucket."""
    key = Key(id="k", hash=b"", limits=Limits(tokens_per_min=1_000))
    ledger = Ledger({}, 0)
    chain = ledger.chain(key, "m", 0)
    early = admitted(ledger.take(chain, 900, 0))
    admitted(ledger.take(chain, 1_000, 60))
    ledger.settle(early, 10, 60)
    assert refused(ledger.take(chain, 1, 60)).wait_s == pytest.approx(0.06, abs=1e-3)


def test_a_place_is_free_again_however_the_request_ends() -> None:
    ledger = Ledger({}, 0)
    chain = ledger.chain(KEY, "m", 0)
    first, second, third = (admitted(ledger.take(chain, 1, 0)) for _ in range(3))
    assert refused(ledger.take(chain, 1, 0)).kind == "concurrent"
    ledger.settle(first, 1, 0)
    ledger.settle(second, None, 0)
    ledger.refund(third, 0)
    assert chain.places[0].used == 0


def test_a_burst_is_what_may_be_taken_at_once() -> None:
    ledger = Ledger({GLOBAL: Limits(tokens_per_min=600, tokens_burst=50)}, 0)
    chain = ledger.chain(Key(id="k", hash=b""), "m", 0)
    assert refused(ledger.take(chain, 51, 0)).kind == "never"
    admitted(ledger.take(chain, 50, 0))
    admitted(ledger.take(chain, 50, 5.01))


def test_changed_limits_hold_at_once_and_keep_what_was_counted() -> None:
    ledger = Ledger({GLOBAL: Limits(tokens_per_min=1_000, concurrent=1, tokens_total=5_000)}, 0)
    old = ledger.chain(KEY, "m", 0)
    running = admitted(ledger.take(old, 400, 0))
    ledger.set_limits(GLOBAL, Limits(tokens_per_min=6_000, concurrent=2, tokens_total=500), 0)
    chain = ledger.chain(KEY, "m", 0)
    assert chain is not old
    assert (chain.tokens[1].level, chain.places[1].used, chain.totals[0].used) == (600, 1, 400)
    assert refused(ledger.take(chain, 150, 0)).kind == "total"
    ledger.settle(running, 0, 0)
    admitted(ledger.take(chain, 150, 0))
    ledger.set_limits(GLOBAL, Limits(), 0)
    assert len(ledger.chain(KEY, "m", 0).tokens) == 1


def test_a_key_with_new_limits_is_held_to_them_and_an_equal_one_keeps_its_counters() -> None:
    ledger = Ledger({}, 0)
    chain = ledger.chain(KEY, "m", 0)
    assert ledger.chain(KEY, "m", 0) is chain
    admitted(ledger.take(chain, 500, 0))
    noted = replace(KEY, note="renamed")
    assert ledger.chain(noted, "m", 0).tokens[0].level == 100
    narrow = replace(KEY, limits=Limits(tokens_per_min=50))
    assert ledger.chain(narrow, "m", 0).tokens[0].level == 50
    assert ledger.chain(narrow, "m", 0).places == ()
    moved = replace(KEY, team="u")
    ledger.set_limits("team:u", Limits(concurrent=1), 0)
    assert [places.scope for places in ledger.chain(moved, "m", 0).places] == ["key:k", "team:u"]


def test_a_key_whose_limits_were_lifted_is_held_to_them_no_longer() -> None:
    ledger = Ledger({}, 0)
    admitted(ledger.take(ledger.chain(KEY, "m", 0), 600, 0))
    free = replace(KEY, limits=Limits())
    assert ledger.chain(free, "m", 0).tokens == ()
    admitted(ledger.take(ledger.chain(free, "other", 0), 10_000, 0))


def test_a_busy_limit_is_used_whole_while_what_runs_fits_in_the_bucket() -> None:
    """Requests that reserve twice what they use and run for ten seconds: none of the rate is lost to that."""
    key = Key(id="k", hash=b"", limits=Limits(tokens_per_min=6_000))
    ledger = Ledger({}, 0)
    chain = ledger.chain(key, "m", 0)
    running: list[tuple[float, Taken]] = []
    used = 0
    for step in range(6_000):
        now = step / 10
        while running and running[0][0] <= now:
            ledger.settle(running.pop(0)[1], 10, now)
        while isinstance(answer := ledger.take(chain, 20, now), Taken):
            running.append((now + 10, answer))
            used += 10
    assert 0.97 * (6_000 + 100 * 600) <= used <= 6_000 + 100 * 600


def test_a_key_without_limits_may_get_them_from_outside() -> None:
    ledger = Ledger({"key:plain": Limits(tokens_per_min=10)}, 0)
    plain = Key(id="plain", hash=b"")
    assert refused(ledger.take(ledger.chain(plain, "m", 0), 11, 0)).scope == "key:plain"
    ledger.set_limits("key:plain", Limits(tokens_per_min=20), 0)
    admitted(ledger.take(ledger.chain(plain, "m", 60), 11, 60))


def test_a_clamp_leaves_a_share_of_the_rates_and_is_undone() -> None:
    ledger = Ledger({}, 0)
    ledger.set_clamp("k", 0.1, 0)
    chain = ledger.chain(KEY, "m", 0)
    buckets = chain.tokens + chain.requests
    assert [(bucket.capacity, bucket.rate) for bucket in buckets] == [(600, 1), (60, 0.1)]
    assert [bucket.level for bucket in buckets] == [60, 6], "no burst of all that it might have taken"
    assert refused(ledger.take(chain, 600, 0)).wait_s == pytest.approx(540)
    admitted(ledger.take(chain, 600, 541))
    ledger.set_clamp("k", 0.1, 641)
    assert chain.tokens[0].level_at(641) == pytest.approx(100), "said again it takes nothing"
    ledger.set_clamp("k", 1.0, 641)
    assert [(bucket.capacity, bucket.rate) for bucket in buckets] == [(600, 10), (60, 1)]
    assert chain.tokens[0].level_at(651) == pytest.approx(200)


def test_a_limit_that_comes_to_a_clamped_key_begins_with_its_share() -> None:
    ledger = Ledger({}, 0)
    chain = ledger.chain(KEY, "m", 0)
    ledger.set_clamp("k", 0.1, 0)
    more = replace(KEY, limits=replace(KEY.limits, requests_per_min=None, tokens_per_min=None))
    ledger.chain(more, "m", 0)
    chain = ledger.chain(KEY, "m", 0)
    assert [bucket.level for bucket in chain.tokens + chain.requests] == [60, 6]


def test_a_forgotten_key_leaves_nothing_behind() -> None:
    ledger = Ledger({"key:k/model:m": Limits(tokens_per_min=10), "key:kk": Limits(concurrent=1)}, 0)
    chain = ledger.chain(KEY, "m", 0)
    taken = admitted(ledger.take(chain, 5, 0))
    ledger.forget_key("k")
    assert ledger.settle(taken, 5, 0)
    assert [bucket.scope for bucket in ledger.chain(KEY, "m", 0).tokens] == ["key:k"]
    assert ledger.chain(Key(id="kk", hash=b""), "m", 0).places


def test_invented_names_of_models_do_not_fill_the_memory() -> None:
    ledger = Ledger({}, 0)
    for number in range(CHAINS_MAX + 10):
        ledger.chain(KEY, f"m{number}", 0)
    assert sum(len(chains) for chains in ledger._chains.values()) <= CHAINS_MAX


def test_the_standing_is_that_of_the_tightest_scope() -> None:
    ledger = Ledger({"team:t": Limits(tokens_per_min=300), GLOBAL: Limits(requests_per_min=10)}, 0)
    chain = ledger.chain(KEY, "m", 0)
    admitted(ledger.take(chain, 100, 0))
    found = ledger.standing(chain, 0)
    assert (found.limit_tokens, found.remaining_tokens, found.reset_tokens_s) == (300, 200, 20)
    assert (found.limit_requests, found.remaining_requests, found.reset_requests_s) == (10, 9, 6)
    assert ledger.standing(chain, 10).remaining_tokens == 250
