"""Single requests through simulated gateways: what becomes of each, and that the checkers would see it."""

from functools import partial

import pytest
from msgspec.structs import replace

from holdfast.core.gateway.key_audit.audit import (
    Family,
    Judgement,
    Reason,
    Watch,
)
from holdfast.core.gateway.quota.broker import TTL_S, Broker
from holdfast.core.gateway.quota.local_quota import Purse
from holdfast.core.gateway.routing.balancer import Pool
from holdfast.core.gateway.routing.fair_queue import Hold
from holdfast.core.gateway.routing.updates import ReplicaSpec
from holdfast.model.gateway import GLOBAL, Grade, Key, Limits, scope_of_key
from holdfast.model.place import Place
from holdfast.model.pool import Offer
from holdfast.model.pool import Pool as Nodes
from holdfast.model.resources import Resources
from holdfast.model.scale import Signal
from holdfast.model.units import DAY, MINUTE, SECOND, Millis
from holdfast.model.workload import Needs, Serves, Service, Workload
from holdfast.sim.checks.traffic_checks import (
    LATE_MS,
    Taking,
    a_restored_key_is_left_alone_for_a_day,
    a_restored_key_serves_again,
    every_reservation_is_settled_exactly_once,
    no_budget_is_overdrawn,
    no_interval_admits_more_than_its_limit,
    no_key_is_held_back_on_drain_alone,
    nobody_is_asked_who_is_out_while_others_could_answer,
    whoever_is_held_is_answered_or_refused_in_its_patience,
)
from holdfast.sim.result import Result
from holdfast.sim.run import Simulation
from holdfast.sim.scenario.load_profile import Load, LoadStep
from holdfast.sim.scenario.scenario import (
    Between,
    Change,
    Fault,
    GatewayTraits,
    PoolSetup,
    Program,
    Scenario,
    Trouble,
    WorkloadSetup,
)
from holdfast.sim.traffic import exchange as exchanges
from holdfast.sim.traffic.counts import Asked
from holdfast.sim.traffic.exchange import Exchange
from holdfast.sim.traffic.requests import Requests

RATE = Limits(tokens_per_min=60_000, tokens_burst=10_000)
TWO = GatewayTraits(count=2, first_byte_ms=5 * SECOND)
QUICK = Program(start_ms=5 * SECOND)
USUAL = Requests(prompt=300, answer=100, beginnings=4)


def story(
    *troubles: Trouble,
    rate: float = 8.0,
    until: Millis = 0,
    replicas: int = 3,
    minutes: int = 4,
    gateways: GatewayTraits = TWO,
    limits: dict[str, Limits] | None = None,
    program: Program = QUICK,
    concurrent: int = 0,
    requests: Requests = USUAL,
    changes: tuple[Change, ...] = (),
) -> Scenario:
    """Three nodes and a model on each, asked from the first minute on."""
    offers = tuple(Offer(z, Place("east", "r1", z, f"{z}1"), Resources(8_000, 32_768)) for z in "abc")
    pool = Nodes("gpu", "east", offers, max=3, can_launch=False, can_terminate=False)
    steps = [LoadStep(MINUTE, rate)] + ([LoadStep(until, 0.0)] if until else [])
    chat = Workload(
        "chat", Service(replicas, serves=Serves(concurrent=concurrent)), Needs(Resources(8_000, 512))
    )
    load = Load(signal=Signal.REQUESTS, steps=tuple(steps))
    return Scenario(
        "traffic",
        lasts_ms=minutes * MINUTE,
        settle_ms=0,
        pools=(PoolSetup(pool, 3),),
        workloads=(WorkloadSetup(chat, program, load=load, requests=requests),),
        troubles=troubles,
        changes=changes,
        gateways=gateways,
        limits=limits or {},
    )


def told(scenario: Scenario) -> tuple[Result, Asked]:
    result = Simulation(scenario, history=False).run()
    asked = result.workloads[0].asked
    assert asked is not None
    return result, asked


def fine(scenario: Scenario) -> Asked:
    result, asked = told(scenario)
    assert (result.violations, result.unmet) == ((), ())
    return asked


def on(node: str, fault: Fault, lasts_ms: Millis = 0) -> Trouble:
    return Trouble(at=2 * MINUTE, fault=fault, nodes=(node,), lasts_ms=lasts_ms)


