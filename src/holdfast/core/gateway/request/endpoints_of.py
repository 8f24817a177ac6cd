"""Which replicas of a service are gateways told of?

Those that are ready, in a seat that is wanted. Of replicas that are being stopped, and of standbys, nobody is
told. A node that is being drained keeps what runs on it until it runs elsewhere too, so its replicas are left
out as soon as there are others.

Of those that are left out the ones that still run are named: they end what they have begun. Whoever is not
even among them is lost, and what was asked of it will not be answered.
"""

from collections.abc import Collection, Iterable, Iterator

from holdfast.model.node import Node, NodeState
from holdfast.model.replica import Phase, Replica, Role, State
from holdfast.model.world import World

Home = tuple[Replica, Node]


def ready(world: World, workload: str) -> Iterator[Home]:
    for slot in (world.slots[each] for each in world.of_workload.get(workload, ())):
        if slot.role is not Role.ACTIVE or slot.phase is not Phase.OPEN:
            continue
        for replica in (world.replicas[each] for each in world.of_slot[slot.id]):
            node = world.nodes.get(replica.node)
            if replica.state is State.READY and node is not None:
                yield replica, node


def staying(found: Iterable[Home]) -> list[Home]:
    """Without those that leave, as long as there are others."""
    homes = list(found)
    stay = [home for home in homes if home[1].state is not NodeState.DRAINING and not home[1].deadline]
    return stay or homes


def leaving(world: World, workload: str, told: Collection[str]) -> Iterator[str]:
    """Those that were ready once and run, other than those that are `told`."""
    for slot in world.of_workload.get(workload, ()):
        for replica in (world.replicas[each] for each in world.of_slot[slot]):
            served = replica.ready_at and replica.role is Role.ACTIVE
            if served and replica.state is not State.LOST and replica.id not in told:
                yield replica.id
