"""Which replica gets this request?

The rule, in order:
1. The first priority that is healthy and has room. A level with more than half of its replicas ejected is
   not healthy: those left get twice their share of the requests and no more (2 x ready / all), the others
   go to the next level; as replicas return, so do the requests. When no level takes it, we doubt ourselves
   before the replicas: fail open, any of the first level, drawn evenly. Not by load: nobody is as idle as
   the dead.
2. A trial that is due (see health) goes first: one request, and it can be sent again elsewhere.
3. Where the session, or the longest known beginning of the prompt, was served before, up to a load of 1.25
   x the mean; otherwise the first from its point on the ring onwards that is not above the mean: the room
   between the mean and the bound is for those who find their work done there. One request is left out of
   the count: this one, or the largest in flight there (up to half of the bound) if that is larger. A prompt
   of 100,000 tokens would otherwise keep away everybody who is known there for as long as it runs. So no
   dispatch leaves a replica above 1.25 x the mean by more than one request, and 92 % of the possible hits
   are had instead of 86 % with nothing but this one left out. Leaving out all of the largest gains 2 % more
   hits, and those who wait behind it wait: the 99th percentile of the first token is then 15 % later (bench
   prefix).
4. Without either, the less loaded of two drawn at random (four if need be), and if those are above the
   bound the least loaded of all.
None: nobody has room, or all that do were tried (`exclude`). The caller holds the request or says so.

Load is outstanding cost over what a replica carries, so the bound is one number for all: 1.25 x (all
outstanding + this cost) / (all carried). There is always somebody at or below the mean, so the bound can
always be kept as long as nobody is cooling, full or excluded; with those it bends: the least loaded of
those left.

Refused: least loaded of all each time (looks at everybody; and several processes that do so agree on the
same victim); scores that add load, cache and queue with weights (nobody can say what a weight should be,
and none of them bounds anything); hashing without a bound (all of the hits, and one replica 30 % busier
than the mean).
"""

import zlib
from bisect import bisect
from collections.abc import Callable, Collection, Iterable, Mapping

from holdfast.core.gateway.routing.endpoints import (
    STEPS_MAX,
    STREAMS_UNLIMITED,
    Level,
    Replica,
)
from holdfast.core.gateway.routing.prefix_affinity import MIX, MIX_MASK, Place
from holdfast.core.gateway.routing.updates import (
    NO_LOAD,
    Load,
    ReplicaSpec,
    Went,
)

BOUND = 1.25
LEFT_OUT_MAX = 0.5  # of the bound
SESSION = 1 << 40  # names of sessions are not names of blocks
NOBODY: frozenset[str] = frozenset()

Draw = Callable[[], float]