# what becomes of requests


def test_where_nothing_happens_everybody_is_answered() -> None:
    asked = fine(story(until=210 * SECOND))
    assert asked.requests > 1_000
    assert asked.answered == asked.requests
    assert 0 < asked.first_token_ms <= asked.first_token_p99_ms < SECOND


def test_the_same_seed_is_the_same_requests_and_another_is_not() -> None:
    scenario = story(on("gpu-a", Fault.KILL), limits={GLOBAL: RATE})
    assert told(scenario) == told(scenario)
    assert told(scenario)[1] != told(replace(scenario, seed=2))[1]


@pytest.mark.parametrize(
    ("trouble", "cut"),
    [
        (on("gpu-a", Fault.KILL), True),  # its connections close
        (on("gpu-a", Fault.CRASH), True),  # nothing is said at all
        (on("gpu-a", Fault.HANG, MINUTE), True),  # nothing for longer than anybody waits
        (on("gpu-a", Fault.HANG, 2 * SECOND), False),  # it goes on before anybody gives up
        (on("gpu-a", Fault.PARTITION, MINUTE), True),
        (on("gpu-a", Fault.PARTITION, 2 * SECOND), False),
        (on("gpu-a", Fault.SLOW, MINUTE), False),
    ],
    ids=lambda value: f"{value.fault} {value.lasts_ms // 1000}s" if isinstance(value, Trouble) else "",
)
def test_what_has_no_content_is_asked_of_others_and_the_rest_is_cut(trouble: Trouble, cut: bool) -> None:
    asked = fine(story(trouble, until=3 * MINUTE))
    assert not asked.refused
    assert (asked.cut > 0) == cut
    assert asked.asked_again > 0 or not cut
    assert asked.answered + asked.cut == asked.requests


def test_what_was_asked_of_a_replica_that_leaves_is_answered_by_it() -> None:
    """Its node is drained. It ends what it has begun before it stops, and is asked nothing new: the checks
    see that. What it has not begun to answer is not asked of another too."""
    drain = Change(2 * MINUTE, "drain", node="gpu-a", deadline_ms=5 * MINUTE)
    thinks = Program(start_ms=5 * SECOND, stop_ms=9 * SECOND, first_ms=3 * SECOND)
    short = Requests(prompt=300, answer=100, answer_max=200)
    asked = fine(story(changes=(drain,), replicas=2, program=thinks, requests=short, until=3 * MINUTE))
    assert (asked.cut, asked.refused, asked.asked_again) == (0, {}, 0)
    assert asked.answered == asked.requests


def test_what_was_asked_of_a_lost_replica_is_asked_of_another_as_soon_as_that_is_known() -> None:
    """Nothing comes from a machine without power: who waits for its first token would wait two minutes."""
    gateways = GatewayTraits(count=2, first_byte_ms=2 * MINUTE)
    trouble = on("gpu-a", Fault.CRASH)
    asked = fine(story(trouble, gateways=gateways, until=121 * SECOND, minutes=3))
    assert asked.asked_again > 0
    assert asked.answered + asked.cut == asked.requests, "nobody waits any more a minute later"


def test_an_answer_that_is_cut_goes_on_elsewhere_if_that_is_wanted() -> None:
    trouble = on("gpu-a", Fault.KILL)
    cut = fine(story(trouble, until=3 * MINUTE))
    gone_on = fine(story(trouble, until=3 * MINUTE, gateways=replace(TWO, continues=True)))
    assert cut.cut > 0
    assert (gone_on.cut, gone_on.answered) == (0, gone_on.requests)


def test_replicas_that_a_gateway_cannot_reach_are_left_alone_and_asked_again_when_it_can() -> None:
    """Nobody else misses them, so nobody else takes them away."""
    cut = Trouble(at=2 * MINUTE, fault=Fault.PARTITION, gateway="gw-1", lasts_ms=20 * SECOND)
    sim = Simulation(story(cut, until=210 * SECOND))
    assert sim.run().violations == ()
    assert sim.story is not None
    text = sim.story.text()
    assert 0 < text.index("asks chat/0.1 no more") < text.index("asks chat/0.1 again")
    assert "gw-2             asks" not in text


