"""The transcript: what happened and what was decided, in lines a person can read."""

from typing import assert_never

from holdfast.core.turn import Entry
from holdfast.model import action as do
from holdfast.model import event as ev
from holdfast.model.plan import Plan
from holdfast.model.units import Instant
from holdfast.model.verdict import Level

QUIET = (do.AskProvider, do.ListPool, do.AddSlot, do.RemoveSlot)
OPENING_MS = 2_000  # everybody joins when the story begins: no news


class Line:
    def __init__(self, at: Instant, kind: str, subject: str, text: str) -> None:
        self.at, self.kind, self.subject, self.text = at, kind, subject, text

    def __str__(self) -> str:
        return f"{self.at / 1000:>9.1f}s  {self.kind:<8} {self.subject:<16} {self.text}".rstrip()


class Story:
    def __init__(self) -> None:
        self.lines: list[Line] = []
        self._told: dict[
            tuple[str, str], str
        ] = {}  # what was last said of whom, by kind: not said twice in a row

    def _news(self, kind: str, subject: str, text: str) -> bool:
        news = self._told.get((kind, subject)) != text
        self._told[kind, subject] = text
        return news

    def add(self, at: Instant, kind: str, subject: str, text: str) -> None:
        self.lines.append(Line(at, kind, subject, text))

    def entry(self, at: Instant, entry: Entry) -> None:
        if isinstance(entry, Plan):
            for action in entry.actions:
                if isinstance(action, QUIET):
                    continue  # their answers show in the verdicts
                subject, text = tell_action(action)
                if isinstance(action, do.AskPeers) and not self._news("ask", subject, "asked"):
                    continue  # asked again: told once
                self.add(at, "action", subject, f"{type(action).__name__}{text}: {action.why}")
            for held in entry.held:
                subject, text = tell_action(held.action)
                if self._news("held", subject, held.why):
                    self.add(at, "held", subject, f"{type(held.action).__name__}{text}: {held.why}")
        else:
            told = tell_event(entry)
            if isinstance(entry, ev.NodeJoined) or (
                isinstance(entry, ev.NodeJudged) and entry.verdict.level is Level.ALIVE
            ):
                self._told.pop(("ask", entry.node), None)
            if told and not (isinstance(entry, ev.NodeJoined) and at < OPENING_MS):
                self.add(at, *told)

    def text(self) -> str:
        return "\n".join(str(line) for line in self.lines) + "\n"


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
        case do.RegroupGang(workload=name, generation=generation):
            return name, f" generation {generation}"
        case (
            do.AddSlot(slot=slot)
            | do.CloseSlot(slot=slot)
            | do.RemoveSlot(slot=slot)
            | do.GiveUpSlot(slot=slot)
        ):
            return slot, ""
        case do.EngageBrake(scope=scope) | do.ReleaseBrake(scope=scope):
            return scope, ""
        case do.ListPool(pool=pool):
            return pool, ""
        case do.RaiseFinding(finding=finding):
            return finding.node, f" {finding.name}"
        case (
            do.AskProvider(node=node)
            | do.TerminateNode(node=node)
            | do.WatchNode(node=node)
            | do.CordonNode(node=node)
            | do.UncordonNode(node=node)
            | do.DrainNode(node=node)
            | do.ResetNode(node=node)
            | do.QuarantineNode(node=node)
        ):
            return node, ""
        case _:
            assert_never(action)


def tell_event(event: ev.Event) -> tuple[str, str, str] | None:
    match event:
        case ev.NodeJudged(node=node, verdict=verdict):
            why = "" if verdict.level is Level.ALIVE else f" ({verdict.evidence})"
            return "verdict", node, f"{verdict.level}: {verdict.rule}{why}"
        case ev.NodeJoined(node=node, running=running):
            return "event", node, f"joined, running {len(running)}" if running else "joined"
        case ev.LeaderChanged(leader=leader, generation=generation):
            return "leader", leader, f"leads, generation {generation}"
        case ev.ReplicaReady(replica=replica, node=node):
            return "event", replica, f"ready on {node}"
        case ev.ReplicaEnded(replica=replica, node=node, how=how, why=why):
            return "event", replica, f"{how} on {node}" + (f": {why}" if why else "")
        case ev.NodeTerminated(node=node):
            return "event", node, "its provider confirms that it is gone"
        case ev.ActionFailed(node=node, error=error, why=why):
            return "event", node, f"{error}: {why}"
        case ev.SpotNoticed(node=node):
            return "event", node, "spot notice"
        case ev.LinkClosed(node=node):
            return "event", node, "its link closed"
        case ev.NodeSaidGoodbye(node=node):
            return "event", node, "said goodbye"
        case ev.FindingRaised(finding=finding):
            return "finding", finding.node, f"{finding.name}: {finding.evidence}"
        case ev.WorkloadApplied(workload=workload):
            return (
                "user",
                workload.name,
                f"applied, version {workload.version}" + (", paused" if workload.paused else ""),
            )
        case ev.WorkloadDeleted(workload=name):
            return "user", name, "deleted"
        case ev.OperatorOrdered(order=order, node=node, why=why):
            return "user", node, f"{order}: {why}"
        case ev.NodeReset(node=node):
            return "event", node, "was reset"
        case (
            ev.ProviderAnswered()
            | ev.PeerAnswered()
            | ev.NodeLaunched()
            | ev.PoolListed()
            | ev.ReplicaStarted()
            | ev.CheckpointSaved()
            | ev.FindingCleared()
            | ev.PoolApplied()
            | ev.PolicyApplied()
        ):
            return None
        case _:
            assert_never(event)
