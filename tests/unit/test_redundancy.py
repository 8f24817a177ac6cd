import heapq
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from holdfast.core.workloads import redundancy
from holdfast.core.workloads.redundancy import (
    Candidate,
    Family,
    Need,
    Option,
    Scale,
    Standby,
    Times,
    candidates,
    choose,
    front,
    odds_of,
    options,
    resized,
)
from holdfast.model.place import Place
from holdfast.model.pool import Offer
from holdfast.model.resources import Resources
from holdfast.model.units import HOUR, MINUTE, SECOND
from holdfast.model.workload import Service
from holdfast.reliability.availability import at_least, unavailability, up_odds, whole_nines
from holdfast.reliability.rates import Rates, Records, measured

USD = 1_000_000
TIMES = Times(detect_ms=3 * SECOND, restart_ms=20 * SECOND, boot_ms=3 * MINUTE, promote_ms=1 * SECOND)
RATES = Rates(
    node_failures_per_hour=1 / 5_000,
    domain_failures_per_hour=1 / 8_766,
    domain_repair_ms=3 * HOUR,
    preemptions_per_hour=1 / 24,
    droughts_per_hour=1 / 12,
    drought_ms=90 * MINUTE,
)
STEADY = Rates(node_failures_per_hour=1 / 5_000, domain_failures_per_hour=0.0, domain_repair_ms=0)
ON_DEMAND = Candidate("on-demand", (3 * USD,), RATES)
SPOT = Candidate("spot", (1 * USD,), RATES, spot=True)


def need(
    serving: int = 2,
    availability: float = 0.999,
    offers: tuple[Candidate, ...] = (ON_DEMAND,),
    domains: int = 3,
    share: float = 1.0,
    times: Times = TIMES,
) -> Need:
    return Need(
        serving,
        availability,
        offers,
        times,
        domains=domains,
        warm_node_share=share,
        warm_replica_share=share,
    )


def weighed(
    asked: Need, replicas: int, domains: int, standby: Standby = Standby.NONE, standbys: int = 0
) -> Option:
    family = Family(
        asked.candidates[0], domains, standby, standbys, asked.warm_node_share, range(replicas, replicas + 1)
    )
    return Scale(asked).weigh(family.at(replicas))


def test_a_modest_target_needs_nothing_to_spare() -> None:
    option = choose(need(availability=0.99)).option
    assert (option.replicas, option.domains, option.standbys) == (2, 1, 0)


def test_a_target_beyond_one_domain_spreads_over_several() -> None:
    choice = choose(need(availability=0.9999))
    assert choice.meets
    assert (choice.option.replicas, choice.option.domains) == (3, 3)


def test_the_choice_says_what_it_took_and_what_the_next_nine_costs() -> None:
    assert choose(need(availability=0.9995)).why == (
        "99.95 % asked, 2 must serve. The cheapest that keeps it: 2 replicas on on-demand over 1 domain: "
        "99.96 % up, 16.0 min down a month, $6.00/h. 99.99 % would cost $3.00/h more"
    )


def test_the_next_nine_is_one_more_and_its_price_is_the_difference() -> None:
    choice = choose(need(availability=0.999))
    assert choice.next_nine is not None
    assert whole_nines(choice.next_nine.availability) > whole_nines(choice.option.availability)
    assert (
        choice.next_nine_micro_usd
        == choice.next_nine.cost_micro_usd - choice.option.cost_micro_usd
        == 3 * USD
    )


def test_one_domain_cannot_keep_what_it_breaks_itself() -> None:
    choice = choose(need(availability=0.9999, domains=1))
    assert not choice.meets
    assert choice.next_nine is None
    assert choice.next_nine_micro_usd is None
    assert (
        "nothing on offer keeps 2 serving 99.99 % of the time: there is only one failure domain" in choice.why
    )


def test_the_best_of_the_insufficient_is_not_the_dearest() -> None:
    assert choose(need(availability=0.9999, domains=1)).option.replicas == 3


def test_several_spot_replicas_can_be_cheaper_than_few_on_demand() -> None:
    option = choose(need(serving=1, availability=0.999, offers=(ON_DEMAND, SPOT))).option
    assert option.spot
    assert option.replicas == 2
    assert option.domains == 2


def test_spot_loses_when_it_saves_nothing() -> None:
    dear_spot = Candidate("spot", (3 * USD,), RATES, spot=True)
    assert not choose(need(offers=(dear_spot, ON_DEMAND))).option.spot


def test_a_drought_is_sat_out_only_where_there_is_nowhere_else_to_go() -> None:
    alone, free = odds_of(SPOT, 1, TIMES), odds_of(SPOT, 2, TIMES)
    assert alone.q_domain > 10 * free.q_domain
    assert odds_of(ON_DEMAND, 1, TIMES) == odds_of(ON_DEMAND, 2, TIMES)


