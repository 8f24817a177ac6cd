"""What must never be done, and what must always hold.

The question: whatever `decide` thought, may this plan be carried out? Each invariant is a small function with
a sentence for a name; it looks at one action, at the world before the plan, and at what earlier actions of
the same plan did (`Trial`). An action that breaks one is refused and reported, and the rest of the plan goes
on. The same functions serve the tests, the simulator and the loop. They are written without the helpers
that `decide` uses, so that one mistake is not made twice.

`inconsistencies` checks the world itself: every index against the entries it was derived from.
"""

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

from holdfast.core.check_quota import Held
from holdfast.core.cost.budgets import all_pools, settled
from holdfast.model import action as do
from holdfast.model.market import OfferRecord, key_of
from holdfast.model.node import COMING, JOINED, Fencing, NodeState
from holdfast.model.place import Level as Domain
from holdfast.model.plan import Plan, Refusal
from holdfast.model.project import Project
from holdfast.model.replica import LIVE, Phase, Replica, Role, State, line_of
from holdfast.model.room import Room
from holdfast.model.units import HOUR, Instant
from holdfast.model.verdict import Level, Said, Word
from holdfast.model.workload import Spread, Sweep
from holdfast.model.world import World


class Trial:
    """The world as it will be after the actions allowed so far, as far as the invariants need it."""

    def __init__(self, world: World, now: Instant) -> None:
        self.world, self.now = world, now
        self.gone: dict[str, None] = {}
        self.stopping: dict[str, None] = {}
        self.slots: dict[str, int] = {}  # epoch by slot, where this plan raised it
        self.added: dict[str, None] = {}  # slots
        self.at: dict[str, list[str]] = {}  # workload -> nodes that this plan adds copies on
        self.launched: dict[str, int] = {}
        self.ordered: dict[str, int] = {}  # pool -> what its new nodes cost an hour
        self.new_nodes: dict[str, None] = {}
        self.closed: dict[str, None] = {}
        self.quarantined: dict[str, None] = {}
        self.projects: dict[str, Held] = {}  # those with a quota
        self._room: Room | None = None

    @property
    def room(self) -> Room:
        if self._room is None:
            self._room = self.world.room.copy()
        return self._room

    def copies(self, slot: str) -> list[str]:
        return [name for name in self.world.of_slot.get(slot, ()) if name not in self.gone]

    def held(self, slot: str) -> tuple[Held | None, Project | None]:
        """By the project whose seat it is, if that has a quota."""
        workload = self.world.workloads.get(slot.rsplit("/", 1)[0])
        quota = self.world.projects.get(workload.project) if workload is not None else None
        if quota is None:
            return None, None
        if quota.name not in self.projects:
            self.projects[quota.name] = Held(self.world, quota.name)
        return self.projects[quota.name], quota

    def note(self, action: do.Action) -> None:
        match action:
            case do.DeclareGone(replica=name):
                self.gone[name] = None
                replica = self.world.replicas[name]
                if replica.node in self.room.row:
                    self.room.give(self.room.row[replica.node], replica.needs, replica.devices)
            case do.StopReplica(replica=name):
                self.stopping[name] = None
            case do.PlaceReplica(slot=slot, epoch=epoch, node=node):
                self.slots[slot] = epoch
                self.room.take(self.room.row[node], action.needs, action.devices)
                self.at.setdefault(slot.rsplit("/", 1)[0], []).append(node)
                held, _ = self.held(slot)
                if held is not None:
                    held.place(action)
            case do.PromoteStandby(slot=slot, epoch=epoch):
                self.slots[slot] = epoch
            case do.AddSlot(slot=slot):
                self.added[slot] = None
            case do.LaunchNode(node=node, pool=pool):
                self.launched[pool] = self.launched.get(pool, 0) + 1
                self.ordered[pool] = self.ordered.get(pool, 0) + action.price_micro_usd
                self.new_nodes[node] = None
            case do.DrainNode(node=node) | do.CordonNode(node=node) | do.TerminateNode(node=node):
                self.closed[node] = None
            case do.QuarantineNode(node=node):
                self.quarantined[node] = None
            case _:
                pass


