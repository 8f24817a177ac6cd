"""Where the journal is kept, and who may write it."""

from collections.abc import Mapping
from typing import Protocol

import msgspec

from holdfast.model.event import Event
from holdfast.model.plan import Plan
from holdfast.model.told import Told
from holdfast.model.units import MINUTE, Instant, Millis

NOTHING: Mapping[str, str] = {}
TAILS_BYTES_MAX = 64 << 20  # of all tails; the oldest go first
TAIL_COSTS = 4 << 10  # bytes that each counts besides its own
ABSENT_MS: Millis = 1 * MINUTE  # a control plane that has not announced itself for so long is gone


class Leadership(msgspec.Struct, frozen=True):
    leader: str  # empty: nobody has ever led
    generation: int
    left_ms: Millis  # how long it still holds, by the store's own clock; 0: it has run out
    address: str = ""  # the URL at which the leader answers
    granted: bool = False  # to the caller of `lead`, by this call


class Snapshot(msgspec.Struct, frozen=True):
    """The world after the first `length` entries of the journal, as `core.state.snapshot` writes it."""

    length: int
    body: bytes


class Tail(msgspec.Struct, frozen=True):
    """The end of what a replica wrote."""

    replica: str
    node: str  # where it ran
    data: bytes
    written: int  # bytes, in all
    at: Instant
    ended: bool = True  # False: it was running then, and may have written more


class Store(Protocol):
    """Errors: Fenced (another leads), Unreachable (it did not happen), OutcomeUnknown (it may have), Full
    (no room: it did not happen), Unwritable (an entry that could not be read again: it did not happen)."""

    async def lead(
        self, name: str, address: str, ttl_ms: Millis, above: int = 0, mine: int = 0
    ) -> Leadership:
        """Take the leadership if it is free, or keep it if it is of the generation `mine`; the answer says
        who leads, and whether it was granted. A name proves nothing: two control planes may be called the
        same. Time is the store's: control planes on several machines need not agree about the hour. What is
        granted is of a generation `above` this one: agents have obeyed leaders that this store does not know
        of."""

    async def resign(self, name: str, generation: int) -> None:
        """Let another lead at once. No error if we do not lead."""

    async def announce(self, name: str, address: str) -> tuple[str, ...]:
        """Say that this control plane is here; the answer has the addresses of all that were lately, by
        name."""

    async def leader(self) -> Leadership:
        """Who leads, without asking to."""

    async def append(
        self,
        generation: int,
        expected: int,
        entries: tuple[Event | Plan, ...],
        project_of: Mapping[str, str] = NOTHING,
    ) -> int:
        """All or nothing, durable when it returns the new length. Fenced if another generation leads, or
        if the journal is not `expected` entries long. `project_of`: whose the workloads are that lines of
        history are about, but for those of the default project; nobody changes it afterwards."""

    async def read(self, since: int = 0, limit: int = 0) -> tuple[Event | Plan, ...]:
        """The entries after the first `since`, at most `limit` of them (0: all)."""

    async def save(self, generation: int, snapshot: Snapshot) -> None:
        """Keep a snapshot; older ones but the last may be dropped. Fenced if another generation leads."""

    async def latest(self, before: int = 0) -> Snapshot | None:
        """The newest snapshot; with `before`, the newest of fewer entries: a snapshot may be damaged."""

    async def prune(self, before: Instant) -> int:
        """Forget entries and history older than that, as far as the older of two snapshots covers them; how
        many. What is needed to recover stays. Tails that are older go too."""

    async def history(
        self,
        *,
        node: str = "",
        workload: str = "",
        project: str = "",
        since: int = 0,
        before: int = 0,
        since_at: Instant = 0,
        until_at: Instant = 0,
        limit: int = 100,
    ) -> tuple[Told, ...]:
        """Lines about a node or a workload (or all), and of one project alone (and what is judged of nodes,
        which all may know), in order, of entries after number `since` and before
        number `before` (0: the end), and from the instant `since_at` on to before `until_at` (0: no bound):
        the newest `limit` of them, or, if only `since` is given, the oldest. Lines of one entry are not torn
        apart."""

    async def keep_tails(self, tails: tuple[Tail, ...]) -> None:
        """Keep the end of what these replicas wrote, each in place of an older one; of all together no more
        than TAILS_BYTES_MAX. Anybody may, and it is as durable as the journal."""

    async def tail(self, replica: str) -> Tail | None: ...
