"""A broker and the purses that live on what it lends: what is asked, granted, told and lost."""

import itertools
import math

import pytest

from holdfast.core.gateway.quota.broker import HOLDERS_MAX, TTL_S, Ask, Broker, Grants
from holdfast.core.gateway.quota.leader_broker import Lender
from holdfast.core.gateway.quota.lent import LAPSE_S, SLICE_S, LentRate, LentTotal, Part
from holdfast.core.gateway.quota.limits import Refusal
from holdfast.core.gateway.quota.local_quota import (
    DENIAL_S,
    READY_MAX,
    Purse,
    PurseTaken,
    Short,
)
from holdfast.core.gateway.quota.slice import RESTS
from holdfast.core.state import fold
from holdfast.model import event as ev
from holdfast.model.gateway import GLOBAL, Key, Limits, Tranche
from holdfast.model.world import World

KEY = Key(id="k", hash=b"", team="t")
TOKENS = f"tokens|{GLOBAL}"
TOTAL = f"total|{GLOBAL}"
PLACES = f"concurrent|{GLOBAL}"
RATE = Limits(tokens_per_min=6_000)


class Desk:
    """One broker and one purse that reach each other at once, unless told otherwise."""

    def __init__(self, limits: Limits = RATE, opens: bool = False) -> None:
        self.broker = Broker({GLOBAL: limits}, 0.0, "first")
        self.purse = Purse("h", {GLOBAL: limits}, 0.0, opens)

    def exchange(self, now: float, wants: dict[str, float] | None = None, full: bool = True) -> Grants:
        grants = self.broker.ask(self.purse.ask(now, wants, full), now)
        assert self.purse.hear(grants, now)
        return grants

    def try_once(self, tokens: int, now: float) -> PurseTaken | Refusal | Short:
        return self.purse.take(self.purse.chain(KEY, "m", now), tokens, now)

    def take(self, tokens: int, now: float) -> PurseTaken | Refusal | Short:
        answer = self.try_once(tokens, now)
        if isinstance(answer, Short):
            self.exchange(now, answer.wants, full=False)
            answer = self.try_once(tokens, now)
        return answer

    def admit(self, tokens: int, now: float) -> PurseTaken:
        answer = self.take(tokens, now)
        assert isinstance(answer, PurseTaken), answer
        return answer

    def refuse(self, tokens: int, now: float) -> Refusal:
        answer = self.take(tokens, now)
        assert isinstance(answer, Refusal), answer
        return answer

    @property
    def level(self) -> float:
        return self.broker._counters[TOKENS].left

    @property
    def free(self) -> float:
        """What the broker has, and what it has lent and was not told to be spent."""
        lent = self.broker._counters[TOKENS]
        assert isinstance(lent, LentRate)
        return lent.left + lent.out

    @property
    def have(self) -> float:
        return self.purse._pockets[TOKENS].have


def test_an_empty_purse_says_what_it_is_short_of_and_then_admits() -> None:
    desk = Desk()
    answer = desk.try_once(100, 0)
    assert isinstance(answer, Short)
    assert answer.wants == {TOKENS: 100}
    desk.exchange(0, answer.wants, full=False)
    assert isinstance(desk.try_once(100, 0), PurseTaken)


def test_a_slice_is_a_quarter_second_of_the_rate_or_what_is_wanted() -> None:
    desk = Desk()
    desk.admit(1, 0)
    assert desk.have == 6_000 / 60 * SLICE_S - 1
    desk.admit(1_000, 0)
    assert desk.level == 6_000 - 25 - (1_000 - 24)


def test_within_its_slice_a_purse_asks_nobody() -> None:
    desk = Desk()
    desk.admit(1, 0)
    for _ in range(24):
        assert isinstance(desk.try_once(1, 0.1), PurseTaken)
    assert isinstance(desk.try_once(1, 0.1), Short)


def test_what_the_broker_lacks_is_refused_with_its_wait_and_not_asked_again_at_once() -> None:
    desk = Desk()
    desk.purse.settle(desk.admit(5_900, 0), 5_900, 0)
    desk.exchange(0)
    answer = desk.refuse(300, 0)
    assert (answer.kind, answer.scope, answer.limit) == ("tokens", GLOBAL, 6_000)
    assert answer.wait_s == pytest.approx(2, abs=1e-3)
    again = desk.try_once(300, DENIAL_S / 2)
    assert isinstance(again, Refusal)
    assert again.wait_s == pytest.approx(2 - DENIAL_S / 2, abs=1e-3)
    assert isinstance(desk.try_once(300, DENIAL_S), Short)
    desk.admit(300, 2.01)


def test_a_refusal_of_much_does_not_refuse_little() -> None:
    desk = Desk()
    desk.admit(5_900, 0)
    desk.refuse(300, 0)
    desk.admit(50, 0)


def test_a_refusal_of_little_tells_the_true_wait_of_much() -> None:
    """It was told the wait of the little one: a second instead of a minute."""
    desk = Desk()
    desk.admit(6_000, 0)
    assert desk.refuse(100, 0).wait_s == pytest.approx(1)
    assert desk.refuse(6_000, 0).wait_s == pytest.approx(60)


def test_a_request_beyond_the_capacity_is_never_asked_for() -> None:
    answer = Desk().try_once(6_001, 0)
    assert isinstance(answer, Refusal)
    assert (answer.kind, answer.wait_s) == ("never", math.inf)


def test_settled_before_it_is_told_the_unused_stays_in_the_slice() -> None:
    desk = Desk()
    taken = desk.admit(1_000, 0)
    assert desk.purse.settle(taken, 10, 0.1)
    assert not desk.purse.settle(taken, 0, 0.1)
    assert desk.have == 990
    assert desk.level == 5_000


def test_settled_after_it_was_told_the_unused_comes_back_by_the_broker() -> None:
    desk = Desk()
    taken = desk.admit(1_000, 0)
    desk.exchange(0)
    assert desk.free == 5_000
    desk.purse.settle(taken, 10, 0)
    desk.exchange(0)
    assert desk.free == pytest.approx(5_990)