def an_exclusive_seat_is_filled_only_when_nothing_else_can_run_in_it(trial: Trial, action: do.Action) -> bool:
    match action:
        case do.PlaceReplica(slot=slot, exclusive=True):
            leases, behind = trial.world.policy.leases, trial.world.behind_at
            if behind and trial.now < behind + leases.lease_ms + leases.margin_ms:
                return False  # one that the journal has lost may still run
            return not trial.copies(slot) and slot not in trial.slots
        case do.PromoteStandby(slot=slot, replica=name):
            exclusive = trial.world.replicas[name].exclusive
            return not exclusive or (not trial.copies(slot) and slot not in trial.slots)
    return True


def a_gang_meets_again_only_when_no_lost_member_can_run(trial: Trial, action: do.Action) -> bool:
    if not isinstance(action, do.RegroupGang):
        return True
    world = trial.world
    slots = [
        slot
        for slot in world.of_workload.get(action.workload, ())
        if not slot.rsplit("/", 1)[1].startswith("s")
    ]
    copies = [name for slot in slots for name in trial.copies(slot)]
    return all(name in action.members or world.replicas[name].state in LIVE for name in copies)


def no_member_is_left_in_an_older_generation(trial: Trial, action: do.Action) -> bool:
    """Else two members could have one rank, or different sizes of the gang."""
    if not isinstance(action, do.RegroupGang):
        return True
    world = trial.world
    gang = world.gangs.get(action.workload)
    live = [
        replica.id
        for slot in world.of_workload.get(action.workload, ())
        if world.slots[slot].role is Role.ACTIVE
        for replica in _live(world, slot)
        if replica.id not in trial.stopping and replica.id not in trial.gone
    ]
    rises = gang is None or action.generation > gang.generation
    return rises and set(live) <= set(action.members) and len(set(action.members)) == len(action.members)


def an_epoch_only_rises(trial: Trial, action: do.Action) -> bool:
    if isinstance(action, do.PlaceReplica | do.PromoteStandby):
        slot = trial.world.slots.get(action.slot)
        return slot is not None and action.epoch > max(slot.epoch, trial.slots.get(action.slot, 0))
    return True


def a_replica_is_placed_once(trial: Trial, action: do.Action) -> bool:
    return not isinstance(action, do.PlaceReplica) or action.replica not in trial.world.replicas


def work_goes_only_to_nodes_that_are_open(trial: Trial, action: do.Action) -> bool:
    if not isinstance(action, do.PlaceReplica):
        return True
    node = trial.world.nodes.get(action.node)
    return (
        node is not None
        and node.state is NodeState.READY
        and node.verdict.level is Level.ALIVE
        and not node.deadline
        and node.id not in trial.closed
    )


def no_node_is_given_more_than_it_has(trial: Trial, action: do.Action) -> bool:
    if not isinstance(action, do.PlaceReplica):
        return True
    room = trial.room
    row = room.row.get(action.node)
    if row is None:
        return False
    share = action.needs.gpu_milli // len(action.devices) if action.devices else 0
    return (
        room.cpu[row] >= action.needs.cpu_milli
        and room.memory[row] >= action.needs.memory_mib
        and bool(action.devices) == bool(action.needs.gpu_milli)
        and all(room.devices[row, device] >= share for device in action.devices)
    )


def required_spread_is_kept(trial: Trial, action: do.Action) -> bool:
    if not isinstance(action, do.PlaceReplica):
        return True
    world = trial.world
    slot = world.slots[action.slot]
    workload = world.workloads.get(slot.workload)
    if workload is None or workload.needs.spread is not Spread.REQUIRE or isinstance(workload.shape, Sweep):
        return True  # the tasks of a sweep do not stand in for each other
    level = workload.needs.spread_over
    rest = [r for s in world.of_workload[slot.workload] if s != slot.id for r in _live(world, s)]
    others = [replica.node for replica in rest if replica.id not in trial.stopping]
    others += trial.at.get(slot.workload, [])
    if level.value == "node":
        return action.node not in others
    home = world.nodes[action.node].place.domain(level)
    return all(world.nodes[other].place.domain(level) != home for other in others)


def _live(world: World, slot: str) -> list[Replica]:
    return [world.replicas[n] for n in world.of_slot.get(slot, ()) if world.replicas[n].state in LIVE]


def a_project_stays_within_its_quota(trial: Trial, action: do.Action) -> bool:
    if not isinstance(action, do.PlaceReplica):
        return True
    held, quota = trial.held(action.slot)
    return held is None or quota is None or held.may(quota, action)