class Pool:
    """The replicas of one model or service."""

    __slots__ = ("_levels", "leaving", "name", "replicas")

    def __init__(self, name: str) -> None:
        self.name = name
        self.replicas: dict[str, Replica] = {}  # those wanted
        self.leaving: set[Replica] = set()  # draining, with streams that have not ended
        self._levels: list[Level] = []

    # -- who there is

    def set_replicas(self, wanted: Iterable[ReplicaSpec], now: float) -> None:
        """Who stays keeps load and health; who is missing ends its streams; who is new starts slowly."""
        specs = {spec.id: spec for spec in wanted}
        had_some = bool(self.replicas)
        touched: set[Level] = set()
        for replica in list(self.replicas.values()):
            spec = specs.get(replica.id)
            if spec is None or spec.address != replica.address or spec.priority != replica.priority:
                touched.add(replica.level)
                self._drain(replica, now)
        for spec in specs.values():
            kept = self.replicas.get(spec.id)
            if kept is None:
                touched.add(self._add(spec, now, slowly=had_some))
            elif kept.alter(spec):
                touched.add(kept.level)
        for level in touched:
            level.lay_ring()
            level.weigh(now)
        self._levels = [level for level in self._levels if level.members]

    def _add(self, spec: ReplicaSpec, now: float, *, slowly: bool) -> Level:
        level = self._level(spec.priority)
        replica = self._back(spec)
        if replica is None:
            replica = Replica(spec)
            if slowly:
                replica.health.slow_start(now)
        replica.level = level
        self.replicas[spec.id] = replica
        level.members.append(replica)
        if not replica.health.ejected:
            level.admit(replica, now)
        return level

    def _back(self, spec: ReplicaSpec) -> Replica | None:
        """One that is draining and wanted again is the same one."""
        for replica in self.leaving:
            if replica.id == spec.id and replica.address == spec.address:
                self.leaving.discard(replica)
                replica.draining = False
                replica.alter(spec)
                return replica
        return None

    def _drain(self, replica: Replica, now: float) -> None:
        del self.replicas[replica.id]
        replica.level.members.remove(replica)
        replica.level.dismiss(replica, now)
        replica.draining = True
        if replica.streams:
            self.leaving.add(replica)

    def _level(self, priority: int) -> Level:
        for level in self._levels:
            if level.priority == priority:
                return level
        level = Level(priority)
        self._levels.append(level)
        self._levels.sort(key=lambda each: each.priority)
        return level

    # -- load

    def dispatch(self, replica: Replica, cost: float) -> None:
        replica.streams += 1
        replica.outstanding += cost
        replica.load = replica.outstanding / replica.carries
        if cost > replica.largest:
            replica.largest = cost
        if replica.ready:
            replica.level.outstanding += cost

    def release(self, replica: Replica, cost: float) -> bool:
        """Once for each dispatch, when the stream has ended. False: nothing was in flight there."""
        if replica.streams <= 0:
            return False
        replica.streams -= 1
        before = replica.outstanding
        least = replica.elsewhere.cost
        left = before - cost if replica.streams and before - cost > least else least
        replica.outstanding = left
        replica.load = left / replica.carries
        if cost >= replica.largest:
            replica.largest = replica.elsewhere.largest  # of ours none is known until another one comes
        if replica.ready:
            level = replica.level
            level.outstanding += left - before
            if level.outstanding < 0:
                level.outstanding = 0.0
        elif replica.draining and not replica.streams:
            self.leaving.discard(replica)
        return True

    # -- siblings: other processes that ask the same replicas

    def went(self, prefix: tuple[int, ...] | None, session: str, replica: Replica) -> Went | None:
        """What to tell them of a request that was just sent there."""
        names = (_session(session),) if session else prefix
        return replica.level.places.went(names, replica) if names else None

    def told(self, went: Went) -> None:
        replica = self.replicas.get(went.replica)
        if replica is not None and 0 <= went.first < len(went.prefix):
            replica.level.places.told(went, replica)

    def in_flight(self) -> dict[str, Load]:
        """What to tell them of ours."""
        return {each.id: _own(each) for each in self.replicas.values() if each.streams}

    def told_load(self, loads: Mapping[str, Load]) -> None:
        """What all of them have in flight. Who leaves may come back: it is told too."""
        for replica in (*self.replicas.values(), *self.leaving):
            before, now = replica.elsewhere, loads.get(replica.id, NO_LOAD)
            if before is now:
                continue
            replica.elsewhere = now
            replica.streams_allowed = replica.streams_max - now.streams
            replica.outstanding += now.cost - before.cost
            replica.load = replica.outstanding / replica.carries
            if replica.ready:
                replica.level.outstanding += now.cost - before.cost
            if now.largest > replica.largest or replica.largest <= before.largest:
                replica.largest = now.largest

    def learn_speed(self, replica: Replica, tokens: int, seconds: float, now: float) -> None:
        """The pace of a stream that ended: tokens after the first one, and how long they took."""
        if tokens > 0 and seconds > 0:
            replica.level.learn_speed(replica, tokens / seconds, now)

    # -- results: they go through the pool, which keeps the lists of those that may be asked

    def succeeded(self, replica: Replica, now: float) -> None:
        if replica.health.succeeded(now):
            self._came_in(replica, now)

    def failed(self, replica: Replica, now: float) -> None:
        if replica.health.failed(now):
            self._went_out(replica, now)
        elif not replica.ready:
            replica.level.weigh(now)

    def unreachable(self, replica: Replica, now: float) -> None:
        if replica.health.unreachable(now):
            self._went_out(replica, now)
        elif not replica.ready:
            replica.level.weigh(now)

    def pushed_back(self, replica: Replica, retry_after_s: float, now: float) -> None:
        if replica.health.pushed_back(now, retry_after_s):
            self._came_in(replica, now)

    def probed(self, replica: Replica, good: bool, now: float) -> None:
        if replica.health.probed(good, now):
            self._went_out(replica, now)
        elif not replica.ready:
            replica.level.weigh(now)

    def _came_in(self, replica: Replica, now: float) -> None:
        if not replica.draining:
            replica.level.admit(replica, now)

    def _went_out(self, replica: Replica, now: float) -> None:
        if not replica.draining:
            replica.level.dismiss(replica, now)

    # -- the choice

    def pick(
        self,
        cost: float,
        prefix: tuple[int, ...] | None,
        session: str,
        now: float,
        draw: Draw,
        exclude: Collection[str] = NOBODY,
        *,
        patient: bool = False,
    ) -> Replica | None:
        """`patient`: it can wait, so nobody who is out is asked before its time."""
        for level in self._levels:
            if now >= level.wake_at:
                trial = _trial(level, now, exclude)
                if trial is not None:
                    return trial
            ready = len(level.ready)
            if 2 * ready >= len(level.members) or draw() * len(level.members) < 2 * ready:
                replica = _choose(level, cost, prefix, session, now, draw, exclude)
                if replica is not None:
                    return replica
        return None if patient else self._fail_open(now, draw, exclude)

    def _fail_open(self, now: float, draw: Draw, exclude: Collection[str]) -> Replica | None:
        for level in self._levels:
            if 2 * len(level.ready) >= len(level.members):
                continue
            open_to = [r for r in level.members if _may(r, now, exclude)]
            if open_to:
                replica = open_to[int(draw() * len(open_to))]
                if replica.health.ejected:
                    replica.health.take_trial(now)
                return replica
        return None

    # -- what others want to know

    @property
    def outstanding(self) -> float:
        return sum(replica.outstanding for replica in self.replicas.values())

    def saturation(self) -> float:
        """Streams over what those that are ready allow; 0 when nobody says what it allows. It looks at
        everybody: to be asked now and then, not for each request."""
        ready = [r for level in self._levels for r in level.ready if r.streams_max < STREAMS_UNLIMITED]
        allowed = sum(replica.streams_max for replica in ready)
        streams = sum(replica.streams + replica.elsewhere.streams for replica in ready)
        return streams / allowed if allowed else 0.0

    def room(self, now: float) -> bool:
        """Whether those who wait should be let go: somebody is free, or due for a trial. Failing open is for
        those who just came: who waits would be sent to the dead as fast as it comes back."""
        return any(
            (replica.health.usable(now) or replica.health.trial_due(now))
            and replica.streams < replica.streams_allowed
            for level in self._levels
            for replica in level.members
        )


