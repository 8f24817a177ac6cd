"""An under-used node is emptied and released, when that pays, and given back when it does not work out."""

import pytest

from holdfast.core import check
from holdfast.core.disruption.consolidate import used_share
from holdfast.core.explain.explain import explain_node
from holdfast.model import action as do
from holdfast.model import event as ev
from holdfast.model.finding import Severity
from holdfast.model.node import NodeState, Step
from holdfast.model.plan import Plan
from holdfast.model.policy import BalancePolicy, Policy
from holdfast.model.resources import Resources
from holdfast.model.units import HOUR, MINUTE, SECOND
from holdfast.model.verdict import Level
from holdfast.model.workload import Job, Needs, Service, Spread, Training, Workload
from tests.build import node, room
from tests.play import Play, of, offer, pool

PRICE = 400_000


def small(name: str, cpu: int = 2, **more: object) -> Workload:
    fields: dict[str, object] = {"shape": Service(1), "needs": Needs(Resources(1000 * cpu, 1024)), **more}
    return Workload(name, **fields)  # type: ignore[arg-type]


class Fleet(Play):
    """Nodes of eight CPUs, each of which holds one small workload, and for a while a large one beside it."""

    def __init__(self, *works: Workload, settled: bool = True, **rules: object) -> None:
        policy = rules.pop("policy", None)
        assert policy is None or isinstance(policy, Policy)
        super().__init__(policy, **{"offers": (offer(price=PRICE),), **rules})
        self.tell(ev.LeaderChanged(at=self.now, leader="cp", generation=1))
        works = works or (small("one"), small("other"))
        self.join(*"abcdef"[: len(works)])
        large = [
            small(f"large{number}", 8 - work.needs.resources.cpu_milli // 1000)
            for number, work in enumerate(works)
        ]
        for work, beside in zip(works, large, strict=True):
            self.apply(beside)
            self.obey()
            self.apply(work)
            self.obey()
        self.tell(*(ev.WorkloadDeleted(at=self.now, workload=each.name) for each in large))
        self.obey()
        if settled:
            self.later(HOUR)


def drains(actions: list[do.Action]) -> list[str]:
    return [action.node for action in of(do.DrainNode, actions) if action.release]


def test_work_that_fits_on_one_node_leaves_the_other_which_is_released() -> None:
    fleet = Fleet(settled=False)
    assert {replica.node for replica in fleet.world.replicas.values()} == {"a", "b"}
    actions = fleet.later(HOUR)
    assert drains(actions) == ["a"]
    assert of(do.TerminateNode, actions) == []  # its work has not left yet
    actions = fleet.obey()
    assert [action.node for action in of(do.TerminateNode, actions)] == ["a"]
    assert set(fleet.running("one").values()) == {"b"}


def test_the_reason_has_the_sums() -> None:
    actions = Fleet(settled=False).later(HOUR)
    assert [action.why for action in of(do.DrainNode, actions)] == [
        "what runs there (1 replica) fits elsewhere: the moves cost $0.03, "
        "without the node $0.40 are saved in 60.0 min"
    ]


def test_the_copy_that_serves_stops_only_when_its_successor_is_ready() -> None:
    fleet = Fleet()
    assert fleet.running("one") == {"one/0.1": "a", "one/0.2": "b"}
    fleet.ready("one/0.2")
    assert [stop.replica for stop in of(do.StopReplica, fleet.settle())] == ["one/0.1"]


def test_a_job_moves_when_its_checkpoint_is_recent() -> None:
    fleet = Fleet(small("one", shape=Job(), checkpoint_ms=5 * MINUTE), small("other"))
    fleet.obey()
    assert fleet.node("a").state is NodeState.TERMINATING
    assert fleet.running("one") == {"one/0.2": "b"}


def test_a_job_that_would_begin_anew_is_left_where_it_is() -> None:
    fleet = Fleet(*(small(name, shape=Job()) for name in ("one", "other")), settled=False)
    assert drains(fleet.later(10 * HOUR)) == []


def test_a_job_that_would_lose_much_since_its_checkpoint_is_left_where_it_is() -> None:
    works = (small(name, 4, shape=Job(), checkpoint_ms=10 * HOUR) for name in ("one", "other"))
    assert drains(Fleet(*works, settled=False).later(HOUR)) != []  # half a node for an hour: that pays
    works = (small(name, 4, shape=Job(), checkpoint_ms=10 * HOUR) for name in ("one", "other"))
    fleet = Fleet(*works, settled=False, policy=Policy(balance=BalancePolicy(consolidate=False)))
    fleet.later(2 * HOUR)
    fleet.tell(ev.PolicyApplied(at=fleet.now, policy=Policy()))
    assert drains(fleet.later(3 * HOUR)) == []


def test_a_gang_is_paid_for_as_a_whole() -> None:
    gang = small("other", shape=Training(2, 2), checkpoint_ms=0)
    fleet = Fleet(small("one"), gang, settled=False)
    assert drains(fleet.later(10 * HOUR)) == []


def test_copies_do_not_end_up_closer_together() -> None:
    fleet = Fleet(small("one"), small("one", shape=Service(2)), settled=False)
    assert set(fleet.running("one").values()) == {"a", "b"}
    assert drains(fleet.later(3 * HOUR)) == []


def test_half_of_the_copies_may_share_a_node_if_nothing_was_promised() -> None:
    works = [small("one", shape=Service(number)) for number in (1, 2, 3, 4)]
    fleet = Fleet(*works, settled=False)
    assert len(set(fleet.running("one").values())) == 4
    for number in range(6):
        fleet.later(5 * MINUTE if number else HOUR)
        fleet.obey()
    homes = list(fleet.running("one").values())
    assert sorted(homes.count(name) for name in set(homes)) == [2, 2]


def test_promised_copies_keep_their_own_nodes() -> None:
    fleet = Fleet(*[small("one", shape=Service(number)) for number in (1, 2, 3, 4)], settled=False)
    fleet.reapply("one", shape=Service(4, availability=0.9))
    fleet.obey()
    homes = set(fleet.running("one").values())
    actions = fleet.later(HOUR)
    assert drains(actions) == []
    assert len(homes) == len(fleet.running("one"))


def test_copies_that_need_not_be_apart_may_come_together() -> None:
    needs = Needs(Resources(2000, 1024), spread=Spread.NONE)
    fleet = Fleet(small("one", needs=needs), small("other", needs=needs), settled=False)
    assert drains(fleet.later(HOUR)) == ["a"]


RULES = {
    "the pool has no more than its minimum": {"min": 2},
    "the node costs nothing": {"offers": (offer(price=0),)},
    "its provider cannot take it away": {"can_terminate": False},
    "its provider could not give it back": {"can_launch": False},
    "it is switched off": {"policy": Policy(balance=BalancePolicy(consolidate=False))},
    "the horizon is too short to pay": {"policy": Policy(balance=BalancePolicy(gain_horizon_ms=5 * MINUTE))},
}


@pytest.mark.parametrize("rules", RULES.values(), ids=RULES)
def test_a_node_stays_when(rules: dict[str, object]) -> None:
    assert drains(Fleet(settled=False, **rules).later(2 * HOUR)) == []


def test_a_node_stays_when_the_rest_would_be_filled_to_the_brim() -> None:
    fleet = Fleet(small("one", 4), small("other", 4), settled=False)
    assert drains(fleet.later(2 * HOUR)) == []  # one more copy of what moves fits now, and would not then


def test_a_young_pool_is_left_alone() -> None:
    fleet = Fleet(settled=False)
    fleet.later(HOUR - 10 * MINUTE)
    fleet.apply(small("new", 7))
    launched = of(do.LaunchNode, fleet.settle())[0].node
    fleet.tell(ev.NodeLaunched(at=fleet.now, node=launched), ev.NodeJoined(at=fleet.now, node=launched))
    fleet.obey()
    assert drains(fleet.later(55 * MINUTE)) == []
    assert drains(fleet.later(15 * MINUTE)) == ["a"]


def test_nothing_is_emptied_while_something_waits_for_room() -> None:
    fleet = Fleet(settled=False, max=2)
    fleet.apply(small("huge", 8))
    assert drains(fleet.later(3 * HOUR)) == []


def test_nothing_is_emptied_under_a_brake() -> None:
    fleet = Fleet(settled=False)
    fleet.join("x", "y", "z")
    for name in ("x", "y", "z"):
        fleet.judge(name, Level.SUSPECT)
    fleet.settle()
    assert fleet.world.brakes
    assert drains(fleet.later(2 * HOUR)) == []


@pytest.mark.parametrize(
    "rules", [{"standby": 1}, {"standby_covers": 0.999999}], ids=["fixed", "by failures"]
)
def test_a_warm_standby_node_is_neither_emptied_nor_filled(rules: dict[str, object]) -> None:
    fleet = Fleet(settled=False, **rules)
    launched = [each for each in fleet.world.nodes.values() if each.state is NodeState.LAUNCHING]
    assert launched
    for each in launched:
        fleet.tell(ev.NodeLaunched(at=fleet.now, node=each.id), ev.NodeJoined(at=fleet.now, node=each.id))
    actions = fleet.later(2 * HOUR)
    assert len(drains(actions)) == 1
    fleet.obey()
    spare = {name for name, there in fleet.world.on_node.items() if not there}
    assert {each.id for each in launched} <= spare
    assert of(do.LaunchNode, actions) == []


def test_one_node_at_a_time_is_emptied() -> None:
    fleet = Fleet(*(small(name) for name in ("one", "two", "three", "four")), settled=False)
    drained: list[list[str]] = []
    for number in range(8):
        drained.append(drains(fleet.later(5 * MINUTE if number else HOUR)))
        assert len(fleet.world.draining) <= 1
        fleet.obey()
    assert [len(each) for each in drained] == [1, 1, 0, 0, 0, 0, 0, 0]  # then the next copy would not fit


# what was counted on is what happens


class Beside(Play):
    """Nodes of eight CPUs that hold what is named, beside an empty one which is all the standby there is."""

    def __init__(self, policy: Policy | None = None, **homes: tuple[Workload, ...]) -> None:
        super().__init__(policy, offers=(offer(price=PRICE),))
        self.tell(ev.LeaderChanged(at=self.now, leader="cp", generation=1))
        fillers = []
        for number, (home, works) in enumerate(homes.items()):
            self.join(home, zone="aabb"[number])
            rest = 8000 - sum(work.needs.resources.cpu_milli for work in works)
            fillers.append(small(f"rest{number}", needs=milli(rest)))
            self.apply(*works, fillers[-1])
            self.obey()
        self.join("empty", zone="c")
        self.tell(ev.PoolApplied(at=self.now, pool=pool(offers=(offer(price=PRICE),), standby=1)))
        self.tell(*(ev.WorkloadDeleted(at=self.now, workload=each.name) for each in fillers))
        self.obey()

    def hours(self, count: int) -> list[do.Action]:
        done = []
        for _ in range(count * HOUR // (5 * MINUTE)):
            done += self.later(5 * MINUTE)
            done += self.obey()
        return done


def milli(cpu: int) -> Needs:
    return Needs(Resources(cpu, 1024))


def job(name: str, cpu: int = 1) -> Workload:
    return small(name, cpu, shape=Job(), checkpoint_ms=5 * MINUTE)


def test_a_job_is_counted_where_it_will_go_and_not_away_from_its_own_old_copy() -> None:
    large = small("large", needs=milli(5500))
    play = Beside(a=(job("job"),), b=(large,), c=(small("other"),))
    assert list(play.running("job").values()) == ["a"]
    actions = play.hours(3)
    assert of(do.LaunchNode, actions) == [], "a standby was filled, and had to be ordered again"
    assert play.world.on_node["empty"] == {}


def test_a_job_is_counted_after_what_is_placed_before_it_has_stopped() -> None:
    one, second, third = (
        small(name, needs=milli(cpu)) for name, cpu in (("one", 2500), ("b", 5000), ("c", 3500))
    )
    play = Beside(a=(job("job"), one), b=(second,), c=(third,), d=(small("d"),))
    assert list(play.world.on_node["a"]) == ["job/0.1", "one/0.1"]
    actions = play.hours(3)
    assert of(do.LaunchNode, actions) == [], "a standby was filled, and had to be ordered again"
    assert play.world.on_node["empty"] == {}


def test_no_node_is_emptied_by_a_plan_that_fills_the_standby_and_orders_another() -> None:
    policy = Policy(balance=BalancePolicy(part_ms=HOUR))  # when the nodes are looked at first
    one, two, three = ((small("web", shape=Service(count)),) for count in (1, 2, 3))
    play = Beside(policy, a=one, b=two, c=three, d=(small("other"),))
    actions = play.later(HOUR)
    assert [place.node for place in of(do.PlaceReplica, actions)] == ["empty"]
    assert [launch.why for launch in of(do.LaunchNode, actions)] == ["a warm standby node"]
    assert drains(actions) == []


def test_no_load_is_moved_onto_the_standby_for_another_would_be_ordered() -> None:
    """A property found it: nodes were full and level, and cost more hour by hour."""
    halves = (small("half", needs=milli(3500)), small("other half", needs=milli(3500)))
    policy = Policy(balance=BalancePolicy(every_ms=HOUR))
    play = Beside(policy, a=halves, b=(small("one"),), c=(small("two"),))
    actions = play.hours(3)
    assert [place.node for place in of(do.PlaceReplica, actions)] != []
    assert of(do.LaunchNode, actions) == []
    assert play.world.on_node["empty"] == {}


# it yields


def test_at_its_deadline_the_node_is_given_back_with_what_is_there() -> None:
    fleet = Fleet()
    fleet.tell(ev.ReplicaStarted(at=fleet.now, replica="one/0.2", node="b"))
    actions = fleet.later(5 * MINUTE)
    given_back = [(action.node, action.why) for action in of(do.UncordonNode, actions)]
    assert given_back == [("a", "it did not get empty in time")]
    assert not of(do.StopReplica, actions)
    assert not of(do.TerminateNode, actions)
    assert fleet.node("a").state is NodeState.READY
    assert not fleet.node("a").releasing


def test_a_plan_that_terminates_it_with_work_is_refused_even_after_its_deadline() -> None:
    fleet = Fleet()
    fleet.now += HOUR
    end = do.TerminateNode(node="a", why="for the test")
    _, refused = check.examine(fleet.world, Plan(9, fleet.now, (end,)))
    assert [each.invariant for each in refused] == ["no healthy node is terminated while it works"]


def test_a_node_that_was_given_back_is_not_tried_again_within_the_horizon() -> None:
    fleet = Fleet()
    fleet.later(5 * MINUTE)
    fleet.end("one/0.2", ev.Ended.FAILED)
    assert "a" not in drains(fleet.later(50 * MINUTE))


def test_work_that_waits_gets_the_node_back_and_no_other_is_ordered() -> None:
    fleet = Fleet()
    fleet.apply(small("new", 5))
    actions = fleet.settle()
    assert [action.why for action in of(do.UncordonNode, actions)] == ["new needs room"]
    assert of(do.LaunchNode, actions) == []
    assert set(fleet.running("new").values()) == {"a"}


def test_a_brake_ends_it() -> None:
    fleet = Fleet(settled=False)
    fleet.later(HOUR)
    fleet.join("x", "y", "z")
    for name in ("x", "y", "z"):
        fleet.judge(name, Level.SUSPECT)
    assert [action.node for action in of(do.UncordonNode, fleet.settle())] == ["a"]


def test_the_minimum_of_the_pool_ends_it() -> None:
    fleet = Fleet(min=1)
    fleet.judge("b", Level.DEAD)
    actions = fleet.settle()
    assert [action.node for action in of(do.UncordonNode, actions)] == ["a"]
    assert of(do.LaunchNode, actions) == []


def test_a_replica_that_has_no_place_after_all_ends_it() -> None:
    fleet = Fleet()
    fleet.end("one/0.2", ev.Ended.FAILED)  # its successor fails by itself, and backs off
    actions = fleet.settle()
    assert [action.why for action in of(do.UncordonNode, actions)] == ["one/0.1 has no other place after all"]
    assert of(do.LaunchNode, actions) == []


def test_an_operator_takes_over() -> None:
    fleet = Fleet()
    fleet.tell(ev.OperatorOrdered(at=fleet.now, order=ev.Order.CORDON, node="a", why="mine"))
    fleet.obey()
    assert fleet.node("a").state is NodeState.CORDONED
    assert not fleet.node("a").releasing


def test_a_spot_notice_takes_over() -> None:
    fleet = Fleet()
    fleet.tell(ev.SpotNoticed(at=fleet.now, node="a", deadline=fleet.now + 2 * MINUTE))
    assert not fleet.node("a").releasing


def test_a_node_that_says_hello_again_has_no_notice() -> None:
    fleet = Fleet(offers=(offer(price=PRICE, spot=True),))
    assert fleet.node("a").releasing
    fleet.join("a", running=("one/0.1",))
    fleet.later(5 * MINUTE)
    assert fleet.node("a").state is NodeState.READY  # given back, and not terminated with what runs there


def test_it_takes_nothing_from_the_repairs_and_is_not_repaired() -> None:
    fleet = Fleet()
    fleet.find("a", Severity.DRAIN)
    fleet.settle()
    assert fleet.node("a").repair.step is Step.HEALTHY
    fleet.obey()
    assert fleet.node("a").state is NodeState.TERMINATING


def test_it_is_explained() -> None:
    fleet = Fleet()
    told = explain_node(fleet.world, None, "a", fleet.now + 30 * SECOND)
    assert "being emptied for 30 s, to be released: its work fits elsewhere" in told.because


def test_the_share_in_use_is_that_of_the_scarcest_resource() -> None:
    rooms = room([node("a", cpu=8, gpus=2), node("b", cpu=8)])
    rooms.take(rooms.row["a"], Resources(2000, 1024, 1000, "h100"), (0,))
    rooms.take(rooms.row["b"], Resources(2000, 1024), ())
    shares = used_share(rooms)
    assert [float(shares[rooms.row[name]]) for name in ("a", "b")] == [0.5, 0.25]
