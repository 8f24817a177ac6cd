"""Whatever runs where: emptying a node leaves every replica a place, keeps to the minimum, and pays."""

from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.core.disruption.consolidate import Bargain, bargains
from holdfast.core.plan.draft import Draft
from holdfast.model import action as do
from holdfast.model import event as ev
from holdfast.model.replica import State
from holdfast.model.resources import Resources
from holdfast.model.units import HOUR, MINUTE
from holdfast.model.workload import Job, Needs, Service, Shape, Spread, Workload
from tests.play import Play, of, offer, pool

ZONES = ("a", "b", "c")
SHAPES: tuple[Shape, ...] = (Service(1), Service(2), Service(4), Service(1, standby=1), Job())
PRICES = (0, 100_000, 400_000)


@st.composite
def workloads(draw: st.DrawFn, name: str) -> Workload:
    shape = draw(st.sampled_from(SHAPES))
    spread = draw(st.sampled_from(tuple(Spread)))
    needs = Needs(Resources(draw(st.sampled_from((1000, 2000, 3000))), 1024), spread=spread)
    checkpoint_ms = draw(st.sampled_from((0, 5 * MINUTE, 5 * HOUR)))
    return Workload(name, shape, needs, checkpoint_ms=checkpoint_ms)


@st.composite
def fleets(draw: st.DrawFn) -> Play:
    """Filled to some degree, then emptied in part, and an hour old."""
    prices = [draw(st.sampled_from(PRICES)) for _ in ZONES]
    offers = tuple(offer(f"o{zone}", zone, price=price) for zone, price in zip(ZONES, prices, strict=True))
    play = Play(offers=offers, min=draw(st.integers(0, 5)), standby=draw(st.integers(0, 1)), max=12)
    play.tell(ev.LeaderChanged(at=play.now, leader="cp", generation=1))
    for number in range(draw(st.integers(2, 6))):
        zone = ZONES[number % 3]
        play.join(f"n{number}", zone=zone, offer=f"o{zone}")
    for number in range(draw(st.integers(1, 5))):
        play.apply(Workload(f"large{number}", Service(1), Needs(Resources(5000, 1024))))
        play.apply(draw(workloads(f"w{number}")))
        obey(play)
    for number in range(5):
        play.tell(ev.WorkloadDeleted(at=play.now, workload=f"large{number}"))
    obey(play)
    return play


def obey(play: Play) -> list[do.Action]:
    """As `Play.obey`, and the provider does what it is told."""
    done: list[do.Action] = []
    while True:
        done += play.obey()
        states = {node.id: str(node.state) for node in play.world.nodes.values()}
        for name in (name for name, state in states.items() if state == "launching"):
            play.tell(ev.NodeLaunched(at=play.now, node=name), ev.NodeJoined(at=play.now, node=name))
        for name in (name for name, state in states.items() if state == "terminating"):
            play.tell(ev.NodeTerminated(at=play.now, node=name))
        if not {"launching", "terminating"} & set(states.values()):
            return done


def pass_time(play: Play, ms: int) -> list[do.Action]:
    done: list[do.Action] = []
    end = play.now + ms
    while play.now < end:
        done += play.later(min(5 * MINUTE, end - play.now))
        done += obey(play)
    return done


def seats(play: Play) -> set[str]:
    return {replica.slot for replica in play.world.replicas.values() if replica.state is State.READY}


@settings(max_examples=20, deadline=None)
@given(fleets())
def test_what_runs_goes_on_running_on_fewer_nodes(play: Play) -> None:
    before, prices = seats(play), rent(play)
    actions = pass_time(play, 4 * HOUR)
    assert seats(play) == before
    assert not any(node.releasing for node in play.world.nodes.values())
    assert len(play.world.nodes) >= play.world.pools["pool"].min
    assert rent(play) <= prices
    drained = [action.node for action in of(do.DrainNode, actions) if action.release]
    gone = [action.node for action in of(do.TerminateNode, actions)]
    assert set(drained) <= set(gone)  # agents obeyed at once, so none had to be given back
    first = actions.index(of(do.DrainNode, actions)[0]) if drained else len(actions)
    assert of(do.LaunchNode, actions[first:]) == [], "what was released is ordered again"


@settings(max_examples=20, deadline=None)
@given(fleets(), st.sampled_from((HOUR, 2 * HOUR, 9 * HOUR)))
def test_a_bargain_saves_more_than_it_costs_and_its_work_fits(play: Play, age: int) -> None:
    play.now += age
    play.tell(ev.PoolApplied(at=play.now, pool=pool(offers=play.world.pools["pool"].offers, max=12)))
    world = play.world
    for bargain in bargains(Draft(world, play.now)):
        node = world.nodes[bargain.node]
        assert bargain.cost_micro_usd < bargain.saving_micro_usd == node.price_micro_usd
        assert all(work_fits(play, bargain))


def work_fits(play: Play, bargain: Bargain) -> list[bool]:
    """A coarse bound of its own: what the others have free is at least what is there."""
    world = play.world
    there = [world.replicas[name].needs for name in world.on_node[bargain.node]]
    rows = [row for name, row in world.room.row.items() if name != bargain.node and world.room.open[row]]
    return [sum(need.cpu_milli for need in there) <= int(world.room.cpu[rows].sum()), bool(there)]


def rent(play: Play) -> int:
    return sum(node.price_micro_usd for node in play.world.nodes.values())
