"""A job with a deadline in the loop: what is bought for it, when it moves, and that it is on time."""

from typing import Any

import pytest
from msgspec.structs import replace

from holdfast.api import views
from holdfast.control.metrics import Metrics
from holdfast.core.explain.explain import explain_workload
from holdfast.core.market.offer_history import GRID
from holdfast.core.spot import deadline_jobs
from holdfast.core.state.snapshot import dump, load
from holdfast.model import action as do
from holdfast.model import event as ev
from holdfast.model.course import Way
from holdfast.model.plan import Plan
from holdfast.model.policy import CapacityPolicy, Policy
from holdfast.model.resources import Resources
from holdfast.model.units import HOUR, MINUTE
from holdfast.model.workload import Job, Service, Workload
from tests.build import needs
from tests.play import Play, of, offer, pool

SPOT, PAID = 1_000_000, 3_000_000
BOOT = 2 * MINUTE


class Late(Play):
    """A market with spot that comes and goes, on demand that is always there, and one job."""

    def __init__(self, deadline: int = 10 * HOUR, work: int = 4 * HOUR, **rules: Any) -> None:
        offers = (offer("spot", "a", price=SPOT, spot=True), offer("paid", "b", price=PAID))
        super().__init__(offers=offers, idle_ms=MINUTE, **rules)
        self.spot_there, self.work = True, work
        self.began = self.now
        shape = Job(deadline_ms=deadline, work_ms=work)
        self.apply(Workload("job", shape, needs(cpu=8), checkpoint_ms=10 * MINUTE, move_cost_ms=2 * MINUTE))

    @property
    def way(self) -> Way:
        return self.world.courses["job"].way

    @property
    def home(self) -> str:
        nodes = [self.node(name).offer for name in self.running("job").values()]
        return nodes[0] if nodes else ""

    def answer(self, actions: list[do.Action]) -> None:
        for launch in of(do.LaunchNode, actions):
            if launch.spot and not self.spot_there:
                self.tell(
                    ev.ActionFailed(
                        at=self.now, action="p", node=launch.node, error="CapacityShort", why="none"
                    )
                )
            else:
                self.tell(ev.NodeLaunched(at=self.now, node=launch.node))
        for end in of(do.TerminateNode, actions):
            self.tell(ev.NodeTerminated(at=self.now, node=end.node))

    def minute(self) -> None:
        """One of them passes: machines come up, programs work and save, spot is taken when it is gone."""
        self.now += MINUTE
        for name, node in list(self.world.nodes.items()):
            if node.state == "booting" and self.now - node.since >= BOOT:
                self.tell(ev.NodeJoined(at=self.now, node=name))
            elif node.spot and not self.spot_there:
                self.tell(ev.NodeTerminated(at=self.now, node=name))
        for _ in range(8):
            actions = self.obey()
            self.answer(actions)
            if not actions:
                break
        self.work_on()

    def work_on(self) -> None:
        for name in list(self.running("job")):
            replica = self.replica(name)
            done = replica.progress_ms + max(0, self.now - replica.ready_at - 2 * MINUTE)
            if done >= self.work:
                self.end(name, ev.Ended.DONE, progress_ms=done)
            elif done // (10 * MINUTE) * 10 * MINUTE > self.slot("job/0").progress_ms:
                saved = done // (10 * MINUTE) * 10 * MINUTE
                self.tell(ev.CheckpointSaved(at=self.now, replica=name, progress_ms=saved))

    @property
    def done(self) -> bool:
        return "job/0" in self.world.slots and self.slot("job/0").phase == "done"


def test_it_begins_on_spot_while_there_is_time() -> None:
    play = Late()
    (launch,) = of(do.LaunchNode, play.settle())
    assert (launch.offer, play.way) == ("spot", Way.SPOT)
    assert play.world.courses["job"].why.startswith("$")


def test_with_no_time_to_lose_it_goes_on_demand_at_once() -> None:
    play = Late(deadline=4 * HOUR + 12 * MINUTE)
    assert [launch.offer for launch in of(do.LaunchNode, play.settle())] == ["paid"]
    assert play.way is Way.ON_DEMAND


def test_without_spot_it_waits_and_nothing_is_bought_until_the_net() -> None:
    play = Late(deadline=30 * HOUR)
    play.spot_there = False
    ways = set()
    while play.now < play.began + 2 * HOUR:
        play.minute()
        ways.add(play.way)
    assert Way.WAIT in ways
    assert [node.offer for node in play.world.nodes.values()] == []


