"""How much may connections cost that have not proved yet whose they are?

The question: whoever reaches the port may open a link, without a credential, and each open connection and
each half of a message costs memory of every control plane.

The rule: until its hello has proved which node it is (`enrol`), a connection may send frames of at most
`FRAME_MAX` and is ended after `HELLO_WITHIN_MS`. All of one address together may hold `PER_ADDRESS` such
connections and `BYTES_PER_ADDRESS` of half messages; an IPv6 address counts as its /64, which is what one
machine is given. Beyond that the oldest that has said nothing is ended: an honest agent says hello in one
round trip, so only who waits on purpose is the oldest for long. If all of them have said hello, the new one
is turned away and comes again: a storm of honest agents behind one address is served in turn.

Refused: counting by network. Behind one NAT or load balancer there may be a whole fleet, and the limits are
for that: 2,000 agents that are checked at once. Refused as well: a limit for all addresses together alone;
one stranger could then keep everybody out.

Whoever speaks HTTP is a stranger too until it has brought a good token: `Callers`. What each of them may send
is bounded by `front`; of one address so many are connected, and beyond that its oldest is closed.
"""

from collections.abc import Iterator
from typing import Protocol

from holdfast.model.units import Instant
from holdfast.wire.address import counted_as

HELLO_WITHIN_MS = 5_000
FRAME_MAX = 64 << 10  # bytes
PER_ADDRESS = 2_000  # connections
BYTES_PER_ADDRESS = 4 << 20  # of half messages
MOST = 20_000  # connections, of all addresses
BYTES_MOST = 64 << 20
CALLERS_PER_ADDRESS = 500  # connections that speak HTTP
CALLERS_MOST = 5_000


class Stranger(Protocol):
    """A connection that has not proved yet whose it is."""

    ends: tuple[str, str]
    opened: Instant

    def close(self, *, at_once: bool = False) -> None: ...


class Strangers:
    def __init__(self) -> None:
        self._all: dict[Stranger, str] = {}  # address, by connection; oldest first
        self._silent: dict[str, dict[Stranger, None]] = {}  # by address: those that have said nothing
        self._count: dict[str, int] = {}
        self._held: dict[Stranger, int] = {}  # bytes
        self._held_by: dict[str, int] = {}
        self._held_in_all = 0

    def __len__(self) -> int:
        return len(self._all)

    def __iter__(self) -> Iterator[Stranger]:
        return iter(list(self._all))

    def add(self, new: Stranger) -> bool:
        """False: there are too many, and all of them have said hello."""
        address = counted_as(new.ends[0])
        if self._count.get(address, 0) >= PER_ADDRESS and not self._end_oldest(address):
            return False
        if len(self._all) >= MOST and not any(self._end_oldest(other) for other in list(self._silent)):
            return False
        self._all[new] = address
        self._silent.setdefault(address, {})[new] = None
        self._count[address] = self._count.get(address, 0) + 1
        return True

    def said_hello(self, stranger: Stranger) -> None:
        address = self._all.get(stranger)
        if address is not None:
            self._forget_silent(address, stranger)

    def holds(self, stranger: Stranger, held: int) -> bool:
        """It has sent so many bytes of a message that is not complete. False: that is too much."""
        address = self._all.get(stranger)
        if address is None:
            return True
        more = held - self._held.get(stranger, 0)
        self._held[stranger] = held
        self._held_by[address] = self._held_by.get(address, 0) + more
        self._held_in_all += more
        return self._held_by[address] <= BYTES_PER_ADDRESS and self._held_in_all <= BYTES_MOST

    def drop(self, stranger: Stranger) -> None:
        """It has proved whose it is, or is gone."""
        self.holds(stranger, 0)
        self._held.pop(stranger, None)
        address = self._all.pop(stranger, None)
        if address is None:
            return
        self._forget_silent(address, stranger)
        self._count[address] -= 1
        if not self._count[address]:
            self._count.pop(address)
            self._held_by.pop(address, None)

    def sweep(self, now: Instant) -> None:
        """Ends those that have waited for too long."""
        for stranger in [each for each in self._all if each.opened < now - HELLO_WITHIN_MS]:
            self._end(stranger)

    def _end_oldest(self, address: str) -> bool:
        silent = self._silent.get(address)
        if not silent:
            return False
        self._end(next(iter(silent)))
        return True

    def _end(self, stranger: Stranger) -> None:
        self.drop(stranger)
        stranger.close(at_once=True)

    def _forget_silent(self, address: str, stranger: Stranger) -> None:
        silent = self._silent.get(address, {})
        silent.pop(stranger, None)
        if not silent:
            self._silent.pop(address, None)


class Caller(Protocol):
    """A connection that speaks HTTP and has brought no good token."""

    def cut(self) -> None: ...


class Callers:
    def __init__(self) -> None:
        self._all: dict[Caller, str] = {}  # address, by connection; oldest first
        self._of: dict[str, dict[Caller, None]] = {}

    def __len__(self) -> int:
        return len(self._all)

    def add(self, new: Caller, host: str) -> None:
        address = counted_as(host)
        others = self._of.get(address, {})
        if len(others) >= CALLERS_PER_ADDRESS:
            self._end(next(iter(others)))
        elif len(self._all) >= CALLERS_MOST:  # the oldest of whoever has most
            most = max(self._of.values(), key=len)
            self._end(next(iter(most)))
        self._all[new] = address
        self._of.setdefault(address, {})[new] = None

    def drop(self, caller: Caller) -> None:
        """It has brought a good token, has become a link, or is gone."""
        address = self._all.pop(caller, None)
        if address is None:
            return
        self._of[address].pop(caller)
        if not self._of[address]:
            del self._of[address]

    def _end(self, caller: Caller) -> None:
        self.drop(caller)
        caller.cut()
