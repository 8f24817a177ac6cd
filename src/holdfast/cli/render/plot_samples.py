"""The fleet at regular times, for pictures: how many nodes had power, and what had been spent by then."""

from holdfast.model.units import SECOND, Instant, MicroUsd
from holdfast.sim.run import Simulation

SAMPLES = 1_000


class Samples:
    def __init__(self, sim: Simulation) -> None:
        self.sim = sim
        self.nodes: list[tuple[Instant, int]] = []
        self.spent: list[tuple[Instant, MicroUsd]] = []
        self.every_ms = max(SECOND, sim.scenario.lasts_ms // SAMPLES)
        sim.kernel.at(SECOND, self._note)  # by then the nodes of the beginning have come

    def _note(self) -> None:
        now = self.sim.kernel.now
        self.nodes.append((now, sum(host.powered for host in self.sim.fleet.hosts.values())))
        self.spent.append((now, self.sim.bill().micro_usd))
        self.sim.kernel.after(self.every_ms, self._note)