def test_settled_while_the_answer_is_on_its_way_the_unused_comes_back_later() -> None:
    desk = Desk()
    taken = desk.admit(1_000, 0)
    grants = desk.broker.ask(desk.purse.ask(0, full=True), 0)
    desk.purse.settle(taken, 10, 0)
    desk.purse.hear(grants, 0)
    desk.exchange(0)
    assert desk.free == pytest.approx(5_990)


def test_a_lost_answer_costs_the_unused_part_and_what_it_lent_and_never_more() -> None:
    desk = Desk()
    taken = desk.admit(1_000, 0)
    lost = desk.broker.ask(desk.purse.ask(0, full=True), 0).grants[TOKENS].amount
    desk.purse.settle(taken, 10, 0)
    desk.exchange(0)
    desk.exchange(0)
    assert desk.free == pytest.approx(5_000 - lost)


def test_a_lost_ask_is_made_good_by_the_next() -> None:
    desk = Desk()
    desk.admit(1_000, 0)
    desk.purse.ask(0, full=True)
    desk.exchange(0)
    lent = desk.broker._counters[TOKENS]
    assert isinstance(lent, LentRate)
    assert (lent.out + lent.bucket.level, lent.bucket.held) == (5_000, 1_000)


def test_a_lost_grant_is_returned_by_the_next_ask() -> None:
    desk = Desk()
    desk.purse.chain(KEY, "m", 0)
    desk.broker.ask(desk.purse.ask(0, {TOKENS: 4_000}), 0)
    assert desk.level == 2_000
    desk.exchange(0)
    assert desk.level == 6_000


def test_an_answer_to_an_earlier_ask_is_not_listened_to() -> None:
    desk = Desk()
    desk.purse.chain(KEY, "m", 0)
    early = desk.broker.ask(desk.purse.ask(0, {TOKENS: 100}), 0)
    desk.exchange(0)
    assert not desk.purse.hear(early, 0)
    assert desk.have == 0


def test_an_ask_that_arrives_twice_lends_once() -> None:
    desk = Desk()
    desk.purse.chain(KEY, "m", 0)
    ask = desk.purse.ask(0, {TOKENS: 100})
    first = desk.broker.ask(ask, 0)
    assert desk.broker.ask(ask, 0).grants == {}
    assert desk.level == 5_900
    assert desk.purse.hear(first, 0)
    assert not desk.purse.hear(first, 0)
    assert desk.have == 100


def test_use_beyond_the_reservation_lowers_the_broker_below_zero() -> None:
    desk = Desk()
    desk.purse.settle(desk.admit(6_000, 0), 7_000, 0)
    desk.exchange(0)
    assert desk.level == -1_000
    assert desk.refuse(1, 0).wait_s == pytest.approx(10.01, abs=1e-3)


def test_an_unknown_use_keeps_its_reservation() -> None:
    desk = Desk()
    desk.purse.settle(desk.admit(1_000, 0), None, 0)
    desk.exchange(0)
    desk.exchange(0)
    assert desk.free == 5_000


def test_what_runs_over_may_be_told_early() -> None:
    desk = Desk()
    taken = desk.admit(1_000, 0)
    assert desk.purse.top_up(taken, 500, 0)
    desk.exchange(0)
    assert desk.free == 4_500
    desk.purse.settle(taken, 1_600, 0)
    desk.exchange(0)
    assert desk.free == 4_400
    assert not desk.purse.top_up(taken, 1, 0)


def test_a_refund_brings_the_request_back_too() -> None:
    desk = Desk(Limits(requests_per_min=60))
    name = f"requests|{GLOBAL}"
    at_once = desk.admit(5, 0)
    assert desk.purse.refund(at_once, 0)
    told = desk.admit(5, 0)
    desk.exchange(0)
    assert desk.purse.refund(told, 0)
    desk.exchange(0)
    desk.exchange(0)
    lent = desk.broker._counters[name]
    assert isinstance(lent, LentRate)
    assert lent.left + lent.out == pytest.approx(60)


def test_nothing_is_spent_of_a_lease_that_is_over_by_the_purses_own_count() -> None:
    desk = Desk()
    desk.exchange(0)
    desk.purse.chain(KEY, "m", 0)
    grants = desk.broker.ask(desk.purse.ask(0, {TOKENS: 100}), 1.0)
    desk.purse.hear(grants, 1.5)
    assert isinstance(desk.try_once(10, TTL_S - 0.01), PurseTaken)
    assert isinstance(desk.try_once(10, TTL_S), Short)


def test_what_was_taken_from_a_lease_that_has_ended_does_not_go_into_the_next() -> None:
    """The broker counted it as spent when the lease lapsed, so it may not be had a second time."""
    desk = Desk()
    desk.purse.chain(KEY, "m", 0)
    desk.exchange(0, {TOKENS: 5_000})
    ask = desk.purse.ask(1.9, {TOKENS: 100}, full=False)
    taken = desk.try_once(5_000, 1.95)
    assert isinstance(taken, PurseTaken)
    desk.broker.lapse(2.5)
    desk.purse.hear(desk.broker.ask(ask, 2.6), 2.7)
    desk.purse.settle(taken, 0, 2.8)
    lent = desk.broker._counters[TOKENS]
    assert isinstance(lent, LentRate)
    assert desk.have == lent.out == 100


def test_an_answer_that_took_longer_than_the_lease_is_worth_nothing() -> None:
    desk = Desk()
    desk.purse.chain(KEY, "m", 0)
    grants = desk.broker.ask(desk.purse.ask(0, {TOKENS: 100}), 1.0)
    assert desk.purse.hear(grants, TTL_S)
    assert desk.have == 0


def test_the_slice_of_a_crashed_holder_counts_as_spent_and_its_room_fills_again() -> None:
    desk = Desk()
    desk.purse.chain(KEY, "m", 0)
    desk.exchange(0, {TOKENS: 6_000})
    desk.broker.lapse(LAPSE_S - 0.1)
    assert desk.level == 0
    desk.broker.lapse(LAPSE_S)
    other = Purse("other", {GLOBAL: RATE}, 0.0)
    other.chain(KEY, "m", 0)
    answer = desk.broker.ask(other.ask(LAPSE_S + 1, {TOKENS: 100}), LAPSE_S + 1)
    assert answer.grants[TOKENS].amount == 100