def a_replica_is_declared_gone_only_with_proof(trial: Trial, action: do.Action) -> bool:
    if not isinstance(action, do.DeclareGone):
        return True
    world = trial.world
    replica = world.replicas.get(action.replica)
    if replica is None:
        return False
    node = world.nodes.get(replica.node)
    if action.proof is do.Proof.NODE_GONE or node is None:
        return node is None
    if node.fencing is Fencing.NONE or replica.unproven:
        return False
    leases, (changed_at, before_ms) = world.policy.leases, world.lease_before
    heard = max(node.heard_at, world.leader.since)
    over = max(heard + leases.lease_ms, min(heard, changed_at) + before_ms) + leases.margin_ms
    return node.verdict.level is not Level.ALIVE and trial.now >= over


def nothing_disruptive_happens_under_a_brake(trial: Trial, action: do.Action) -> bool:
    if not isinstance(action, do.DISRUPTIVE):
        return True
    world, node = trial.world, trial.world.nodes.get(action.node)
    if node is None or node.by_hand or node.state in COMING or node.state is NodeState.TERMINATING:
        return True
    if node.clues.word is Word.STOPPED or node.clues.said is not Said.NOTHING:
        return True
    braked = "fleet" in world.brakes or node.place.domain(world.policy.brake.domain_level) in world.brakes
    braked = braked or (node.id in world.kept and len(world.kept) >= world.policy.brake.nodes_min)
    return not braked and trial.now >= world.leader.since + world.policy.detection.grace_ms


def no_healthy_node_is_terminated_while_it_works(trial: Trial, action: do.Action) -> bool:
    if not isinstance(action, do.TerminateNode):
        return True
    node = trial.world.nodes.get(action.node)
    if node is None or node.state not in JOINED or node.verdict.level is Level.DEAD:
        return True
    if node.state is NodeState.RESETTING:
        return True  # nothing of ours works there
    if node.deadline and trial.now >= node.deadline and not node.releasing:
        return True  # somebody takes it away; a node that we only wanted to save is given back
    return node.verdict.level is Level.ALIVE and not trial.world.on_node[node.id]


def at_most_half_of_a_pool_is_in_quarantine(trial: Trial, action: do.Action) -> bool:
    """Of those that are not dead, and beside those that an operator holds. A dead one takes nothing away."""
    if not isinstance(action, do.QuarantineNode) or action.node not in trial.world.nodes:
        return True
    nodes = trial.world.nodes
    if nodes[action.node].verdict.level is Level.DEAD:
        return True
    pool = [nodes[name] for name in trial.world.in_pool[nodes[action.node].pool]]
    alive = [one for one in pool if one.state in JOINED and one.verdict.level is not Level.DEAD]
    there = [one for one in alive if one.state is NodeState.QUARANTINED or one.id in trial.quarantined]
    others = sum(one.id != action.node and not one.by_hand for one in there)
    return 2 * (others + 1) <= max(len(alive), 1)


def a_pool_never_exceeds_its_maximum(trial: Trial, action: do.Action) -> bool:
    if not isinstance(action, do.LaunchNode):
        return True
    pool = trial.world.pools.get(action.pool)
    have = len(trial.world.in_pool.get(action.pool, ())) + trial.launched.get(action.pool, 0)
    return pool is not None and have < pool.max


def no_launch_is_dearer_than_its_pool_may_pay(trial: Trial, action: do.Action) -> bool:
    if not isinstance(action, do.LaunchNode):
        return True
    pool = trial.world.pools.get(action.pool)
    ceiling = pool.price_max_micro_usd if pool is not None else None
    return ceiling is None or action.price_micro_usd <= ceiling


def no_launch_goes_over_a_budget(trial: Trial, action: do.Action) -> bool:
    """What the accounts say is believed here: `inconsistencies` checks them."""
    if not isinstance(action, do.LaunchNode) or not action.price_micro_usd:
        return True
    world = trial.world
    pool = world.pools.get(action.pool)
    limits = [(world.policy.budget, all_pools(world)), (pool.budget, (pool.name,))] if pool else []
    for budget, pools in limits:
        if budget.hour_micro_usd is None and budget.month_micro_usd is None:
            continue
        accounts = [settled(world.accounts[name], trial.now) for name in pools if name in world.accounts]
        rate = sum(account.rate_micro_usd for account in accounts) + action.price_micro_usd
        rate += sum(trial.ordered.get(name, 0) for name in pools)
        if budget.hour_micro_usd is not None and rate > budget.hour_micro_usd:
            return False
        spent = sum(account.spent_month for account in accounts)
        if budget.month_micro_usd is not None and spent + rate * HOUR > budget.month_micro_usd * HOUR:
            return False
    return True


