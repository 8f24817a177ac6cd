"""Faults as data, made to happen.

Each trouble of the scenario is applied at its instant and, if it lasts, taken back. What-if scenarios have
failure rates instead: then every node (and zone) gets its own seeded sequence of failures.
"""

import random
from collections.abc import Callable
from typing import TYPE_CHECKING, assert_never

from msgspec.structs import replace

from holdfast.model import event as ev
from holdfast.model.pool import Pool
from holdfast.model.units import Instant, Millis, many
from holdfast.model.workload import Service
from holdfast.sim.scenario.load_profile import Load
from holdfast.sim.scenario.market import PLENTY, Market, Track
from holdfast.sim.scenario.scenario import (
    OF_PROVIDERS,
    OF_SIGNALS,
    Change,
    Fault,
    PoolSetup,
    Trouble,
)
from holdfast.sim.twins.host import Host
from holdfast.sim.twins.network import Cut
from holdfast.sim.twins.provider import Spike
from holdfast.sim.twins.store import CrashPoint
from holdfast.wire.keys import restored

if TYPE_CHECKING:
    from holdfast.sim.run import Simulation
    from holdfast.sim.twins.control_plane import SimControl


# What a fault sets at a provider: until when it lasts.
UNTIL = {
    Fault.PROVIDER_OUTAGE: "outage_until",
    Fault.PROVIDER_SLOW: "slow_until",
    Fault.PROVIDER_LIES: "lies_until",
    Fault.PROVIDER_ERRORS: "errors_until",
    Fault.PROVIDER_THROTTLES: "throttles_until",
    Fault.PROVIDER_DENIES: "denies_until",
    Fault.PROVIDER_LATE: "late_until",
    Fault.LAUNCHES_FAIL: "fails_until",
    Fault.STOCK_OUT: "short_until",
    Fault.OFFERS_VANISH: "vanish_until",
}


