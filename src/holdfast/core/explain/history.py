"""What a journal entry says to a person.

The question: which lines does an entry have in a history, and about whom are they? A plan has a line for each
action and for each that the brake held; an event has one or none. Each line names its node and its workload
where the entry itself says them, so that a store can file it without knowing what entries mean.

A line is a function of its entry alone. To look up in the world on which node a stopped replica was, or to
leave out what was said a moment ago, would make a line depend on when it was written, and a history that is
built again from the journal would differ. (Its project comes from outside: it does not change what is said,
but who may read it.) Whoever wants less (the simulator's transcript does) leaves out.
"""

import re
from collections.abc import Mapping
from typing import assert_never

from msgspec.structs import replace

from holdfast.model import action as do
from holdfast.model import event as ev
from holdfast.model.finding import Finding
from holdfast.model.gateway import Grade, Limits, scope_of_key
from holdfast.model.plan import Plan
from holdfast.model.told import Told
from holdfast.model.units import MINUTE, many, seconds
from holdfast.model.verdict import Level, Word
from holdfast.model.workload import Workload

Entry = ev.Event | Plan  # as in core.turn, which runs everything: a store need not load all that

# Nobody would want to read of these: a dead node's provider is asked again every few seconds.
BOOKKEEPING = (do.AskProvider, do.ListPool, do.ListOffers, do.AddSlot, do.RemoveSlot)

# How a node's runtime says that something ended, and the signals that people know by name.
ASKED = "asked to stop: "
SIGNAL = re.compile(r"signal (\d+)")
TURNS = ("paused", "resumed")
NOTHING: Mapping[str, str] = {}
CHANGES_TOLD = 8
CHANGE_LENGTH = 120
SIGNALS = {"1": "SIGHUP", "2": "SIGINT", "6": "SIGABRT", "9": "SIGKILL", "11": "SIGSEGV", "15": "SIGTERM"}


def lines(seq: int, entry: Entry, project_of: Mapping[str, str] = NOTHING) -> tuple[Told, ...]:
    """The lines of the journal's entry number `seq`. `project_of`: of workloads, but for the default one."""
    told = _lines(seq, entry)
    if not project_of:
        return told
    return tuple(replace(line, project=project_of.get(line.workload, "")) for line in told)


def _lines(seq: int, entry: Entry) -> tuple[Told, ...]:
    if isinstance(entry, Plan):
        actions = (a for a in entry.actions if not isinstance(a, BOOKKEEPING))
        return (
            *(_line(seq, entry, "action", action, action.why) for action in actions),
            *(_line(seq, entry, "held", held.action, held.why) for held in entry.held),
        )
    told = tell_event(entry)
    if told is None:
        return ()
    actor = entry.actor if isinstance(entry, ev.UserMade) else ""
    return (Told(seq, entry.at, *told, node=_node(entry), workload=_workload(entry), actor=actor),)


def _line(seq: int, plan: Plan, kind: str, action: do.Action, why: str) -> Told:
    subject, text = say_action(action, why)
    return Told(seq, plan.at, kind, subject, text, node=_node(action), workload=_workload(action))


def say_action(action: do.Action, why: str) -> tuple[str, str]:
    """Who or what it is about, and the line."""
    subject, text = tell_action(action)
    return subject, f"{type(action).__name__}{text}: {why}"


# By the names of fields and not by type: these are asked of every line, and a new action is filed by itself.


def _node(entry: object) -> str:
    finding: Finding | None = getattr(entry, "finding", None)
    node: str = finding.node if finding else getattr(entry, "node", "")
    return node


def _workload(entry: object) -> str:
    named: str | Workload = getattr(entry, "workload", "")
    if isinstance(named, Workload):
        return named.name
    return named or workload_of(getattr(entry, "slot", "") or getattr(entry, "replica", ""))


def workload_of(seat: str) -> str:
    """Whose slot ("web/0") or replica ("web/0.3") it is."""
    return seat.rpartition("/")[0]


