"""The token in the folder of a control plane, by which whoever runs it is an admin.

Somebody must be able to make the other tokens, and the command line to find one. It is written down before
it is good for anything: made the other way round, it could be lost in between, and nobody would be let in
any more.

Where the database is a file of this folder (`ours`), the token in it always works, also after either was
restored or removed: who may write the one could as well write the other. Of a database that several control
planes share only the folder that came first has one, unless another is wanted (`again`).
"""

import os
import secrets
from pathlib import Path

import structlog
from msgspec.structs import replace

from holdfast.model.units import Instant
from holdfast.ports.audit import Kind, Record
from holdfast.ports.errors import Denied
from holdfast.ports.registry import FIRST, Registry, Role, Token
from holdfast.wire.identity import hashed

log = structlog.get_logger("holdfast")


async def ensure(path: Path, registry: Registry, now: Instant, *, ours: bool, again: bool) -> None:
    """OSError: it cannot be written down."""
    tokens = await registry.tokens()
    good = [token for token in tokens if not token.expires_at or token.expires_at > now]
    admins = {token.hash for token in good if token.role is Role.ADMIN}
    if admins and not again and (not ours or _hash_in(path) in admins):
        return
    secret = "hf_" + secrets.token_urlsafe(32)
    _keep(path, secret)
    if (ours or again) and any(token.id == FIRST for token in tokens):
        await registry.revoke(FIRST)
    try:
        await registry.add(
            Token(FIRST, hashed(secret), Role.ADMIN, note="of the first start", created_at=now)
        )
    except Denied:  # another control plane made it in the same moment, and has the file
        path.unlink()
        return
    why = "asked for anew" if again else "of a start that found none"
    made = Record(now, Kind.TOKEN, secrets.token_hex(8), subject=f"token:{FIRST}")
    await registry.record(
        (replace(made, text=f"made: role admin, {why}, by whoever runs the control plane"),)
    )
    log.warning("made an admin token", file=str(path))


def _hash_in(path: Path) -> bytes:
    try:
        return hashed(path.read_text().strip())
    except (OSError, ValueError):
        return b""


def _keep(path: Path, secret: str) -> None:
    """For its owner only, also in place of a file that others could read, or hold open: a new file, and not
    what they may have laid there."""
    fresh = path.with_name(f".{path.name}.new")
    fresh.unlink(missing_ok=True)
    handle = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with open(handle, "w") as file:
        os.fchmod(handle, 0o600)
        file.write(secret + "\n")
    fresh.replace(path)