def test_with_more_than_replicas_take_at_once_requests_wait_for_their_turn() -> None:
    asked = fine(story(concurrent=4, rate=14.0, until=2 * MINUTE))
    assert asked.waited > 50
    assert asked.answered == asked.requests


def test_a_replica_that_has_enough_says_so_and_another_is_asked() -> None:
    program = Program(start_ms=5 * SECOND, at_once=10)
    asked = fine(story(program=program, rate=9.0, until=3 * MINUTE))
    assert asked.asked_again > 0
    assert asked.answered > 0.9 * asked.requests


def test_those_who_wait_longer_than_their_patience_are_told_so() -> None:
    gateways = GatewayTraits(count=2, patience_ms=10 * SECOND)
    asked = fine(story(replicas=3, program=Program(start_ms=2 * MINUTE), gateways=gateways, minutes=4))
    assert asked.refused["model_warming"] > 100
    assert asked.answered > 100, "and those who came later are answered"
    assert asked.longest_wait_ms <= 10 * SECOND + LATE_MS


def test_a_late_request_is_asked_of_a_second_replica_if_that_is_wanted() -> None:
    trouble = on("gpu-a", Fault.HANG, 4 * SECOND)
    patient = GatewayTraits(count=1, first_byte_ms=MINUTE)
    sim = Simulation(story(trouble, gateways=replace(patient, hedge=True), concurrent=50), history=False)
    assert sim.run().violations == ()
    assert sim.traffic is not None
    assert sim.traffic.fronts["gw-1"].services["chat"].hedged > 0


def test_prompts_that_begin_alike_are_read_once_by_each_replica_that_serves_them() -> None:
    slow = Program(start_ms=5 * SECOND, prompt_per_s=1_000)
    many = Requests(prompt=800, answer=20, beginnings=6)
    alike = fine(story(program=slow, requests=many, until=3 * MINUTE))
    new = fine(story(program=slow, requests=replace(many, beginnings=0), until=3 * MINUTE))
    assert alike.first_token_ms < 0.8 * new.first_token_ms


# gateways


def cut_off(lasts_ms: Millis, gateway: str = "gw-1") -> Trouble:
    fault, between = Fault.PARTITION, Between.CONTROL
    return Trouble(at=2 * MINUTE, fault=fault, gateway=gateway, between=between, lasts_ms=lasts_ms)


def test_a_gateway_that_is_cut_off_spends_its_lease_closes_and_comes_back() -> None:
    sim = Simulation(story(cut_off(30 * SECOND), limits={GLOBAL: RATE}))
    result = sim.run()
    assert result.violations == ()
    asked = result.workloads[0].asked
    assert asked is not None
    assert asked.refused["unavailable"] > 50
    assert sim.traffic is not None
    closed = [t for t in sim.traffic.takings if 2 * MINUTE + 3 * SECOND < t.at < 150 * SECOND]
    assert closed, "the other one goes on"
    assert not sim.traffic.fronts["gw-1"].closed


def test_a_gateway_that_may_open_lets_them_in_without_a_lease() -> None:
    gateways = GatewayTraits(count=2, fail_open=True)
    sim = Simulation(story(cut_off(30 * SECOND), limits={GLOBAL: RATE}, gateways=gateways), history=False)
    assert sim.run().violations == ()
    assert sim.traffic is not None
    assert sum(not taking.lent for taking in sim.traffic.takings) > 50


def test_requests_die_with_their_gateway_and_the_next_ones_go_to_another() -> None:
    crash = Trouble(at=2 * MINUTE, fault=Fault.GATEWAY_CRASH, gateway="gw-1", lasts_ms=30 * SECOND)
    asked = fine(story(crash, limits={GLOBAL: RATE}, until=3 * MINUTE))
    assert asked.gone > 0
    assert set(asked.refused) <= {f"tokens {GLOBAL}"}


def test_without_any_gateway_nobody_can_ask() -> None:
    crash = Trouble(at=2 * MINUTE, fault=Fault.GATEWAY_CRASH, gateway="gw-1", lasts_ms=30 * SECOND)
    asked = fine(story(crash, gateways=GatewayTraits(count=1)))
    assert asked.refused["no gateway"] > 100


