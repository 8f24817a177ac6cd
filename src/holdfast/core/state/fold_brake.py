"""What the brake's decisions do to the world: it engages, narrows to the dead of a burst, lets go, or is
released by hand. When and why is asked in `brake`.

Each time it holds less than before, every node is noted on the agenda, so that what was held gets its turn.
Nodes to which it was narrowed carry that themselves (`kept_at`): it must outlive the brake, and end with the
node's next hello.
"""

from msgspec.structs import replace

from holdfast.core.state import index
from holdfast.model import action as do
from holdfast.model.units import Instant
from holdfast.model.world import Brake, World


def accept(world: World, action: do.EngageBrake | do.NarrowBrake | do.ReleaseBrake, at: Instant) -> None:
    match action:
        case do.EngageBrake(scope=scope, why=why):
            world.brakes[scope] = Brake(scope, at, why)
            world.agenda.at(at + world.policy.brake.hold_ms, "fleet", "brake")
        case do.NarrowBrake(scope=scope, nodes=nodes):
            _keep(world, nodes, at)
            _let_go(world, scope)
        case do.ReleaseBrake(scope=scope):
            _let_go(world, scope)


def released_by_hand(world: World, at: Instant) -> None:
    _keep(world, tuple(sorted(world.kept)), 0)
    world.brakes.clear()
    world.brake_released_at = at
    world.agenda.room_freed = True  # whoever waits may preempt again


def _keep(world: World, nodes: tuple[str, ...], at: Instant) -> None:
    for name in nodes:
        index.put_node(world, replace(world.nodes[name], kept_at=at))


def _let_go(world: World, scope: str) -> None:
    world.brakes.pop(scope, None)
    world.agenda.room_freed = True  # whoever waits may preempt again
    for name in world.nodes:  # what was held may go on now
        world.agenda.note("node", name)
