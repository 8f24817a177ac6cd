"""What should be done now? All decisions of one turn, in order.

`decide` is a pure function of the world and the time. It looks only at what the agenda names (what changed,
and what is due), so a quiet world costs nothing. Each stage has its own module with its own theory; the order
between them is this list:

1. seats    which slots there are                       7. repair       what to do about sick nodes
2. brake    whether we may do harm                      8. failover     fill the empty seats
3. ask      whom to ask about the nodes we doubt        9. handover     move what must move, without a gap
4. fencing  which exclusive replicas are provably gone 10. consolidate  empty a node that is hardly used
5. means    what cannot be paid any longer must go     11. capacity     order and release nodes
6. notice   nodes that will be taken away are drained  12. hold         take back what the brake forbids

Repair comes before failover, so that nothing is placed on a node that is about to be drained. To follow one
node failure: `detect` judges it dead (an event); `fold` marks its replicas lost; here `failover` places
heirs, `fencing` waits where it must, `capacity` replaces the node.
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
