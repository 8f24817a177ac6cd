"""The leader's side of the gateways: it lends them quota, and hears from them how it goes.

What may be lent is decided by `core.gateway.quota.leader_broker`, which lives for one term. Of a budget, a
slice is written down before the answer that lends it leaves, one question after the other, so that no slice
rides on a line that is not written yet.

We answer only while the leadership is surely ours: whoever leads next counts on that.

A gateway is as trustworthy as its token. So what one says is kept as what that token said: its holders and
names are its own, as many as `HOLDERS_MAX` and `NAMES_MAX`, and of its report the lines about keys there are.
"""

import asyncio
from collections.abc import Callable, Iterable

import structlog
from msgspec.structs import replace

from holdfast.control.term import Over, Term
from holdfast.core.gateway.key_audit.audit import Row, found_out
from holdfast.core.gateway.quota.broker import Ask, Grants
from holdfast.core.gateway.quota.leader_broker import Lender
from holdfast.core.scaling.load_signals import true
from holdfast.model.event import BudgetDrawn
from holdfast.model.gateway import Grade, Key
from holdfast.wire.gateway import LoadTold, signals

log = structlog.get_logger("holdfast.control")

LAPSE_S = 1.0
RETURNS_S = 10.0
FORGOTTEN_S = 3_600.0  # the report of a gateway that is silent
GATEWAYS_MAX = 1_000
NAMES_MAX = 64  # gateways of one token at a time
SILENT_S = 60.0
WHY_MAX = 500
WORSE = {grade: rank for rank, grade in enumerate(Grade)}


class Gateways:
    """All of them, for one term."""

    def __init__(self, term: Term, now: Callable[[], float], leads: Callable[[], bool]) -> None:
        """`now`: seconds on a monotonic clock."""
        self.term, self.now, self.leads = term, now, leads
        self.lender = Lender(term.mind.world, now(), term.generation)
        self._lending = asyncio.Lock()
        self._reports: dict[tuple[str, str], tuple[float, tuple[Row, ...]]] = {}  # by token and name
        self._names: dict[str, dict[str, float]] = {}  # by token: when each was last heard

    async def run(self) -> None:
        returned_at = self.now()
        while True:
            async with self._lending:
                await self._written(self.lender.begins(self.now(), self.term.now))
            await asyncio.sleep(LAPSE_S)
            self.lender.know(self.term.mind.world, self.now())
            self.lender.broker.lapse(self.now())
            if self.now() - returned_at >= RETURNS_S:
                returned_at = self.now()
                await self._write_returns()

    # quota

    async def lend(self, asks: Iterable[Ask], token: str) -> list[Grants] | None:
        """None: somebody else may lead by now."""
        async with self._lending:
            if not self.leads():
                return None
            now = self.now()
            self.lender.know(self.term.mind.world, now)
            before = sum(self.lender.broker.dropped.values())
            grants = [self.lender.ask(ask, now, token) for ask in asks]
            if (dropped := sum(self.lender.broker.dropped.values()) - before) > 0.0:
                self.term.metrics.dropped.labels("gateway_debt").inc()
                log.warning("a gateway says that more was used than can be", token=token, dropped=dropped)
            line = self.lender.rising(now, self.term.now)
            return grants if await self._written(line) else None

    async def reset(self, scope: str) -> bool:
        """By hand: what was used of a limit counts no more. False: somebody else may lead by now."""
        async with self._lending:
            if not self.leads():
                return False
            now = self.now()
            self.lender.know(self.term.mind.world, now)
            self.lender.broker.reset(scope, now)
            return await self._written(self.lender.falling(now, self.term.now))

    async def _write_returns(self) -> None:
        """What there is more of than was written down. Nobody is lent to until it is."""
        async with self._lending:
            await self._written(self.lender.falling(self.now(), self.term.now))

    async def _written(self, line: BudgetDrawn | None) -> bool:
        """False: the term is over, and somebody else may lend by what was written before."""
        try:
            if line is not None:
                await self.term.tell(line)
        except Over:
            return False
        return True

    # load

    def hear(self, told: LoadTold, token: str) -> int | None:
        """Of how many services it said something that counts. None: too many gateways have this token."""
        if not self._known(told.gateway, token):
            return None
        mind = self.term.mind
        heard = 0
        for service in told.services:
            if service.name in mind.world.scaled:
                said = {signal: value for signal, value in signals(service).items() if true(value)}
                self.term.hear_load(service.name, f"{token}/{told.gateway}", said)
                heard += 1
        self.term.look()
        if told.keys is not None:
            self._note((token, told.gateway), told.keys)
        return heard

    def _known(self, gateway: str, token: str) -> bool:
        """As one of this token that speaks now."""
        now = self.now()
        names = self._names.setdefault(token, {})
        if gateway not in names and len(names) >= NAMES_MAX:
            for name in [name for name, at in names.items() if now - at > SILENT_S]:
                del names[name]
            if len(names) >= NAMES_MAX:
                return False
        names[gateway] = now
        return True

    def _note(self, place: tuple[str, str], rows: tuple[Row, ...]) -> None:
        now, known = self.now(), self.term.mind.world.keys
        kept = {
            row.key: replace(row, owner="", team="", why=row.why[:WHY_MAX], leak=row.leak[:WHY_MAX])
            for row in rows
            if row.key in known
        }
        self._reports.pop(place, None)
        self._reports[place] = (now, tuple(kept.values()))
        for each in [each for each, (at, _) in self._reports.items() if now - at > FORGOTTEN_S]:
            del self._reports[each]
        own = [each for each in self._reports if each[0] == place[0]]
        for each in own[: -2 * NAMES_MAX]:
            del self._reports[each]
        while len(self._reports) > GATEWAYS_MAX:
            del self._reports[next(iter(self._reports))]

    def found_out(self, told: LoadTold) -> list[Key]:
        """Of a gateway that may do so: keys that work for nobody, as all hold them back until each is
        restored by hand. Whoever writes them down lets nobody else write meanwhile: they are whole."""
        return list(found_out(self.term.mind.world.keys, told.keys or ())) if told.acts else []

    def report(self) -> list[Row]:
        """Every key, the most suspect first, by what all gateways say of it."""
        said: dict[str, list[Row]] = {}
        for _, rows in self._reports.values():
            for row in rows:
                said.setdefault(row.key, []).append(row)
        found = [merged(key, said.get(key.id, [])) for key in self.term.mind.world.keys.values()]
        return sorted(found, key=lambda row: (-row.score, -row.idle_ms, row.key))


def merged(key: Key, rows: list[Row]) -> Row:
    """What is used adds up; of what seems wrong the worst counts."""
    worst = max(rows, key=lambda row: (row.score, WORSE[row.grade]), default=None)
    seen = worst.grade if worst is not None else Grade.FINE
    used = [row.idle_ms for row in rows if row.idle_ms >= 0]
    return Row(
        key=key.id,
        owner=key.owner,
        team=key.team,
        grade=max(key.grade, seen, key=WORSE.__getitem__),
        score=worst.score if worst is not None else 0.0,
        tokens_24h=sum(row.tokens_24h for row in rows),
        unread_24h=sum(row.unread_24h for row in rows),
        idle_ms=min(used, default=-1),
        exempt=key.exempt,
        why=worst.why if worst is not None else "",
        leak=next((row.leak for row in rows if row.leak), ""),
        since=key.judged_since,
    )
