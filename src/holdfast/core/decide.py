"""What should be done now? All decisions of one turn, in order.

`decide` is a pure function of the world and the time. It looks only at what the agenda names (what changed,
and what is due), so a quiet world costs nothing. Each stage has its own module with its own theory, and the
order between them is `STAGES`:

 1. slots.update             which slots there are
 2. brake.update             whether we may do harm
 3. peer_probes.questions    which peers are asked about the nodes we doubt
 4. fencing.prove            which exclusive replicas are provably gone
 5. pools.live_within_means  what cannot be paid any longer must go
 6. pools.take_notice        nodes that will be taken away are drained
 7. repair.update            what to do about sick nodes
 8. deadline_jobs.update     on spot, on demand, or waiting: jobs with a deadline
 9. schedule.recover         the empty slots are filled
10. deadline_jobs.shift      jobs with a deadline go where their way leads
11. migrate.update           what must move moves, without a gap
12. service_mix.update       services change between spot and on demand
13. consolidate.update       a node that is hardly used is emptied
14. pools.update             nodes are launched and terminated
15. brake.hold               what the brake forbids is taken back

Repair comes before the scheduler, so that nothing is placed on a node that is about to be drained. To follow
one node failure: `detect` judges it dead (an event); `fold` marks its replicas lost; here `schedule` places
heirs, `fencing` waits where it must, `pools` replaces the node.
"""

from holdfast.core.disruption import consolidate, migrate
from holdfast.core.health import (
    brake,
    fencing,
    peer_probes,
    repair,
)
from holdfast.core.plan.draft import Draft
from holdfast.core.provisioning import pools
from holdfast.core.spot import deadline_jobs, service_mix
from holdfast.core.workloads import schedule, slots
from holdfast.model.plan import Plan
from holdfast.model.units import Instant
from holdfast.model.world import World

STAGES = (
    slots.update,
    brake.update,
    peer_probes.questions,
    fencing.prove,
    pools.live_within_means,
    pools.take_notice,
    repair.update,
    deadline_jobs.update,
    schedule.recover,
    deadline_jobs.shift,
    migrate.update,
    service_mix.update,
    consolidate.update,
    pools.update,
    brake.hold,
)


def decide(world: World, now: Instant) -> Plan:
    number = world.plans + 1
    if world.agenda.quiet(now):
        return Plan(number, now)
    draft = Draft(world, now)
    for stage in STAGES:
        stage(draft)
    return Plan(number, now, tuple(draft.actions), tuple(draft.held))