class Faults:
    def __init__(self, sim: "Simulation", seed: str) -> None:
        self.sim, self.kernel, self.fleet = sim, sim.kernel, sim.fleet
        self.random = random.Random(f"faults/{seed}")
        self.last_end: Instant = 0
        self.failures = 0

    def schedule(self) -> None:
        for trouble in self.sim.scenario.troubles:
            for number in range(trouble.times):
                at = trouble.at + number * trouble.every_ms
                self.kernel.at(at, self.apply, trouble)
                self.last_end = max(self.last_end, at + trouble.lasts_ms)
        for change in self.sim.scenario.changes:
            self.kernel.at(change.at, self.change, change)
        for setup in self.sim.scenario.pools:
            if setup.mtbf_ms or setup.preempt_every_ms:
                self.kernel.after(0, self._wear, setup)
            if setup.market is not None:
                self._open(setup.pool, setup.market)
        for name, load in self._loads():
            self._follow(name, load)
        if self.sim.scenario.domain_mtbf_ms:
            self._next_zone_failure()

    def _open(self, pool: Pool, market: Market) -> None:
        """A market that changes is trouble like any other: after its last change all must be well again."""
        provider, lasts_ms = self.sim.providers[pool.provider], self.sim.scenario.lasts_ms
        provider.noticed = self._wanted_back
        provider.follow(pool.name, market)
        self.last_end = max(self.last_end, market.last_change(lasts_ms))
        for offer, track in market.tracks.items():
            for at in track.at:  # told or not: what happens must not depend on who reads it
                if 0 < at < lasts_ms:
                    self.kernel.at(at, self._tell_market, pool.name, offer, track)

    def _loads(self) -> list[tuple[str, Load]]:
        found = [(gateway.name, gateway.load) for gateway in self.sim.gateways.values()]
        setups = self.sim.traffic.setups if self.sim.traffic is not None else {}
        return found + [(name, setup.load) for name, setup in setups.items() if setup.load is not None]

    def _follow(self, name: str, load: Load) -> None:
        """A load that jumps is trouble too."""
        lasts_ms = self.sim.scenario.lasts_ms
        self.last_end = max(self.last_end, load.last_change(lasts_ms))
        for step in load.steps:
            if 0 < step.at < lasts_ms:
                text = f"{step.value:g} {load.signal} are asked of it"
                self.kernel.at(step.at, self._tell_load, name, text)
        for burst in load.bursts:
            text = f"{burst.value:g} {load.signal} more are asked of it for {burst.lasts_ms // 1000} s"
            self.kernel.at(burst.at, self._tell_load, name, text)

    def _tell_load(self, name: str, text: str) -> None:
        if self.sim.story is not None:
            self.sim.story.add(self.kernel.now, "load", name, text)

    def _tell_market(self, pool: str, offer: str, track: Track) -> None:
        price, left = track.price(self.kernel.now, 0), track.left(self.kernel.now)
        words = [f"{left} of {offer} to be had"] if left < PLENTY else [f"{offer} to be had"]
        words += [f"for ${price / 1_000_000:g} an hour"] if price else []
        self.tell(pool, " ".join(words))

    def _wanted_back(self, node: str) -> None:
        """The market wants it. A machine that has not come up yet hears nothing of it."""
        host = self.fleet.hosts.get(node)
        if host is not None:
            self.notice(host)
        else:
            pool = next(p for p in self.sim.providers.values() if node in p.machines)
            pool.take_later(node)

    def tell(self, subject: str, text: str) -> None:
        if self.sim.story is not None:
            self.sim.story.add(self.kernel.now, "fault", subject, text)

    # the troubles of the scenario

    def apply(self, trouble: Trouble) -> None:
        match trouble.fault:
            case Fault.PARTITION:
                self._partition(trouble)
            case fault if fault in OF_PROVIDERS:
                self._provider(trouble)
            case fault if fault in OF_SIGNALS:
                self._signals(trouble)
            case Fault.GATEWAY_CRASH:
                self._gateway(trouble)
            case (
                Fault.CONTROL_CRASH
                | Fault.CONTROL_PAUSE
                | Fault.CLOCK_JUMP
                | Fault.STORE_OUTAGE
                | Fault.STORE_CUT
                | Fault.STORE_CRASH
            ):
                self._control(trouble)
            case _:
                hosts = self.fleet.named(trouble.nodes)
                for host in hosts:
                    self._host(trouble, host)
                if not hosts:
                    self.tell(", ".join(trouble.nodes), f"nobody is there: no {trouble.fault}")

    def _host(self, trouble: Trouble, host: Host) -> None:
        lasts = trouble.lasts_ms
        if not host.powered or (host.frozen and trouble.fault is not Fault.CRASH):
            return
        match trouble.fault:
            case Fault.CRASH:
                self.crash(host, lasts, provider_knows=trouble.provider_knows)
            case Fault.KILL:
                self.tell(host.id, "every process of the node is killed")
                self.fleet.kill(host)
                self._later(lasts, self._reboot, host)
            case Fault.HANG:
                self.tell(host.id, "hangs silently")
                self.fleet.freeze(host)
                self._later(lasts, self._thaw, host)
            case Fault.SLOW:
                self.tell(host.id, "becomes slow")
                self.fleet.slow_down(host, True)
                self._later(lasts, self.fleet.slow_down, host, False)
            case Fault.GRAY:
                self.tell(host.id, "turns gray: heartbeats, but fails every replica")
                self._turn_gray(host)
                self._later(lasts, self._heal, host)
            case Fault.AGENT_RESTART:
                self.tell(host.id, "its agent stops")
                self.fleet.stop_agent(host)
                self._later(max(lasts, 1), self._agent_back, host)
            case Fault.SPOT_NOTICE:
                self.notice(host)
            case Fault.SPOT_TAKEN:
                self.tell(host.id, "is taken away without notice")
                self.sim.provider_of(host.request.pool).end(host.id)
            case _:
                raise AssertionError(f"{trouble.fault} is not about a node")

    def _later(self, lasts: Millis, what: Callable[..., None], *args: object) -> None:
        if lasts:
            self.kernel.after(lasts, what, *args)

    def crash(self, host: Host, returns_ms: Millis, *, provider_knows: bool) -> None:
        self.failures += 1
        self.tell(host.id, "loses power")
        machine = self.sim.provider_of(host.request.pool).machines.get(host.id)
        if machine is not None and provider_knows:
            machine.running = False
        self.fleet.power_off(host)
        self._later(returns_ms, self._reboot, host)

    def _reboot(self, host: Host) -> None:
        machine = self.sim.provider_of(host.request.pool).machines.get(host.id)
        if machine is not None and self.fleet.hosts.get(host.id) is host and not host.agent_up:
            machine.running = True
            self.tell(host.id, "is back")
            self.fleet.boot(host.request)

    def _thaw(self, host: Host) -> None:
        if host.frozen and host.powered:
            self.tell(host.id, "thaws")
            self.fleet.thaw(host)

    def _turn_gray(self, host: Host) -> None:
        host.gray = True
        for process in list(host.processes.values()):
            wanted = process.wanted
            self.kernel.after(
                1, self.fleet.fail, host, wanted.replica, process.number, "exit code 134: a device fell off"
            )

    def _heal(self, host: Host) -> None:
        host.gray_at = self.kernel.now if host.gray else host.gray_at
        host.gray = False
        host.well_since = self.kernel.now

    def _agent_back(self, host: Host) -> None:
        if host.powered and not host.agent_up:
            self.tell(host.id, "its agent starts again")
            self.fleet.start_agent(host)

    def notice(self, host: Host) -> None:
        provider = self.sim.provider_of(host.request.pool)
        warning = provider.traits.notice_ms
        self.tell(host.id, f"will be taken away in {warning // 1000} s")
        leader = self.sim.listening()
        delay = self.sim.network.arrives(host.id, leader.name) if leader else None
        if leader is not None and delay is not None and host.speaks:
            deadline = leader.now() + warning
            leader.post(ev.SpotNoticed(at=leader.now(), node=host.id, deadline=deadline))
        self.kernel.after(warning, self._take, host)

    def _take(self, host: Host) -> None:
        provider = self.sim.provider_of(host.request.pool)
        if host.id in provider.machines:
            self.tell(host.id, "is taken away")
            provider.end(host.id)

    def _partition(self, trouble: Trouble) -> None:
        inside = frozenset(host.id for host in self.fleet.named(trouble.nodes))
        inside |= {name for name in (trouble.control, trouble.gateway) if name}
        cut = Cut(inside, trouble.between, trouble.direction, self.kernel.now + trouble.lasts_ms)
        self.tell(
            "network",
            f"{trouble.between} cut ({trouble.direction}) around {', '.join(sorted(inside)) or 'nobody'}",
        )
        self.sim.network.cuts.append(cut)
        self.sim.reach()
        self._later(trouble.lasts_ms, self._mend, cut)

    def _mend(self, cut: Cut) -> None:
        self.tell("network", "the cut is mended")
        self.sim.mend(cut)

    def _provider(self, trouble: Trouble) -> None:
        until = self.kernel.now + trouble.lasts_ms
        self.tell(trouble.provider, str(trouble.fault))
        provider = self.sim.providers[trouble.provider]
        if trouble.fault is Fault.PRICE_SPIKE:
            provider.spikes.append(Spike(self.kernel.now, until, trouble.factor))
        else:
            setattr(provider, UNTIL[trouble.fault], until)

    def _signals(self, trouble: Trouble) -> None:
        for name, gateway in self.sim.gateways.items():
            if trouble.workload in ("", name):
                self.tell(name, str(trouble.fault))
                gateway.troubles[trouble.fault] = self.kernel.now + trouble.lasts_ms

    def _gateway(self, trouble: Trouble) -> None:
        traffic = self.sim.traffic
        if traffic is None or trouble.gateway not in traffic.fronts:
            return  # a story made smaller may lack it
        if traffic.fronts[trouble.gateway].alive:
            here = len(traffic.fronts[trouble.gateway].exchanges)
            self.tell(trouble.gateway, f"is killed, with {many(here, 'request')}")
            traffic.crash(trouble.gateway)
            self._later(trouble.lasts_ms, self._gateway_back, trouble.gateway)

    def _gateway_back(self, name: str) -> None:
        assert self.sim.traffic is not None
        self.tell(name, "is started again")
        self.sim.traffic.start(name)

    def _control(self, trouble: Trouble) -> None:
        sim = self.sim
        if trouble.fault in (Fault.STORE_OUTAGE, Fault.STORE_CRASH):
            self._store(trouble)
            return
        control = sim.controls.get(trouble.control) or sim.leader
        if control is None:
            return
        match trouble.fault:
            case Fault.CONTROL_CRASH:
                if trouble.step:
                    self.tell(control.name, f"will crash at step {trouble.step} of a turn")
                    control.crash_at_step = trouble.step
                else:
                    self.tell(control.name, "crashes")
                    control.die()
                self._later(trouble.lasts_ms, self._revive, control.name)
            case Fault.CONTROL_PAUSE:
                self.tell(control.name, f"stands still for {trouble.lasts_ms / 1000:g} s")
                paused_at = self.kernel.now
                control.paused_until = paused_at + trouble.lasts_ms
                self.kernel.at(control.paused_until, control.resume_after_pause, paused_at)
            case Fault.STORE_CUT:
                self.tell(control.name, "loses its link to the store")
                control.store_cut = True
                self._later(trouble.lasts_ms, self._store_link_back, control)
            case _:
                self.tell(control.name, f"its clock jumps by {trouble.jump_ms / 1000:g} s")
                control.clock.jump += trouble.jump_ms

    def _revive(self, name: str) -> None:
        control = self.sim.controls[name]
        control.crash_at_step = -1
        if not control.alive:
            self.tell(name, "is back")
            control.revive()

    def _store_link_back(self, control: "SimControl") -> None:
        self.tell(control.name, "reaches the store again")
        control.store_cut = False

    def _store(self, trouble: Trouble) -> None:
        self.tell("store", str(trouble.fault))
        if trouble.fault is Fault.STORE_CRASH:
            self.sim.store.crash = CrashPoint.AFTER if trouble.step else CrashPoint.BEFORE
        else:
            self.sim.store.down = True
            self._later(trouble.lasts_ms, self._store_back)

    def _store_back(self) -> None:
        self.tell("store", "is back")
        self.sim.store.down = False

    # what people do

    def change(self, change: Change) -> None:
        sim, fleet = self.sim, self.fleet
        workload = fleet.workloads.get(change.workload)
        if change.workload and workload is None:
            return  # a story made smaller may lack it
        match change.do:
            case "delete":
                if change.workload in sim.gateways:
                    sim.gateways[change.workload].close()
                sim.truth.delete(change.workload)
                if sim.traffic is not None and change.workload in sim.traffic.tallies:
                    sim.traffic.tallies[change.workload].closed = True
                sim.say(ev.WorkloadDeleted(at=0, workload=change.workload))
            case "pause" | "resume" | "scale" | "update":
                assert workload is not None
                if change.do == "scale":
                    assert isinstance(workload.shape, Service)
                    workload = replace(workload, shape=replace(workload.shape, replicas=change.replicas))
                elif change.do == "update":
                    workload = replace(workload, version=workload.version + 1)
                else:
                    workload = replace(workload, paused=change.do == "pause")
                sim.apply(workload)
            case "restart":
                assert workload is not None
                fleet.workloads[workload.name] = replace(workload, version=workload.version + 1)
                sim.say(ev.WorkloadRestarted(at=0, workload=workload.name))
            case "retry":
                sim.say(ev.WorkloadRetried(at=0, workload=change.workload))
            case "cordon" | "uncordon" | "drain" | "release brake":
                order = ev.Order(change.do)
                leader = sim.listening()
                deadline = (leader.now() if leader else self.kernel.now) + change.deadline_ms
                sim.say(ev.OperatorOrdered(at=0, order=order, node=change.node, deadline=deadline))
            case "delete pool":
                sim.say(ev.PoolDeleted(at=0, pool=change.pool))
            case "restore":
                leader = sim.listening()
                keys = leader.mind.world.keys if leader is not None and leader.mind is not None else {}
                if leader is not None and change.key in keys:
                    sim.say(ev.KeyPut(at=0, key=restored(keys[change.key], leader.now())))
            case _:
                assert_never(change.do)  # type: ignore[arg-type]

    # what-if: failures by rate

    def _wear(self, setup: PoolSetup) -> None:
        """Nodes of the pool fail one by one, as a Poisson process over those that exist."""
        hosts = [h for h in self.fleet.hosts.values() if h.request.pool == setup.pool.name and h.powered]
        rates = [(setup.mtbf_ms, False), (setup.preempt_every_ms, True)]
        waits = [
            (int(self.random.expovariate(len(hosts) / mean)), spot) for mean, spot in rates if mean and hosts
        ]
        wait, spot = min(waits, default=(60_000, False))
        recheck = 3_600_000  # the number of nodes changes
        if wait < recheck and hosts:
            self.kernel.after(wait, self._fail_one, setup, spot)
        self.kernel.after(min(wait, recheck) + 1, self._wear, setup)

    def _fail_one(self, setup: PoolSetup, spot: bool) -> None:
        hosts = [h for h in self.fleet.hosts.values() if h.request.pool == setup.pool.name and h.powered]
        if not hosts:
            return
        host = self.random.choice(hosts)
        if spot and host.request.spot:
            self.notice(host)
        elif not spot:
            returns = 0 if setup.pool.can_terminate else setup.repair_ms
            self.crash(host, returns, provider_knows=self.random.random() < 0.5)

    def _next_zone_failure(self) -> None:
        zones = sorted({offer.place.zone for s in self.sim.scenario.pools for offer in s.pool.offers})
        mean = self.sim.scenario.domain_mtbf_ms / len(zones)
        self.kernel.after(int(self.random.expovariate(1 / mean)), self._fail_zone, zones)

    def _fail_zone(self, zones: list[str]) -> None:
        zone = self.random.choice(zones)
        for host in self.fleet.named((f"zone:{zone}",)):
            if host.powered:
                self.crash(host, self.sim.scenario.domain_repair_ms, provider_knows=False)
        self._next_zone_failure()
