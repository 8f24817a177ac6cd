"""Who could answer, and how much does each have to do?

The load of a replica is the token cost of what was sent to it and has not ended: counted when it is sent,
taken back when the stream ends, changed by nothing else. Peers that count when the answer begins send a
burst to one replica; that take back when the headers return see no load while tokens flow; that let a
health check set the count to zero balance on noise.

What a replica can carry is weight x relative speed x slow-start share (`carries`). Its speed is tokens per
second of one stream, not of the replica: throughput falls when little is sent, so balancing on it starves
whoever starved; the pace of a stream falls when much is sent, which is the direction that heals. It counts
only relative to the others and at most fourfold either way.

Everything a pick reads is kept up to date where it changes: sums per level (a priority), the list of those
that are ready, the ring, the load. So a pick looks at a few replicas, not at all of them. The ring holds
everybody who is not draining, ejected or not: an ejection moves only the prefixes of the ejected, and moves
them back.

Refused: asking replicas for their queue length. Their gauges are seconds old, and ours is exact for what we
sent.
"""

import math
import zlib

from holdfast.core.gateway.routing.outlier import Health
from holdfast.core.gateway.routing.prefix_affinity import MIX, MIX_MASK, Places
from holdfast.core.gateway.routing.updates import NO_LOAD, ReplicaSpec

POINTS = 128  # on the ring, for a weight of 1
POINTS_MAX = 512
STEPS_MAX = 32  # along the ring, before the search becomes a scan
SPEED_STEP = 0.1
SPEED_RATIO_MAX = 4.0
RAMP_STEP_S = 1.0
STREAMS_UNLIMITED = 1 << 60


class Replica:
    __slots__ = (
        "address",
        "carries",
        "connection_pool",
        "draining",
        "elsewhere",
        "health",
        "id",
        "largest",
        "level",
        "load",
        "lost",
        "outstanding",
        "priority",
        "ready",
        "speed",
        "streams",
        "streams_allowed",
        "streams_max",
        "weight",
    )

    level: "Level"  # set by the pool that it belongs to

    def __init__(self, spec: ReplicaSpec) -> None:
        self.id = spec.id
        self.address = spec.address
        self.weight = 0.0
        self.priority = 0
        self.streams_max = 0
        self.elsewhere = NO_LOAD  # what siblings of this process have sent, as they last said
        self.alter(spec)
        self.outstanding = 0.0  # token cost in flight, theirs too
        self.streams = 0
        self.largest = 0.0  # cost of one request in flight: the largest, or less when that is not known
        self.speed = 0.0  # tokens per second of a stream; 0: not known
        self.carries = spec.weight
        self.load = 0.0  # outstanding / carries
        self.draining = False
        self.lost = False  # somebody says that it answers no more
        self.ready = False  # in its level's list of those that may be asked
        self.health = Health()
        self.connection_pool: object = None  # the shell's

    def alter(self, spec: ReplicaSpec) -> bool:
        """What may change while it runs. Whether anything did."""
        before = (self.weight, self.priority, self.streams_max)
        self.weight, self.priority = spec.weight, spec.priority
        self.streams_max = spec.streams_max or STREAMS_UNLIMITED
        self.streams_allowed = self.streams_max - self.elsewhere.streams
        return before != (self.weight, self.priority, self.streams_max)

    def __repr__(self) -> str:
        return f"Replica({self.id!r}, outstanding={self.outstanding}, streams={self.streams})"


class Level:
    """The replicas of one priority that are not draining, and the sums over those that are ready."""

    __slots__ = (
        "carries",
        "members",
        "outstanding",
        "owners",
        "places",
        "points",
        "priority",
        "ready",
        "speed",
        "wake_at",
    )

    def __init__(self, priority: int) -> None:
        self.priority = priority
        self.members: list[Replica] = []
        self.ready: list[Replica] = []
        self.outstanding = 0.0
        self.carries = 0.0
        self.speed = 0.0  # the usual one of its replicas
        self.wake_at = math.inf  # when a trial is due, or a slow start goes on
        self.points: list[int] = []  # the ring: where, and whose
        self.owners: list[Replica] = []
        self.places = Places()

    def admit(self, replica: Replica, now: float) -> None:
        replica.ready = True
        self.ready.append(replica)
        self.weigh(now)

    def dismiss(self, replica: Replica, now: float) -> None:
        if replica.ready:
            replica.ready = False
            self.ready.remove(replica)
        self.weigh(now)

    def weigh(self, now: float) -> None:
        """All sums anew: when somebody came, went or was judged, and each second of a slow start."""
        wake = math.inf
        self.carries = self.outstanding = 0.0
        for replica in self.members:
            health = replica.health
            share = health.share(now)
            if share < 1:
                wake = min(wake, now + RAMP_STEP_S)
            if health.ejected:
                wake = min(wake, health.barred_until)
            replica.carries = replica.weight * share * self._pace(replica)
            replica.load = replica.outstanding / replica.carries
            if replica.ready:
                self.carries += replica.carries
                self.outstanding += replica.outstanding
        self.wake_at = wake

    def learn_speed(self, replica: Replica, tokens_per_s: float, now: float) -> None:
        replica.speed += SPEED_STEP * (tokens_per_s - replica.speed) if replica.speed else tokens_per_s
        step = SPEED_STEP / max(1, len(self.members))
        self.speed += step * (tokens_per_s - self.speed) if self.speed else tokens_per_s
        carries = replica.weight * replica.health.share(now) * self._pace(replica)
        if replica.ready:
            self.carries += carries - replica.carries
        replica.carries = carries
        replica.load = replica.outstanding / carries

    def lay_ring(self) -> None:
        """Points depend on the id alone, so that others' points stay where they are."""
        laid: list[tuple[int, str, Replica]] = []
        for replica in self.members:
            count = max(1, min(POINTS_MAX, round(POINTS * replica.weight)))
            seed = zlib.crc32(replica.id.encode()) * MIX
            laid.extend((_stirred(seed + MIX * number), replica.id, replica) for number in range(count))
        laid.sort(key=lambda point: point[:2])
        self.points = [point for point, _, _ in laid]
        owners = [replica for _, _, replica in laid]
        self.owners = owners + (owners * STEPS_MAX)[:STEPS_MAX]

    def _pace(self, replica: Replica) -> float:
        if not replica.speed or not self.speed:
            return 1.0
        return min(max(replica.speed / self.speed, 1 / SPEED_RATIO_MAX), SPEED_RATIO_MAX)


def _stirred(number: int) -> int:
    """Each bit of it depends on each bit of the number (the last steps of splitmix64): crc32 alone would lay
    the points of all replicas in the same pattern."""
    number &= MIX_MASK
    number = ((number ^ number >> 30) * 0xBF58476D1CE4E5B9) & MIX_MASK
    number = ((number ^ number >> 27) * 0x94D049BB133111EB) & MIX_MASK
    return number ^ number >> 31
