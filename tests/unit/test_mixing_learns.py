"""What a service on spot has been through is in the world, and the loop decides by it as the measured policy
does."""

from collections import Counter

import pytest
from msgspec.structs import replace

from bench._serving_policies import Ours
from bench._serving_world import Held as Market
from bench._serving_world import Node as Rented
from holdfast.core.plan.draft import Draft
from holdfast.core.provisioning import launch
from holdfast.core.spot import mix_policy
from holdfast.core.spot.service_mix import View, rules_of
from holdfast.core.state.fold import apply
from holdfast.core.state.snapshot import dump, load
from holdfast.model import event as ev
from holdfast.model.units import SECOND
from holdfast.model.world import World
from tests.unit.test_mixing import Mixed

ZONES = ("spot-a", "spot-b")


class Struck(Mixed):
    """Takes nodes away without notice; the policy of the benchmark looks on, every minute."""

    def __init__(self) -> None:
        super().__init__()
        super().minutes(4)
        assert self.homes().total() == 3
        self.policy = Ours(len(ZONES))
        self.look_on(Counter())
        self.minutes(5)  # the policy counts nothing while it begins

    def take(self, offer: str) -> None:
        name = next(name for name in self.running("web").values() if self.node(name).offer == offer)
        self.tell(ev.SpotNoticed(at=self.now, node=name, deadline=self.now))
        self.tell(ev.NodeTerminated(at=self.now, node=name))
        self.look_on(Counter([ZONES.index(offer)]))

    def minutes(self, count: int) -> None:
        for _ in range(count):
            super().minutes(1)
            self.look_on(Counter())

    def look_on(self, lost: Counter[int]) -> None:
        self.market = Market(len(ZONES))
        self.market.now = self.now // SECOND
        for offer, count in self.homes().items():
            self.market.nodes += [Rented(ZONES.index(offer), 0) for _ in range(count)]
        self.policy._learn(self.market, lost)

    def fleet(self) -> mix_policy.Fleet:
        draft, workload = Draft(self.world, self.now), self.world.workloads["web"]
        rules = rules_of(workload)
        assert rules is not None
        return View(draft, workload, launch.payable(draft, launch.tallies(draft), 0)).fleet(rules)


def a_bad_day(*, rows: bool) -> Struck:
    """Every two hours a zone takes a node, and minutes later, or not, the others."""
    play = Struck()
    for _ in range(12):
        offer = play.homes().most_common(1)[0][0]
        play.take(offer)
        play.minutes(2)
        while rows and play.homes()[offer]:
            play.take(offer)
        play.minutes(118)
    return play


@pytest.fixture(scope="module")
def in_rows() -> Struck:
    return a_bad_day(rows=True)


@pytest.fixture(scope="module")
def one_by_one() -> Struck:
    return a_bad_day(rows=False)


@pytest.fixture(params=["in_rows", "one_by_one"])
def play(request: pytest.FixtureRequest) -> Struck:
    found: Struck = request.getfixturevalue(request.param)
    return found


def test_a_world_with_a_history_of_losses_knows_more_than_a_fresh_one(play: Struck) -> None:
    fresh, known = Struck().fleet(), play.fleet()
    assert (fresh.follows, fresh.alone_per_hour) == (0.5, 0)
    assert known.burn > fresh.burn, "it was short more often than it may be"
    assert known.alone_per_hour > 0


def test_rows_are_told_from_single_losses(in_rows: Struck, one_by_one: Struck) -> None:
    assert in_rows.fleet().follows > 0.7
    assert one_by_one.fleet().follows < 0.2


def test_the_world_has_learnt_what_the_measured_policy_has(play: Struck) -> None:
    known, measured = play.fleet(), play.policy._fleet(play.market, set())
    assert known.burn == pytest.approx(measured.burn, rel=0.02)
    assert known.follows == pytest.approx(measured.follows)
    assert known.alone_per_hour == pytest.approx(measured.alone_per_hour, rel=0.02)


def test_a_zone_that_took_one_and_left_one_is_covered_by_whoever_knows_rows(
    in_rows: Struck, one_by_one: Struck
) -> None:
    found = {name: decided(play.fleet()) for name, play in (("rows", in_rows), ("one", one_by_one))}
    assert found["rows"] != decided(Struck().fleet()), "what was learnt changes what is ordered"
    assert found["rows"].on_demand > found["one"].on_demand == 0
    for name, play in (("rows", in_rows), ("one", one_by_one)):
        assert decided(play.policy._fleet(play.market, set())) == found[name], "as the measured policy"


def decided(known: mix_policy.Fleet) -> mix_policy.Orders:
    """Three are wanted, and a zone has just taken one of three; there is no other."""
    zone = mix_policy.Zone("a", 1_000_000, mix_policy.STAYS_MS_MIN, ready=2, taking=True, refused=True)
    here = replace(known, zones=(zone,), on_demand_price=3_000_000, ready_ms=120_000)
    here = replace(here, on_demand_ready=1, on_demand_coming=0)
    return mix_policy.orders(3, here, mix_policy.MixRules())


def test_replay_and_a_snapshot_give_the_same_world(play: Struck) -> None:
    again = World(play.world.policy)
    for entry in play.journal:
        apply(again, entry)
    assert again.losses == play.world.losses != {}
    assert dump(again) == dump(play.world)
    assert load(dump(again)).losses == again.losses


def test_a_service_that_is_deleted_or_leaves_its_mix_is_forgotten() -> None:
    for change in ("deleted", "on demand"):
        play = Struck()
        play.take(play.homes().most_common(1)[0][0])
        assert "web" in play.world.losses
        if change == "deleted":
            play.tell(ev.WorkloadDeleted(at=play.now, workload="web"))
        else:
            workload = play.world.workloads["web"]
            play.apply(replace(workload, shape=replace(workload.shape, mix=None)))
        assert play.world.losses == {}
