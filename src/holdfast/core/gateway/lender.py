"""What may whoever leads lend to the gateways, and what must be written down before?

The rule: keys, limits and clamps are those of the world, and the broker (`lease`) is told what changed of
them before it answers. A leader does not know what the one before it lent: it lends nothing until all of
that is surely over, and its buckets begin empty (`resumed`). Only budgets, which no clock fills again, are
in the journal: what an answer draws of them (`rising`) is written down before the answer leaves; what came
back (`falling`) now and then, for until then the next leader lends a little less, never more.

Refused: writing down every slice of every limit. A term begins with empty buckets instead, which costs a
minute's burst at a change of leader and nothing in between.
"""

from holdfast.core.gateway.lease import Ask, Broker, Grants
from holdfast.model.gateway import Grade, Key, Limits, key_of, scope_of_key
from holdfast.model.world import World

CLAMP_SHARE = 0.1


class Lender:
    """For one term. `now`: seconds on a monotonic clock."""

    def __init__(self, world: World, now: float, term: str) -> None:
        self.broker = Broker({}, now, term, world.drawn, resumed=True)
        self._keys: dict[str, Key] = {}
        self._limits: dict[str, Limits] = {}
        self._written = dict(world.drawn)  # what the journal has, or will have before anything else of ours
        self.know(world, now)

    def ask(self, ask: Ask, now: float) -> Grants:
        return self.broker.ask(ask, now)

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

    # budgets

    def rising(self) -> dict[str, int]:
        """More is drawn than was written down: to be journalled before any answer leaves. Said once."""
        return self._changed({s: n for s, n in self.broker.drawn().items() if n > self._written.get(s, 0)})

    def falling(self) -> dict[str, int]:
        return self._changed({s: n for s, n in self.broker.drawn().items() if n < self._written.get(s, 0)})

    def _changed(self, drawn: dict[str, int]) -> dict[str, int]:
        self._written |= drawn
        return drawn


def clamp(key: Key | None) -> float:
    """The share that it gets."""
    return CLAMP_SHARE if key is not None and key.grade is Grade.CLAMP else 1.0