def test_without_standbys_it_is_the_plain_k_of_n() -> None:
    slow_ms = TIMES.detect_ms + TIMES.boot_ms + TIMES.restart_ms
    q_node, q_domain = unavailability(1 / 5_000, slow_ms), unavailability(1 / 8_766, 3 * HOUR)
    assert weighed(need(), 4, 3).availability == pytest.approx(at_least(2, 4, 3, q_node, q_domain), abs=1e-15)


def test_a_replica_beats_a_warm_replica_beats_a_warm_node_beats_nothing() -> None:
    slow_boot = Times(
        detect_ms=3 * SECOND, restart_ms=20 * SECOND, boot_ms=30 * MINUTE, promote_ms=1 * SECOND
    )
    asked = need(times=slow_boot)
    ranked = [
        weighed(asked, 3, 3).availability,
        weighed(asked, 2, 3, Standby.REPLICA, 1).availability,
        weighed(asked, 2, 3, Standby.NODE, 1).availability,
        weighed(asked, 2, 2).availability,
    ]
    assert ranked == sorted(ranked, reverse=True)
    assert len(set(ranked)) == 4


def test_a_standby_at_full_price_is_never_proposed() -> None:
    assert {option.standby for option in options(need())} == {Standby.NONE}


def test_a_shared_standby_is_taken_when_it_is_cheaper_than_a_replica() -> None:
    option = choose(need(availability=0.9999, share=0.1)).option
    assert (option.replicas, option.standbys) == (2, 1)
    assert option.cost_micro_usd == round(6.3 * USD)


def test_a_cheap_warm_node_is_taken_where_a_warm_replica_is_dear() -> None:
    asked = Need(2, 0.9999, (ON_DEMAND,), TIMES, domains=3, warm_node_share=0.1)
    assert choose(asked).option.standby is Standby.NODE


def test_dearer_domains_are_paid_for() -> None:
    uneven = Candidate("nodes", (1 * USD, 2 * USD, 4 * USD), RATES)
    by_domains = {
        o.domains: o.cost_micro_usd for o in options(need(serving=3, offers=(uneven,))) if o.replicas == 3
    }
    assert by_domains == {1: 3 * USD, 2: 4 * USD, 3: 7 * USD}


def test_among_equally_cheap_options_the_fewest_nodes_win() -> None:
    free = Candidate("own machines", (0,), RATES)
    assert choose(need(availability=0.99, offers=(free,))).option.replicas == 2


def test_the_price_list_rises_in_price_and_in_availability() -> None:
    listed = front(options(need(offers=(ON_DEMAND, SPOT), share=0.5)))
    assert len(listed) > 3
    pairs = list(pairwise(listed))
    assert all(a.cost_micro_usd <= b.cost_micro_usd and a.availability < b.availability for a, b in pairs)


def test_with_nothing_on_offer_there_is_nothing_to_choose() -> None:
    with pytest.raises(ValueError, match="nothing to choose from"):
        choose(need(offers=()))


def test_two_candidates_of_one_name_are_refused() -> None:
    with pytest.raises(ValueError, match="same name"):
        choose(need(offers=(ON_DEMAND, ON_DEMAND)))


def test_a_fleet_whose_domains_nobody_counted_is_taken_for_one() -> None:
    assert choose(need(domains=0, availability=0.99)).option.domains == 1


def offer(zone: str, price_micro_usd: int, spot: bool = False) -> Offer:
    place = Place("cloud", "north", zone)
    return Offer(f"{zone}-{price_micro_usd}", place, Resources(cpu_milli=4_000), price_micro_usd, spot)


def test_offers_become_the_cheapest_price_of_each_zone() -> None:
    offers = (offer("b", 30), offer("a", 20), offer("a", 10), offer("c", 5, spot=True))
    on_demand, spot = candidates(offers, RATES)
    assert (on_demand.name, on_demand.prices_micro_usd, on_demand.spot) == ("a-10", (10, 30), False)
    assert (spot.name, spot.prices_micro_usd, spot.spot) == ("c-5 (spot)", (5,), True)


OFFERS = (offer("a", 3 * USD), offer("b", 3 * USD), offer("c", 3 * USD))


def test_a_service_with_a_target_gets_the_replicas_it_needs() -> None:
    sized, why = resized(Service(replicas=2, availability=0.9999), OFFERS, 3, RATES, TIMES)
    assert sized == Service(replicas=3, standby=0, availability=0.9999)
    assert "99.99 % asked, 2 must serve" in why


