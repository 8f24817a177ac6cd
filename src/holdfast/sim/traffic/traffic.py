"""All simulated requests: who asks, the gateways they come to, and the leader that these lean on.

Two twins of a gateway are here for two questions. `gateway` is a fluid: it asks how a service scales with
days of load, where a request more or less is nothing, and a day of them one by one would take minutes. This
one asks what becomes of each request: it is made of the real core (`core.gateway`), and every request is
checked (`traffic_checks`). A service with a `load` and no `requests` is a fluid.

A gateway reaches the leader over the network, and a cut between the two is a fault like any other. What is
said over a connection that is whole arrives, late if a packet was lost.
"""

from typing import TYPE_CHECKING

import msgspec

from holdfast.core.gateway.key_audit.audit import Row, found_out
from holdfast.core.gateway.quota.broker import Ask, Grants
from holdfast.core.gateway.quota.leader_broker import Lender
from holdfast.core.gateway.request import endpoints_of
from holdfast.core.gateway.routing.updates import ReplicaSpec
from holdfast.core.turn import Mind
from holdfast.model import event as ev
from holdfast.model.gateway import Key
from holdfast.model.units import NEVER, SECOND, Instant, Millis
from holdfast.model.workload import Service
from holdfast.model.world import World
from holdfast.sim.checks.traffic_checks import Checks, Taking
from holdfast.sim.scenario.scenario import WorkloadSetup
from holdfast.sim.traffic.counts import Tally
from holdfast.sim.traffic.exchange import Exchange
from holdfast.sim.traffic.gateway import Front
from holdfast.sim.traffic.replicas import Serving
from holdfast.sim.traffic.requests import Callers
from holdfast.sim.traffic.traffic_transcript import Teller
from holdfast.sim.twins.control_plane import SimControl
from holdfast.wire.gateway import ServiceLoad, signals

if TYPE_CHECKING:
    from holdfast.sim.run import Simulation

AGAIN_MS: Millis = 200  # a packet that was lost is sent again
WATCH_AGAIN_MS = 1 * SECOND
LAPSE_MS = 1 * SECOND
RETURNS_MS = 10 * SECOND
NO_VIEW = (0, 0)
TELL_MS = 1 * SECOND


class View(msgspec.Struct, frozen=True):
    """What gateways go by: the replicas of each service, and those that end what they have begun."""

    number: tuple[int, int]  # the generation of whoever says so, and the length of its journal
    services: dict[str, tuple[tuple[ReplicaSpec, ...], tuple[str, ...]]]
    keys: dict[str, Key] = {}


