"""What may whoever leads lend to the gateways, and what must be written down before?

The rule: keys, limits and clamps are those of the world, and the broker (`lease`) is told what changed of
them before it answers. What an answer draws of budgets, which no clock fills again, is written down before
the answer leaves; what came back now and then, for until then the next leader lends a little less, never
more.

Limits a minute go on from leader to leader as well. What is left of one changes with every request, so not
that is written down but a tranche: how much there is, and how much of it may be lent before the next line.
The next leader takes all of the tranche for lent, and lends what is surely left at once. A tranche is a
quarter of the limit: at half of a limit of tokens a minute that is a line every half minute, for all scopes
that are due together. Whoever leads next begins with what was there less a quarter of the limit at most. A
limit of which nothing is written is full. Where the last leader wrote none of this (it is older), buckets
begin empty.

Refused: writing down every slice of every limit, a line for each answer. Refused: that gateways say at their
first ask what they have used lately. It costs no journal, but one that has ended, or is cut off, says
nothing: then each limit that it might have used would begin empty.
"""

from msgspec.structs import replace

from holdfast.core.gateway.quota.broker import Ask, Broker, Grants
from holdfast.model.event import BudgetDrawn
from holdfast.model.gateway import Grade, Key, Limits, Tranche, key_of, scope_of_key
from holdfast.model.units import Instant
from holdfast.model.world import World

CLAMP_SHARE = 0.1


class Lender:
    """For one term. `now`: seconds on a monotonic clock."""

    def __init__(self, world: World, now: float, generation: int) -> None:
        self.generation = generation
        sure = world.tranches_of == world.leader.generation or world.leader.generation == generation
        written = world.tranches if sure and (world.tranches_of or not world.leader.generation) else None
        self.broker = Broker({}, now, str(generation), world.drawn, resumed=True, tranches=written)
        self._begun = False
        self._keys: dict[str, Key] = {}
        self._limits: dict[str, Limits] = {}
        self._written = dict(world.drawn)  # what the journal has, or will have before anything else of ours
        self.know(world, now)

    def ask(self, ask: Ask, now: float, owner: str = "") -> Grants:
        """`owner`: whose holder it is; nobody else speaks for it."""
        return self.broker.ask(replace(ask, holder=f"{owner}/{ask.holder}"), now, owner)

    def know(self, world: World, now: float) -> None:
        """The broker goes by what the world says of keys and limits; tables that changed are other tables."""
        replaced: dict[str, str] = {}
        if world.keys is not self._keys:
            before, self._keys = self._keys, world.keys
            for id in before.keys() - world.keys.keys():
                self._forget(id, now)
            for id, key in world.keys.items():
                if before.get(id) is not key:
                    self._change(before.get(id), key, now)
                    if key.replaced_by:
                        replaced[id] = key.replaced_by
        if world.limits is not self._limits:
            earlier, self._limits = self._limits, world.limits
            for scope in earlier.keys() | world.limits.keys():
                limits = world.limits.get(scope, Limits())
                if earlier.get(scope) != limits:
                    self.broker.set_limits(scope, limits, now)
        self.broker.succeed(replaced)

    def _forget(self, id: str, now: float) -> None:
        self.broker.forget_key(id, now)
        for scope in [s for s in self._written if key_of(s) == id]:
            del self._written[scope]
        self._limits = {scope: found for scope, found in self._limits.items() if key_of(scope) != id}

    def _change(self, before: Key | None, key: Key, now: float) -> None:
        if before is not None and before.hash != key.hash:  # another key under an old name
            self._forget(key.id, now)
            before = None
        if before is None or before.limits != key.limits:
            self.broker.set_limits(scope_of_key(key.id), key.limits, now)
        if clamp(before) != clamp(key):
            self.broker.set_clamp(key.id, clamp(key), now)

    # what is written down

    def rising(self, now: float, at: Instant) -> BudgetDrawn | None:
        """More is lent than was written down: to be journalled before any answer leaves. Said once."""
        drawn = self._changed({s: n for s, n in self.broker.drawn().items() if n > self._written.get(s, 0)})
        tranches = self._first(now) | self.broker.due(now)
        return self._line(at, drawn, tranches, ()) if drawn or tranches else None

    def falling(self, now: float, at: Instant) -> BudgetDrawn | None:
        """Less is used than was written down. Nothing may be lent until it is journalled. Said once."""
        drawn = self._changed({s: n for s, n in self.broker.drawn().items() if n < self._written.get(s, 0)})
        tranches, full = self.broker.better(now)
        return self._line(at, drawn, tranches, full) if drawn or tranches or full else None

    def begins(self, now: float, at: Instant) -> BudgetDrawn | None:
        """From here on it says what it lends of limits a minute: once there are any. Said once."""
        if self._begun or not (self._limits or any(key.limits != Limits() for key in self._keys.values())):
            return None
        return self._line(at, {}, self._first(now), ())

    def _first(self, now: float) -> dict[str, Tranche]:
        """Goes with the first line, whichever that is."""
        found = {} if self._begun else self.broker.begins(now)
        self._begun = True
        return found

    def _line(
        self, at: Instant, drawn: dict[str, int], tranches: dict[str, Tranche], full: tuple[str, ...]
    ) -> BudgetDrawn:
        return BudgetDrawn(at=at, drawn=drawn, tranches=tranches, full=full, term=self.generation)

    def _changed(self, drawn: dict[str, int]) -> dict[str, int]:
        self._written |= drawn
        return drawn


def clamp(key: Key | None) -> float:
    """The share that it gets."""
    return CLAMP_SHARE if key is not None and key.grade is Grade.CLAMP else 1.0