def test_a_service_is_sized_for_the_spread_it_will_have() -> None:
    sized, _ = resized(Service(replicas=3, availability=0.9995), OFFERS, 3, RATES, TIMES)
    assert choose(need(serving=3, availability=0.9995)).option.replicas == 3
    assert sized.replicas == 4


def test_the_standbys_a_user_asked_for_stay() -> None:
    sized, _ = resized(Service(replicas=2, standby=1, availability=0.999), OFFERS, 3, RATES, TIMES)
    assert sized.standby == 1


def test_cheap_warm_replicas_are_used() -> None:
    sized, why = resized(
        Service(replicas=2, availability=0.9999), OFFERS, 3, RATES, TIMES, warm_replica_share=0.1
    )
    assert (sized.replicas, sized.standby) == (2, 1)
    assert "1 warm replica" in why


@pytest.mark.parametrize(
    ("shape", "offers"),
    [
        (Service(replicas=2), OFFERS),
        (Service(replicas=0, availability=0.999), OFFERS),
        (Service(replicas=2, availability=0.999), ()),
    ],
)
def test_a_service_without_target_or_offers_is_left_alone(shape: Service, offers: tuple[Offer, ...]) -> None:
    assert resized(shape, offers, 3, RATES, TIMES)[0] == shape


def test_the_priors_alone_give_an_answer() -> None:
    sized, _ = resized(Service(replicas=2, availability=0.9999), OFFERS, 3, measured(Records()), TIMES)
    assert sized.replicas >= 3


@pytest.mark.parametrize("serving", [1, 3, 50])
def test_a_choice_weighs_few_of_its_options_however_many_there_are(
    serving: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is made in the loop: usually 30 of 200 to 3,000 are weighed, which takes some milliseconds."""
    asked = need(serving=serving, availability=0.9999, offers=(ON_DEMAND, SPOT), share=0.5)
    assert len(options(asked)) >= 200
    weighed, worked_out = list[Option](), list[int]()
    weigh = redundancy.Scale.weigh

    def count_weigh(scale: redundancy.Scale, option: Option) -> Option:
        weighed.append(option)
        return weigh(scale, option)

    def count_odds(nodes: int, *more: Any) -> Any:
        worked_out.append(nodes)
        return up_odds(nodes, *more)

    monkeypatch.setattr(redundancy.Scale, "weigh", count_weigh)
    monkeypatch.setattr(redundancy, "up_odds", count_odds)
    choose.cache_clear()
    choose(asked)
    assert 0 < len(weighed) <= 60
    assert 0 < len(worked_out) <= 60


def lived_short_share(
    replicas: int, standbys: int, serving: int, rate: float, slow_h: float, fast_h: float
) -> float:
    """Nodes die and come back, live standbys take seats over: the share of time with too few serving."""
    rng, hours = np.random.default_rng(11), 200_000.0
    alive, now, short, moving_until = replicas + standbys, 0.0, 0.0, list[float]()
    back: list[float] = []
    while now < hours:
        death = now + float(rng.exponential(1 / (rate * alive))) if alive else hours
        until = min([death, *back[:1], *moving_until[:1]])
        if min(alive, replicas) - len(moving_until) < serving:
            short += until - now
        now = until
        if back and back[0] == until:
            heapq.heappop(back)
            alive += 1
        elif moving_until and moving_until[0] == until:
            heapq.heappop(moving_until)
        else:
            sat = rng.random() < min(alive, replicas) / alive
            alive -= 1
            heapq.heappush(back, now + slow_h)
            if sat and alive >= replicas:
                heapq.heappush(moving_until, now + fast_h)
    return short / hours


@pytest.mark.parametrize("domains_fail", [False, True])
@pytest.mark.parametrize(("replicas", "standbys"), [(3, 0), (3, 1), (4, 1), (3, 2)])
def test_a_fleet_lived_through_agrees_with_the_formula(
    replicas: int, standbys: int, domains_fail: bool
) -> None:
    """With one node in each domain, losing domains is like losing nodes, so the same life tests both."""
    slow_h, fast_h, rate = 1.0, 0.1, 0.03
    slow_ms, fast_ms = round(slow_h * HOUR), round(fast_h * HOUR)
    times = Times(detect_ms=0, restart_ms=fast_ms, boot_ms=slow_ms - fast_ms, promote_ms=0)
    rates = Rates(0.0, rate, slow_ms) if domains_fail else Rates(rate, 0.0, 0)
    nodes = replicas + standbys
    asked = need(serving=3, offers=(Candidate("shaky", (USD,), rates),), times=times, domains=nodes)
    kind = Standby.NODE if standbys else Standby.NONE
    expected = 1.0 - weighed(asked, replicas, nodes, kind, standbys).availability
    lived = lived_short_share(replicas, standbys, 3, rate, slow_h, fast_h)
    assert lived == pytest.approx(expected, rel=0.1)
