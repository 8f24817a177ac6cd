"""A launch that waits for its turn, and the other offer that may be sooner."""

from typing import Any

import pytest

from holdfast.core.explain.explain import explain_node
from holdfast.core.state import fold
from holdfast.core.state.snapshot import dump
from holdfast.model import action as do
from holdfast.model import event as ev
from holdfast.model.money import Budget
from holdfast.model.node import NodeState
from holdfast.model.plan import Plan
from holdfast.model.policy import Policy
from holdfast.model.units import HOUR, MINUTE, SECOND, Millis
from holdfast.model.workload import Service, Workload
from holdfast.model.world import World
from tests.build import needs
from tests.play import Play, of, offer, pool

PATIENCE = Policy().capacity.queue_patience_ms
EVERY = Policy().capacity.queue_every_ms
READY = 2 * MINUTE  # of the cloud, as it is remembered


class Cluster(Play):
    """A cluster that costs nothing and has a queue, and a cloud whose machines take two minutes."""

    def __init__(self, policy: Policy | None = None, **cloud: Any) -> None:
        super().__init__(policy, offers=(offer("gpu", price=0),), max=4, queues=True)
        cloud = {"max": 4, "idle_ms": MINUTE, **cloud}
        self.tell(ev.PoolApplied(at=self.now, pool=pool("cloud", (offer("big", "c", price=900),), **cloud)))
        self.learn()
        self.apply(Workload("web", Service(1), needs(cpu=8)))
        (self.first,) = self.launched("pool")
        self.tell(ev.NodeLaunched(at=self.now, node=self.first))

    def learn(self) -> None:
        """Twenty launches of the cloud took so long each."""
        for number in range(20):
            plan = do.LaunchNode(
                node=f"old-{number}",
                pool="cloud",
                offer="big",
                place=offer("big", "c").place,
                capacity=offer("big").capacity,
                price_micro_usd=900,
                spot=False,
                why="to learn",
            )
            self.obey_launch(plan)

    def obey_launch(self, launch: do.LaunchNode) -> None:
        plan = Plan(self.world.plans + 1, self.now, (launch,))
        self.journal.append(plan)
        fold.accept(self.world, plan)
        self.tell(ev.NodeLaunched(at=self.now, node=launch.node))
        self.now += READY
        self.tell(ev.NodeJoined(at=self.now, node=launch.node))
        self.tell(ev.NodeTerminated(at=self.now, node=launch.node))

    def launched(self, *pools: str) -> list[str]:
        return [launch.node for launch in of(do.LaunchNode, self.settle()) if launch.pool in pools]

    def listed(self, left: Millis | None, *, queued: bool = True) -> None:
        told = {self.first: left} if queued else {}
        event = ev.PoolListed(at=self.now, pool="pool", nodes=(self.first,), asked_at=self.now, queued=told)
        self.tell(event)


@pytest.mark.parametrize(
    ("left", "bursts"),
    [
        (0, False),
        (READY, False),
        (READY + PATIENCE - 5 * SECOND, False),
        (READY + PATIENCE + 10 * SECOND, True),
        (5 * HOUR, True),
    ],
)
def test_who_waits_longer_than_another_takes_to_be_ready_is_not_waited_for(left: int, bursts: bool) -> None:
    play = Cluster()
    play.listed(left)
    assert bool(play.launched("cloud", "pool")) is bursts


def test_the_first_one_ready_stays_and_the_other_is_cancelled() -> None:
    for winner in ("cloud", "cluster"):
        play = Cluster()
        play.listed(HOUR)
        (second,) = play.launched("cloud")
        play.tell(ev.NodeLaunched(at=play.now, node=second))
        names = {"cloud": second, "cluster": play.first}
        play.tell(ev.NodeJoined(at=play.now + MINUTE, node=names.pop(winner)))
        play.now += MINUTE
        (loser,) = names.values()
        ended = of(do.TerminateNode, play.obey())
        assert [end.node for end in ended] == [loser]
        assert "as well, because of a queue, and was ready first" in ended[0].why
        assert len(play.running("web")) == 1
        assert play.refused == []


def test_one_that_waits_is_answered_once() -> None:
    play = Cluster()
    for _ in range(5):
        play.listed(HOUR)
        play.settle()
        play.now += EVERY
    assert [node.pool for node in play.world.nodes.values()] == ["pool", "cloud"]


def test_when_the_other_is_refused_it_is_asked_again_and_the_place_in_the_queue_is_kept() -> None:
    play = Cluster()
    play.listed(HOUR)
    (second,) = play.launched("cloud")
    play.tell(ev.ActionFailed(at=play.now, action="p", node=second, error="CapacityShort", why="none"))
    assert play.launched("cloud") == [], "its offer backs off"
    assert play.node(play.first).state is NodeState.BOOTING
    play.now += MINUTE
    play.listed(HOUR)
    assert len(play.launched("cloud")) == 1


def test_who_cannot_tell_is_expected_to_wait_as_long_again() -> None:
    play = Cluster()
    for _ in range((READY + PATIENCE) // EVERY):
        play.listed(None)
        assert play.launched("cloud") == []
        play.now += EVERY
    play.now += 10 * SECOND
    play.listed(None)
    assert len(play.launched("cloud")) == 1


def test_a_turn_that_has_come_is_a_node_that_boots() -> None:
    play = Cluster()
    play.listed(HOUR, queued=True)
    play.listed(None, queued=False)
    assert play.node(play.first).queued_at == 0
    assert play.launched("cloud") == []


def test_a_provider_with_a_queue_is_asked_soon_and_others_seldom() -> None:
    play = Cluster()
    assert "pool" in [one.pool for one in of(do.ListPool, play.later(EVERY))]
    play.tell(ev.NodeJoined(at=play.now, node=play.first))
    play.obey()
    assert of(do.ListPool, play.later(EVERY)) == []


def test_nothing_is_asked_for_that_cannot_be_paid() -> None:
    play = Cluster(Policy(budget=Budget(hour_micro_usd=100)))
    play.listed(HOUR)
    assert play.launched("cloud") == []


def test_it_does_not_queue_a_second_time_where_it_queues_already() -> None:
    play = Cluster(max=0)
    play.listed(5 * HOUR)
    assert play.launched("pool", "cloud") == []


def test_replay_gives_the_same_pair() -> None:
    play = Cluster()
    play.listed(HOUR)
    (second,) = play.launched("cloud")
    assert (play.node(second).hedge, play.node(play.first).hedge) == (play.first, second)
    again = World()
    for entry in play.journal:
        fold.apply(again, entry)
    assert dump(again) == dump(play.world)


def test_it_is_explained() -> None:
    play = Cluster()
    play.listed(HOUR)
    (second,) = play.launched("cloud")
    play.now += MINUTE
    lines = explain_node(play.world, None, play.first, play.now).because
    assert "it has waited in its provider's queue for 60 s; its turn comes: in 59.0 min" in lines
    assert f"{second} was asked for as well: the first one ready stays" in lines
