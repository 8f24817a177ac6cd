"""Nodes, rooms, replicas and worlds with defaults, for tests that only care about a detail of them."""

from collections.abc import Iterable

from holdfast.model.node import Node, NodeState
from holdfast.model.place import Place
from holdfast.model.policy import Policy
from holdfast.model.replica import Replica, Role, Slot, State, replica_id, slot_id
from holdfast.model.resources import GPU, Resources
from holdfast.model.room import Room
from holdfast.model.verdict import Evidence, Level, Verdict
from holdfast.model.workload import Needs, Service, Spread, Training, Workload
from holdfast.model.world import World

ALIVE = Verdict(level=Level.ALIVE, rule="", evidence=Evidence(), since=0)


def node(
    name: str,
    *,
    cpu: int = 8,
    memory: int = 32_768,
    gpus: int = 0,
    kind: str = "h100",
    zone: str = "a",
    rack: str = "-",
    labels: dict[str, str] | None = None,
    taints: tuple[str, ...] = (),
    spot: bool = False,
    standby: bool = False,
    price: int = 1_000_000,
) -> Node:
    return Node(
        id=name,
        pool="pool",
        offer="offer",
        place=Place("test", "here", zone, rack),
        capacity=resources(cpu=cpu, memory=memory, gpu=gpus, kind=kind if gpus else ""),
        price_micro_usd=price,
        spot=spot,
        state=NodeState.READY,
        since=0,
        verdict=ALIVE,
        labels=labels or {},
        taints=taints,
        standby=standby,
    )


def resources(cpu: float = 1, memory: int = 512, gpu: float = 0, kind: str = "") -> Resources:
    return Resources(
        cpu_milli=round(cpu * 1000), memory_mib=memory, gpu_milli=round(gpu * GPU), gpu_kind=kind
    )


def needs(
    cpu: float = 1, memory: int = 512, gpu: float = 0, kind: str = "", spread: Spread = Spread.NONE
) -> Needs:
    return Needs(resources=resources(cpu, memory, gpu, kind), spread=spread)


def room(nodes: Iterable[Node], closed: Iterable[str] = ()) -> Room:
    built, shut = Room(), set(closed)
    for each in nodes:
        built.add(each, open_=each.id not in shut)
    return built


def world(nodes: Iterable[Node], policy: Policy | None = None) -> World:
    built = World(policy)
    for each in nodes:
        built.nodes[each.id] = each
        built.on_node[each.id] = {}
        built.room.add(each, open_=True)
    return built


def service(
    name: str, asked: Needs, *, replicas: int = 1, priority: int = 0, move_cost_ms: int = 30_000
) -> Workload:
    return Workload(name, Service(replicas), asked, priority=priority, move_cost_ms=move_cost_ms)


def training(name: str, asked: Needs, *, members: int, priority: int = 0) -> Workload:
    return Workload(name, Training(members, members), asked, priority=priority)


def run(
    world: World, workload: Workload, nodes: Iterable[str], *, state: State = State.READY, at: int = 1
) -> None:
    """Puts replicas of the workload on these nodes, one slot each, as if they had been there since `at`."""
    world.workloads[workload.name] = workload
    world.of_priority.setdefault(workload.priority, {})[workload.name] = None
    slots = world.of_workload.setdefault(workload.name, {})
    for name in nodes:
        slot = Slot(slot_id(workload.name, len(slots)), workload.name, len(slots), epoch=1)
        world.slots[slot.id], slots[slot.id] = slot, None
        replica = _replica(world, workload, slot, name, state, at)
        world.replicas[replica.id] = replica
        world.on_node[name][replica.id] = None
        world.of_slot[slot.id] = {replica.id: None}
        world.held.setdefault(workload.name, {})[slot.id] = None
        if state is State.STOPPING:
            world.stopping[replica.id] = None
        world.room.take(world.room.row[name], replica.needs, replica.devices)


def _replica(world: World, workload: Workload, slot: Slot, node: str, state: State, at: int) -> Replica:
    asked = workload.needs.resources
    return Replica(
        id=replica_id(slot.id, 1),
        slot=slot.id,
        workload=workload.name,
        node=node,
        epoch=1,
        needs=asked,
        exclusive=workload.exclusive,
        role=Role.ACTIVE,
        state=state,
        since=at,
        placed_at=at,
        devices=world.room.pick_devices(world.room.row[node], asked.gpu_milli),
        gang=1 if isinstance(workload.shape, Training) else 0,
        ready_at=at,
    )