def a_node_id_is_used_once(trial: Trial, action: do.Action) -> bool:
    if not isinstance(action, do.LaunchNode):
        return True
    return action.node not in trial.world.nodes and action.node not in trial.new_nodes


def what_is_acted_on_is_known(trial: Trial, action: do.Action) -> bool:
    world = trial.world
    match action:
        case do.StopReplica(replica=name):
            return name in world.replicas and world.replicas[name].state in LIVE
        case do.PromoteStandby(replica=name, slot=slot):
            return name in world.replicas and slot in world.slots
        case do.PlaceReplica(slot=slot):
            return slot in world.slots and world.slots[slot].phase is Phase.OPEN
        case do.TakeWay(workload=name) | do.DeclareLate(workload=name):
            return name in world.courses
        case do.RegroupGang(members=members):
            return all(name in world.replicas for name in members)
        case do.GiveUpSlot(slot=slot) | do.CloseSlot(slot=slot) | do.RemoveSlot(slot=slot):
            return slot in world.slots
        case do.AddSlot(slot=slot):
            return slot not in world.slots and slot not in trial.added
        case do.ListPool(pool=pool) | do.ListOffers(pool=pool) | do.ForgetPool(pool=pool):
            return pool in world.pools
        case (
            do.AskPeers(node=node)
            | do.AskProvider(node=node)
            | do.WatchNode(node=node)
            | do.CordonNode(node=node)
            | do.UncordonNode(node=node)
            | do.DrainNode(node=node)
            | do.GiveNotice(node=node)
            | do.ResetNode(node=node)
            | do.QuarantineNode(node=node)
            | do.ClearFinding(node=node)
        ):
            return node in world.nodes
    return True


def a_seat_that_may_hold_a_copy_is_not_removed(trial: Trial, action: do.Action) -> bool:
    if not isinstance(action, do.RemoveSlot):
        return True
    copies = (trial.world.replicas[name] for name in trial.copies(action.slot))
    return all(copy.state is State.LOST and not copy.exclusive for copy in copies)


def a_pool_is_forgotten_only_when_it_was_deleted_and_is_empty(trial: Trial, action: do.Action) -> bool:
    if not isinstance(action, do.ForgetPool):
        return True
    world = trial.world
    listed = action.pool in world.orphans.values() or trial.launched.get(action.pool, 0)
    return not listed and not world.in_pool[action.pool] and world.pool_states[action.pool].deleted_at > 0


Invariant = Callable[[Trial, do.Action], bool]

INVARIANTS: tuple[Invariant, ...] = (
    what_is_acted_on_is_known,
    an_exclusive_seat_is_filled_only_when_nothing_else_can_run_in_it,
    a_gang_meets_again_only_when_no_lost_member_can_run,
    no_member_is_left_in_an_older_generation,
    an_epoch_only_rises,
    a_replica_is_placed_once,
    work_goes_only_to_nodes_that_are_open,
    no_node_is_given_more_than_it_has,
    required_spread_is_kept,
    a_project_stays_within_its_quota,
    a_replica_is_declared_gone_only_with_proof,
    nothing_disruptive_happens_under_a_brake,
    no_healthy_node_is_terminated_while_it_works,
    at_most_half_of_a_pool_is_in_quarantine,
    a_pool_never_exceeds_its_maximum,
    no_launch_is_dearer_than_its_pool_may_pay,
    no_launch_goes_over_a_budget,
    a_node_id_is_used_once,
    a_seat_that_may_hold_a_copy_is_not_removed,
    a_pool_is_forgotten_only_when_it_was_deleted_and_is_empty,
)


def sentence(invariant: Invariant) -> str:
    return invariant.__name__.replace("_", " ")


def examine(world: World, plan: Plan) -> tuple[Plan, list[Refusal]]:
    """The plan without the actions that would break an invariant, and those actions."""
    if not plan.actions:
        return plan, []
    trial = Trial(world, plan.at)
    allowed: list[do.Action] = []
    refused: list[Refusal] = []
    for action in plan.actions:
        broken = next((inv for inv in INVARIANTS if not inv(trial, action)), None)
        if broken is None:
            trial.note(action)
            allowed.append(action)
        else:
            refused.append(Refusal(action, sentence(broken)))
    return Plan(plan.number, plan.at, tuple(allowed), plan.held), refused


