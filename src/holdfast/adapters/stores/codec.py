"""Journal entries as text, and their history as rows.

The text is JSON with the name of the entry's type in it (see `schema` for why). Entries are decoded one by
one: a batch as one array is no quicker, and could not say which of them is damaged.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec
from msgspec.structs import asdict

from holdfast.core.explain.history import lines
from holdfast.model.event import Event
from holdfast.model.plan import Plan
from holdfast.ports.errors import PortError, Unwritable

Entry = Event | Plan
Row = dict[str, Any]

_encoder = msgspec.json.Encoder()
_decoder: msgspec.json.Decoder[Entry] = msgspec.json.Decoder(Entry)


class Unreadable(PortError):
    """The journal holds what is no entry of ours: restore it from a backup, or upgrade."""


def rows_of(
    after: int, entries: Iterable[Entry], project_of: Mapping[str, str]
) -> tuple[list[Row], list[Row]]:
    """Rows of the journal and of the history for entries that come after the first `after`. Unwritable: one
    of them could not be read again."""
    written, told = [], []
    for seq, entry in enumerate(entries, after + 1):
        body = _body(entry)
        written.append({"seq": seq, "at": entry.at, "body": body})
        for number, line in enumerate(lines(seq, entry, project_of)):
            told.append({"line": number, **asdict(line)})
    for row in told:
        for name in ("subject", "text", "node", "workload", "actor", "project"):
            row[name] = storable(row[name])
    return written, told


def _body(entry: Entry) -> str:
    """An event may hold what somebody sent: a number that JSON does not know (NaN) is written as null, and an
    entry that cannot be read stops whoever reads the journal, for ever. Plans are made by us."""
    kind = type(entry).__name__
    try:
        body = _encoder.encode(entry).decode()
        if not isinstance(entry, Plan):
            _decoder.decode(body)
    except UnicodeEncodeError as error:
        raise Unwritable(f"a {kind} has text that is not Unicode: {error.reason}") from None
    except msgspec.DecodeError as error:
        raise Unwritable(f"a {kind} could not be read again: {error}") from None
    return body


def storable(text: str) -> str:
    """PostgreSQL takes no NUL in text, and a program may end with one in its last words."""
    return text.replace("\0", "\N{REPLACEMENT CHARACTER}")


def entries_of(first: int, bodies: Sequence[str]) -> tuple[Entry, ...]:
    decoded: list[Entry] = []
    try:
        decoded.extend(map(_decoder.decode, bodies))
    except msgspec.DecodeError as error:
        damaged = first + len(decoded)
        raise Unreadable(f"entry {damaged} of the journal cannot be read: {error}") from error
    return tuple(decoded)
