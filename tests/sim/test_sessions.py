"""An agent takes sets only from the connection it last said hello on."""

import pytest

from holdfast.core.agent.machine import DesiredSet
from holdfast.model.place import Place
from holdfast.model.pool import Offer, Pool
from holdfast.model.resources import Resources
from holdfast.model.units import SECOND
from holdfast.model.workload import Service, Workload
from holdfast.sim.run import Simulation
from holdfast.sim.scenario.scenario import (
    Fault,
    PoolSetup,
    Scenario,
    Trouble,
    WorkloadSetup,
)
from holdfast.sim.twins.host import Host


def restarted_agent() -> tuple[Simulation, Host]:
    """A node that runs something, and whose agent has just connected anew."""
    offer = Offer("std", Place("east"), Resources(8_000, 32_768))
    pool = Pool("pool", "east", (offer,), can_launch=False, can_terminate=False)
    sim = Simulation(
        Scenario(
            "one node",
            lasts_ms=60 * SECOND,
            pools=(PoolSetup(pool, 1),),
            workloads=(WorkloadSetup(Workload("web", Service(1))),),
            troubles=(
                Trouble(at=10 * SECOND, fault=Fault.AGENT_RESTART, nodes=("pool-a",), lasts_ms=SECOND),
            ),
        )
    )
    sim.run()
    return sim, sim.fleet.hosts["pool-a"]


def test_an_agent_that_restarts_opens_a_new_session_and_keeps_its_work() -> None:
    sim, host = restarted_agent()
    assert (host.connected, host.session > 0) == (True, True)
    assert [(process.workload, process.started_at < 10 * SECOND) for process in host.processes.values()] == [
        ("web", True)
    ]
    assert sim.truth.violations == []


@pytest.mark.parametrize(("sessions_ago", "left"), [(0, 0), (1, 1)])
def test_a_set_of_an_older_session_is_ignored_however_new_it_is(sessions_ago: int, left: int) -> None:
    sim, host = restarted_agent()
    nothing = DesiredSet(leader=9, generation=999)
    assert sim.leader is not None
    sim.set_arrived(sim.leader, host.id, nothing, host.session - sessions_ago)
    sim.kernel.run_until(sim.kernel.now + SECOND)
    assert len(host.processes) == left