def inconsistencies(world: World) -> list[str]:
    """Where the world disagrees with itself. Looks at everything: for tests and the simulator."""
    found = [
        f"the index {name} disagrees about {', '.join(sorted(wrong))}"
        for name, expected in derived(world).items()
        if (wrong := _differences(expected, getattr(world, name)))
    ]
    return [
        *found,
        *_replica_troubles(world),
        *_line_troubles(world),
        *_gang_troubles(world),
        *_room_troubles(world),
        *_order_troubles(world),
        *_market_troubles(world),
    ]


Groups = dict[str, set[str]]


def derived(world: World) -> dict[str, Groups | set[str] | Counter[str]]:
    """Every index as it should be, worked out anew from the entries."""
    nodes, slots, replicas = world.nodes.values(), world.slots.values(), world.replicas.values()
    joined = [node for node in nodes if node.state in JOINED]
    filled = {replica.slot for replica in replicas if replica.state in LIVE}
    open_ = (slot for slot in slots if slot.phase is Phase.OPEN and slot.id not in filled)
    undone = (slot for slot in slots if slot.role is Role.ACTIVE and slot.phase is not Phase.DONE)
    struck = (slot for slot in slots if slot.role is Role.ACTIVE and slot.phase is Phase.OPEN and slot.struck)
    return {
        "on_node": _groups((replica.node, replica.id) for replica in replicas),
        "of_slot": _groups((replica.slot, replica.id) for replica in replicas),
        "of_workload": _groups((slot.workload, slot.id) for slot in slots),
        "in_pool": _groups((node.pool, node.id) for node in nodes),
        "after": _groups((other, w.name) for w in world.workloads.values() for other in w.after),
        "waiting": _groups((slot.workload, slot.id) for slot in open_),
        "held": _groups((replica.workload, replica.slot) for replica in replicas),
        "undone": _groups((slot.workload, slot.id) for slot in undone),
        "struck": _groups((slot.workload, slot.id) for slot in struck if slot.down_since),
        "warm": _groups(
            (replica.workload, replica.id)
            for replica in replicas
            if replica.role is Role.STANDBY and replica.state is State.READY
        ),
        "closed": _groups((slot.workload, slot.id) for slot in slots if slot.phase is Phase.CLOSED),
        "lost": {replica.id for replica in replicas if replica.state is State.LOST},
        "stopping": {replica.id for replica in replicas if replica.state is State.STOPPING},
        "outdated": {
            replica.id
            for replica in replicas
            if replica.state in LIVE
            and replica.workload in world.workloads
            and replica.version < world.workloads[replica.workload].version
        },
        "mixed": {w.name for w in world.workloads.values() if getattr(w.shape, "mix", None)},
        "scaled": {w.name for w in world.workloads.values() if getattr(w.shape, "scale", None)},
        "fronted": {w.name for w in world.workloads.values() if getattr(w.shape, "serves", None)},
        "promised": {w.name for w in world.workloads.values() if getattr(w.shape, "availability", 0)},
        "cordoned": {node.id for node in nodes if node.state is NodeState.CORDONED},
        "draining": {node.id for node in nodes if node.state is NodeState.DRAINING},
        "doubtful": {node.id for node in joined if node.verdict.level is not Level.ALIVE},
        "kept": {node.id for node in joined if node.verdict.level is not Level.ALIVE and node.kept_at},
        "joined_in": Counter(node.place.domain(Domain.ZONE) for node in joined),
        "dead_in": Counter(n.place.domain(Domain.ZONE) for n in joined if n.verdict.level is Level.DEAD),
    }


def _groups(pairs: Iterable[tuple[str, str]]) -> Groups:
    found: Groups = {}
    for group, member in pairs:
        found.setdefault(group, set()).add(member)
    return found


def _differences(expected: Groups | set[str] | Counter[str], index: Any) -> set[str]:
    if isinstance(expected, set):
        return expected ^ set(index)
    if isinstance(expected, Counter):
        return {name for name in expected.keys() | index.keys() if expected[name] != index.get(name, 0)}
    keys = expected.keys() | index.keys()
    return {key for key in keys if expected.get(key, set()) != set(index.get(key, ()))}


def _order_troubles(world: World) -> list[str]:
    expected: dict[int, set[str]] = {}
    for workload in world.workloads.values():
        expected.setdefault(workload.priority, set()).add(workload.name)
    found = {priority: set(names) for priority, names in world.of_priority.items()}
    return [] if found == expected else ["the index of_priority disagrees with the workloads"]


