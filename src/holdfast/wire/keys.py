"""What is said of the keys of gateways: the same by a control plane and by a gateway that runs alone, so that
one command line speaks to either.

A secret is made here, shown once, and kept nowhere: everybody else has its hash.
"""

import re
import secrets
from collections.abc import Container, Iterable, Mapping

import msgspec
from msgspec.structs import replace

from holdfast.core.gateway.quota import limits_in_force
from holdfast.core.spelling import did_you_mean, worth_comparing
from holdfast.model.gateway import Grade, Key, Limits
from holdfast.model.units import DAY, Instant
from holdfast.wire.identity import hashed

PREFIX = "sk-hf-"
GRACE_MS = 1 * DAY  # a rotated key is good for so long beside its successor
LONGEST_MS = 3650 * DAY
MOST = 10**15  # of anything that is limited
ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,62}")  # as in files: it is part of addresses and of scopes


class NotRotatable(Exception):
    """No key can take its place; `hint` says what to do instead."""

    def __init__(self, why: str, hint: str) -> None:
        super().__init__(why)
        self.hint = hint


class NotKnown(Exception):
    """A team or model that there is not: it may be misspelt. `hint` says what may have been meant."""

    def __init__(self, why: str, hint: str) -> None:
        super().__init__(why)
        self.hint = hint


def check(limits: Limits) -> None:
    """ValueError: nothing can be limited so."""
    for name in limits.__struct_fields__:
        value = getattr(limits, name)
        if value is not None and not 0 <= value <= MOST:
            raise ValueError(f"expected {name} to be at least 0 and at most {MOST}")


class LimitsWanted(Limits, frozen=True, forbid_unknown_fields=True):
    """As somebody sends them: what is misspelt would otherwise not be limited, and nobody would notice."""

    def __post_init__(self) -> None:
        check(self)

    def plain(self) -> Limits:
        return Limits(**msgspec.structs.asdict(self))


class KeyWanted(msgspec.Struct, forbid_unknown_fields=True):
    id: str = ""
    owner: str = ""
    team: str = ""
    note: str = ""
    models: tuple[str, ...] = ()
    limits: Limits = Limits()
    ttl_ms: int | None = None
    new_team: bool = False  # a team that has neither keys nor limits yet is meant
    new_model: bool = False  # models that no service answers for yet are

    def __post_init__(self) -> None:
        if self.id and not ID.fullmatch(self.id):
            raise ValueError("expected an id of at most 63 letters, digits, - and _")
        if "/" in self.team:
            raise ValueError("expected a team without /")
        if self.ttl_ms is not None and not 0 < self.ttl_ms <= LONGEST_MS:
            raise ValueError("expected a ttl_ms of at least 1 and at most 3650 days")
        check(self.limits)


class KeySent(KeyWanted, forbid_unknown_fields=True):
    """The same, as somebody sends it."""

    limits: LimitsWanted = LimitsWanted()

    def plain(self) -> KeyWanted:
        return KeyWanted(**(msgspec.structs.asdict(self) | {"limits": self.limits.plain()}))


class Rotation(msgspec.Struct, forbid_unknown_fields=True):
    grace_ms: int = GRACE_MS

    def __post_init__(self) -> None:
        if not 0 <= self.grace_ms <= LONGEST_MS:
            raise ValueError("expected a grace_ms of at least 0 and at most 3650 days")


class Suspension(msgspec.Struct, forbid_unknown_fields=True):
    why: str = ""


class KeyShown(msgspec.Struct):
    """A key without its hash."""

    id: str
    owner: str
    team: str
    note: str
    models: tuple[str, ...]
    limits: Limits
    created_ms: Instant
    expires_ms: Instant | None
    replaced_ms: Instant | None
    suspended: str
    grade: Grade
    fixed: bool
    in_force: dict[str, Limits] = {}  # all limits that its requests can meet, by scope


class KeyMade(msgspec.Struct):
    key: KeyShown
    secret: str


def shown(
    key: Key, grade: Grade | None = None, *, limits: limits_in_force.InForce, fixed: bool = False
) -> KeyShown:
    return KeyShown(
        id=key.id,
        owner=key.owner,
        team=key.team,
        note=key.note,
        models=key.models,
        limits=key.limits,
        created_ms=key.created_at,
        expires_ms=key.expires_at or None,
        replaced_ms=key.replaced_at or None,
        suspended=key.suspended,
        grade=key.grade if grade is None else grade,
        fixed=fixed,
        in_force=limits.of(key),
    )