def test_the_clock_does_not_fill_what_is_lent() -> None:
    desk = Desk()
    desk.purse.chain(KEY, "m", 0)
    desk.exchange(0, {TOKENS: 5_000})
    other = Purse("other", {GLOBAL: RATE}, 0.0)
    other.chain(KEY, "m", 0)
    answer = desk.broker.ask(other.ask(2, {TOKENS: 1_001}), 2).grants[TOKENS]
    assert (answer.amount, answer.left) == (0, 1_000)
    assert answer.wait_s >= LAPSE_S


def test_a_slice_that_is_not_used_any_more_goes_back_after_a_while() -> None:
    desk = Desk()
    desk.admit(1, 0)
    for _ in range(1 + RESTS):
        desk.exchange(0)
        assert desk.have == 24
    desk.exchange(0)
    assert desk.have == 0
    assert desk.level == 5_999
    assert desk.purse.ask(0, full=True).parts == {}


def test_who_comes_now_and_then_does_not_wait_for_the_broker_each_time() -> None:
    """Each request did, if the one before was more than two full asks ago."""
    desk = Desk(Limits(tokens_per_min=60_000, requests_per_min=600, tokens_total=1_000_000))
    desk.purse.settle(desk.admit(1_000, 0), 700, 0.5)
    for step in range(1, 200):
        now = step * 0.2
        desk.exchange(now)
        if step % 10 == 0:
            taken = desk.try_once(1_000, now)
            assert isinstance(taken, PurseTaken)
            desk.purse.settle(taken, 700, now)


@pytest.mark.parametrize("why", ["little is left", "somebody was refused"])
def test_what_is_not_used_goes_back_at_once_when_it_is_wanted(why: str) -> None:
    desk, other = Desk(), Purse("other", {GLOBAL: RATE}, 0.0)
    desk.admit(300, 0)
    desk.exchange(0)
    desk.exchange(0)
    assert desk.have == 300
    wants = 3_000 if why == "little is left" else 5_600
    other.chain(KEY, "m", 0)
    amount = desk.broker.ask(other.ask(0, {TOKENS: wants}), 0).grants[TOKENS].amount
    assert amount == (wants if why == "little is left" else 0)
    desk.exchange(0)
    assert desk.have == 300  # it hears of it only now
    desk.exchange(0)
    assert desk.have == 0
    wants -= 2_700 if why == "little is left" else 0
    assert desk.broker.ask(other.ask(0, {TOKENS: wants}), 0).grants[TOKENS].amount == wants


def test_of_counters_without_number_few_are_held_ready() -> None:
    keys = [Key(id=f"k{n}", hash=b"", limits=RATE) for n in range(READY_MAX * 2)]
    broker = Broker({f"key:{key.id}": RATE for key in keys}, 0.0, "first")
    purse = Purse("h", {}, 0.0)
    for key in keys:
        chain = purse.chain(key, "m", 0)
        short = purse.take(chain, 100, 0)
        assert isinstance(short, Short)
        assert purse.hear(broker.ask(purse.ask(0, short.wants), 0), 0)
        assert isinstance(purse.take(chain, 100, 0), PurseTaken)
    for told in (2 * READY_MAX, 2 * READY_MAX, READY_MAX):
        ask = purse.ask(0, full=True)
        assert len(ask.parts) == told
        assert purse.hear(broker.ask(ask, 0), 0)


def test_whoever_leaves_keeps_nothing_of_a_budget() -> None:
    """What it held ready was drawn for ever."""
    desk = Desk(Limits(tokens_total=1_000_000))
    desk.purse.settle(desk.admit(5_000, 0), 20, 0)
    desk.exchange(0)
    assert desk.broker.drawn() == {GLOBAL: 10_000}
    desk.broker.ask(desk.purse.ask(0, full=True, leaving=True), 0)
    assert desk.broker.drawn() == {GLOBAL: 20}


@pytest.mark.parametrize("answered", [True, False])
def test_the_broker_is_told_that_nothing_is_held_until_it_has_heard_it(answered: bool) -> None:
    """The last of it went back without a word, and others were refused what nobody had."""
    desk = Desk(Limits(tokens_total=1_000))
    desk.purse.settle(desk.admit(500, 0), 10, 0)
    for _ in range(1 + RESTS):
        desk.exchange(0)
        assert desk.purse._pockets[TOTAL].have == 125
    lost = desk.purse.ask(0, full=True)
    assert lost.parts[TOTAL].has == 0
    if answered:
        assert desk.purse.hear(desk.broker.ask(lost, 0), 0)
    again = desk.purse.ask(0, full=True)
    assert list(again.parts) == ([] if answered else [TOTAL])
    desk.broker.ask(again, 0)
    assert desk.broker._counters[TOTAL].left == 990


def test_few_places_go_back_as_soon_as_they_are_free() -> None:
    """Whoever came next was refused, if another worker had served the one before."""
    few, many = Desk(Limits(concurrent=1)), Desk(Limits(concurrent=100))
    for desk in (few, many):
        taken = desk.admit(1, 0)
        assert not desk.purse.hurries
        desk.purse.settle(taken, 1, 0)
    assert few.purse.hurries
    assert not many.purse.hurries
    few.exchange(0)
    assert few.broker._counters[PLACES].left == 1
    assert not few.purse.hurries


def test_unused_tokens_are_told_at_once_where_little_is_left() -> None:
    """Whoever came right after an answer was told to wait until the clock had brought what was there now."""
    little, plenty = Desk(), Desk(Limits(tokens_per_min=600_000))
    for desk in (little, plenty):
        taken = desk.admit(5_000, 0)
        desk.exchange(0)
        desk.purse.settle(taken, 10, 1)
    assert [desk.purse.hurries for desk in (little, plenty)] == [True, False]
    little.exchange(1)
    assert not little.purse.hurries
    assert little.free == pytest.approx(6_000 - 10, abs=100)


