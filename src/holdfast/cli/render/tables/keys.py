"""Keys, limits and the report on keys as tables."""

import time
from collections.abc import Mapping, Sequence

import msgspec
from rich.text import Text

from holdfast.cli.render import theme
from holdfast.cli.render.rows import Rows
from holdfast.core.gateway.key_audit.audit import Row
from holdfast.model.gateway import GLOBAL, Grade, Limits, scope_of_key

UNLIMITED = "none"
GRADES = {Grade.FINE: "green", Grade.CLAMP: "red", Grade.SUSPEND: "red"}


class KeyShown(msgspec.Struct, frozen=True):
    """A key as a gateway or a control plane tells it: what a table needs of it."""

    id: str
    owner: str = ""
    team: str = ""
    note: str = ""
    models: tuple[str, ...] = ()
    limits: Limits = Limits()
    created_ms: int = 0
    expires_ms: int | None = None
    replaced_ms: int | None = None
    suspended: str = ""
    grade: Grade = Grade.FINE
    fixed: bool = False
    in_force: dict[str, Limits] | None = None  # by scope; None: whoever was asked does not say


class KeyMade(msgspec.Struct, frozen=True):
    key: KeyShown
    secret: str


def keys(found: Sequence[KeyShown]) -> Rows:
    made = Rows("KEY", "STATE", "OWNER", "TEAM", "MODELS", "MADE", "EXPIRES", spare=("MADE", "OWNER"))
    now = int(time.time() * 1000)
    for key in found:
        word, colour = _state(key, now)
        made.add(
            Text(key.id, "bold"),
            Text(word, colour),
            key.owner or "-",
            key.team or "-",
            ", ".join(key.models) or "all",
            "by its file" if key.fixed else theme.clock(key.created_ms),
            theme.clock(key.expires_ms) if key.expires_ms else "never",
            remark=_remark(key),
        )
    return made


def _remark(key: KeyShown) -> Text:
    limits = in_force(key)
    said = Text(f"limits: {limits or UNLIMITED}", "" if limits else theme.UNUSUAL)
    if key.suspended:
        return Text.assemble((key.suspended, theme.UNUSUAL), "; ", said)
    return Text.assemble((key.note, "dim"), "; ", said) if key.note else said


def in_force(key: KeyShown) -> str:
    """`its own: 60 requests/min; team red: 100,000 tokens/min`; empty: nothing limits it."""
    limits = {scope_of_key(key.id): key.limits} if key.in_force is None else key.in_force
    named = ((_whose(scope, key.id), words(each)) for scope, each in limits.items())
    return "; ".join(f"{whose}: {said}" for whose, said in named if said)


def _whose(scope: str, id: str) -> str:
    if scope == GLOBAL:
        return "all keys"
    whose, _, model = scope.partition("/model:")
    kind, _, name = whose.partition(":")
    said = "its own" if kind == "key" and name == id else f"{kind} {name}"
    return f"{said} for {model}" if model else said


def _state(key: KeyShown, now: int) -> tuple[str, str]:
    if key.suspended:
        return "suspended", "red"
    if key.expires_ms is not None and key.expires_ms <= now:
        return "expired", "red"
    if key.replaced_ms is not None:
        return "replaced", theme.UNUSUAL
    return ("good", "green") if key.grade is Grade.FINE else (str(key.grade), theme.UNUSUAL)


def words(limits: Limits) -> str:
    """`100,000 tokens/min, 16 at a time`; empty: nothing is limited."""
    said = (
        (limits.tokens_per_min, "{:,} tokens/min"),
        (limits.tokens_burst, "{:,} tokens at once"),
        (limits.requests_per_min, "{:,} requests/min"),
        (limits.requests_burst, "{:,} requests at once"),
        (limits.concurrent, "{:,} at a time"),
        (limits.tokens_total, "{:,} tokens in all"),
    )
    return ", ".join(form.format(value) for value, form in said if value is not None)


def limits(found: Mapping[str, Limits]) -> Rows:
    made = Rows("SCOPE", "LIMITS")
    for scope in sorted(found):
        made.add(Text(scope, "bold"), words(found[scope]) or "-")
    return made


def report(found: Sequence[Row]) -> Rows:
    made = Rows(
        "KEY", "GRADE", "SCORE", "OWNER", "TEAM", "TOKENS 24H", "UNREAD", "LAST USED", spare=("OWNER", "TEAM")
    )
    for row in found:
        made.add(
            Text(row.key, "bold"),
            Text("exempt", "dim")
            if row.exempt
            else Text(str(row.grade), GRADES.get(row.grade, theme.UNUSUAL)),
            f"{row.score:.2f}",
            row.owner or "-",
            row.team or "-",
            f"{row.tokens_24h:,}",
            f"{row.unread_24h:,}",
            "never" if row.idle_ms < 0 else f"{theme.ago(row.idle_ms)} ago",
            remark=Text("; ".join(filter(None, (row.why, row.leak))), theme.UNUSUAL),
        )
    return made
