"""What would happen?

The question of a dry run is answered by the real decisions on a copy of the world: the events are folded in,
then the loop turns (decide, check, accept) until nothing is left to do. What the outside would do is
pretended, and pretended to go well at once: what is launched joins, what is placed is ready, what is stopped
ends, what is terminated is gone. Time stands still meanwhile, so whatever must wait for a time (a lease, a
back-off) is told as waiting.

The outside is not pretended for a node that is in doubt: nobody knows what it would do.

The copy is shallow where entries are frozen: 60 ms for 10,000 nodes and 50,000 replicas, where writing and
reading a snapshot takes over a second, in which a control plane would not listen to its nodes. It also keeps
the agenda, so that only what the events change is looked at.

Whoever asks may give it so much time (`goes_on`): what it has found by then is the answer, and it says that
it ended early.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from itertools import takewhile

import msgspec

from holdfast.core import check
from holdfast.core.decide import decide
from holdfast.core.explain import pending
from holdfast.core.explain.explain import whose
from holdfast.core.explain.history import BOOKKEEPING, tell_action
from holdfast.core.plan.draft import NOBODY
from holdfast.core.state import fold
from holdfast.model import action as do
from holdfast.model import event as ev
from holdfast.model.agenda import Agenda
from holdfast.model.node import Fencing, NodeState
from holdfast.model.offer_table import Table
from holdfast.model.plan import Held, Refusal
from holdfast.model.replica import State
from holdfast.model.room import Room
from holdfast.model.units import Instant, many
from holdfast.model.verdict import Level
from holdfast.model.world import World

TURNS_MAX = 60  # a rolling update takes three for each replica
STEPS_MAX = 1_000
TOO_LARGE = "more would follow: it is too much for a dry run, which ended early"
WAITING_MAX = 20  # workloads
ANY_PORT = 1  # the members of a gang start when their ports are known
UNTOLD = (*BOOKKEEPING, do.AskPeers, do.AskProvider)  # questions change nothing, and nobody answers here


class Step(msgspec.Struct, frozen=True):
    """One action: what it is called, of whom, its details, its reason."""

    action: str
    subject: str
    text: str
    why: str


class Preview(msgspec.Struct, frozen=True):
    steps: tuple[Step, ...]
    pending: tuple[str, ...]  # what would still wait, and why
    cautions: tuple[str, ...] = ()  # what would be so, and may surprise later


def preview(
    world: World,
    events: Sequence[ev.Event],
    now: Instant,
    unlisted: Mapping[str, str] = NOBODY,
    goes_on: Callable[[], bool] = lambda: True,
) -> Preview:
    """`unlisted`: pools that could not be asked what they offer, and why. `goes_on`: has it time left? It is
    asked between turns and between seats."""
    world = twin(world)
    for event in events:
        fold.observe(world, event)
    steps: list[Step] = []
    unfinished: list[str] = []
    nodes: Iterable[str] = world.nodes
    slots: Iterable[str] = world.of_slot
    for turns in range(TURNS_MAX):
        if not goes_on():
            unfinished.append(TOO_LARGE)
            break
        plan, refused = check.examine(world, decide(world, now))
        steps += [_step(action) for action in plan.actions if not isinstance(action, UNTOLD)]
        unfinished += [*map(_held, plan.held), *map(_refused, refused)]
        fold.accept(world, plan)
        if turns:  # at first everything may be under way, then only what the plan set going
            nodes, slots = world.agenda.changed["node"], world.agenda.changed["slot"]
        answers = [*_provided(world, nodes, now), *_obeyed(world, slots, now)]
        for event in takewhile(lambda _: goes_on(), answers):
            fold.observe(world, event)
        if not answers and not plan.actions:
            break
        if len(steps) >= STEPS_MAX:
            unfinished.append(f"more would follow: only the first {STEPS_MAX} steps are shown")
            break
    else:
        unfinished.append(f"more would follow: it is not at rest after {TURNS_MAX} turns")
    waiting = _waiting(world, events, now, unlisted, goes_on)
    cautions = tuple(_unfenced(world, events))
    return Preview(tuple(steps[:STEPS_MAX]), (*dict.fromkeys(unfinished), *waiting), cautions)


def _unfenced(world: World, events: Sequence[ev.Event]) -> Iterator[str]:
    """Where what is exclusive would run on nodes that cannot end it when its shim is killed."""
    for event in events:
        if not isinstance(event, ev.WorkloadApplied) or not event.workload.exclusive:
            continue
        name = event.workload.name
        copies = (world.replicas[n] for slot in world.of_workload.get(name, ()) for n in world.of_slot[slot])
        homes = dict.fromkeys(copy.node for copy in copies if world.nodes[copy.node].fencing is Fencing.NONE)
        if homes:
            yield (
                f"{name} runs on {', '.join(homes)} with fencing: none: if such a node falls silent, it "
                "starts elsewhere only when the provider or an operator says that the node is gone"
            )


def _step(action: do.Action) -> Step:
    subject, text = tell_action(action)
    return Step(type(action).__name__, subject, text.strip(), action.why)


def _held(held: Held) -> str:
    return f"{_name(held.action)} is held: {held.why}"


def _refused(refusal: Refusal) -> str:
    return f"{_name(refusal.action)} is refused: {refusal.invariant}"


def _name(action: do.Action) -> str:
    return f"{type(action).__name__} {tell_action(action)[0]}"


def _waiting(
    world: World,
    events: Sequence[ev.Event],
    now: Instant,
    unlisted: Mapping[str, str],
    goes_on: Callable[[], bool],
) -> Iterator[str]:
    """What the events are about comes first, then others that wait."""
    applied = [event.workload.name for event in events if isinstance(event, ev.WorkloadApplied)]
    names = dict.fromkeys((*applied, *(name for name, seats in world.waiting.items() if seats)))
    known = [world.workloads[name] for name in names if name in world.workloads]
    for number, workload in enumerate(known[:WAITING_MAX]):
        if number and not goes_on():
            yield f"what keeps {many(len(known) - number, 'more workload')} waiting was not looked at"
            return
        for wait in pending.waiting(world, workload, now, advise=False, unlisted=unlisted):
            yield f"{whose(wait) or f'{workload.name}: '}{'; '.join(wait.because)}"
    if len(known) > WAITING_MAX:
        yield f"and {many(len(known) - WAITING_MAX, 'more workload')} with empty seats"


# the outside, as if all went well


def _provided(world: World, names: Iterable[str], now: Instant) -> Iterator[ev.Event]:
    for name in names:
        node = world.nodes.get(name)
        match node.state if node else None:
            case NodeState.LAUNCHING:
                yield ev.NodeLaunched(at=now, node=name)
                yield ev.NodeJoined(at=now, node=name)
            case NodeState.BOOTING:
                yield ev.NodeJoined(at=now, node=name)
            case NodeState.TERMINATING:
                yield ev.NodeTerminated(at=now, node=name)
            case NodeState.RESETTING:
                yield ev.NodeReset(at=now, node=name)
            case _:
                pass


def _obeyed(world: World, slots: Iterable[str], now: Instant) -> Iterator[ev.Event]:
    replicas = [world.replicas[name] for slot in slots for name in world.of_slot.get(slot, ())]
    for replica in replicas:
        name, node = replica.id, replica.node
        if world.nodes[node].verdict.level is not Level.ALIVE:
            continue
        match replica.state:
            case State.PLACED | State.STARTING:
                number = replica.incarnation
                yield ev.ReplicaStarted(at=now, replica=name, node=node, port=ANY_PORT, incarnation=number)
                yield ev.ReplicaReady(at=now, replica=name, node=node, incarnation=number)
            case State.STOPPING:
                yield ev.ReplicaEnded(at=now, replica=name, node=node, how=ev.Ended.STOPPED)
            case State.READY | State.LOST:
                pass


# the copy


def twin(world: World) -> World:
    """A copy that can be written without a change of the first: maps, columns and times of its own, of the
    same frozen entries."""
    copy = World(world.policy)
    for name, value in vars(world).items():
        if isinstance(value, dict):
            nested = any(isinstance(inner, dict) for inner in value.values())
            value = {key: dict(inner) for key, inner in value.items()} if nested else dict(value)
        setattr(copy, name, value)
    copy.room, copy.market, copy.agenda = _room(world.room), Table(), Agenda()
    copy.agenda.changed = {kind: dict(names) for kind, names in world.agenda.changed.items()}
    copy.agenda.due, copy.agenda.room_freed = list(world.agenda.due), world.agenda.room_freed
    return copy


def _room(room: Room) -> Room:
    """To a plan's copy rows are never added; here they are, so nothing at all is shared."""
    copy = room.copy()
    for name in room.FIXED:
        setattr(copy, name, getattr(room, name).copy())
    copy.domain = {level: column.copy() for level, column in room.domain.items()}
    copy.row, copy.ids, copy.unused, copy.memo = dict(room.row), list(room.ids), list(room.unused), {}
    for name in ("kinds", "label_sets", "taint_sets", "domains"):
        setattr(copy, name, deepcopy(getattr(room, name)))
    return copy