def _trial(level: Level, now: float, exclude: Collection[str]) -> Replica | None:
    level.weigh(now)
    for replica in level.members:
        free = replica.streams < replica.streams_allowed and replica.id not in exclude
        if free and replica.health.trial_due(now):
            replica.health.take_trial(now)
            level.weigh(now)
            return replica
    return None


def summed(several: Iterable[Mapping[str, Load]]) -> dict[str, Load]:
    """What several have in flight together."""
    found: dict[str, Load] = {}
    for loads in several:
        for id, load in loads.items():
            had = found.get(id, NO_LOAD)
            largest = max(had.largest, load.largest)
            found[id] = Load(had.cost + load.cost, largest, had.streams + load.streams)
    return found


def _own(replica: Replica) -> Load:
    theirs = replica.elsewhere
    largest = replica.largest if replica.largest > theirs.largest else 0.0  # else it may be theirs
    return Load(replica.outstanding - theirs.cost, largest, replica.streams)


def _session(name: str) -> int:
    return zlib.crc32(name.encode()) | SESSION


def _may(replica: Replica, now: float, exclude: Collection[str]) -> bool:
    """When failing open: ejected or not, but not cooling, full or tried."""
    health = replica.health
    cooling = not health.ejected and health.barred_until > now
    return not cooling and replica.streams < replica.streams_allowed and replica.id not in exclude