@pytest.mark.parametrize("seed", range(1, 7))
def test_no_limit_is_exceeded_whoever_dies_and_whoever_leads(seed: int) -> None:
    """Gateways and leaders come and go under a load that always wants more."""
    limits = {
        GLOBAL: Limits(tokens_per_min=200_000, requests_per_min=600),
        "key:app": Limits(tokens_per_min=90_000, tokens_burst=8_000, concurrent=30),
        "team:web": Limits(tokens_per_min=150_000, tokens_total=400_000),
    }
    troubles = (
        Trouble(at=90 * SECOND, fault=Fault.GATEWAY_CRASH, gateway="gw-1", lasts_ms=SECOND),
        Trouble(at=100 * SECOND, fault=Fault.CONTROL_CRASH, control="cp-1", lasts_ms=5 * SECOND),
        Trouble(at=2 * MINUTE, fault=Fault.GATEWAY_CRASH, gateway="gw-3", lasts_ms=20 * SECOND),
        cut_off(10 * SECOND, "gw-2"),
        Trouble(at=160 * SECOND, fault=Fault.CONTROL_PAUSE, lasts_ms=6 * SECOND),
        Trouble(at=180 * SECOND, fault=Fault.STORE_OUTAGE, lasts_ms=8 * SECOND),
    )
    keys = ("app", "batch", "nightly")
    requests = Requests(prompt=300, answer=100, answer_max=(0, 300)[seed % 2], keys=keys, team="web")
    scenario = story(*troubles, rate=14.0, gateways=GatewayTraits(count=3), limits=limits, requests=requests)
    asked = fine(replace(scenario, seed=seed, control_planes=2))
    assert asked.answered > 500
    assert sum(asked.refused.values()) > 200


def test_a_service_that_is_deleted_is_asked_by_nobody_any_more() -> None:
    gone = Change(2 * MINUTE, "delete", workload="chat")
    asked = fine(story(changes=(gone,), gateways=GatewayTraits(count=1, patience_ms=5 * SECOND)))
    assert asked.requests < 8 * 70


# keys that work for nobody


@pytest.fixture
def stubborn(monkeypatch: pytest.MonkeyPatch) -> None:
    """A detector that is sure from the first minute on, whatever anybody says. The real one takes hours: see
    the story of a key in a loop."""
    wastes = Reason("unread", Family.WASTE, 0.9, "nobody reads it")

    def judge(watch: Watch, key: Key, *_: object) -> Judgement:
        return Judgement(0.9, (wastes,), Grade.CLAMP, shadow=watch.shadow)

    monkeypatch.setattr(Watch, "judge", judge)


def suspected(*changes: Change, shadow: bool) -> tuple[Result, str]:
    limits = {scope_of_key("app"): Limits(requests_per_min=600)}
    sim = Simulation(story(limits=limits, gateways=replace(TWO, shadow=shadow), changes=changes))
    result = sim.run()
    assert sim.story is not None
    return result, sim.story.text()


@pytest.mark.usefixtures("stubborn")
def test_in_shadow_a_key_that_works_for_nobody_is_only_named() -> None:
    result, text = suspected(shadow=True)
    assert result.violations == ()
    assert "would be held back by gw-1: nobody reads it" in text
    assert "user     key:app          held back" not in text
    assert result.workloads[0].asked is not None
    assert not result.workloads[0].asked.refused


@pytest.mark.usefixtures("stubborn")
def test_out_of_shadow_all_gateways_hold_it_back_to_a_tenth() -> None:
    result, text = suspected(shadow=False)
    assert result.violations == ()
    assert "user     key:app          held back" in text
    asked = result.workloads[0].asked
    assert asked is not None
    assert 120 < asked.answered < 300, "a tenth of 600 a minute"
    assert set(asked.refused) == {"requests key:app"}


@pytest.mark.usefixtures("stubborn")
def test_a_detector_that_does_not_leave_a_restored_key_alone_is_found_out() -> None:
    result, _ = suspected(Change(150 * SECOND, "restore", key="app"), shadow=False)
    assert any("after it was restored" in each for each in result.violations)


