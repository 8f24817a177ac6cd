"""What a reader should hear of thousands of requests: a line when something changes, none for a request.

What happens again and again within a few seconds is an episode: its beginning is told if that is news, and
its end with how often it happened.
"""

from typing import TYPE_CHECKING

from holdfast.core.gateway.routing.endpoints import Replica
from holdfast.model.gateway import Grade, scope_of_key
from holdfast.model.units import SECOND, Instant, Millis, many, seconds
from holdfast.sim.traffic.exchange import End, Exchange

if TYPE_CHECKING:
    from holdfast.sim.traffic.gateway import Front
    from holdfast.sim.traffic.service import Fronted
    from holdfast.sim.traffic.traffic import Traffic

QUIET_MS = {"failed": 2 * SECOND, "waits": 5 * SECOND, "refused": 60 * SECOND}
REFUSED = {
    "tokens": "has used up its tokens: it is refused",
    "requests": "has used up its requests: it is refused",
    "concurrent": "has as many requests at once as it may: it is refused",
    "total": "has spent its budget: it is refused",
    "held": "has its budget held by requests that run: it is refused",
    "never": "wants more than it can ever have: it is refused",
    "unavailable": "nobody can say what is left of its quota: it is refused",
    "recovering": "whoever counts its quota has started anew, and does not lend so much yet: it is refused",
    "model_warming": "nobody is ready in time: it is refused",
    "no_capacity": "everybody is busy or failing: it is refused",
    "upstream_failed": "whoever was asked failed: it is refused",
    "upstream_timeout": "no answer in time: it is refused",
    "busy": "everybody has enough to do: it is refused",
    "no gateway": "no gateway is there",
    "suspended": "is suspended: it is refused",
}


class Episode:
    def __init__(self, now: Instant) -> None:
        self.began = self.last = now
        self.times = self.cut = 0


class Teller:
    def __init__(self, traffic: "Traffic") -> None:
        self.traffic, self.kernel = traffic, traffic.sim.kernel
        self._episodes: dict[tuple[str, str], Episode] = {}

    def say(self, subject: str, text: str) -> None:
        story = self.traffic.sim.story
        if story is not None:
            story.add(self.kernel.now, "gateway", subject, text)

    # what happens once

    def closed(self, front: "Front", *, closed: bool) -> None:
        opens = front.traits.fail_open
        policy = f"it {'lets in' if opens else 'refuses'} what its lease does not cover"
        self.say(front.name, f"nobody lends to it: {policy}" if closed else "is lent to again")

    def ejected(self, service: "Fronted", replica: Replica, kind: str) -> None:
        why = {"connect": "no connection", "lost": "it loses connections", "timeout": "nothing comes from it"}
        if not replica.draining:
            self.say(service.front.name, f"asks {replica.id} no more: {why[kind]}")

    def readmitted(self, service: "Fronted", replica: Replica) -> None:
        self.say(service.front.name, f"asks {replica.id} again, a little at first")

    def judged(self, front: "Front", key: str, grade: Grade, why: str) -> None:
        does = "would be" if front.traits.shadow else "is"
        done = {Grade.CLAMP: f"{does} held back", Grade.SUSPEND: f"{does} suspended"}
        self.say(scope_of_key(key), f"{done.get(grade, str(grade))} by {front.name}{why and f': {why}'}")

    # what happens often

    def failed(self, service: "Fronted", replica: Replica, *, cut: bool) -> None:
        episode = self._note("failed", replica.id)
        if cut:
            episode.cut += 1
        else:
            episode.times += 1
            self.traffic.tallies[service.name].asked_again += 1

    def waits(self, service: "Fronted") -> None:
        if ("waits", service.name) not in self._episodes:
            self.say(service.name, "nobody can answer now: requests wait")
        self._note("waits", service.name)

    def ended(self, exchange: Exchange) -> None:
        if exchange.end is End.REFUSED:
            kind, _, scope = exchange.reason.partition(" ")
            self.refused(scope or exchange.service.name, kind)

    def refused(self, subject: str, reason: str) -> None:
        if ("refused", subject) not in self._episodes:
            self.say(subject, REFUSED[reason])
        self._note("refused", subject).times += 1

    def _note(self, kind: str, subject: str) -> Episode:
        now = self.kernel.now
        episode = self._episodes.get((kind, subject))
        if episode is None:
            episode = self._episodes[kind, subject] = Episode(now)
            self.kernel.after(QUIET_MS[kind], self._quiet, kind, subject)
        episode.last = now
        return episode

    def _quiet(self, kind: str, subject: str) -> None:
        """Is it over?"""
        episode = self._episodes[kind, subject]
        if kind == "waits" and any(f.waits_for(subject) for f in self.traffic.fronts.values()):
            episode.last = self.kernel.now
        left = episode.last + QUIET_MS[kind] - self.kernel.now
        if left > 0:
            self.kernel.after(left, self._quiet, kind, subject)
            return
        del self._episodes[kind, subject]
        self.say(subject, self._summed_up(kind, subject, episode, episode.last - episode.began))

    def _summed_up(self, kind: str, subject: str, episode: Episode, lasted_ms: Millis) -> str:
        if kind == "failed":
            again = f"{many(episode.times, 'request')} to it asked of others" if episode.times else ""
            cut = f"{many(episode.cut, 'answer')} of it cut" if episode.cut else ""
            return ", ".join(filter(None, (again, cut)))
        if kind == "waits":
            tally = self.traffic.tallies[subject]
            return (
                f"nobody waits any more: {tally.waits} did so far, at most {seconds(tally.longest_wait_ms)}"
            )
        return f"{many(episode.times, 'request')} refused within {seconds(lasted_ms)}, none since"
