"""One simulation: everything put together, run to its end, checked and summed up."""

import traceback
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
from msgspec.structs import replace

from holdfast.core import check
from holdfast.core.agent.machine import DesiredSet, Report
from holdfast.core.health.gray_failures import GRAY
from holdfast.core.turn import Entry, Mind
from holdfast.model import event as ev
from holdfast.model.action import LaunchNode, RaiseFinding, ResetNode, TerminateNode
from holdfast.model.node import JOINED, Answer
from holdfast.model.plan import Plan
from holdfast.model.units import NEVER, Instant
from holdfast.model.verdict import Level as Belief
from holdfast.model.workload import Workload
from holdfast.sim.checks.billing import Ledger
from holdfast.sim.checks.liveness import unmet_goals
from holdfast.sim.checks.safety import Truth
from holdfast.sim.event_queue import Kernel
from holdfast.sim.faults import Faults
from holdfast.sim.result import Result, sum_up
from holdfast.sim.scenario.scenario import PoolSetup, Scenario
from holdfast.sim.traffic.fluid_gateway import gateways
from holdfast.sim.traffic.traffic import traffic
from holdfast.sim.transcript import OPENING_MS, Story
from holdfast.sim.twins.control_plane import SimControl
from holdfast.sim.twins.fleet import Fleet
from holdfast.sim.twins.heartbeats import BLOCK, FEWEST, BeatWire
from holdfast.sim.twins.host import Host
from holdfast.sim.twins.network import Cut, Network
from holdfast.sim.twins.provider import Bill, ProviderTraits, SimProvider
from holdfast.sim.twins.store import SimStore

PROBE_TRIES = 4
SAY_AGAIN_MS = 500
CHECK_TURNS = 50  # between two checks of the whole world, and one more for every so many slots:
CHECK_SLOTS = 10
REPLAYED = (
    *("nodes", "slots", "replicas", "workloads", "pool_states", "gangs", "findings"),
    *("accounts", "demands", "starts", "outcomes", "records", "orphans"),
)


class Saying:
    """What somebody told the leader, and whom exactly."""

    def __init__(self, event: ev.Event) -> None:
        self.event = event
        self.told: Mind | None = None