def test_a_gateway_that_goes_on_holding_back_a_restored_key_is_found_out(
    monkeypatch: pytest.MonkeyPatch, stubborn: None
) -> None:
    honest = Purse.set_clamp

    def never_lets_go(purse: Purse, key: str, share: float, now: float) -> None:
        honest(purse, key, min(share, 0.1), now)

    monkeypatch.setattr(Purse, "set_clamp", never_lets_go)
    result, _ = suspected(Change(150 * SECOND, "restore", key="app"), shadow=False)
    assert any("gets 10% of what it may" in each for each in result.violations)


# that each checker can fail


def broken(scenario: Scenario) -> str:
    return "\n".join(told(scenario)[0].violations)


def test_a_broker_that_gives_everybody_what_they_want_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = Broker.ask

    def generous(broker: Broker, ask: object, now: float, owner: str) -> object:
        grants = honest(broker, ask, now, owner)  # type: ignore[arg-type]
        more = {name: replace(grant, amount=grant.amount + 2_000) for name, grant in grants.grants.items()}
        return replace(grants, grants=more)

    monkeypatch.setattr(Broker, "ask", generous)
    assert "were admitted" in broken(story(limits={GLOBAL: RATE}, rate=14.0))


def test_a_lease_without_an_end_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """A gateway that is cut off goes on as before, while the broker gives its share to others."""
    honest = Purse.take

    def for_ever(purse: Purse, chain: object, tokens: int, now: float) -> object:
        for pocket in purse._active:
            if pocket.until > 0:
                pocket.until = now + TTL_S
                pocket.have = max(pocket.have, float(tokens))
        return honest(purse, chain, tokens, now)  # type: ignore[arg-type]

    monkeypatch.setattr(Purse, "take", for_ever)
    assert "were admitted" in broken(story(cut_off(MINUTE), limits={GLOBAL: RATE}, rate=14.0))


def test_a_request_that_is_settled_twice_or_never_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    settle = Purse.settle

    def twice(purse: Purse, taken: object, actual: int | None, now: float) -> bool:
        settle(purse, taken, actual, now)  # type: ignore[arg-type]
        return settle(purse, taken, actual, now)  # type: ignore[arg-type]

    monkeypatch.setattr(Purse, "settle", twice)
    assert "was settled 0 times" in broken(story(limits={GLOBAL: RATE}, minutes=2))


def test_a_request_that_is_forgotten_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """The hold lets go of whoever it calls, and nobody asks on its behalf."""

    def forget(exchange: Exchange, now: float) -> bool:
        exchange.waiting_for = ""
        return True

    monkeypatch.setattr(Exchange, "wake", forget)
    assert "nobody works on a request" in broken(story(concurrent=2, rate=14.0, minutes=2))


def test_a_request_that_ends_unseen_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        exchanges.Exchange, "refuse", lambda exchange, *_: exchange.front.exchanges.pop(exchange)
    )
    scenario = story(limits={GLOBAL: RATE}, rate=14.0, minutes=2)
    assert "ended and" in broken(scenario)


