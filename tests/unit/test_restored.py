"""A journal that is older than what was done by it: whom to believe, and what must wait."""

import pytest

from holdfast.control import mark
from holdfast.control.claims import Claims
from holdfast.core import check
from holdfast.core.agent.machine import DesiredSet, NodeMachine, Wanted
from holdfast.core.state import snapshot
from holdfast.model import action as do
from holdfast.model import event as ev
from holdfast.model.plan import Plan
from holdfast.model.policy import Leases
from holdfast.model.replica import Role
from holdfast.model.units import HOUR
from holdfast.model.workload import Job, Service, Workload
from tests.build import needs
from tests.play import Play

LEASES = Leases()


def restored() -> Play:
    play = Play(idle_ms=1_000 * HOUR)
    play.join("a", "b")
    play.settle()
    behind = ev.JournalBehind(at=play.now, why="for the test", node="a", epoch=7)
    play.tell(behind)
    play.apply(Workload("job", Job(), needs(cpu=1)), Workload("web", Service(1), needs(cpu=1)))
    play.settle()
    return play


def test_what_must_not_run_twice_waits_until_leases_from_before_are_over_and_the_rest_does_not() -> None:
    play = restored()
    assert list(play.running("web")) == ["web/0.8"]
    assert play.running("job") == {}
    play.tell(ev.WorkloadApplied(at=play.now, workload=Workload("job", Job(), needs(cpu=1), version=2)))
    play.later(LEASES.lease_ms + LEASES.margin_ms - 1)
    assert play.running("job") == {}
    play.tell(ev.WorkloadApplied(at=play.now, workload=Workload("job", Job(), needs(cpu=1), version=3)))
    play.later(1)
    assert list(play.running("job")) == ["job/0.8"], "no epoch is used again"


def test_it_is_looked_at_again_by_itself() -> None:
    play = Play(idle_ms=1_000 * HOUR)
    play.join("a")
    play.apply(Workload("job", Job(), needs(cpu=1)))
    play.tell(ev.JournalBehind(at=play.now, why="for the test"))
    play.settle()
    assert play.running("job") == {}
    play.later(LEASES.lease_ms + LEASES.margin_ms + 1)
    assert list(play.running("job")) == ["job/0.1"]


def test_a_job_that_is_applied_while_it_must_wait_is_looked_at_again_by_itself() -> None:
    play = restored()
    assert play.running("job") == {}
    play.later(LEASES.lease_ms + LEASES.margin_ms + 1)
    assert list(play.running("job")) == ["job/0.8"]


def test_a_plan_that_does_not_wait_is_refused() -> None:
    play = restored()
    action = do.PlaceReplica(
        replica="job/0.8",
        slot="job/0",
        node="a",
        epoch=8,
        role=Role.ACTIVE,
        needs=needs(cpu=1).resources,
        exclusive=True,
        why="for the test",
    )
    _, refused = check.examine(play.world, Plan(9, play.now, (action,)))
    assert [refusal.invariant for refusal in refused][:1] == [
        "an exclusive seat is filled only when nothing else can run in it"
    ]


def test_a_snapshot_keeps_what_must_wait() -> None:
    play = restored()
    again = snapshot.load(snapshot.dump(play.world))
    assert (again.behind_at, again.epoch_least) == (play.world.behind_at, 7)


def test_a_node_goes_on_counting_its_sets_where_it_was_told_of_more() -> None:
    play = Play()
    play.join("a", told=40)
    assert play.node("a").generation == 40


def test_a_claim_to_have_obeyed_a_later_leader_is_believed_with_a_proof() -> None:
    before, claims = Claims(b"the secret of the fleet"), Claims(b"the secret of the fleet")
    proof = before.proof(9)
    assert not claims.believed(1 << 60, 9, proof), "it obeyed one that it has no proof of"
    assert not claims.believed(9, 9, b"")
    assert not claims.believed(9, 10, proof)
    assert not claims.believed(9, 9, Claims(b"another fleet").proof(9))
    assert claims.highest == 0
    assert claims.believed(8, 9, proof)
    assert claims.highest == 9


@pytest.mark.parametrize(
    ("found", "generation", "length", "led", "behind"),
    [
        (None, 3, 10, False, True),  # a copy, perhaps: nobody here has seen it
        (None, 3, 10, True, False),  # another control plane leads on it
        (None, 0, 0, False, False),  # a fleet begins
        (mark.Mark("f", 3, 10), 3, 10, False, False),
        (mark.Mark("f", 3, 10), 4, 12, False, False),
        (mark.Mark("f", 3, 10), 2, 12, False, True),
        (mark.Mark("f", 3, 10), 3, 9, False, True),
    ],
)
def test_a_folder_knows_a_database_that_is_older_than_it_was(
    found: mark.Mark | None, generation: int, length: int, led: bool, behind: bool
) -> None:
    assert (mark.compare(found, generation, length, led=led) is not None) is behind


def test_an_agent_knows_the_highest_epoch_that_it_was_told_of() -> None:
    machine = NodeMachine(0)
    machine.wants(DesiredSet(1, 1, (Wanted("job/0.5", "job/0", 5, exclusive=False),)), 0)
    machine.wants(DesiredSet(1, 2, ()), 0)
    heir = machine.restarted()
    assert (heir.leader, heir.generation, heir.epoch) == (1, 2, 5)
