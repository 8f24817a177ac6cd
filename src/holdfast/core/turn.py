"""One turn of the control loop, without its IO.

    for step in turn(mind, inbox, now):     # the host does what each step says, in order
        match step:
            case Append(entries): journal them; if we no longer lead, stop here and forget the mind
            case Perform(action): carry it out; what comes of it goes into a later inbox
            case Send(node): push the node its desired set

The order is the safety argument. What happened is folded in; the detector judges; a plan is decided and
checked. Then everything, events and plan together, is journalled in one append, and only after that is the
plan accepted and carried out. A crash before the append: nothing was decided. A crash after it: the next
leader finds the plan in the journal and repeats what was not confirmed (`resume`), under the same ids.
Reports are acknowledged to agents after the append, so none is lost.

A turn that looked and found nothing to do leaves an empty plan: it has settled what was due, and whoever
replays the journal (`replay`) must know when. It goes with the next append and hardly ever asks for one of
its own; if we crash before that, the next leader knows of it as little as a replay does.

The live loop and the simulator run this same generator; the simulator crashes between any two of its steps.
"""

from collections.abc import Iterable, Iterator

import msgspec

from holdfast.core import check
from holdfast.core.agent.desired_set import is_complete, members_of
from holdfast.core.decide import decide
from holdfast.core.health import detect
from holdfast.core.health.detect import Senses
from holdfast.core.scaling.demand import Ears
from holdfast.core.state import fold
from holdfast.model import action as do
from holdfast.model.event import Event, NodeJoined, NodeTerminated, PolicyApplied, ReplicaStarted
from holdfast.model.node import JOINED, NodeState
from holdfast.model.plan import AGAIN, Plan, Refusal
from holdfast.model.units import NEVER, Instant
from holdfast.model.verdict import Level
from holdfast.model.world import World

Entry = Event | Plan


class Append(msgspec.Struct, frozen=True):
    entries: tuple[Entry, ...]


class Perform(msgspec.Struct, frozen=True):
    id: str
    action: do.Action


class Send(msgspec.Struct, frozen=True):
    node: str


Step = Append | Perform | Send

VAIN_MAX = 100  # empty plans that wait for an append: then they ask for one of their own after all
PERFORMED = (
    do.AskPeers,
    do.AskProvider,
    do.ListPool,
    do.ListOffers,
    do.LaunchNode,
    do.TerminateNode,
    do.ResetNode,
)


class Mind:
    """A leader's world, and what it perceives: heartbeats (`senses`), the load of services (`ears`)."""

    def __init__(self, world: World, *, anew: bool = False) -> None:
        """`anew`: the world was read from a snapshot, and nobody has looked at it since."""
        self.world, self.anew = world, anew
        self.senses = Senses(world.policy.detection)
        self.ears = Ears()
        self.refused: list[Refusal] = []
        self.vain: list[Plan] = []  # empty ones that are not journalled yet; nothing happened between them
        self.vain_look: dict[str, dict[str, None]] | None = None  # of the last, if the next may tell it too

    @classmethod
    def from_journal(cls, entries: Iterable[Entry]) -> "Mind":
        world = World()
        for entry in entries:
            fold.apply(world, entry)
        return cls(world)

    def take_over(self, now: Instant) -> None:
        """Listen to everybody we believe to be there, from now on."""
        self.senses = Senses(self.world.policy.detection)
        self.ears = Ears()
        for name, node in self.world.nodes.items():
            if node.state in JOINED:
                self.senses.beats.add(name, now, quiet=name in self.world.doubtful)

    def undo(self, world: World, now: Instant) -> None:
        """Half a turn failed: the world is as it was journalled. What was heard meanwhile stays heard."""
        beats = self.senses.beats
        self.world, self.vain, self.vain_look = world, [], None
        self.refused.clear()
        beats.policy = world.policy.detection
        for name in [name for name in beats.row if name not in world.nodes]:
            beats.remove(name)
        for name, node in world.nodes.items():
            if node.state in JOINED and node.verdict.level is not Level.DEAD and name not in beats.row:
                beats.add(name, now, quiet=True)

    def next_due(self) -> Instant:
        """When a turn is needed though nothing happens."""
        agenda = self.world.agenda
        if any(agenda.changed.values()) or agenda.room_freed:
            return 0
        return min(agenda.next_due(), self.senses.beats.next_look(), self.ears.next_look(), NEVER)