def test_a_pick_that_ignores_who_is_out_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """It asks whoever was ejected, at once and with others ready."""
    pick = Pool.pick

    def careless(
        pool: Pool, cost: float, prefix: object, session: str, now: float, *rest: object, **more: object
    ) -> object:
        for replica in pool.replicas.values():
            if replica.health.ejected:
                replica.health.take_trial(now)
                return replica
        return pick(pool, cost, prefix, session, now, *rest, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(Pool, "pick", careless)
    assert "before its trial is due" in broken(story(on("gpu-a", Fault.KILL), rate=14.0, minutes=3))


def test_a_key_is_not_held_back_for_what_it_takes() -> None:
    takes, wastes = Reason("drain", Family.DRAIN, 0.9, ""), Reason("unread", Family.WASTE, 0.9, "")
    fault = no_key_is_held_back_on_drain_alone
    assert "nothing but what it takes" in fault(Judgement(0.9, (takes,), Grade.CLAMP))
    assert not fault(Judgement(0.9, (takes,), Grade.OBSERVE))
    assert not fault(Judgement(0.9, (takes, wastes), Grade.CLAMP))


def test_a_restored_key_has_all_that_it_may_and_is_left_alone() -> None:
    assert "suspended" in a_restored_key_serves_again(Key("app", b"", suspended="why"), 1.0)
    assert "10%" in a_restored_key_serves_again(Key("app", b""), 0.1)
    assert not a_restored_key_serves_again(Key("app", b""), 1.0)
    assert "again 60 s after" in a_restored_key_is_left_alone_for_a_day(MINUTE)
    assert not a_restored_key_is_left_alone_for_a_day(DAY)


def test_a_hold_without_patience_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """It names nobody whose patience is over."""
    init = Hold.__init__
    monkeypatch.setattr(
        Hold, "__init__", lambda hold, most, tokens, patience_s: init(hold, most, tokens, 10 * patience_s)
    )
    gateways = GatewayTraits(count=1, patience_ms=5 * SECOND)
    scenario = story(program=Program(start_ms=90 * SECOND), gateways=gateways, minutes=3)
    assert "a request was held for" in broken(scenario)


# the checkers by themselves


def taking(
    at: int, used: int | None, reserved: int = 1_000, settled: int = 1, *, lent: bool = True
) -> Taking:
    made = Taking(at, (GLOBAL,), reserved, lent=lent)
    made.used, made.settled = used, settled
    return made


@pytest.mark.parametrize(
    ("takings", "kept"),
    [
        ([taking(0, 1_000), taking(60_000, 1_000)], True),
        ([taking(0, 1_000), taking(59_000, 1_000)], False),  # a second too early
        ([taking(0, 400), taking(0, 600), taking(30_000, 500)], True),
        ([taking(0, 400), taking(0, 600), taking(30_000, 501)], False),
        ([taking(0, 1_000), taking(0, None, reserved=1)], False),  # what runs may use all of it
        ([taking(0, 1_000), taking(0, 5, lent=False)], True),  # nobody promised
        ([taking(0, 0), taking(0, 0), taking(0, 0)], True),  # nothing was ever asked
    ],
)
def test_an_interval_is_a_bucket_that_leaks(takings: list[Taking], kept: bool) -> None:
    limits = {GLOBAL: Limits(tokens_per_min=1_000)}
    assert (list(no_interval_admits_more_than_its_limit(takings, limits)) == []) == kept


def test_requests_and_budgets_are_counted_too() -> None:
    two = [taking(0, 10), taking(1, 10)]
    assert list(no_interval_admits_more_than_its_limit(two, {GLOBAL: Limits(requests_per_min=1)}))
    assert not list(no_interval_admits_more_than_its_limit(two, {GLOBAL: Limits(requests_per_min=2)}))
    assert list(no_budget_is_overdrawn(two, {GLOBAL: Limits(tokens_total=19)}))
    assert not list(no_budget_is_overdrawn(two, {GLOBAL: Limits(tokens_total=20)}))
    assert not list(no_budget_is_overdrawn(two, {"key:other": Limits(tokens_total=1)}))


def test_once_is_neither_never_nor_twice_nor_too_soon() -> None:
    orphan = taking(0, 10, settled=0)
    orphan.orphaned = True
    assert not list(
        every_reservation_is_settled_exactly_once([taking(0, 1), taking(0, None, settled=0), orphan])
    )
    for wrong in (taking(0, 1, settled=0), taking(0, 1, settled=2), taking(0, None, settled=1)):
        assert list(every_reservation_is_settled_exactly_once([wrong]))


def test_nobody_who_drains_is_asked_and_nobody_who_is_out_before_its_time() -> None:
    pool = Pool("chat")
    pool.set_replicas([ReplicaSpec(name, name) for name in "abc"], 0.0)
    asked = partial(nobody_is_asked_who_is_out_while_others_could_answer, pool)
    one, two, three = pool.replicas.values()
    assert asked(one) == ""
    pool.unreachable(one, 1.0)
    one.health.take_trial(5.0)
    assert asked(one) == "", "its trial is due"
    pool.unreachable(two, 6.0)
    two.health.take_trial(6.1)
    assert asked(two) == "", "most are out: we doubt ourselves"
    pool.succeeded(one, 7.0)
    assert "before its trial is due" in asked(two)
    pool.set_replicas([ReplicaSpec("a", "a")], 8.0)
    assert "draining" in asked(three)


def test_patience_is_kept_to_a_look_or_two() -> None:
    assert whoever_is_held_is_answered_or_refused_in_its_patience(10_000 + LATE_MS, 10_000) == ""
    assert whoever_is_held_is_answered_or_refused_in_its_patience(10_001 + LATE_MS, 10_000)