def test_a_clamp_holds_for_what_is_lent_too() -> None:
    """With several workers more was ready than the clamp leaves."""
    limits = Limits(tokens_per_min=60_000)
    key = Key(id="k", hash=b"", limits=limits)
    broker = Broker({"key:k": limits}, 0.0, "first")
    purses = [Purse(f"h{number}", {}, 0.0) for number in range(4)]

    def take(purse: Purse, tokens: int) -> bool:
        chain = purse.chain(key, "m", 0)
        found = purse.take(chain, tokens, 0)
        if isinstance(found, Short):
            purse.hear(broker.ask(purse.ask(0, found.wants), 0), 0)
            found = purse.take(chain, tokens, 0)
        return isinstance(found, PurseTaken)

    for purse in purses:
        assert take(purse, 3_750)
        for _ in range(2):
            assert purse.hear(broker.ask(purse.ask(0, full=True), 0), 0)
    broker.set_clamp("k", 0.1, 0)
    for purse in purses:
        purse.set_clamp("k", 0.1, 0)
    assert 0 < sum(100 for purse in purses for _ in range(600) if take(purse, 100)) <= 6_000


def test_places_that_are_not_used_come_back_when_somebody_is_refused() -> None:
    """Workers kept one each for ever, and one that came later had none of sixteen."""
    limits = Limits(concurrent=16)
    broker = Broker({GLOBAL: limits}, 0.0, "first")
    purses = [Purse(f"h{n}", {GLOBAL: limits}, 0.0) for n in range(17)]

    def take(purse: Purse, now: float) -> PurseTaken | Refusal | Short:
        chain = purse.chain(KEY, "m", now)
        found = purse.take(chain, 1, now)
        if isinstance(found, Short):
            assert purse.hear(broker.ask(purse.ask(now, found.wants), now), now)
            found = purse.take(chain, 1, now)
        return found

    for purse in purses[:16]:
        taken = take(purse, 0)
        assert isinstance(taken, PurseTaken)
        purse.settle(taken, 1, 0)
    assert isinstance(take(purses[16], 0), Refusal)
    for now in (0.2, 0.4):
        for purse in purses:
            assert purse.hear(broker.ask(purse.ask(now, full=True), now), now)
    assert isinstance(take(purses[16], 0.6), PurseTaken)


@pytest.mark.parametrize("opens", [False, True])
def test_without_the_broker_closed_refuses_and_open_admits_and_owes(opens: bool) -> None:
    desk = Desk(Limits(tokens_per_min=6_000, requests_per_min=600, tokens_total=50_000, concurrent=32), opens)
    desk.admit(10, 0)
    desk.purse.silent()
    assert isinstance(desk.try_once(10, 1), PurseTaken), "the slice is still good"
    answer = desk.try_once(10, 10)
    if not opens:
        assert isinstance(answer, Refusal)
        assert answer.kind == "unavailable"
        desk.exchange(10)
        desk.admit(10, 10)
        return
    assert isinstance(answer, PurseTaken)
    desk.purse.settle(answer, 4_000, 10)
    desk.exchange(10)
    desk.exchange(10)
    assert desk.level == pytest.approx(2_000)
    assert desk.broker.drawn()[GLOBAL] >= 4_000
    assert isinstance(desk.try_once(10, 20), Short), "it has been heard again"


def test_a_purse_that_is_closed_asks_on_though_it_has_nothing_to_tell() -> None:
    """Or nobody would ever tell it that the broker is back."""
    desk = Desk()
    assert isinstance(desk.try_once(10, 0), Short)
    desk.purse.ask(0, {TOKENS: 10.0})  # nobody hears it
    desk.purse.silent()
    for now in (2, 3, 4):
        assert isinstance(desk.try_once(10, now), Refusal)
        assert desk.purse.ask(now, full=True).parts, "whoever asks nothing hears nothing"
    desk.exchange(5)
    desk.admit(10, 5)


def test_a_total_is_drawn_in_slices_and_never_beyond_it() -> None:
    desk = Desk(Limits(tokens_total=150_000))
    first = desk.admit(10, 0)
    assert desk.broker.drawn() == {GLOBAL: 1_500}
    desk.purse.settle(first, 4, 1_000.0)
    desk.purse.settle(desk.admit(149_000, 0), 149_000, 0)
    assert desk.refuse(1_000, 0).kind == "total"
    assert desk.refuse(1_000, 0).wait_s == math.inf
    desk.purse.settle(desk.admit(996, 0), 996, 0)
    desk.exchange(0)
    assert desk.broker.drawn() == {GLOBAL: 150_000}
    assert desk.refuse(1, 0).kind == "total"


def test_a_total_that_others_hold_may_be_waited_for() -> None:
    desk = Desk(Limits(tokens_total=1_000))
    other = Purse("other", {GLOBAL: Limits(tokens_total=1_000)}, 0.0)
    other.chain(KEY, "m", 0)
    assert other.hear(desk.broker.ask(other.ask(0, {TOTAL: 995}), 0), 0)
    answer = desk.refuse(10, 0)
    assert (answer.kind, answer.wait_s) == ("held", LAPSE_S)
    other.hear(desk.broker.ask(other.ask(1, full=True), 1), 1)
    desk.admit(10, 1)


def test_a_budget_of_which_too_little_is_left_is_used_up_though_the_rest_lies_with_who_asks() -> None:
    """It was told as a limit a minute, to be tried again in some seconds: it would not have passed then."""
    desk = Desk(Limits(tokens_total=1_000))
    for _ in range(8):
        desk.purse.settle(desk.admit(111, 0), 111, 0)
    assert desk.refuse(146, 0).kind == "total"
    running = desk.admit(100, 1)
    answer = desk.refuse(110, 1)
    assert (answer.kind, answer.wait_s) == ("held", LAPSE_S), "it may not use all that it reserved"
    desk.purse.settle(running, 0, 2)
    desk.admit(110, 2)


def test_what_a_crashed_holder_drew_stays_drawn() -> None:
    desk = Desk(Limits(tokens_total=150_000))
    desk.admit(10, 0)
    desk.broker.lapse(10_000)
    assert desk.broker.drawn() == {GLOBAL: 1_500}
    again = Broker({GLOBAL: Limits(tokens_total=150_000)}, 0.0, "second", desk.broker.drawn())
    assert again.drawn() == {GLOBAL: 1_500}


def test_what_a_crashed_holder_drew_is_waited_for_by_nobody() -> None:
    """Whoever asked was told for ever to come back in two and a half seconds, of a budget that is used up."""
    limits = Limits(tokens_total=1_000)
    desk = Desk(limits)
    desk.admit(500, 0)
    desk.broker.lapse(LAPSE_S)
    other = Desk(limits)
    other.broker, other.purse.holder = desk.broker, "other"
    other.purse.settle(other.admit(500, LAPSE_S), 500, LAPSE_S)
    assert other.refuse(10, LAPSE_S).kind == "total"
    assert desk.broker.drawn() == {GLOBAL: 1_000}