@pytest.mark.parametrize("gone_after", [0, 30, 200, 239])
def test_it_is_on_time_though_spot_never_comes_back(gone_after: int) -> None:
    play = Late(deadline=7 * HOUR)
    deadline = play.began + 7 * HOUR
    while not play.done:
        play.spot_there = play.now < play.began + gone_after * MINUTE
        play.minute()
        assert play.now <= deadline, (play.way, play.world.courses["job"])


@pytest.mark.parametrize("period", [25, 45, 90])
def test_it_is_on_time_while_spot_comes_and_goes(period: int) -> None:
    play = Late(deadline=7 * HOUR)
    while not play.done:
        play.spot_there = (play.now // MINUTE) % (2 * period) < period
        play.minute()
        assert play.now <= play.began + 7 * HOUR


def test_with_much_time_and_steady_spot_it_never_pays_for_on_demand() -> None:
    play = Late(deadline=12 * HOUR)
    seen = set()
    while not play.done:
        play.minute()
        seen |= {node.offer for node in play.world.nodes.values()}
    assert seen == {"spot"}


def test_it_goes_back_to_spot_when_that_is_cheaper() -> None:
    play = Late(deadline=12 * HOUR, work=8 * HOUR)
    play.spot_there = False
    while play.home != "paid":
        play.minute()
    play.spot_there = True
    for _ in range(240):
        play.minute()
        if play.home == "spot":
            break
    assert play.home == "spot"


@pytest.mark.parametrize(("deadline", "work"), [(600, 240), (120, 60), (60, 20)])
def test_a_node_on_demand_that_was_ordered_is_not_left_standing(deadline: int, work: int) -> None:
    """That it came sooner than was feared makes waiting look safe for longer; but it is here now."""
    play = Late(deadline=deadline * MINUTE, work=work * MINUTE)
    play.spot_there = False
    while play.way is not Way.ON_DEMAND:
        play.minute()
    while not play.done:
        play.minute()
        assert play.way is Way.ON_DEMAND
        assert (
            not [node for node in play.world.nodes.values() if node.state == "ready"]
            or play.home
            or play.done
        )


def test_a_way_is_taken_since_it_was_taken_first() -> None:
    play = Late()
    play.minute()
    asked, since = play.world.courses["job"].ask_at, play.now
    while play.world.courses["job"].ask_at == asked:
        play.minute()
    assert (play.way, play.world.courses["job"].since) == (Way.SPOT, since)


def test_the_deadline_counts_from_the_first_apply_and_survives_a_restart() -> None:
    play = Late()
    play.settle()
    begun = play.world.courses["job"].begun
    play.now += HOUR
    play.reapply("job", priority=3)
    assert play.world.courses["job"].begun == begun
    assert load(dump(play.world)).courses == play.world.courses


def test_where_there_is_nothing_to_choose_it_takes_what_there_is() -> None:
    play = Play(offers=(offer("paid", price=PAID),))
    play.apply(Workload("job", Job(deadline_ms=9 * HOUR, work_ms=HOUR), needs(cpu=8)))
    assert [launch.offer for launch in of(do.LaunchNode, play.settle())] == ["paid"]


def test_a_job_without_a_deadline_has_no_course() -> None:
    play = Play()
    play.apply(Workload("job", Job(), needs(cpu=8)))
    play.settle()
    assert play.world.courses == {}
    play.apply(Workload("job", Job(deadline_ms=9 * HOUR, work_ms=HOUR), needs(cpu=8)))
    assert "job" in play.world.courses
    play.tell(ev.WorkloadDeleted(at=play.now, workload="job"))
    assert play.world.courses == {}


def test_hypotheses_are_counted_to_their_nearest() -> None:
    weights = deadline_jobs.on_spot_grid(GRID.usually / GRID.usually.sum())
    assert weights.sum() == pytest.approx(1.0)
    assert (weights >= 0).all()


def test_it_is_explained() -> None:
    play = Late()
    play.settle()
    told = explain_workload(play.world, "job", play.now + MINUTE).because
    assert "10.0 h to the deadline, 4.0 h of work not saved yet" in told
    assert any(line.startswith("its way is spot for 60 s: $") for line in told)


@pytest.mark.parametrize("price", [0, SPOT])
def test_where_only_spot_is_offered_it_takes_spot_whatever_it_costs(price: int) -> None:
    play = Play(offers=(offer("spot", price=price, spot=True),))
    play.apply(Workload("job", Job(deadline_ms=9 * HOUR, work_ms=HOUR), needs(cpu=8)))
    assert [launch.offer for launch in of(do.LaunchNode, play.settle())] == ["spot"]


def test_it_is_asked_again_in_time_though_nothing_happens() -> None:
    quiet = CapacityPolicy(list_every_ms=30 * HOUR)
    play = Late(deadline=7 * HOUR, policy=Policy(capacity=quiet))
    play.minute()
    for _ in range(3):
        play.minute()
    assert play.home == "spot"
    end = play.world.courses["job"].safe_until
    play.later(end - play.now)
    assert play.way is Way.ON_DEMAND


def test_what_runs_on_demand_stays_there_when_no_more_of_it_can_be_had() -> None:
    play = Late(deadline=4 * HOUR + 12 * MINUTE, lists_offers=True)
    for _ in range(10):
        play.minute()
    assert play.home == "paid"
    spot = tuple(one for one in play.world.offers["pool"] if one.spot)
    play.tell(ev.OffersListed(at=play.now, pool="pool", offers=spot))
    play.join("free", offer="spot")
    for _ in range(30):
        play.minute()
    assert play.home == "paid"


def test_what_may_not_be_paid_is_no_way() -> None:
    play = Late(deadline=4 * HOUR + 12 * MINUTE, price_max_micro_usd=SPOT)
    for _ in range(10):
        play.minute()
    assert play.home == "spot"


@pytest.mark.parametrize("beside", [True, False])
@pytest.mark.parametrize("spot_there", [True, False])
def test_it_does_not_come_and_go_where_there_is_room_on_demand(*, spot_there: bool, beside: bool) -> None:
    play = Late(deadline=60 * HOUR)
    play.spot_there = spot_there
    big = offer("paid", "b", price=PAID, capacity=Resources(cpu_milli=16_000, memory_mib=65_536))
    rules = pool("pool", (offer("spot", price=SPOT, spot=True), big), idle_ms=HOUR)
    play.tell(ev.PoolApplied(at=play.now, pool=rules))
    play.join("shared", offer="paid", capacity=big.capacity)
    if beside:
        play.apply(Workload("web", Service(1), replace(needs(cpu=8), spot=False)))
    for _ in range(60):
        play.minute()
    assert play.slot("job/0").epoch <= 2
    assert play.home == ("spot" if spot_there else "paid" if beside else "")


def lateness(play: Late) -> list[do.DeclareLate]:
    """What is declared in the minute of the deadline, and in the hours after."""
    play.now = play.began + 5 * HOUR - MINUTE
    play.settle()
    assert not play.world.courses["job"].missed
    found = list(of(do.DeclareLate, play.later(MINUTE)))
    for _ in range(20):
        found += of(do.DeclareLate, play.later(10 * MINUTE))
    return found


def test_a_deadline_that_is_missed_is_told_once_whatever_keeps_the_job() -> None:
    """It was missed in silence."""
    play = Late(deadline=5 * HOUR, max=0)
    (late,) = lateness(play)
    assert late.deadline == play.began + 5 * HOUR
    assert late.why == "its deadline has passed with 4.0 h of work not saved"
    shown = views.workload_of(views.Sight(play.world, None, lambda name: None, play.now), "job")
    assert shown is not None
    assert shown.missed_deadline
    assert "its deadline has passed" in shown.why
    assert any("the deadline was" in text for text in explain_workload(play.world, "job", play.now).because)
    metrics = Metrics()
    metrics.watch(lambda: play.world, lambda: True, lambda: 0, lambda: play.now, lambda name: None)
    metrics.journalled([Plan(1, play.now, (late,))])
    assert metrics.registry.get_sample_value("holdfast_missed_deadlines_total") == 1
    assert metrics.registry.get_sample_value("holdfast_late_jobs") == 1
    again = load(dump(play.world))
    assert again.courses["job"].missed == late.deadline


def test_a_paused_job_misses_its_deadline_too_and_another_deadline_is_another_promise() -> None:
    play = Late(deadline=5 * HOUR, max=0)
    job = play.world.workloads["job"]
    play.apply(replace(job, paused=True))
    (late,) = lateness(play)
    assert late.why.endswith("; it is paused")
    later = replace(job, shape=replace(job.shape, deadline_ms=20 * HOUR), version=job.version + 1)
    play.apply(later)
    play.settle()
    assert not play.world.courses["job"].missed
    (again,) = of(do.DeclareLate, play.later(play.began + 20 * HOUR - play.now))
    assert again.deadline == play.began + 20 * HOUR


def test_a_job_that_is_done_in_time_never_misses_its_deadline() -> None:
    play = Late(deadline=10 * HOUR)
    while not play.done:
        play.minute()
    assert not of(do.DeclareLate, play.later(10 * HOUR))
    assert not play.world.courses["job"].missed