def tell_action(action: do.Action) -> tuple[str, str]:
    """Who or what it is about, and the details that its reason does not say."""
    match action:
        case do.AskPeers(node=node, peers=peers):
            return node, f" {', '.join(peers) or 'nobody'}"
        case do.PlaceReplica(replica=replica, node=node, resume_ms=resume):
            return replica, f" on {node}" + (f" from {resume / 1000:.0f}s" if resume else "")
        case do.PromoteStandby(replica=replica, slot=slot):
            return slot, f" {replica}"
        case do.StopReplica(replica=replica) | do.DeclareGone(replica=replica):
            return replica, ""
        case do.LaunchNode(node=node, offer=offer):
            return node, f" {offer}"
        case do.TakeWay(workload=name, way=way):
            return name, f" {way}"
        case do.RegroupGang(workload=name, generation=generation, restart=restart):
            return name, f" generation {generation}" + (", all start anew" if restart else "")
        case do.DeclareLate(workload=name):
            return name, ""
        case (
            do.AddSlot(slot=slot)
            | do.CloseSlot(slot=slot)
            | do.RemoveSlot(slot=slot)
            | do.GiveUpSlot(slot=slot)
        ):
            return slot, ""
        case do.EngageBrake(scope=scope) | do.ReleaseBrake(scope=scope) | do.NarrowBrake(scope=scope):
            return scope, ""
        case do.ListPool(pool=pool) | do.ListOffers(pool=pool) | do.ForgetPool(pool=pool):
            return pool, ""
        case do.RaiseFinding(finding=finding):
            return finding.node, f" {finding.name}"
        case do.ClearFinding(node=node, name=name):
            return node, f" {name}"
        case (
            do.AskProvider(node=node)
            | do.TerminateNode(node=node)
            | do.WatchNode(node=node)
            | do.CordonNode(node=node)
            | do.UncordonNode(node=node)
            | do.DrainNode(node=node)
            | do.GiveNotice(node=node)
            | do.ResetNode(node=node)
            | do.QuarantineNode(node=node)
        ):
            return node, ""
        case _:
            assert_never(action)


def tell_event(event: ev.Event) -> tuple[str, str, str] | None:
    """Kind, subject and text; none: nobody would want to read it."""
    match event:
        case ev.NodeJudged(node=node, verdict=verdict):
            why = "" if verdict.level is Level.ALIVE else f" ({verdict.evidence})"
            return "verdict", node, f"{verdict.level}: {verdict.rule}{why}"
        case ev.LeaderChanged(leader=leader, generation=generation, stepped_ms=ms):
            step = f"; its clock was set forward by {seconds(ms)}: not charged" if ms >= MINUTE else ""
            return "leader", leader, f"leads, generation {generation}{step}"
        case ev.JournalBehind(node=node, why=why):
            return "event", node or "journal", f"the journal is older than what was done: {why}"
        case ev.FindingRaised(finding=finding):
            return "finding", finding.node, f"{finding.name}: {finding.evidence}"
        case ev.FindingCleared(node=node, name=name):
            return "finding", node, f"{name}: cleared"
        case ev.DemandJudged(workload=name, wanted=wanted, why=why):
            return "event", name, f"wants {many(wanted, 'replica')}: {why}"
        case ev.ReplicaStarted() | ev.ReplicaReady() | ev.ReplicaEnded():
            return "event", event.replica, _tell_replica(event)
        case (
            ev.WorkloadApplied()
            | ev.WorkloadDeleted()
            | ev.WorkloadRetried()
            | ev.WorkloadRestarted()
            | ev.PoolApplied()
            | ev.PoolDeleted()
            | ev.PolicyApplied()
            | ev.ProjectApplied()
            | ev.OperatorOrdered()
        ):
            return "user", *_tell_order(event)
        case ev.KeyPut() | ev.KeyDeleted() | ev.LimitsSet():
            return "user", *_tell_gateway(event)
        case ev.TokenMade(token=id, what=what):
            return "user", f"token:{id}", f"made: {what}"
        case ev.TokenRevoked(token=id):
            return "user", f"token:{id}", "revoked"
        case (
            ev.NodeJoined()
            | ev.NodeSaidGoodbye()
            | ev.SpotNoticed()
            | ev.LinkClosed()
            | ev.PeerAnswered()
            | ev.NodeLaunched()
            | ev.NodeTerminated()
            | ev.NodeReset()
            | ev.ActionFailed()
        ):
            return "event", event.node, _tell_node(event)
        case ev.PoolListed() | ev.OffersListed() | ev.CheckpointSaved() | ev.BudgetDrawn():
            return None
        case ev.ProviderAnswered(node=node, word=word):
            return ("event", node, f"its provider says: {word}") if word is Word.STOPPED else None
        case _:
            assert_never(event)


def _tell_replica(event: ev.ReplicaStarted | ev.ReplicaReady | ev.ReplicaEnded) -> str:
    match event:
        case ev.ReplicaStarted(node=node, port=port):
            return f"started on {node}" + (f", port {port}" if port else "")
        case ev.ReplicaReady(node=node):
            return f"ready on {node}"
        case ev.ReplicaEnded(node=node, how=how, why=why):
            return f"{how} on {node}{_ending(how, why)}"
        case _:
            assert_never(event)


def _ending(how: ev.Ended, why: str) -> str:
    """A signal by its name; and that a stopped one was asked to stop need not be said."""
    said = SIGNAL.sub(lambda found: SIGNALS.get(found[1], found[0]), why)
    if how is ev.Ended.STOPPED and said.startswith(ASKED):
        return f" ({said.removeprefix(ASKED).removeprefix('killed by ')})"
    return f": {said}" if said else ""


