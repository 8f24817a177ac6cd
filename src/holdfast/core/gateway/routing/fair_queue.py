"""Who goes next when replicas have room again?

Requests that nobody can take now wait here: while a service comes up from nothing, or while all are busy.
The queue is bounded in requests and in tokens, and nobody waits longer than the patience.

The rule is deficit round robin by key, counted in tokens: each key in turn may spend a quantum, and saves
what it did not spend as long as it has requests waiting. Between two keys that both wait, the tokens served
differ by no more than a quantum and the largest request of each, however many requests one of them has. The
quantum is the mean cost of what waits: a request of c tokens takes c / quantum turns, so all that wait take
at most two turns each: O(1) amortised.

Whoever is called and finds no room after all is put back (`add`, as of when it came): to the front of its
key's line, with the patience it has left, and never refused, for it was promised to wait. When patience ends
is a heap by arrival, for keys are not called in the order in which they came.

Fair turns are worth nothing to those who are refused at the door because another key filled the queue. So a
key may wait with at most four times what is left free: one key alone gets four fifths of the queue, and
whoever comes next always finds room.

Refused: one queue in order of arrival (a key with a hundred times the requests gets a hundred times the
service); virtual finish times in a heap (fairer by a request, but log n, and a removed request leaves a
hole in the heap); pushing out others to make room (whoever was promised to wait should not be refused later
for another's sake).
"""

import heapq
from collections import OrderedDict
from collections.abc import Hashable
from math import inf
from typing import Generic, TypeVar

FREE_SHARE = 4

Item = TypeVar("Item", bound=Hashable)


class _Waiting:
    __slots__ = ("cost", "key", "since")

    def __init__(self, key: str, cost: float, since: float) -> None:
        self.key = key
        self.cost = cost
        self.since = since


class _Queue(Generic[Item]):
    __slots__ = ("deficit", "fresh", "items", "tokens")

    def __init__(self) -> None:
        self.items: OrderedDict[Item, _Waiting] = OrderedDict()
        self.tokens = 0.0
        self.deficit = 0.0
        self.fresh = True  # its turn has come and the quantum was not given yet


class Hold(Generic[Item]):
    __slots__ = (
        "_all",
        "_called",
        "_late",
        "_listed",
        "_number",
        "_oldest",
        "_turns",
        "patience_s",
        "requests_max",
        "tokens",
        "tokens_max",
    )

    def __init__(self, requests_max: int, tokens_max: float, patience_s: float) -> None:
        self.requests_max = requests_max
        self.tokens_max = tokens_max
        self.patience_s = patience_s
        self.tokens = 0.0
        self._all: dict[Item, _Waiting] = {}
        # By arrival, with a number against ties. Who waits no longer stays in it until it is the oldest.
        self._oldest: list[tuple[float, int, Item]] = []
        self._number = 0
        self._called: Item | None = None  # the last one ...
        self._listed = -inf  # ... and since when it waited, if it is still in the heap
        self._turns: OrderedDict[str, _Queue[Item]] = OrderedDict()  # keys that wait; the first has its turn
        self._late: list[Item] = []

    @property
    def length(self) -> int:
        return len(self._all)

    def add(self, item: Item, key: str, cost: float, now: float) -> bool:
        """False: no room, or it waits already. Who was just called may be put back, as of when it came."""
        queue = self._turns.get(key)
        if item in self._all:
            return False
        put_back = item == self._called
        if not put_back and not self._room(queue, cost):
            return False
        if queue is None:
            queue = self._turns[key] = _Queue()
        queue.items[item] = self._all[item] = _Waiting(key, cost, now)
        if put_back:
            queue.items.move_to_end(item, last=False)
            self._called = None
        if not put_back or now != self._listed:
            self._number += 1
            heapq.heappush(self._oldest, (now, self._number, item))
        queue.tokens += cost
        self.tokens += cost
        return True

    def next(self, now: float) -> Item | None:
        while self._turns:
            key, queue = next(iter(self._turns.items()))
            item, waiting = next(iter(queue.items.items()))
            if now - waiting.since >= self.patience_s:
                self._take_out(item)
                self._late.append(item)
                continue
            if queue.fresh:
                queue.deficit += self.tokens / len(self._all)
                queue.fresh = False
            if waiting.cost <= queue.deficit or len(self._turns) == 1:
                queue.deficit = max(0.0, queue.deficit - waiting.cost)
                self._take_out(item)
                self._called, self._listed = item, waiting.since
                return item
            queue.fresh = True
            self._turns.move_to_end(key)
        return None

    def drop(self, item: Item) -> bool:
        """It went away. False: it did not wait."""
        if item in self._all:
            self._take_out(item)
        elif item in self._late:
            self._late.remove(item)
        else:
            return False
        return True

    def expired(self, now: float) -> list[Item]:
        """Those whose patience is over: each is named once, and waits no longer."""
        found, self._late = self._late, []
        while (oldest := self._first()) is not None and now - oldest[0] >= self.patience_s:
            self._take_out(oldest[2])
            found.append(oldest[2])
        return found

    def oldest_wait_s(self, now: float) -> float:
        oldest = self._first()
        return 0.0 if oldest is None else now - oldest[0]

    def _first(self) -> tuple[float, int, Item] | None:
        """Of those that wait, the one that came first."""
        while self._oldest:
            since, _, item = self._oldest[0]
            waiting = self._all.get(item)
            if waiting is not None and waiting.since == since:
                return self._oldest[0]
            heapq.heappop(self._oldest)
            if item == self._called:
                self._listed = -inf
        return None

    def _room(self, queue: _Queue[Item] | None, cost: float) -> bool:
        if not self._all:
            return self.requests_max > 0  # whoever is alone may be larger than the bound
        free = self.requests_max - len(self._all)
        free_tokens = self.tokens_max - self.tokens
        if free <= 0 or cost > free_tokens:
            return False
        if queue is None:
            return True
        return len(queue.items) < FREE_SHARE * free and queue.tokens < FREE_SHARE * free_tokens

    def _take_out(self, item: Item) -> None:
        waiting = self._all.pop(item)
        queue = self._turns[waiting.key]
        del queue.items[item]
        queue.tokens -= waiting.cost
        self.tokens -= waiting.cost
        if not queue.items:
            del self._turns[waiting.key]  # and with it what it saved: credit is for those who wait
        if not self._all:
            self.tokens = 0.0
