from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.core.workloads.redundancy import (
    ROUNDING,
    Candidate,
    Need,
    Times,
    choose,
    options,
)
from holdfast.reliability.availability import at_least, from_nines, nines, short_of, spread, up_odds
from holdfast.reliability.rates import Rates

ROUGH = 1e-12

odds = st.floats(0.0, 1.0)
rare = st.floats(1e-6, 0.2)
counts = st.integers(1, 12)


def counted_out(k: int, n: int, domains: int, q_node: float, q_domain: float) -> float:
    """Every state of every domain and node, added up."""
    held, total = spread(n, domains), 0.0
    home = [i for i, size in enumerate(held) for _ in range(size)]
    for domains_up in product((False, True), repeat=len(held)):
        for nodes_up in product((False, True), repeat=n):
            if sum(up and domains_up[i] for up, i in zip(nodes_up, home, strict=True)) < k:
                continue
            chance = 1.0
            for up in domains_up:
                chance *= 1.0 - q_domain if up else q_domain
            for up in nodes_up:
                chance *= 1.0 - q_node if up else q_node
            total += chance
    return total


@settings(max_examples=60, deadline=None)
@given(n=st.integers(1, 6), domains=st.integers(1, 4), q_node=odds, q_domain=odds, data=st.data())
def test_the_convolution_is_what_counting_every_state_gives(
    n: int, domains: int, q_node: float, q_domain: float, data: st.DataObject
) -> None:
    k = data.draw(st.integers(0, n))
    exact = counted_out(k, n, domains, q_node, q_domain)
    assert at_least(k, n, domains, q_node, q_domain) == pytest.approx(exact, abs=1e-9)


@given(n=counts, domains=st.integers(1, 6), q_node=odds, q_domain=odds)
def test_the_odds_add_up_to_one(n: int, domains: int, q_node: float, q_domain: float) -> None:
    found = up_odds(n, domains, q_node, q_domain)
    assert len(found) == n + 1
    assert found.sum() == pytest.approx(1.0)


@given(k=counts, n=counts, domains=st.integers(1, 6), q_node=odds, q_domain=odds)
def test_needing_one_more_is_never_easier(
    k: int, n: int, domains: int, q_node: float, q_domain: float
) -> None:
    assert short_of(k + 1, n, domains, q_node, q_domain) >= short_of(k, n, domains, q_node, q_domain) - ROUGH


@given(k=counts, more=st.integers(0, 8), domains=st.integers(1, 6), q_node=odds, q_domain=odds)
def test_one_more_replica_never_hurts_once_every_domain_has_one(
    k: int, more: int, domains: int, q_node: float, q_domain: float
) -> None:
    n = domains + more
    assert short_of(k, n + 1, domains, q_node, q_domain) <= short_of(k, n, domains, q_node, q_domain) + ROUGH


@given(k=counts, n=counts, domains=st.integers(1, 6), q_node=odds, q_domain=odds, worse=odds)
def test_worse_nodes_and_worse_domains_never_help(
    k: int, n: int, domains: int, q_node: float, q_domain: float, worse: float
) -> None:
    before = short_of(k, n, domains, q_node, q_domain)
    assert short_of(k, n, domains, max(q_node, worse), q_domain) >= before - ROUGH
    assert short_of(k, n, domains, q_node, max(q_domain, worse)) >= before - ROUGH


@given(n=counts, q_node=odds, q_domain=odds)
def test_where_one_replica_is_enough_a_domain_of_its_own_for_each_is_best(
    n: int, q_node: float, q_domain: float
) -> None:
    apart = short_of(1, n, n, q_node, q_domain)
    assert all(apart <= short_of(1, n, domains, q_node, q_domain) + ROUGH for domains in range(1, n + 1))


@given(n=counts, domains=st.integers(1, 6), q_node=odds, q_domain=odds)
def test_where_all_replicas_are_needed_one_domain_is_best(
    n: int, domains: int, q_node: float, q_domain: float
) -> None:
    assert short_of(n, n, 1, q_node, q_domain) <= short_of(n, n, domains, q_node, q_domain) + ROUGH


@given(n=st.integers(0, 40), domains=st.integers(1, 8))
def test_a_spread_holds_everything_and_is_even(n: int, domains: int) -> None:
    held = spread(n, domains)
    assert sum(held) == n
    assert max(held) - min(held) <= 1


@given(count=st.floats(0.0, 9.0))
def test_nines_and_back_is_where_it_began(count: float) -> None:
    assert nines(from_nines(count)) == pytest.approx(count, abs=1e-5)


def rates() -> st.SearchStrategy[Rates]:
    return st.builds(
        Rates,
        node_failures_per_hour=rare,
        domain_failures_per_hour=rare.map(lambda rate: rate / 20),
        domain_repair_ms=st.integers(0, 20_000_000),
        preemptions_per_hour=rare,
        droughts_per_hour=rare,
        drought_ms=st.integers(0, 20_000_000),
    )


times = st.builds(
    Times,
    detect_ms=st.integers(0, 30_000),
    restart_ms=st.integers(0, 120_000),
    boot_ms=st.integers(0, 1_200_000),
    promote_ms=st.integers(0, 10_000),
)
prices = st.lists(st.integers(0, 5_000_000), min_size=1, max_size=3).map(lambda found: tuple(sorted(found)))


@st.composite
def needs(draw: st.DrawFn) -> Need:
    offers = tuple(
        Candidate(f"offer {i}", draw(prices), draw(rates()), spot=draw(st.booleans()))
        for i in range(draw(st.integers(1, 3)))
    )
    domains = draw(st.integers(1, 4))
    return Need(
        serving=draw(st.integers(1, 6)),
        availability=draw(st.floats(0.5, 0.999999)),
        candidates=offers,
        times=draw(times),
        domains=domains,
        domains_min=draw(st.integers(1, domains)),
        standbys_min=draw(st.integers(0, 1)),
        warm_node_share=draw(st.sampled_from([0.1, 1.0])),
        warm_replica_share=draw(st.sampled_from([0.0, 0.5, 1.0])),
    )


@settings(max_examples=80, deadline=None)
@given(need=needs())
def test_nothing_that_meets_the_target_is_cheaper_than_the_choice(need: Need) -> None:
    choice, listed = choose(need), options(need)
    meeting = [option for option in listed if option.availability >= need.availability + ROUNDING]
    assert choice.option in listed
    assert choice.meets == (choice.option.availability >= need.availability - ROUNDING)
    assert choice.meets or not meeting
    if choice.meets:
        assert all(choice.option.cost_micro_usd <= option.cost_micro_usd for option in meeting)


@settings(max_examples=80, deadline=None)
@given(need=needs())
def test_every_option_is_within_what_was_asked(need: Need) -> None:
    for option in options(need):
        assert option.replicas >= need.serving
        assert option.standbys >= need.standbys_min
        assert min(need.domains_min, option.nodes) <= option.domains <= min(need.domains, option.nodes)
        assert 0.0 <= option.availability <= 1.0
        assert option.cost_micro_usd >= 0


@settings(max_examples=80, deadline=None)
@given(need=needs())
def test_within_a_family_more_replicas_cost_more_and_are_up_more(need: Need) -> None:
    families: dict[tuple[str, int, str, int], tuple[int, float]] = {}
    for option in sorted(options(need), key=lambda o: o.replicas):
        key = (option.offer, option.domains, option.standby, option.standbys)
        cost, up = families.get(key, (0, 0.0))
        assert option.cost_micro_usd >= cost
        assert option.availability >= up - ROUGH
        families[key] = (option.cost_micro_usd, option.availability)