def turn(mind: Mind, inbox: Iterable[Event], now: Instant) -> Iterator[Step]:
    world = mind.world
    events = list(inbox)
    for event in events:
        fold.observe(world, event)
        _listen(mind, event, now)
    judged = detect.judge(world, mind.senses, now)
    for verdict in judged:
        fold.observe(world, verdict)
        if verdict.verdict.level is Level.DEAD:
            mind.senses.beats.remove(verdict.node)  # its beats no longer count: it must say hello again
    sized = list(mind.ears.judge(world, now))
    for demand in sized:
        fold.observe(world, demand)
    looks = not world.agenda.quiet(now)
    plan, refused = check.examine(world, decide(world, now))
    mind.refused.extend(refused)
    entries: tuple[Entry, ...] = (*events, *judged, *sized)
    if plan.actions or plan.held:
        entries = (*entries, plan)
    if entries or len(mind.vain) >= VAIN_MAX:
        entries, mind.vain = (*mind.vain, *entries), []
        yield Append(entries)
    if looks and not (plan.actions or plan.held):
        _in_vain(mind, plan)
    news = dict.fromkeys(name for event in events for name in _peers_to_tell(world, event))
    before = {name: world.nodes[name].generation for name in touched(world, plan)}
    fold.accept(world, plan)
    for index, action in enumerate(plan.actions):
        if isinstance(action, do.TerminateNode):
            mind.senses.beats.remove(action.node)
        if isinstance(action, PERFORMED):
            yield Perform(plan.action_id(index), action)
    changed = (name for name, generation in before.items() if _generation(world, name) != generation)
    for name in dict.fromkeys((*news, *changed)):
        if name in world.nodes:
            yield Send(name)


def _in_vain(mind: Mind, plan: Plan) -> None:
    """What is due again at a distance from when it was looked at (`fold.accept`) must be told each time. Of
    the rest it is enough to know when it was last looked at: by the next look, if that was at all of it. Else
    a replay would look at it later than we did, when there may be something to do."""
    agenda = mind.world.agenda
    look = agenda.look(plan.at)
    before = mind.vain_look
    if (
        mind.vain
        and before is not None
        and all(names.keys() <= look[k].keys() for k, names in before.items())
    ):
        mind.vain.pop()
    again = look["pool"] or look["fleet"] or agenda.room_freed
    mind.vain_look = None if again else look
    mind.vain.append(plan)


def _generation(world: World, name: str) -> int:
    return world.nodes[name].generation if name in world.nodes else 0


def _peers_to_tell(world: World, event: Event) -> Iterator[str]:
    """A gang is complete, by the last port that was missing or the return of a member: all its nodes need to
    know."""
    names: Iterable[str] = ()
    if isinstance(event, ReplicaStarted) and event.port:
        names = (event.replica,)
    elif isinstance(event, NodeJoined):
        names = world.on_node.get(event.node, ())
    for name in names:
        if name in world.replicas and world.replicas[name].gang:
            members = members_of(world, world.replicas[name])
            if is_complete(world, members):
                yield from (member.node for member in members)


def _listen(mind: Mind, event: Event, now: Instant) -> None:
    match event:
        case NodeJoined(node=name):
            if name in mind.world.nodes:
                mind.senses.beats.add(name, now)
        case NodeTerminated(node=name):
            mind.senses.beats.remove(name)
        case PolicyApplied(policy=policy):
            mind.senses.beats.policy = policy.detection
        case _:
            pass


def touched(world: World, plan: Plan) -> list[str]:
    """Nodes whose desired set the plan may change."""
    names: dict[str, None] = {}
    for action in plan.actions:
        match action:
            case do.PlaceReplica(node=name):
                names[name] = None
            case (
                do.StopReplica(replica=name) | do.PromoteStandby(replica=name) | do.DeclareGone(replica=name)
            ):
                names[world.replicas[name].node] = None
            case do.RegroupGang(members=members):
                names.update({world.replicas[name].node: None for name in members})
            case _:
                pass
    return list(names)


def resume(world: World) -> Iterator[Perform]:
    """What a new leader repeats: whatever was asked for and not confirmed. The ids are the same, so nothing
    happens twice."""
    for name, node in world.nodes.items():
        why = "asked for by the leader before us"
        match node.state:
            case NodeState.LAUNCHING:
                launch = do.LaunchNode(
                    node=name,
                    pool=node.pool,
                    offer=node.offer,
                    place=node.place,
                    capacity=node.capacity,
                    price_micro_usd=node.price_micro_usd,
                    spot=node.spot,
                    standby=node.standby,
                    hedge=node.hedge,
                    price_max_micro_usd=node.price_max_micro_usd,
                    why=why,
                )
                yield Perform(f"{AGAIN}{name}", launch)
            case NodeState.TERMINATING:
                yield Perform(f"{AGAIN}{name}", do.TerminateNode(node=name, why=why))
            case NodeState.RESETTING:
                yield Perform(f"{AGAIN}{name}", do.ResetNode(node=name, why=why))
            case _:
                pass