def check_names(
    wanted: KeyWanted, limits: Mapping[str, Limits], keys: Iterable[Key], served: Iterable[str]
) -> None:
    """NotKnown: its team has no limits, or nothing answers for one of its models."""
    teams, models = limits_in_force.teams(limits, keys), list(served)
    if wanted.team and not wanted.new_team and wanted.team not in teams:
        why = f"there is no team called {wanted.team}: nothing would be limited for it"
        raise NotKnown(why, _meant(wanted.team, teams, "team", "new_team"))
    for model in () if wanted.new_model else wanted.models:
        if not limits_in_force.is_served(model, models):
            why = f"no service answers for a model called {model}"
            raise NotKnown(why, _meant(model, models, "model", "new_model"))


def met_by_nobody(
    scope: str, limits: Mapping[str, Limits], keys: Iterable[Key], served: Iterable[str]
) -> str:
    """Why no request meets a limit of that scope, as things are; empty: some may. To limit a team before its
    first key is made is usual, so it is said and not refused. `limits`: those that were set before."""
    whose, _, model = scope.partition("/model:")
    kind, _, name = whose.partition(":")
    if kind == "team" and name not in (known := limits_in_force.teams(limits, keys)):
        near = did_you_mean(name, worth_comparing(name, known))
        return f"there is no team called {name} yet. {near}".rstrip(". ")
    model, models = name if kind == "model" else model, list(served)
    if model and models and not limits_in_force.is_limited(model, models):
        return f"no service names a model so: {model}. {did_you_mean(model, worth_comparing(model, models))}"
    return ""


def _meant(word: str, known: Iterable[str], kind: str, field: str) -> str:
    near = did_you_mean(word, worth_comparing(word, known))
    new = f"if the {kind} is new: --{field.replace('_', '-')} ({field}: true)"
    return f"{near}; {new}" if near else new


def made(wanted: KeyWanted, wall: Instant) -> tuple[Key, str]:
    """The key and its secret."""
    secret = PREFIX + secrets.token_urlsafe(32)
    key = Key(
        id=wanted.id or _new_id(),
        hash=hashed(secret),
        owner=wanted.owner,
        team=wanted.team,
        note=wanted.note,
        models=wanted.models,
        limits=wanted.limits,
        created_at=wall,
        expires_at=wall + wanted.ttl_ms if wanted.ttl_ms is not None else 0,
    )
    return key, secret


def rotated(old: Key, known: Container[str], wall: Instant, grace_ms: int = GRACE_MS) -> tuple[Key, Key, str]:
    """The old key, which ends after the grace, the new one in its place, and its secret. The new one is good
    for as long as the old one was made for: so not of one that ends because it was replaced, or has ended.
    `known`: the ids of all keys there are."""
    if old.replaced_at:
        by, instead = f" by {old.replaced_by}" * bool(old.replaced_by), old.replaced_by or "its successor"
        where = "" if old.replaced_by else ": holdfast keys list shows it"
        hint = f"rotate {instead} instead{where}"
        if old.replaced_by and old.replaced_by not in known:
            hint = "that one is gone: make another with holdfast keys create"
        raise NotRotatable(f"the key {old.id} was replaced{by} already", hint)
    if old.expires_at and old.expires_at <= wall:
        raise NotRotatable(f"the key {old.id} has expired", "make another: holdfast keys create")
    secret = PREFIX + secrets.token_urlsafe(32)
    fresh = replace(
        old,
        id=_new_id(),
        hash=hashed(secret),
        created_at=wall,
        replaced_at=0,
        suspended="",
        grade=Grade.FINE,
    )
    ends = wall + grace_ms
    ends = min(ends, old.expires_at) if old.expires_at else ends
    return replace(old, replaced_at=wall, replaced_by=fresh.id, expires_at=ends), fresh, secret


def suspended(key: Key, why: str) -> Key:
    return replace(key, suspended=why or "by an operator")


def restored(key: Key, wall: Instant) -> Key:
    """Later than the last time by any clock: what was found out before that is told by it."""
    return replace(key, suspended="", grade=Grade.FINE, restored_at=max(wall, key.judged_since + 1))


def limited(key: Key, limits: Limits) -> Key:
    return replace(key, limits=limits)


def _new_id() -> str:
    return "k" + secrets.token_hex(5)
