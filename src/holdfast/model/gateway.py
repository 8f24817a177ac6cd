"""Who may ask a service for how much: keys, and the limits of what they, their teams and models may take."""

import enum
from collections.abc import Mapping
from typing import TypeVar

import msgspec

from holdfast.model.units import Instant

GLOBAL = "global"
T = TypeVar("T")


class Limits(msgspec.Struct, frozen=True, omit_defaults=True):
    """None: not limited. What may be taken at once is what a minute brings, unless a burst says otherwise."""

    tokens_per_min: int | None = None
    requests_per_min: int | None = None
    concurrent: int | None = None
    tokens_total: int | None = None  # a budget: it does not come back by itself
    tokens_burst: int | None = None  # the most tokens at once; None: tokens_per_min
    requests_burst: int | None = None


class Tranche(msgspec.Struct, frozen=True, array_like=True):
    """Of a limit a minute: how much there was, and how much more may be lent before this is written again."""

    level: float = 0.0
    credit: float = 0.0
    out: float = 0.0  # lent, and may be used

    def used_up(self) -> "Tranche":
        """When its limit changes: nothing more is lent of it, but holders may still use what was."""
        return Tranche(min(0.0, self.level), 0.0, max(0.0, self.out + self.credit))


class Grade(enum.StrEnum):
    """How far we go with a key that seems to be nobody's; each may be undone by one call."""

    FINE = "fine"
    OBSERVE = "observe"
    TAG = "tag"
    CLAMP = "clamp"  # a tenth of its rates
    SUSPEND = "suspend"


class Key(msgspec.Struct, frozen=True, omit_defaults=True):
    """The secret itself is nowhere: only its SHA-256."""

    id: str
    hash: bytes
    owner: str = ""
    team: str = ""
    note: str = ""
    models: tuple[str, ...] = ()  # empty: all; "llama-*" means all that begin so
    limits: Limits = Limits()
    created_at: Instant = 0  # wall clock, as the others here
    expires_at: Instant = 0  # 0: never
    replaced_at: Instant = 0  # rotated: another key took its place then, and this one ends at expires_at
    replaced_by: str = ""  # which one
    suspended: str = ""  # why; empty: it is not
    owner_gone_at: Instant = 0  # whoever it belongs to is there no longer
    grade: Grade = Grade.FINE
    exempt: bool = False  # never judged: an allow-listed batch job, for one
    restored_at: Instant = 0  # somebody looked and said that it is fine; 0: nobody has

    @property
    def judged_since(self) -> Instant:
        """Of what is older nothing speaks against it: it was restored then, or made."""
        return max(self.created_at, self.restored_at)


def scope_of_key(key: str) -> str:
    return f"key:{key}"


def key_of(scope: str) -> str:
    """Whose scope it is; empty: no key's."""
    kind, _, name = scope.partition("/")[0].partition(":")
    return name if kind == "key" else ""


def inherited(of_scopes: Mapping[str, T], old: str, fresh: str) -> dict[str, T]:
    """What a key has by scope (limits, what is drawn of budgets), for the one that takes its place."""
    return {handed_on(scope, fresh): each for scope, each in of_scopes.items() if key_of(scope) == old}


def handed_on(scope: str, fresh: str) -> str:
    """The scope of a key, as that of the one that takes its place."""
    return scope_of_key(fresh) + scope.removeprefix(scope_of_key(key_of(scope)))


def fits(name: str, model: str) -> bool:
    """A name of models, `llama-*` for all that begin so: is this one of them?"""
    return name == model or (name.endswith("*") and model.startswith(name[:-1]))


def may_use(key: Key, model: str) -> bool:
    return not key.models or any(fits(allowed, model) for allowed in key.models)


def scope_of_team(team: str) -> str:
    return f"team:{team}"


def scope_of_model(model: str) -> str:
    return f"model:{model}"


def both(scope: str, model: str) -> str:
    """The scope of a key or team for one model."""
    return f"{scope}/{scope_of_model(model)}"


def is_scope(text: str) -> bool:
    """`global`, `model:M`, `key:K`, `team:T`, `key:K/model:M` or `team:T/model:M`."""
    if text == GLOBAL:
        return True
    whose, both_of_them, model = text.partition("/model:")
    kind, _, name = whose.partition(":")
    if kind == "model":
        return bool(name)
    return kind in ("key", "team") and bool(name) and (bool(model) or not both_of_them)