def _line_troubles(world: World) -> list[str]:
    expected: dict[str, tuple[int, int]] = {}
    for slot in world.slots.values():
        line = line_of(slot.workload, slot.role)
        count, total = expected.get(line, (0, 0))
        expected[line] = count + 1, total + slot.index
    return [] if world.numbered == expected else ["the index numbered disagrees with the slots"]


def _market_troubles(world: World) -> list[str]:
    """What is noted as changed is written when somebody asks; the rest must be right now."""
    table = world.market
    if table.outdated:
        return []
    there = {key_of(pool, offer.name): offer for pool, offers in world.offers.items() for offer in offers}
    found = [] if there.keys() == table.row.keys() else ["the table of offers lists others than there are"]
    for key, row in table.row.items():
        record = world.records.get(key, OfferRecord(key))
        right = (record.at, record.retry_at, record.seen_at, record.taken_at)
        if key not in table.changed and right != tuple(
            table.ints[name][row] for name in ("at", "retry_at", "seen_at", "taken_at")
        ):
            found.append(f"the table of offers disagrees about {key}")
    return found


def _replica_troubles(world: World) -> list[str]:
    found = []
    for name, replica in world.replicas.items():
        slot = world.slots.get(replica.slot)
        if slot is not None and replica.epoch > slot.epoch:
            found.append(f"{name} has a higher epoch than its slot")
        if replica.exclusive and len(world.of_slot.get(replica.slot, ())) > 1:
            found.append(f"{name} is exclusive, but not alone in {replica.slot}")
    joined = [node for node in world.nodes.values() if node.state in JOINED]
    if world.joined != len(joined):
        found.append("the count of joined nodes is wrong")
    for pool, serving in world.serving.items():
        alive = [n.joined_at for n in joined if n.pool == pool and n.verdict.level is not Level.DEAD]
        if serving != (len(alive), sum(alive)):
            found.append(f"the index serving disagrees about {pool}")
    for pool, account in world.accounts.items():
        if account.rate_micro_usd != sum(n.price_micro_usd for n in world.nodes.values() if n.pool == pool):
            found.append(f"the account of {pool} disagrees with what its nodes cost")
    for scope in world.drawn:
        key = scope.removeprefix("key:").partition("/")[0]
        if scope.startswith("key:") and key not in world.keys:
            found.append(f"a budget is drawn of {scope}, a key that is gone")
    return found


def _gang_troubles(world: World) -> list[str]:
    """Members of one generation have a seat of it each, so their ranks are a permutation."""
    found = []
    for name, gang in world.gangs.items():
        if len(set(gang.members)) != len(gang.members):
            found.append(f"a seat is twice in generation {gang.generation} of {name}")
        replicas = (world.replicas[r] for s in world.of_workload.get(name, ()) for r in world.of_slot[s])
        for replica in replicas:
            if replica.gang == gang.generation and replica.role is Role.ACTIVE:
                if replica.slot not in gang.members:
                    found.append(
                        f"{replica.id} is in generation {gang.generation} of {name}, its seat is not"
                    )
            elif replica.gang and replica.state in LIVE:
                found.append(
                    f"{replica.id} lives in generation {replica.gang} of {name}, not {gang.generation}"
                )
    return found


def _room_troubles(world: World) -> list[str]:
    found = []
    room = world.room
    for name, row in room.row.items():
        node = world.nodes.get(name)
        if node is None:
            found.append(f"{name} has room but is unknown")
            continue
        there = [
            world.replicas[replica] for replica in world.on_node.get(name, ()) if replica in world.replicas
        ]
        cpu = node.capacity.cpu_milli - sum(replica.needs.cpu_milli for replica in there)
        memory = node.capacity.memory_mib - sum(replica.needs.memory_mib for replica in there)
        gpu = node.capacity.gpu_milli - sum(replica.needs.gpu_milli for replica in there)
        if cpu < 0 or memory < 0 or room.devices[row].min() < 0:
            found.append(f"{name} is over-committed")
        if (room.cpu[row], room.memory[row], room.devices[row].sum()) != (cpu, memory, gpu):
            found.append(f"{name}: its columns of room disagree with its replicas")
        may = node.state is NodeState.READY and node.verdict.level is Level.ALIVE and not node.deadline
        if room.open[row] != may:
            found.append(f"{name} is {node.state} and {node.verdict.level}, but its room says otherwise")
    return found