def test_a_holder_that_was_cut_off_may_still_return_what_it_drew() -> None:
    desk = Desk(Limits(tokens_total=1_000))
    running = desk.admit(900, 0)
    desk.broker.lapse(LAPSE_S)
    desk.broker.lapse(2 * LAPSE_S)
    desk.purse.settle(running, 100, 6)
    desk.exchange(6)
    lent = desk.broker._counters[TOTAL]
    assert isinstance(lent, LentTotal)
    assert (lent.drawn - lent.out, lent.out) == (100, desk.purse._pockets[TOTAL].have)
    desk.admit(900, 6)


def test_places_are_lent_whole_and_idle_ones_go_back_but_one() -> None:
    desk = Desk(Limits(concurrent=16))
    running = [desk.admit(1, 0) for _ in range(16)]
    assert desk.broker._counters[PLACES].left == 0
    for taken in running:
        desk.purse.settle(taken, 1, 0)
    desk.exchange(0)
    assert desk.broker._counters[PLACES].left == 15


def test_a_holder_that_was_cut_off_says_what_still_runs() -> None:
    desk = Desk(Limits(concurrent=3))
    for _ in range(3):
        desk.admit(1, 0)
    desk.broker.lapse(10)
    assert desk.broker._counters[PLACES].left == 3
    desk.exchange(10)
    assert desk.broker._counters[PLACES].left == 0


def test_a_broker_that_comes_after_another_lends_nothing_until_the_old_leases_are_over() -> None:
    desk = Desk()
    running = desk.admit(3_000, 0)
    desk.exchange(0)
    desk.broker = Broker({GLOBAL: RATE}, 1.0, "second", resumed=True)
    answer = desk.refuse(1_000, 1.0)
    lacking = 1_000 - desk.have  # what the first one lent is good for a while
    assert answer.wait_s == pytest.approx(LAPSE_S + lacking / 100, abs=1e-3)
    desk.purse.settle(running, 0, 1.0)
    desk.exchange(1.0)
    assert desk.level == 0, "a mark of another broker means nothing here"
    assert desk.refuse(1_000, 1.0 + LAPSE_S).wait_s == pytest.approx(10, abs=1e-3)
    desk.admit(100, 2.1 + LAPSE_S)


@pytest.mark.parametrize("limits", [RATE, Limits(requests_per_min=6_000)])
def test_what_one_broker_lent_does_not_live_on_under_the_leases_of_the_next(limits: Limits) -> None:
    """The next one counts it as spent, and lends it again when the old leases are over: kept, it would be
    renewed with each answer, and admitted twice."""
    desk = Desk(limits)
    desk.purse.settle(desk.admit(100, 0), 10, 0)
    desk.exchange(0)
    (pocket,) = (each for each in desk.purse._pockets.values() if each.have)
    before = pocket.have
    assert before > 0
    desk.broker = Broker({GLOBAL: limits}, 0.5, "second", resumed=True)
    grants = desk.exchange(0.5)
    assert [grant.amount for grant in grants.grants.values()] == [0.0]
    assert (pocket.have, pocket.spent) == (0.0, 0.0)
    admitted, now = 0, 0.5
    while now < 0.5 + LAPSE_S:  # asked again before each lease ends
        now += TTL_S / 4
        admitted += isinstance(desk.take(1, now), PurseTaken)
    assert admitted == 0


def test_a_broker_that_comes_after_one_that_ended_has_what_that_one_had_and_what_the_time_brought() -> None:
    """It began full: to start a gateway anew was worth a burst, and forgave what was owed."""
    limits = Limits(tokens_per_min=6_000, requests_per_min=60)
    desk = Desk(limits)
    desk.purse.settle(desk.admit(4_000, 0), 7_000, 0)
    desk.exchange(0)
    desk.broker.ask(desk.purse.ask(0, full=True, leaving=True), 0)
    levels = desk.broker.levels(0)
    assert levels == {TOKENS: -1_000, f"requests|{GLOBAL}": 59}
    again = Broker({}, 1_000.0, "second", levels=levels, since=985.0)
    again.set_limits(GLOBAL, limits, 1_000.0)
    assert again._counters[TOKENS].left == 500
    assert again._counters[f"requests|{GLOBAL}"].left == 60
    again.set_limits("model:m", limits, 1_000.0)
    assert again._counters["tokens|model:m"].left == 6_000, "of this nothing was used"
    lower = Broker({GLOBAL: Limits(tokens_per_min=60)}, 1.0, "third", levels={TOKENS: 500}, since=9.0)
    assert lower._counters[TOKENS].left == 60


def test_who_is_refused_because_the_broker_came_after_another_is_told_so_and_how_long_it_takes() -> None:
    """They were told that they had used up their tokens, and to come back before there were any."""
    desk = Desk()
    desk.broker = Broker({GLOBAL: RATE}, 0.0, "second", resumed=True)
    quiet = desk.refuse(1_000, 0.5)
    assert (quiet.kind, quiet.scope) == ("recovering", GLOBAL)
    assert quiet.wait_s == pytest.approx(LAPSE_S - 0.5 + 10, abs=1e-3), "then it begins to fill"
    filling = desk.refuse(1_000, LAPSE_S + 4)
    assert filling.kind == "recovering"
    assert filling.wait_s == pytest.approx(6, abs=1e-3)
    desk.admit(1_000, LAPSE_S + 4 + filling.wait_s)
    assert desk.refuse(1_000, LAPSE_S + 4 + filling.wait_s).kind == "tokens", "these are used up"


@pytest.mark.parametrize(
    ("limits", "drawn", "kind", "wait_s"),
    [
        (Limits(concurrent=3), 0, "recovering", LAPSE_S),
        (Limits(requests_per_min=60), 0, "recovering", LAPSE_S + 1),
        (Limits(tokens_total=1_000), 0, "recovering", LAPSE_S),
        (Limits(tokens_total=1_000), 950, "total", math.inf),
        (Limits(tokens_per_min=60), 0, "never", math.inf),
    ],
)
def test_after_a_restart_each_limit_says_for_itself_what_is_missing(
    limits: Limits, drawn: int, kind: str, wait_s: float
) -> None:
    desk = Desk(limits)
    desk.broker = Broker({GLOBAL: limits}, 0.0, "second", {GLOBAL: drawn}, resumed=True)
    answer = desk.refuse(100, 0.0)
    assert answer.kind == kind
    assert answer.wait_s == pytest.approx(wait_s, abs=1e-3)


