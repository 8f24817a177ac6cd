"""Which limits hold for a key?

A request is held against every limit of its key, its key for that model, its team, its team for that model,
its model, and all together (`limits.scopes_of`). Of a key all of those are in force that some request of it
could meet: of limits for single models only those of models that it may use. A key for which none is in force
may take whatever there is. That should be meant: so a team is known when something is limited for it or a
key has it already, and a key for any other (a misspelt one has no limits) is refused unless it is said to be
new.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping

from holdfast.model.gateway import GLOBAL, Key, Limits, fits, may_use, scope_of_key, scope_of_team

NONE = Limits()
TEAM, MODEL = scope_of_team(""), "model:"


class InForce:
    """The limits that are set, for many keys to be looked at."""

    def __init__(self, limits: Mapping[str, Limits]) -> None:
        self._limits = limits
        self._of: dict[str, list[tuple[str, str]]] = defaultdict(list)  # by whose they are: scope and model
        for scope in sorted(limits):
            whose, _, model = scope.partition("/model:")
            if whose.startswith(MODEL):
                whose, model = "", scope.removeprefix(MODEL)
            self._of[whose].append((scope, model))

    def of(self, key: Key) -> dict[str, Limits]:
        """By scope, the narrowest first."""
        own = scope_of_key(key.id)
        found = {own: key.limits} if key.limits != NONE else {}
        for whose in (own, scope_of_team(key.team), "", GLOBAL):
            for scope, model in self._of.get(whose, ()):
                if self._limits[scope] != NONE and (not model or _may_meet(key, model)):
                    found.setdefault(scope, self._limits[scope])
        return found


def _may_meet(key: Key, model: str) -> bool:
    """May it use one of the models that are limited so? `llama-*` are many."""
    return may_use(key, model) or is_served(model, key.models)


def teams(limits: Iterable[str], keys: Iterable[Key]) -> set[str]:
    """That are known, by the scopes that are limited and by the keys there are."""
    limited = {scope.removeprefix(TEAM).partition("/")[0] for scope in limits if scope.startswith(TEAM)}
    return limited | {key.team for key in keys if key.team}


def is_limited(model: str, served: Iterable[str]) -> bool:
    """Does a limit of that name hold for any request? `llama-*` is met where a service has that very name."""
    return any(name == model or (not model.endswith("*") and fits(name, model)) for name in served)


def is_served(model: str, served: Iterable[str]) -> bool:
    """Is there such a model, or one of those that begin so?"""
    return any(fits(name, model) or fits(model, name) for name in served)
