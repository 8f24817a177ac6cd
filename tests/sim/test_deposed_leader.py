"""A leader that has lost its store answers its nodes until it notices; the next one must reckon with that."""

import pytest
from msgspec.structs import replace

from holdfast.core import check, timeouts
from holdfast.model.lease import surely_over
from holdfast.model.policy import Detection, Policy
from holdfast.model.units import MINUTE, SECOND, Instant
from holdfast.model.world import World
from holdfast.sim.random.sweep import attempt
from holdfast.sim.run import Simulation
from holdfast.sim.scenario.scenario import (
    Between,
    Fault,
    NetworkTraits,
    Scenario,
    Trouble,
)
from tests.sim.test_sweep import small_story

PROOF = check.a_replica_is_declared_gone_only_with_proof


def cut(at: Instant, lasts_ms: int) -> Trouble:
    """Peers still reach the node, so it stays unreachable in the journal whoever leads."""
    return Trouble(
        at=at, fault=Fault.PARTITION, nodes=("runs:job",), between=Between.CONTROL, lasts_ms=lasts_ms
    )


def story() -> Scenario:
    """The node of a job is cut off for a moment. While it is, its leader loses the store: it hears the node
    again and renews its lease, but cannot write that down. Then the node is cut off for good."""
    troubles = (
        cut(60 * SECOND, 4 * SECOND),
        Trouble(at=63_900, fault=Fault.STORE_CUT, lasts_ms=2 * MINUTE),
        cut(65_500, 50 * SECOND),
    )
    patient = Policy(detection=Detection(ask_again_ms=MINUTE))  # it has nothing to write down meanwhile
    quiet = NetworkTraits(loss=0.0)
    return replace(
        small_story(),
        lasts_ms=6 * MINUTE,
        troubles=troubles,
        control_planes=2,
        network=quiet,
        policy=patient,
    )


@pytest.fixture
def forgetful(monkeypatch: pytest.MonkeyPatch) -> None:
    """The lease is counted from what the journal says, as if nobody had led before."""

    def over_at(world: World, node: str) -> Instant:
        leases = world.policy.leases
        return surely_over(world.nodes[node].heard_at, leases.lease_ms, leases.margin_ms)

    monkeypatch.setattr(timeouts, "lease_over_at", over_at)
    monkeypatch.setattr(check, "INVARIANTS", tuple(i for i in check.INVARIANTS if i is not PROOF))


def test_a_lease_that_a_deposed_leader_renewed_is_waited_for() -> None:
    sim = Simulation(story())
    result = sim.run()
    assert (result.violations, result.unmet) == ((), ())
    assert sim.story is not None
    told = sim.story.text()
    assert "cp-2             leads, generation 2" in told
    assert "job/0.2" in told


@pytest.mark.usefixtures("forgetful")
def test_a_leader_that_forgets_the_one_before_it_runs_a_job_twice() -> None:
    assert any("job/0 runs twice" in violation for violation in attempt(story()).violations)


def test_only_the_control_plane_that_is_cut_off_from_the_store_loses_it() -> None:
    trouble = Trouble(at=30 * SECOND, fault=Fault.STORE_CUT, control="cp-1", lasts_ms=MINUTE)
    sim = Simulation(replace(small_story(), troubles=(trouble,), control_planes=2), history=False)
    assert sim.run().fine
    assert sim.leader is sim.controls["cp-2"]


def test_nodes_of_a_leader_that_stands_still_find_the_next_one_by_themselves() -> None:
    trouble = Trouble(at=30 * SECOND, fault=Fault.CONTROL_PAUSE, control="cp-1", lasts_ms=MINUTE)
    sim = Simulation(replace(small_story(), troubles=(trouble,), control_planes=2), history=False)
    following: list[set[str]] = []
    for at in (34 * SECOND, 45 * SECOND):
        sim.kernel.at(at, lambda: following.append({host.follows for host in sim.fleet.hosts.values()}))
    assert sim.run().fine
    assert following == [{"cp-1"}, {"cp-2"}]