def test_a_limit_that_the_broker_does_not_know_is_not_lent_without_end() -> None:
    desk = Desk()
    desk.purse.set_limits("team:t", Limits(tokens_per_min=60), 0)
    answer = desk.refuse(1, 0)
    assert answer.scope == "team:t"
    desk.broker.set_limits("team:t", Limits(tokens_per_min=60), 1)
    desk.admit(1, 1)


def clamp(desk: Desk, share: float, now: float) -> None:
    desk.broker.set_clamp("k", share, now)
    desk.purse.set_clamp("k", share, now)


def of_a_key(limits: Limits) -> Desk:
    desk = Desk(Limits())
    desk.broker.set_limits("key:k", limits, 0)
    desk.purse.set_limits("key:k", limits, 0)
    return desk


def test_changed_limits_a_clamp_and_a_forgotten_key_reach_both() -> None:
    desk = of_a_key(Limits(tokens_per_min=600))
    clamp(desk, 0.1, 0)
    (pocket,) = desk.purse.chain(KEY, "m", 0).tokens
    assert (pocket.capacity, pocket.rate) == (600, 1)
    assert desk.broker._counters["tokens|key:k"].left == 60
    desk.broker.forget_key("k", 0)
    desk.purse.forget_key("k")
    assert "tokens|key:k" not in desk.broker._counters
    assert [pocket.scope for pocket in desk.purse.chain(KEY, "m", 0).tokens] == []


def test_what_fitted_before_a_clamp_fits_in_it_later() -> None:
    """It was refused for ever, with 400: a clamp took the same share of what may be taken at once."""
    desk = of_a_key(Limits(tokens_per_min=600))
    clamp(desk, 0.1, 0)
    answer = desk.refuse(600, 0)
    assert answer.kind == "tokens"
    assert answer.wait_s == pytest.approx(540)
    desk.admit(600, 541)
    few = of_a_key(Limits(requests_per_min=5))
    clamp(few, 0.1, 0)
    assert few.refuse(1, 0).wait_s == pytest.approx(60), "half of one is there, and one comes in two minutes"
    few.admit(1, 61)


def test_a_clamp_begins_with_its_share_and_is_said_again_without_harm() -> None:
    desk = of_a_key(Limits(tokens_per_min=600))
    clamp(desk, 0.1, 0)
    desk.admit(60, 0)
    desk.exchange(120)
    assert desk.broker._counters["tokens|key:k"].left == pytest.approx(120)
    clamp(desk, 0.1, 120)
    desk.broker.set_limits("key:k", Limits(tokens_per_min=600), 120)
    assert desk.broker._counters["tokens|key:k"].left == pytest.approx(120)
    clamp(desk, 1.0, 120)
    clamp(desk, 1.0, 121)
    assert desk.broker._counters["tokens|key:k"].left == pytest.approx(130)


def test_a_limit_that_comes_to_a_clamped_key_begins_with_its_share() -> None:
    desk = Desk(Limits())
    clamp(desk, 0.1, 0)
    desk.broker.set_limits("key:k", Limits(tokens_per_min=600), 0)
    assert desk.broker._counters["tokens|key:k"].left == 60


def test_what_is_lent_when_a_clamp_begins_is_part_of_its_share() -> None:
    desk = of_a_key(Limits(tokens_per_min=600))
    desk.purse.chain(KEY, "m", 0)
    desk.exchange(0, {"tokens|key:k": 200})
    clamp(desk, 0.1, 0)
    lent = desk.broker._counters["tokens|key:k"]
    assert isinstance(lent, LentRate)
    assert lent.left == 60 - 200
    assert isinstance(desk.try_once(21, 0), Refusal | Short)
    desk.admit(20, 0)
    desk.exchange(0)
    assert lent.left + lent.out == 60 - 20


def test_a_key_whose_limits_were_lifted_is_held_to_them_no_longer() -> None:
    purse = Purse("h", {}, 0.0)
    held = Key(id="k", hash=b"", limits=Limits(tokens_per_min=600))
    assert len(purse.chain(held, "m", 0).tokens) == 1
    assert purse.chain(KEY, "m", 0).tokens == ()
    assert purse.chain(KEY, "other", 0).tokens == ()


def test_a_lowered_limit_takes_back_what_is_not_lent_and_the_rest_as_it_comes_home() -> None:
    desk = Desk()
    desk.purse.chain(KEY, "m", 0)
    desk.exchange(0, {TOKENS: 3_000})
    desk.broker.set_limits(GLOBAL, Limits(tokens_per_min=600), 0)
    assert desk.level == 600 - 3_000
    desk.exchange(0)
    assert desk.free == 600


def test_a_lender_knows_the_limits_of_a_key_made_anew_under_an_old_name() -> None:
    """Where they were the same as before, the broker did not hear of them again, and lent nothing of them."""
    world = World()
    scope, limits = "key:k/model:m", Limits(tokens_per_min=600)

    def make(hash: bytes) -> None:
        fold.observe(world, ev.KeyPut(at=0, key=Key(id="k", hash=hash)))
        fold.observe(world, ev.LimitsSet(at=0, scope=scope, limits=limits))

    make(b"1")
    lender = Lender(world, 0.0, 1)
    fold.observe(world, ev.KeyDeleted(at=0, key="k"))
    make(b"2")
    lender.know(world, 1.0)
    ask = Ask("h", 1, "", False, {f"tokens|{scope}": Part(0.0, 10)})
    assert lender.ask(ask, 100.0).grants[f"tokens|{scope}"].amount == 10


def set_limits(desk: Desk, limits: Limits, now: float) -> None:
    desk.broker.set_limits(GLOBAL, limits, now)
    desk.purse.set_limits(GLOBAL, limits, now)