class Simulation:
    def __init__(self, scenario: Scenario, seed: int | None = None, *, history: bool = True) -> None:
        seed = scenario.seed if seed is None else seed
        self.scenario, self.seed = scenario, seed
        self.kernel = Kernel()
        self.network = Network(scenario.network, str(seed))
        policy = scenario.policy
        beat_ms, lease_ms = policy.detection.beat_ms, policy.leases.lease_ms
        self.wire = BeatWire(scenario.network, beat_ms, lease_ms, seed)
        self.fleet = Fleet(self.kernel, self.network, self.wire, lease_ms, str(seed))
        self.truth = Truth(self.fleet, keep_history=history)
        self.story: Story | None = Story() if history else None
        self.store = SimStore(lambda: self.kernel.now)
        self.controls: dict[str, SimControl] = {}
        self.leader: SimControl | None = None
        self.providers: dict[str, SimProvider] = {}
        self.turns = self.check_at = 0
        self.deaths: list[tuple[Instant, str]] = []
        self.unheard: list[Saying] = []
        self.led_since: Instant = 0  # by the present leader
        self.mended_at: dict[str, Instant] = {}  # node -> when it was last cut off from a control plane
        self.fleet.hello = self._hello
        self.fleet.link_closed = self._link_closed
        self.fleet.reports_sent = self._reports_sent
        self.fleet.on_silence = self.watch_silence
        self.fleet.deliver = self.deliver_beats
        self.fleet.on_fenced = self._fenced
        self._set_up()
        self.gateways = gateways(self)
        self.traffic = traffic(self)
        if self.traffic is not None:
            self.fleet.on_change = self._process_changed
        self.ledger = Ledger(self)
        self.faults = Faults(self, str(seed))

    # set-up

    def _set_up(self) -> None:
        for setup in self.scenario.pools:
            name = setup.pool.provider
            self.fleet.fencing[setup.pool.name] = setup.fencing
            if name not in self.providers:
                traits = self.scenario.providers.get(name, ProviderTraits())
                provider = SimProvider(name, traits, self.kernel, str(self.seed))
                provider.booted = self.fleet.boot
                provider.ended = self._machine_ended
                provider.was_reset = self._machine_reset
                self.providers[name] = provider
        for item in self.scenario.workloads:
            self.fleet.workloads.setdefault(item.workload.name, item.workload)
            self.fleet.programs.setdefault(item.workload.name, item.program)
        for number in range(1, self.scenario.control_planes + 1):
            self.controls[f"cp-{number}"] = SimControl(f"cp-{number}", self)
        for item in self.scenario.workloads:
            if item.at:
                self.kernel.at(item.at, self.apply, item.workload)
        self.kernel.tick(0, self._round)

    def first_words(self, now: Instant) -> list[ev.Event]:
        """What the very first leader finds: policy, pools, the nodes that are there, the workloads."""
        if self.store.entries:
            return []
        words: list[ev.Event] = [ev.PolicyApplied(at=now, policy=self.scenario.policy)]
        words += [ev.ProjectApplied(at=now, project=project) for project in self.scenario.projects]
        words += [ev.PoolApplied(at=now, pool=setup.pool) for setup in self.scenario.pools]
        for setup in self.scenario.pools:
            words += self._nodes_there(setup, now)
        words += self.traffic.first_words(now) if self.traffic is not None else []
        words += [
            ev.WorkloadApplied(at=now, workload=i.workload) for i in self.scenario.workloads if not i.at
        ]
        return words

    def _nodes_there(self, setup: PoolSetup, now: Instant) -> list[ev.Event]:
        pool = setup.pool
        events: list[ev.Event] = []
        for number in range(setup.nodes):
            offer = pool.offers[number % len(pool.offers)]
            request = LaunchNode(
                node=f"{pool.name}-{chr(97 + number % 26)}{number // 26 or ''}",
                pool=pool.name,
                offer=offer.name,
                place=offer.place,
                capacity=offer.capacity,
                price_micro_usd=offer.price_micro_usd,
                spot=offer.spot,
                why="it was there",
            )
            self.providers[pool.provider].adopt(request)
            self.fleet.boot(request, seek=False)
            host = self.fleet.hosts[request.node]
            events.append(
                ev.NodeJoined(
                    at=now,
                    node=host.id,
                    pool=pool.name,
                    offer=offer.name,
                    place=offer.place,
                    capacity=offer.capacity,
                    fencing=host.fencing,
                )
            )
        return events

    def opening(self, control: SimControl) -> None:
        """The nodes that were there before the story begins are connected already."""
        if self.kernel.now >= OPENING_MS or control.mind is None:
            return
        for name, row in control.mind.senses.beats.row.items():
            host = self.fleet.hosts[name]
            if not host.connected:
                self.fleet.connected(host, control.name, row, self.kernel.now)

    # the leader

    def leader_changed(self, control: SimControl) -> None:
        """Who followed the leader before (or an earlier life of this one) is told by it, or by its closed
        links; one that stands still, or cannot reach its nodes, tells nobody."""
        for host in list(self.fleet.hosts.values()):
            before = self.controls.get(host.follows)
            if not host.connected or before is None:
                continue
            stands_still = before.alive and not before.running
            if stands_still or not self.network.open(before.name, host.id):
                self.fleet.unanswered(host)
            else:
                self.fleet.disconnect(host)
        self.leader, self.led_since = control, self.kernel.now
        self.reach()

    def reach(self) -> None:
        """Who can hear the leader, and who can be heard: anew whenever a cut or the leader changes."""
        n = self.wire.size
        self.wire.up[:n] = self.wire.down[:n] = True
        if self.network.cuts and self.leader is not None:
            for host in self.fleet.hosts.values():
                self.wire.up[host.row] = self.network.open(host.id, self.leader.name)
                self.wire.down[host.row] = self.network.open(self.leader.name, host.id)
                if not self.wire.up[host.row]:
                    self.wire.silence(host.row, self.kernel.now)
            self.watch_silence()
        if self.traffic is not None:
            self.traffic.serving.reach()

    def mend(self, cut: Cut) -> None:
        self.network.cuts.remove(cut)
        for name in self.fleet.hosts:
            if any(cut.blocks(name, control) or cut.blocks(control, name) for control in self.controls):
                self.mended_at[name] = self.kernel.now
        self.reach()

    def listening(self) -> SimControl | None:
        leader = self.leader
        return (
            leader if leader is not None and leader.leads and self.kernel.now < leader.leads_until else None
        )

    def followed(self, host: Host) -> SimControl | None:
        """The leader, if the host is connected to it and not to one that led before."""
        leader = self.listening()
        return leader if leader is not None and host.follows == leader.name else None

    # beats

    def _round(self) -> None:
        self.kernel.tick(self.wire.beat_ms, self._round)
        self.deliver_beats()
        self._pass_quiet_time()
        self.wire.begin_round(self.kernel.now)
        self.fleet.find_the_cut_off()
        for host in self.fleet.lease_dues(self.kernel.now + self.wire.beat_ms):
            self.kernel.at(int(self.wire.lease_until[host.row]), self.fleet.check_lease, host)
        self.watch_silence()

    def _pass_quiet_time(self) -> None:
        """As long as nothing but heartbeats happens, many rounds are taken at once."""
        leader = self.listening()
        if leader is None or leader.mind is None or self.network.cuts or self.store.down or leader.store_cut:
            return
        now, beats, world = self.kernel.now, leader.mind.senses.beats, leader.mind.world
        missed = self.wire.missed_at(beats) - (leader.now() - now)
        until = min(self.kernel.next_event(), self.scenario.lasts_ms, self.wire.quiet_until(now), missed)
        count = min(BLOCK, (until - now - 1) // self.wire.beat_ms)
        if count < FEWEST or beats.returned or beats.grade.any():
            return
        if any(world.nodes[name].verdict.level is not Belief.DEAD for name in world.doubtful):
            return
        count = self.wire.pass_rounds(now, count, beats, leader.now() - now)
        if count:
            ms = count * self.wire.beat_ms
            self.kernel.skip(ms)
            self.store.skip(ms)
            for control in self.controls.values():
                control.leads_until += ms

    def deliver_beats(self) -> None:
        """Hands everything that has arrived to the leader, which acknowledges it."""
        leader = self.listening()
        if leader is None or leader.mind is None:
            return
        skew = leader.now() - self.kernel.now
        for rows, sent, at in self.wire.arrived(self.kernel.now):
            if len(rows):
                leader.mind.senses.beats.beat(self.wire.known[rows], at + skew)
                self.wire.acknowledge(rows, sent, self.kernel.now)
        if leader.mind.senses.beats.returned:
            leader.want_turn(self.kernel.now)

    def watch_silence(self) -> None:
        """Wakes the leader when somebody will be late whose next beat does not come in time."""
        leader = self.listening()
        if leader is None or leader.mind is None:
            return
        skew = leader.now() - self.kernel.now
        look = leader.mind.senses.beats.look_at - skew
        n = self.wire.size
        known = self.wire.known[:n]
        coming = np.full(len(look), NEVER)
        coming[known[known >= 0]] = self.wire.next_arrivals()[known >= 0]
        late = look[coming > look]
        if len(late):
            soonest = int(late.min())
            if soonest < self.kernel.now + self.wire.beat_ms:
                leader.want_turn(soonest)

    # messages between nodes and control planes

    def _hello(self, host: Host) -> None:
        leader = self.listening()
        if leader is None or not self._both_ways(host.id, leader.name):
            return  # no connection is made over a one-way link
        delay = self.network.arrives(host.id, leader.name)
        if delay is None:
            return
        host.session += 1  # a new connection: nothing sent on an older one counts any more
        sent = (host, self.kernel.now, host.session, host.machine.running())
        self.kernel.after(delay + self.delay_of(host), leader.hear_hello, *sent)

    def welcomed(self, control: SimControl, host: Host, row: int, sent_at: Instant, session: int) -> None:
        if session != host.session:
            return
        if self.fleet.hosts.get(host.id) is host and host.speaks and control is self.leader and control.mind:
            if control.mind.senses.beats.row.get(host.id) == row:
                self.fleet.connected(host, control.name, row, sent_at)
                self.wire.up[host.row] = self.network.open(host.id, control.name)
                self.wire.down[host.row] = self.network.open(control.name, host.id)

    def set_arrived(self, control: SimControl, node: str, desired: DesiredSet, session: int) -> None:
        host = self.fleet.hosts.get(node)
        if host is None or not host.speaks or not host.connected or session != host.session:
            return
        if host.follows != control.name:
            return
        self.fleet.receive_set(host, desired)
        delay = self.network.arrives(node, control.name)
        if delay is not None:
            self.kernel.after(delay, control.set_confirmed, node, desired.generation)

    def _reports_sent(self, host: Host) -> None:
        leader = self.followed(host)
        delay = self.network.arrives(host.id, leader.name) if leader is not None else None
        if leader is not None and delay is not None:
            reports: tuple[Report, ...] = tuple(host.machine.reports)
            self.kernel.after(delay, leader.hear_reports, host, host.machine.first_report, reports)

    def _link_closed(self, host: Host) -> None:
        leader = self.followed(host)
        delay = self.network.arrives(host.id, leader.name) if leader is not None else None
        if leader is not None and delay is not None:
            self.kernel.after(delay, leader.hear_close, host.id, host.session)

    def ask_peer(self, control: SimControl, peer: str, node: str) -> None:
        asked = self.network.arrives(control.name, peer)
        if asked is not None:
            self.kernel.after(asked, self._probe, control, peer, node)

    def _probe(self, control: SimControl, peer: str, node: str, until: Instant = 0) -> None:
        """A peer tries several times within the time-out: one lost packet is no evidence."""
        prober, target = self.fleet.hosts.get(peer), self.fleet.hosts.get(node)
        if prober is None or not prober.speaks:
            return
        timeout = self.scenario.policy.detection.probe_ms
        until = until or self.kernel.now + timeout
        answer = target.answers_probe() if target is not None else Answer.TIMEOUT
        there, back = self.network.arrives(peer, node), self.network.arrives(node, peer)
        took = (
            until if there is None or back is None or target is None else there + back + self.delay_of(target)
        )
        if answer is not Answer.TIMEOUT and self.kernel.now + took <= until:
            self._answer(control, peer, node, answer, took)
        elif (again := self.kernel.now + timeout // PROBE_TRIES) < until:
            self.kernel.at(again, self._probe, control, peer, node, until)
        else:
            self._answer(control, peer, node, Answer.TIMEOUT, until - self.kernel.now)

    def delay_of(self, host: Host) -> int:
        return int(self.wire.extra[host.row])

    def _answer(self, control: SimControl, peer: str, node: str, answer: Answer, took: int) -> None:
        reply = self.network.arrives(peer, control.name)
        if reply is not None:
            self.kernel.after(took + reply, control.hear_answer, node, peer, answer)

    # machines

    def provider_of(self, pool: str) -> SimProvider:
        setup = next(item for item in self.scenario.pools if item.pool.name == pool)
        return self.providers[setup.pool.provider]

    def _process_changed(self, workload: str) -> None:
        assert self.traffic is not None
        self.truth.changed(workload)
        self.traffic.changed(workload)

    def _machine_ended(self, node: str) -> None:
        self.fleet.remove(node)

    def _machine_reset(self, node: str) -> None:
        host = self.fleet.hosts.get(node)
        if host is not None:
            self.fleet.power_off(host)

    def _fenced(self, node: str) -> None:
        """Nobody else can know of it yet: told here, so that the reader can see that nothing ran twice."""
        if self.story is not None:
            self.story.add(self.kernel.now, "truth", node, "its lease is over: it stops what is exclusive")

    def bill(self) -> Bill:
        """What all machines have cost up to now."""
        bills = [provider.bill() for provider in self.providers.values()]
        return Bill(sum(bill.node_ms for bill in bills), sum(bill.micro_usd for bill in bills))

    # what people say

    def apply(self, workload: Workload) -> None:
        """Somebody applies a workload, perhaps again: what it is then is newer than what it was."""
        version = max(workload.version, self.fleet.workloads[workload.name].version)
        workload = self.fleet.workloads[workload.name] = replace(workload, version=version)
        self.truth.apply(workload.name)
        if workload.name in self.gateways:
            self.gateways[workload.name].reopen()
        self.say(ev.WorkloadApplied(at=0, workload=workload))

    def say(self, event: ev.Event) -> None:
        """A user or operator speaks to whoever leads, again until it is journalled, and in this order."""
        self.unheard.append(Saying(event))
        if len(self.unheard) == 1:
            self.kernel.after(SAY_AGAIN_MS, self._say_again)
        self._speak()

    def _speak(self) -> None:
        leader = self.listening()
        if leader is None:
            return
        for saying in self.unheard:
            if saying.told is not leader.mind:
                saying.told = leader.mind
                leader.post(replace(saying.event, at=leader.now()))
                leader.after_append.append(partial(self._heard, saying))

    def _say_again(self) -> None:
        if self.unheard:
            self.kernel.after(SAY_AGAIN_MS, self._say_again)
            self._speak()

    def _heard(self, saying: "Saying") -> None:
        if saying in self.unheard:
            self.unheard.remove(saying)

    # what the control plane did

    def journalled(self, entries: Sequence[Entry], control: SimControl) -> None:
        for entry in entries:
            if self.story is not None:
                self.story.entry(self.kernel.now, entry)
            if isinstance(entry, ev.NodeJudged) and entry.verdict.level is Belief.DEAD:
                self.deaths.append((self.kernel.now, entry.node))
                if not self._cut_off(entry.node):
                    self.truth.judged_dead(entry.node, self.mended_at.get(entry.node, 0))
                self._drop_link(entry.node)
            elif isinstance(entry, ev.DemandJudged) and entry.workload in self.gateways:
                self.gateways[entry.workload].judged(control.mind, entry.wanted)
            elif isinstance(entry, ev.WorkloadDeleted) and entry.workload in self.gateways:
                self.gateways[entry.workload].forgotten()
            elif isinstance(entry, ev.OffersListed):
                self.ledger.journalled(entry)
            elif isinstance(entry, Plan):
                for action in entry.actions:
                    if isinstance(action, TerminateNode | ResetNode):
                        self._given_up(control, action)
                    if isinstance(action, TerminateNode):
                        self._drop_link(action.node)
                    if isinstance(action, RaiseFinding) and action.finding.name == GRAY:
                        window_ms = self.scenario.policy.repair.gray_window_ms
                        self.truth.blamed(action.finding.node, window_ms, action.why)

    def _given_up(self, control: SimControl, action: TerminateNode | ResetNode) -> None:
        """Asked when it is decided; after that it is only repeated until the provider confirms."""
        assert control.mind is not None
        node = control.mind.world.nodes.get(action.node)
        told_to_go = node is not None and 0 < node.deadline <= control.now()
        decided_before = node is not None and node.state not in JOINED
        if not (told_to_go or decided_before or self._cut_off(action.node)):
            how = "terminated" if isinstance(action, TerminateNode) else "reset"
            since = max(self.mended_at.get(action.node, 0), self.led_since)
            self.truth.given_up(action.node, since, how)

    def _drop_link(self, node: str) -> None:
        """The leader no longer counts its beats: the agent will notice and say hello again."""
        host = self.fleet.hosts.get(node)
        if host is not None and host.connected:
            self.fleet.disconnect(host)

    def _cut_off(self, node: str) -> bool:
        """Can neither the leader nor most of those it hears reach the node? Then nobody could know better."""
        if not self.network.cuts or self.leader is None:
            return False
        leader = self.leader.name
        heard = [h.id for h in self.fleet.hosts.values() if h.powered and self._both_ways(h.id, leader)]
        reach = sum(self._both_ways(node, other) for other in heard if other != node)
        return not self._both_ways(node, leader) and reach * 2 <= len(heard)

    def _both_ways(self, one: str, other: str) -> bool:
        return self.network.open(one, other) and self.network.open(other, one)

    def after_turn(self, control: SimControl) -> None:
        assert control.mind is not None
        self.turns += 1
        for refusal in control.mind.refused:
            self.truth.violated(f"refused: {refusal.invariant}: {refusal.action}")
        control.mind.refused.clear()
        if self.turns >= self.check_at:
            self.check_at = self.turns + CHECK_TURNS + len(control.mind.world.slots) // CHECK_SLOTS
            self.check_world(control.mind)
        if self.traffic is not None:
            self.traffic.after_turn(control)

    def check_world(self, mind: Mind) -> None:
        for trouble in check.inconsistencies(mind.world):
            self.truth.violated(trouble)

    # the whole story

    def run(self) -> Result:
        goals: list[str] = []
        try:
            self.faults.schedule()
            self.kernel.run_until(self.scenario.lasts_ms)
            self.truth.close()
            goals = self._look_back()
        except Exception as error:  # a bug of ours is a broken promise like any other: told, and shrunk
            frame = traceback.extract_tb(error.__traceback__)[-1]
            where = f"{Path(frame.filename).name}:{frame.lineno}"
            self.truth.violated(f"it broke down at {where}: {type(error).__name__}: {error}")
        return sum_up(self, goals)

    def _look_back(self) -> list[str]:
        mind = self.leader.mind if self.leader is not None else None
        if mind is not None:
            self.check_world(mind)
            self._check_replay(mind)
            self.ledger.audit(mind.world)
        if self.traffic is not None:
            self.traffic.checks.audit()
        return unmet_goals(self)

    def _check_replay(self, mind: Mind) -> None:
        """Folding the journal again must give the same world."""
        again = Mind.from_journal(self.store.entries).world
        for name in REPLAYED:
            if getattr(again, name) != getattr(mind.world, name):
                self.truth.violated(f"replaying the journal gives other {name}")
