"""The transcript: what happened and what was decided, in lines a person can read.

The words are those of the history (`core.explain.history`); a transcript is read from end to end, so it
leaves out what shows in a later line, and what was just said.
"""

from holdfast.core.explain.history import BOOKKEEPING, say_action, tell_event
from holdfast.core.turn import Entry
from holdfast.model import action as do
from holdfast.model import event as ev
from holdfast.model.plan import Plan
from holdfast.model.units import Instant
from holdfast.model.verdict import Level

QUIET = (do.AskProvider, *BOOKKEEPING)  # the answers show in the verdicts
UNTOLD = (
    ev.ProviderAnswered,
    ev.PeerAnswered,
    ev.NodeLaunched,
    ev.ReplicaStarted,
    ev.FindingCleared,
    ev.PoolApplied,
    ev.PolicyApplied,
    ev.ProjectApplied,
)
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
                    continue
                subject, text = say_action(action, action.why)
                if isinstance(action, do.AskPeers) and not self._news("ask", subject, "asked"):
                    continue  # asked again: told once
                self.add(at, "action", subject, text)
            for held in entry.held:
                subject, text = say_action(held.action, held.why)
                if self._news("held", subject, held.why):
                    self.add(at, "held", subject, text)
        else:
            told = None if isinstance(entry, UNTOLD) else tell_event(entry)
            if isinstance(entry, ev.NodeJoined) or (
                isinstance(entry, ev.NodeJudged) and entry.verdict.level in (Level.ALIVE, Level.DEAD)
            ):
                self._told.pop(("ask", entry.node), None)
            if told and not (isinstance(entry, ev.NodeJoined) and at < OPENING_MS):
                self.add(at, *told)

    def text(self) -> str:
        return "\n".join(str(line) for line in self.lines) + "\n"