def test_a_limit_that_is_taken_away_and_set_again_lends_nothing_twice() -> None:
    """What was lent of it before could be spent besides the whole of it."""
    limits = Limits(tokens_per_min=60_000, tokens_burst=1_000, concurrent=20)
    desk = Desk(limits)
    for _ in range(4):
        desk.admit(100, 0)
    assert desk.have > 0
    set_limits(desk, Limits(), 0)
    set_limits(desk, limits, 0)
    for _ in range(6):
        desk.admit(100, 0)
    assert desk.refuse(1, 0).kind == "tokens"
    other = Desk(limits)
    other.broker, other.purse.holder = desk.broker, "other"
    answers = [other.take(0, 1) for _ in range(12)]
    assert 8 <= sum(isinstance(each, PurseTaken) for each in answers) <= 10, "ten of twenty run already"


def test_what_runs_when_a_budget_is_taken_away_is_settled_when_it_is_set_again() -> None:
    desk = Desk(Limits(tokens_total=1_000))
    running = desk.admit(900, 0)
    set_limits(desk, Limits(), 0)
    desk.exchange(0)
    set_limits(desk, Limits(tokens_total=1_000), 0)
    assert desk.refuse(200, 0).kind == "held"
    desk.purse.settle(running, 300, 0)
    desk.exchange(1)
    desk.admit(700, 1)
    assert desk.refuse(1, 1).kind == "held"


def test_a_key_that_is_deleted_takes_nothing_from_what_runs_for_others() -> None:
    """The unused part of every running request was lost with it."""
    desk = Desk()
    desk.broker.set_limits("key:gone", RATE, 0)
    running = desk.admit(6_000, 0)
    desk.exchange(0)
    desk.broker.forget_key("gone", 0)
    desk.exchange(0)
    desk.purse.settle(running, 1_000, 0)
    desk.exchange(0)
    desk.admit(5_000, 0)


def test_what_was_spent_of_a_deleted_key_does_not_come_back_to_one_made_anew_under_its_name() -> None:
    name = "tokens|key:k"
    broker = Broker({"key:k": RATE}, 0.0, "b")
    broker.ask(Ask("h", 1, "b", False, {name: Part(0.0, 6_000)}), 0)
    told = broker.ask(Ask("h", 2, "b", False, {name: Part(0.0, spent=6_000)}), 0)
    assert told.grants[name].holds
    broker.forget_key("k", 0)
    broker.set_limits("key:k", RATE, 0)
    broker.ask(Ask("other", 1, "b", False, {name: Part(0.0, 5_000)}), 0)
    broker.ask(Ask("other", 2, "b", False, {name: Part(0.0, spent=5_000)}), 0)
    freed = Part(0.0, 6_000, freed=6_000, back=6_000, mark=told.grants[name].mark)
    assert not broker.ask(Ask("h", 3, "b", False, {name: freed}), 0).grants[name].amount
    assert broker._counters[name].left == pytest.approx(1_000)


def test_the_standing_counts_what_is_here_and_what_the_broker_had() -> None:
    desk = Desk(Limits(tokens_per_min=6_000, requests_per_min=60))
    desk.admit(1_000, 0)
    found = desk.purse.standing(desk.purse.chain(KEY, "m", 0), 0)
    assert (found.limit_tokens, found.remaining_tokens, found.reset_tokens_s) == (6_000, 5_000, 10)
    assert (found.limit_requests, found.remaining_requests) == (60, 59)


def test_a_key_that_was_forgotten_begins_anew_with_its_budget() -> None:
    total, limits = "total|key:k", Limits(tokens_total=5_000)
    broker = Broker({"key:k": limits}, 0.0, "b", {"key:k": 4_000})
    broker.forget_key("k", 0.0)
    broker.set_limits("key:k", limits, 0.0)
    lent = broker.ask(Ask("h", 1, "", False, {total: Part(0.0, 5_000.0)}), 0.0)
    assert lent.grants[total].amount == 5_000


def test_what_is_left_of_a_deleted_key_says_nothing_for_one_made_anew_under_its_name() -> None:
    """Both had a counter of the same name, and the last one told stood for both: what the new key had used
    was not heard of."""
    limits = Limits(tokens_per_min=6_000)
    desk = Desk(Limits())
    name = "tokens|key:k"

    def admit() -> PurseTaken:
        key = Key(id="k", hash=b"", limits=limits)
        desk.broker.set_limits("key:k", limits, 0)
        for _ in range(2):
            answer = desk.purse.take(desk.purse.chain(key, "m", 0), 100, 0)
            if isinstance(answer, Short):
                desk.exchange(0, answer.wants, full=False)
        assert isinstance(answer, PurseTaken), answer
        return answer

    old = admit()
    for _ in range(3):
        desk.exchange(0)
    desk.broker.forget_key("k", 0)
    desk.purse.forget_key("k")
    admit()
    desk.purse.settle(old, 5_000, 0)  # more than it had reserved
    assert desk.purse.ask(0, full=True).parts[name].spent == 100
    assert desk.purse.ask(0, full=True).parts[name].debt == 0


def test_the_successor_of_a_key_has_what_is_left_of_its_budget_and_shares_it() -> None:
    """To rotate a key renewed its budget."""
    broker = Broker({"key:a": Limits(tokens_total=1_000)}, 0.0, "t")
    number = itertools.count(1)

    def lent(key: str, wants: float) -> float:
        name = f"total|key:{key}"
        ask = Ask(f"w{next(number)}", 1, "t", False, {name: Part(0.0, wants)})
        return broker.ask(ask, 0.0).grants[name].amount

    assert lent("a", 600.0) == 600.0
    broker.set_limits("key:b", Limits(tokens_total=1_000), 1.0)
    for _ in range(2):
        broker.succeed({"a": "b"})
        assert broker.drawn() == {"key:a": 600, "key:b": 600}
    assert lent("b", 500.0) == 0.0
    assert lent("b", 300.0) == 300.0
    assert lent("a", 300.0) == 0.0
    again = Broker({}, 0.0, "u", broker.drawn())
    for key in ("a", "b"):
        again.set_limits(f"key:{key}", Limits(tokens_total=1_000), 1.0)
    again.succeed({"a": "b"})
    broker.forget_key("a", 2.0)
    assert (broker.drawn(), again.drawn()) == ({"key:b": 900}, {"key:a": 900, "key:b": 900})


