"""Agent and shims of a node are killed, and nothing else: is its job ever run twice?"""

from holdfast.model.node import Fencing
from holdfast.model.place import Place
from holdfast.model.pool import Offer, Pool
from holdfast.model.resources import Resources
from holdfast.model.units import HOUR, MINUTE
from holdfast.model.workload import Job, Workload
from holdfast.sim.run import Simulation
from holdfast.sim.scenario.scenario import (
    NetworkTraits,
    PoolSetup,
    Program,
    Scenario,
    WorkloadSetup,
)


def story(fencing: Fencing) -> Simulation:
    """Machines that nobody can terminate: there is no word of a provider."""
    offer = Offer("std", Place("metal"), Resources(8_000, 32_768))
    pool = Pool("pool", "metal", (offer,), can_launch=False, can_terminate=False)
    return Simulation(
        Scenario(
            "agent and shims are killed",
            lasts_ms=10 * MINUTE,
            pools=(PoolSetup(pool, 3, fencing=fencing),),
            workloads=(WorkloadSetup(Workload("job", Job()), Program(run_ms=HOUR)),),
            network=NetworkTraits(loss=0.0),
        )
    )


def kill(sim: Simulation) -> None:
    (host,) = (host for host in sim.fleet.hosts.values() if "job/0.1" in host.processes)
    sim.fleet.kill_agent_and_shims(host)


def where(sim: Simulation) -> list[str]:
    return [name for host in sim.fleet.hosts.values() for name in host.processes]


def test_what_the_kernel_contains_is_dead_and_starts_elsewhere() -> None:
    sim = story(Fencing.KERNEL)
    sim.kernel.at(MINUTE, kill, sim)
    assert sim.run().violations == ()
    assert where(sim) == ["job/0.2"]


def test_where_nothing_ends_it_no_lease_moves_it() -> None:
    sim = story(Fencing.NONE)
    sim.kernel.at(MINUTE, kill, sim)
    assert sim.run().violations == ()
    assert where(sim) == ["job/0.1"], "it lives on, and is not started beside itself"


def test_a_node_that_says_it_fences_and_does_not_runs_its_job_twice() -> None:
    """So the two tests above could fail."""
    sim = story(Fencing.KERNEL)

    def lie() -> None:
        for host in sim.fleet.hosts.values():
            host.contains = False
        kill(sim)

    sim.kernel.at(MINUTE, lie)
    assert any("job/0 runs twice" in violation for violation in sim.run().violations)