class Traffic:
    def __init__(self, sim: "Simulation", setups: dict[str, WorkloadSetup]) -> None:
        self.sim, self.setups = sim, setups
        self.traits, self.limits = sim.scenario.gateways, sim.scenario.limits
        self.tells = any(getattr(s.workload.shape, "scale", None) for s in setups.values())
        self.tell_ms = min((s.load.every_ms for s in setups.values() if s.load), default=TELL_MS)
        self.serving = Serving(sim)
        self.checks = Checks(self)
        self.teller = Teller(self)
        self.takings: list[Taking] = []
        self.tallies = {name: Tally() for name in setups}
        self.keys = keys_of(setups)
        self.fronts: dict[str, Front] = {}
        self.habits: dict[str, bytes] = {}  # of keys, as gateways keep them on their disks
        self._lives = 0
        self._turn = 0
        self._lender: tuple[Mind, Lender] | None = None
        self._lapsed_at = self._returned_at = 0
        self._view = View(NO_VIEW, {})
        self._looked_at = NO_VIEW
        for number in range(1, self.traits.count + 1):
            self.start(f"gw-{number}")
        for name, setup in setups.items():
            assert setup.load is not None
            assert setup.requests is not None
            callers = Callers(name, setup.load, setup.requests, self.keys, sim.seed)
            sim.kernel.at(setup.at, self._come, name, callers, False)

    # who asks

    def _come(self, service: str, callers: Callers, asks: bool) -> None:
        """Somebody asks any gateway that takes connections, in turns; where there is none, nobody can."""
        if service not in self.tallies or self.tallies[service].closed:
            return
        if asks:
            tally = self.tallies[service]
            tally.asked += 1
            front = self._next_front(service)
            want = callers.draw()
            if front is not None:
                front.asked(service, want)
            else:
                tally.ended("refused", "no gateway")
                self.teller.refused(service, "no gateway")
        at, asks = callers.next_at(self.sim.kernel.now)
        if at < NEVER:
            self.sim.kernel.at(at, self._come, service, callers, asks)

    def _next_front(self, service: str) -> Front | None:
        fronts = [front for front in self.fronts.values() if front.takes and service in front.services]
        self._turn += 1
        return fronts[self._turn % len(fronts)] if fronts else None

    def took(self, key: Key, model: str, tokens: int, *, lent: bool) -> Taking:
        taking = Taking(self.sim.kernel.now, self.checks.scopes(key, model), tokens, lent=lent)
        self.takings.append(taking)
        return taking

    def ended(self, exchange: Exchange) -> None:
        assert exchange.end is not None
        tally = self.tallies[exchange.service.name]
        tally.ended(exchange.end, exchange.reason)
        if exchange.first_at >= 0:
            tally.began(round((exchange.first_at - exchange.started) * SECOND))
        self.teller.ended(exchange)

    # gateways come and go

    def start(self, name: str) -> None:
        self._lives += 1
        front = self.fronts[name] = Front(self, name, self._lives)
        self._watch(front)

    def crash(self, name: str) -> None:
        self.fronts[name].die()

    # what gateways are told

    def after_turn(self, control: SimControl) -> None:
        """The world may have changed: who watches is told, if it has."""
        if control.mind is None or (control.generation, control.written) == self._looked_at:
            return
        self._looked_at = (control.generation, control.written)
        self._lender_of(control, control.mind)  # a term lends from its beginning
        world = control.mind.world
        services = {name: self._told(world, name) for name in self.setups if name in world.fronted}
        before = self._view
        if world.keys is not before.keys:
            self.checks.keys_changed(before.keys, world.keys)
        same = services == before.services and world.keys is before.keys
        if not same or control.generation != before.number[0]:
            self._view = View(self._looked_at, services, world.keys)
            for front in self.fronts.values():
                self._watch(front)

    def _told(self, world: World, name: str) -> tuple[tuple[ReplicaSpec, ...], tuple[str, ...]]:
        staying = endpoints_of.staying(endpoints_of.ready(world, name))
        specs = tuple(self._spec(name, replica.id, node.id) for replica, node in staying)
        return specs, tuple(endpoints_of.leaving(world, name, {spec.id for spec in specs}))

    def _spec(self, workload: str, replica: str, node: str) -> ReplicaSpec:
        shape = self.sim.fleet.workloads[workload].shape
        assert isinstance(shape, Service)
        return ReplicaSpec(replica, node, streams_max=shape.serves.concurrent if shape.serves else 0)

    @property
    def newest(self) -> tuple[int, int]:
        """The number of the view that gateways should have."""
        return self._view.number

    def _watch(self, front: Front) -> None:
        if front.alive and not front.watching:
            front.watching = True
            self._push(front)

    def _push(self, front: Front) -> None:
        """The newest view is on its way, and again until it is there."""
        leader = self.sim.listening()
        delay = self.carried(leader.name, front.name) if leader is not None else None
        if delay is None or self._view.number == NO_VIEW:
            if front.alive:
                self.sim.kernel.after(WATCH_AGAIN_MS, self._push, front)
        else:
            self.sim.kernel.after(delay, self._arrived, front, self._view)

    def _arrived(self, front: Front, view: View) -> None:
        front.watching = False
        front.told(view)
        if front.seen < self._view.number:
            self._watch(front)

    def carried(self, sender: str, receiver: str) -> Millis | None:
        """How long a word takes over a connection; None: there is none."""
        network = self.sim.network
        if not (network.open(sender, receiver) and network.open(receiver, sender)):
            return None
        delay = network.arrives(sender, receiver)
        return network.delay_ms() + AGAIN_MS if delay is None else delay

    # what gateways borrow and tell

    def borrow(self, front: Front, ask: Ask) -> None:
        leader = self.sim.listening()
        delay = self.carried(front.name, leader.name) if leader is not None else None
        if leader is not None and delay is not None:
            self.sim.kernel.after(delay, self._lend, leader, front, ask)

    def _lend(self, leader: SimControl, front: Front, ask: Ask) -> None:
        if leader is not self.sim.listening() or leader.mind is None:
            return
        now_s = self.sim.kernel.now / SECOND
        lender = self._lender_of(leader, leader.mind)
        lender.know(leader.mind.world, now_s)
        grants = lender.ask(ask, now_s)
        if line := lender.rising(now_s, leader.now()):
            leader.post(line)
        if any(isinstance(event, ev.BudgetDrawn) for event in leader.inbox):
            leader.after_append.append(lambda: self._answer(leader, front, grants))
        else:
            self._answer(leader, front, grants)

    def _answer(self, leader: SimControl, front: Front, grants: Grants) -> None:
        delay = self.carried(leader.name, front.name)
        if delay is not None:
            self.sim.kernel.after(delay, front.granted, grants)

    def _lender_of(self, leader: SimControl, mind: Mind) -> Lender:
        now = self.sim.kernel.now
        if self._lender is None or self._lender[0] is not mind:
            self._lender = (mind, Lender(mind.world, now / SECOND, leader.generation))
        lender = self._lender[1]
        if line := lender.begins(now / SECOND, leader.now()):
            leader.post(line)
        if now - self._lapsed_at >= LAPSE_MS:
            self._lapsed_at = now
            lender.broker.lapse(now / SECOND)
        if now - self._returned_at >= RETURNS_MS:
            self._returned_at = now
            if line := lender.falling(now / SECOND, leader.now()):
                leader.post(line)
        return lender

    def hear(self, front: Front, loads: list[ServiceLoad]) -> None:
        leader = self.sim.listening()
        delay = self.carried(front.name, leader.name) if leader is not None else None
        if leader is not None and delay is not None:
            self.sim.kernel.after(delay, self._heard, leader, front.name, loads)

    def _heard(self, leader: SimControl, source: str, loads: list[ServiceLoad]) -> None:
        if leader is not self.sim.listening() or leader.mind is None:
            return
        ears, world = leader.mind.ears, leader.mind.world
        for load in loads:
            if load.name in world.scaled:
                ears.hear(world, load.name, source, signals(load), leader.now())
        leader.want_turn(ears.next_look() - leader.now() + self.sim.kernel.now)

    def found_out(self, front: Front, rows: tuple[Row, ...]) -> None:
        """A gateway that may do so names keys that work for nobody."""
        leader = self.sim.listening()
        delay = self.carried(front.name, leader.name) if leader is not None else None
        if leader is not None and delay is not None:
            self.sim.kernel.after(delay, self._act, leader, rows)

    def _act(self, leader: SimControl, rows: tuple[Row, ...]) -> None:
        if leader is self.sim.listening() and leader.mind is not None:
            for key in found_out(leader.mind.world.keys, rows):
                leader.post(ev.KeyPut(at=leader.now(), key=key))

    # what happens around

    def changed(self, workload: str) -> None:
        if workload not in self.setups:
            return
        self.serving.changed(workload)
        closed, self.serving.closed = self.serving.closed, []
        for front in self.fronts.values():
            for id in closed:
                if workload in front.services:
                    front.services[workload].forget_connections(id)

    def first_words(self, now: Instant) -> list[ev.Event]:
        """Keys and limits, which the leader finds with all else."""
        words: list[ev.Event] = [ev.KeyPut(at=now, key=key) for key in self.keys.values()]
        return words + [
            ev.LimitsSet(at=now, scope=scope, limits=found) for scope, found in self.limits.items()
        ]


def keys_of(setups: dict[str, WorkloadSetup]) -> dict[str, Key]:
    found: dict[str, Key] = {}
    for setup in setups.values():
        if setup.requests is not None:
            for id in setup.requests.keys:
                found.setdefault(id, Key(id, b"", team=setup.requests.team))
    return found


def traffic(sim: "Simulation") -> Traffic | None:
    """None: nobody asks for tokens, and there is no gateway."""
    setups: dict[str, WorkloadSetup] = {}
    for setup in sim.scenario.workloads:
        shape = setup.workload.shape
        if setup.requests is not None and isinstance(shape, Service) and shape.serves is not None:
            setups.setdefault(setup.workload.name, setup)
    return Traffic(sim, setups) if setups else None