def _choose(
    level: Level,
    cost: float,
    prefix: tuple[int, ...] | None,
    session: str,
    now: float,
    draw: Draw,
    exclude: Collection[str],
) -> Replica | None:
    ready = level.ready
    if not ready:
        return None
    limit = BOUND * (level.outstanding + cost) / level.carries
    place: Place | None = None
    if session:
        place = level.places.find_session(_session(session))
    elif prefix:
        place = level.places.find(prefix)
    if place is not None:
        replica = _at(place, level, cost, limit, now, exclude)
    else:
        replica = _of_two(ready, cost, limit, now, draw, exclude)
    if replica is None:
        replica = _least(ready, now, exclude)
    if place is not None and replica is not None:
        place.served_by(replica)
    return replica


def _at(
    place: Place, level: Level, cost: float, limit: float, now: float, exclude: Collection[str]
) -> Replica | None:
    """The least loaded of those that know it, or the next on the ring."""
    best: Replica | None = None
    for replica in place.replicas:
        if replica.ready and (best is None or replica.load < best.load):
            if _fits(replica, cost, limit, now) and replica.id not in exclude:
                best = replica
    if best is not None:
        return best
    if place.replicas and not exclude:
        place.spills += 1
    limit /= BOUND
    owners = level.owners  # the first ones stand at its end again
    at = bisect(level.points, (place.key * MIX) & MIX_MASK)
    for step in range(at, at + STEPS_MAX):
        replica = owners[step]
        if replica.ready and _fits(replica, cost, limit, now) and replica.id not in exclude:
            return replica
    return None


def _of_two(
    ready: list[Replica], cost: float, limit: float, now: float, draw: Draw, exclude: Collection[str]
) -> Replica | None:
    count = len(ready)
    if count == 1:
        return None  # the scan is as good
    for _ in range(2):
        one = int(draw() * count)
        other = int(draw() * (count - 1))
        if other >= one:
            other += 1
        less, more = ready[one], ready[other]
        if more.load < less.load:
            less, more = more, less
        if _fits(less, cost, limit, now) and less.id not in exclude:
            return less
        if _fits(more, cost, limit, now) and more.id not in exclude:
            return more
    return None


def _fits(replica: Replica, cost: float, limit: float, now: float) -> bool:
    """Not cooling, not full, and within the bound with one request left out."""
    most = limit * replica.carries
    left_out = replica.largest
    if left_out > most * LEFT_OUT_MAX:
        left_out = most * LEFT_OUT_MAX
    if left_out < cost:
        left_out = cost
    return (
        replica.outstanding + cost - left_out <= most
        and replica.health.barred_until <= now
        and replica.streams < replica.streams_allowed
    )


def _least(ready: list[Replica], now: float, exclude: Collection[str]) -> Replica | None:
    best: Replica | None = None
    for replica in ready:
        if best is None or replica.load < best.load:
            if (
                replica.health.barred_until <= now
                and replica.streams < replica.streams_allowed
                and replica.id not in exclude
            ):
                best = replica
    return best
