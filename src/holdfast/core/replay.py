"""Would the same be decided again?

`decide` is a function of the world and the time, and the journal has all that made the world what it was, and
the time of every look. So each plan of a journal can be decided again and held against what was decided then.
That is an audit of our own promise (nothing that is not journalled moves a decision), and it shows what
another version would have done with a past that really was.

It goes on from what was decided then, not from what would be now: each difference is told once, and not all
that would have followed from it.
"""

from collections.abc import Iterator

import msgspec

from holdfast.core import check
from holdfast.core.decide import decide
from holdfast.core.state import fold
from holdfast.core.turn import Entry
from holdfast.model.action import Action
from holdfast.model.plan import Plan
from holdfast.model.units import Instant
from holdfast.model.world import World


class Difference(msgspec.Struct, frozen=True):
    entry: int  # its number in the journal
    at: Instant
    only_then: tuple[Action, ...]  # what is held back counts as not done
    only_now: tuple[Action, ...]  # both empty: in another order, or something else was held back


class Replay:
    def __init__(self, world: World, entry: int = 0) -> None:
        """`entry`: how many of the journal the world has in it."""
        self.world, self.entry = world, entry
        self.began_at: Instant = 0
        self.at: Instant = 0
        self.looks = self.actions = 0
        self._anew = False

    def begin(self, at: Instant) -> None:
        """From a snapshot. Whoever wrote it had looked at most of it by then, and it does not say at what not
        yet: that is known after the next look, which is believed."""
        self.began_at = self.at = at
        self._anew = True

    def feed(self, entry: Entry) -> Difference | None:
        """The next entry; for a plan: how it would differ."""
        self.entry += 1
        self.began_at, self.at = self.began_at or entry.at, max(self.at, entry.at)
        found = None
        if isinstance(entry, Plan):
            self.looks += 1
            self.actions += len(entry.actions)
            found = None if self._anew else self._decide_again(entry)
            self._anew = False
        fold.apply(self.world, entry)
        return found

    def _decide_again(self, plan: Plan) -> Difference | None:
        now, _ = check.examine(self.world, decide(self.world, plan.at))
        if (now.actions, now.held) == (plan.actions, plan.held):
            return None
        then_only = tuple(_without(plan.actions, now.actions))
        return Difference(self.entry, plan.at, then_only, tuple(_without(now.actions, plan.actions)))


def _without(those: tuple[Action, ...], others: tuple[Action, ...]) -> Iterator[Action]:
    left = list(others)
    for action in those:
        if action in left:
            left.remove(action)
        else:
            yield action
