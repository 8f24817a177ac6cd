"""What a project holds, for the checker: does one more replica keep within the quota?

Written without `core.plan.project_quota`, by which `decide` goes, so that one mistake is not made twice. The
rule is the same: a seat counts once, by the most that any copy in it asks for. What is over the quota already
(it was made smaller) is no reason to refuse what adds nothing, and a seat in which something is may move to
any node.
"""

from holdfast.model import action as do
from holdfast.model.project import Project
from holdfast.model.resources import Resources
from holdfast.model.world import World

Sums = tuple[int, int, int, int, int]  # cpu, memory, gpus, money an hour, nodes


class Held:
    """By one project: at the beginning of a plan, and after its actions so far."""

    def __init__(self, world: World, project: str) -> None:
        self.world = world
        self.seats: dict[str, tuple[int, int, int, int]] = {}
        self.nodes: set[str] = set()
        self.sums: Sums = (0, 0, 0, 0, 0)
        for replica in world.replicas.values():
            known = world.workloads.get(replica.workload)
            named = known.project if known is not None else world.project_of.get(replica.workload, "default")
            if named == project:
                self._add(replica.slot, replica.node, replica.needs)

    def place(self, action: do.PlaceReplica) -> None:
        self._add(action.slot, action.node, action.needs)

    def _add(self, slot: str, node: str, needs: Resources) -> None:
        self.sums = self.after(slot, node, needs)
        self.seats[slot] = self._most(slot, node, needs)
        self.nodes.add(node)

    def after(self, slot: str, node: str, needs: Resources) -> Sums:
        was, now = self.seats.get(slot, (0, 0, 0, 0)), self._most(slot, node, needs)
        cpu, memory, gpu, hour = (there - a + b for there, a, b in zip(self.sums, was, now, strict=False))
        return cpu, memory, gpu, hour, self.sums[4] + (node not in self.nodes)

    def _most(self, slot: str, node: str, needs: Resources) -> tuple[int, int, int, int]:
        cpu, memory, gpu, hour = self.seats.get(slot, (0, 0, 0, 0))
        return (
            max(cpu, needs.cpu_milli),
            max(memory, needs.memory_mib),
            max(gpu, needs.gpu_milli),
            max(hour, hourly(self.world, node, needs)),
        )

    def may(self, quota: Project, action: do.PlaceReplica) -> bool:
        after = self.after(action.slot, action.node, action.needs)
        moves = action.slot in self.seats
        hour, nodes = (None, None) if moves else (quota.hour_micro_usd, quota.nodes)
        limits = (quota.cpu_milli, quota.memory_mib, quota.gpu_milli, hour, nodes)
        each = zip(limits, self.sums, after, strict=True)
        return all(most is None or now <= most or now == was for most, was, now in each)


def hourly(world: World, name: str, needs: Resources) -> int:
    """An hour of the share of a node that it asks for."""
    node = world.nodes.get(name)
    if node is None or not node.price_micro_usd:
        return 0
    of = node.capacity
    pairs = (
        (needs.cpu_milli, of.cpu_milli),
        (needs.memory_mib, of.memory_mib),
        (needs.gpu_milli, of.gpu_milli),
    )
    share = max((-(-part * 1_000_000 // whole) for part, whole in pairs if whole), default=1_000_000)
    return -(-node.price_micro_usd * min(share, 1_000_000) // 1_000_000)