def told(
    broker: Broker, holder: str, number: int, parts: dict[str, Part], now: float, owner: str = ""
) -> Grants:
    return broker.ask(Ask(holder, number, "b", False, parts), now, owner)


def test_a_debt_that_nobody_could_have_is_dropped_and_counted() -> None:
    """One message of 1e15 ended every limit and budget for thirty thousand years."""
    limits = Limits(tokens_per_min=60_000, tokens_total=100_000)
    broker = Broker({GLOBAL: limits}, 0.0, "b")
    told(broker, "liar", 1, {TOKENS: Part(0.0, debt=1e15), TOTAL: Part(0.0, debt=1e15)}, 0.0, "evil")
    answer = told(broker, "honest", 1, {TOKENS: Part(0.0, 1_000)}, 1.0).grants[TOKENS]
    assert 0 < answer.wait_s < 62
    assert told(broker, "honest", 2, {TOKENS: Part(0.0, 1_000)}, 61.1).grants[TOKENS].amount >= 1_000
    assert broker.drawn()[GLOBAL] == 100_000 + 12_500
    assert broker.dropped.keys() == {"tokens", "total"}
    assert broker.dropped["tokens"] == pytest.approx(1e15)


def test_a_debt_that_may_be_true_is_owed_in_full() -> None:
    broker = Broker({GLOBAL: Limits(tokens_per_min=60_000, tokens_total=100_000)}, 0.0, "b")
    told(broker, "honest", 1, {TOKENS: Part(0.0, debt=90_000), TOTAL: Part(0.0, debt=90_000)}, 0.0)
    assert told(broker, "honest", 2, {TOKENS: Part(0.0, 1.0)}, 0.0).grants[TOKENS].left == -30_000
    assert broker.drawn()[GLOBAL] == 90_000
    assert broker.dropped == {}


def test_what_was_written_down_of_a_lie_ends_with_the_limits_own_window() -> None:
    """By an older version, which believed it."""
    limits = {GLOBAL: Limits(tokens_per_min=60_000)}
    broker = Broker(limits, 0.0, "b", resumed=True, tranches={TOKENS: Tranche(-1e15, 0.0, 0.0)})
    assert told(broker, "honest", 1, {TOKENS: Part(0.0, 1_000)}, 65.0).grants[TOKENS].amount >= 1_000


def test_a_limit_that_is_set_anew_owes_nothing_and_gives_no_burst() -> None:
    broker = Broker({GLOBAL: Limits(tokens_per_min=60_000)}, 0.0, "b")
    told(broker, "liar", 1, {TOKENS: Part(0.0, debt=1e15)}, 0.0)
    broker.set_limits(GLOBAL, Limits(tokens_per_min=60_000), 0.0)
    assert told(broker, "h", 1, {TOKENS: Part(0.0, 500)}, 1.0).grants[TOKENS].wait_s > 55, (
        "that changed nothing"
    )
    broker.set_limits(GLOBAL, Limits(tokens_per_min=120_000), 1.0)
    answer = told(broker, "h", 2, {TOKENS: Part(0.0, 500)}, 1.0).grants[TOKENS]
    assert 0 < answer.wait_s < 0.3
    assert told(broker, "h", 3, {TOKENS: Part(0.0, 500)}, 1.3).grants[TOKENS].amount >= 500


def test_a_budget_that_is_reset_has_all_but_what_is_lent() -> None:
    broker = Broker({GLOBAL: Limits(tokens_total=100_000)}, 0.0, "b")
    lent = told(broker, "h", 1, {TOTAL: Part(0.0, 900)}, 0.0).grants[TOTAL].amount
    told(broker, "liar", 1, {TOTAL: Part(0.0, debt=1e15)}, 0.0)
    assert told(broker, "other", 1, {TOTAL: Part(0.0, 10)}, 0.0).grants[TOTAL].amount == 0
    broker.reset(GLOBAL, 0.0)
    assert broker.drawn() == {GLOBAL: lent}
    assert told(broker, "other", 2, {TOTAL: Part(0.0, 10)}, 0.0).grants[TOTAL].amount >= 10


def test_nobody_speaks_for_the_holders_of_another() -> None:
    limits = Limits(tokens_per_min=60_000, concurrent=4)
    broker = Broker(
        {GLOBAL: limits}, 0.0, "b", resumed=True, tranches={TOKENS: Tranche(60_000, 15_000, 5_000)}
    )
    left = told(broker, "h", 1, {TOKENS: Part(0.0, 1_000)}, 0.0, "one").grants[TOKENS].left
    for holder in ("h", ""):
        assert told(broker, holder, 10**9, {TOKENS: Part(0.0)}, 0.0, "evil").grants == {}
    again = told(broker, "h", 2, {TOKENS: Part(1_000.0)}, 0.0, "one")
    assert again.grants[TOKENS].left == left


def test_holders_of_one_owner_do_not_grow_without_end() -> None:
    """Twenty posts of ten thousand names were kept for an hour."""
    broker = Broker({GLOBAL: Limits(tokens_per_min=60_000)}, 0.0, "b")
    lent = told(broker, "honest", 1, {TOKENS: Part(0.0, 1_000)}, 0.0, "one").grants[TOKENS].amount
    for number in range(3 * HOLDERS_MAX):
        told(broker, f"new{number}", 1, {TOKENS: Part(0.0)}, 0.0, "evil")
    assert len(broker._holders) <= HOLDERS_MAX + 1
    assert told(broker, "honest", 2, {TOKENS: Part(lent, 1_000)}, 1.0, "one").grants[TOKENS].amount >= 1_000


def test_a_holder_whose_lease_runs_makes_no_room_for_a_new_one_until_it_is_over() -> None:
    broker = Broker({GLOBAL: Limits(concurrent=10**6)}, 0.0, "b")
    for number in range(HOLDERS_MAX):
        told(broker, f"h{number}", 1, {PLACES: Part(0.0, 1.0)}, 0.0, "one")
    assert told(broker, "late", 1, {PLACES: Part(0.0, 1.0)}, 1.0, "one").grants == {}
    assert told(broker, "late", 2, {PLACES: Part(0.0, 1.0)}, LAPSE_S + 1, "one").grants[PLACES].amount > 0