def _tell_order(
    event: ev.WorkloadApplied
    | ev.WorkloadDeleted
    | ev.WorkloadRetried
    | ev.WorkloadRestarted
    | ev.PoolApplied
    | ev.PoolDeleted
    | ev.PolicyApplied
    | ev.ProjectApplied
    | ev.OperatorOrdered,
) -> tuple[str, str]:
    """What somebody wanted: of whom or what, and what."""
    match event:
        case ev.WorkloadApplied(workload=workload):
            return workload.name, _applied(workload, event.changes)
        case ev.WorkloadDeleted(workload=name):
            return name, "deleted"
        case ev.WorkloadRetried(workload=name):
            return name, "retried: what failed starts again"
        case ev.WorkloadRestarted(workload=name):
            return name, "restarted"
        case ev.PoolApplied(pool=pool):
            return pool.name, f"pool applied, {pool.min} to {many(pool.max, 'node')}{_changed(event.changes)}"
        case ev.PoolDeleted(pool=name):
            return name, "pool deleted: its nodes are emptied and let go"
        case ev.PolicyApplied():
            return "policy", f"applied{_changed(event.changes)}"
        case ev.ProjectApplied(project=project):
            return project.name, f"quota of the project applied{_changed(event.changes)}"
        case ev.OperatorOrdered(order=order, node=node, why=why, pool=pool):
            named = event.actor and why == ev.BY_HAND  # whose hand it was is said beside it
            return node or pool, f"{order}" if named else f"{order}: {why}"
        case _:
            assert_never(event)


def _applied(workload: Workload, changes: tuple[str, ...]) -> str:
    """Pausing and resuming are changes like any other, and words of their own."""
    version, others = f"version {workload.version}", tuple(word for word in changes if word not in TURNS)
    word = "paused" if workload.paused else "resumed" if "resumed" in changes else "applied"
    return f"{word}, {version}{_changed(others)}"


def _changed(changes: tuple[str, ...]) -> str:
    """A line, however much was changed."""
    if not changes:
        return ""
    more = f", and {many(left, 'more change')}" if (left := len(changes) - CHANGES_TOLD) > 0 else ""
    said = (word if len(word) <= CHANGE_LENGTH else f"{word[: CHANGE_LENGTH - 3]}..." for word in changes)
    return f": {', '.join(list(said)[:CHANGES_TOLD])}{more}"


def _tell_gateway(event: ev.KeyPut | ev.KeyDeleted | ev.LimitsSet) -> tuple[str, str]:
    """Whose it is and what became of it; never its hash."""
    match event:
        case ev.KeyPut(key=key) if key.suspended:
            return scope_of_key(key.id), f"suspended: {key.suspended}"
        case ev.KeyPut(key=key) if key.grade is Grade.CLAMP:
            return scope_of_key(key.id), "held back: it seems to work for nobody"
        case ev.KeyPut(key=key) if key.replaced_at:
            return scope_of_key(key.id), "replaced by another key"
        case ev.KeyPut(key=key):
            whose = ", ".join(word for word in (key.owner, key.team and f"team {key.team}") if word)
            good = f"good{whose and f' for {whose}'}{_more(key.limits)}"
            return scope_of_key(key.id), good + _changed(event.changes)
        case ev.KeyDeleted(key=id):
            return scope_of_key(id), "deleted"
        case ev.LimitsSet(scope=scope, limits=limits):
            return scope, (_limits(limits) or "not limited any more") + _changed(event.changes)
        case _:
            assert_never(event)


def _more(limits: Limits) -> str:
    found = _limits(limits)
    return f", {found}" if found else ""


def _limits(limits: Limits) -> str:
    said = {
        "a minute": (limits.tokens_per_min, "token"),
        "each minute": (limits.requests_per_min, "request"),
        "at a time": (limits.concurrent, "request"),
        "in all": (limits.tokens_total, "token"),
    }
    words = [f"{many(n, what)} {per}" for per, (n, what) in said.items() if n is not None]
    return f"at most {', '.join(words)}" if words else ""


NodeNews = (
    ev.NodeJoined
    | ev.NodeSaidGoodbye
    | ev.SpotNoticed
    | ev.LinkClosed
    | ev.PeerAnswered
    | ev.NodeLaunched
    | ev.NodeTerminated
    | ev.NodeReset
    | ev.ActionFailed
)


def _tell_node(event: NodeNews) -> str:
    match event:
        case ev.NodeJoined(running=running):
            return f"joined with {many(len(running), 'replica')}" if running else "joined"
        case ev.NodeSaidGoodbye():
            return "said goodbye"
        case ev.SpotNoticed(own=own):
            return "is leaving" if own else "spot notice"
        case ev.LinkClosed():
            return "its link closed"
        case ev.PeerAnswered(peer=peer, answer=answer):
            return f"{peer} probed it: {answer}"
        case ev.NodeLaunched():
            return "launched: its provider has it"
        case ev.NodeTerminated(found=found):
            return "its provider confirms that it is gone" if found else "its provider does not have it"
        case ev.NodeReset():
            return "was reset"
        case ev.ActionFailed(error=error, why=why):
            return f"{error}: {why}"
        case _:
            assert_never(event)
