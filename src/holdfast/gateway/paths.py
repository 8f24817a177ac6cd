"""Could a path be read as another one by whoever it is passed on to?

A service is chosen by the beginning of a path, and the path goes on as it came. The replica behind it may
undo escapes (once or twice), take a backslash for a slash, drop `;parameters`, resolve `..`, normalise
Unicode or stop at a NUL. So `/public/..;/admin` is `/public` here and `/admin` there.

The rule: what resolves differently in any of these readings is refused with 400 before anything is routed
(`is_ambiguous`). What only looks different (`/v1//chat`, `/%61dmin`, `/public;x`) may pass, but each of its
`readings` must lead to the same service as the path itself.

Refused: to normalise the path and pass that on, as proxies can. The replica may mean something by the bytes
(a file name with `%2e` in it), and two normalisers that disagree in one case are the fault we have now.
"""

import re
import unicodedata
from urllib.parse import unquote_to_bytes

DECODED_MAX = 4  # escapes of escapes of escapes: nobody means that
NO_ESCAPE = re.compile(rb"%(?![0-9A-Fa-f]{2})")
CONTROL = re.compile(rb"[\x00-\x1f\x7f]")
SLASHES = re.compile(rb"/{2,}")
PARAMETERS = re.compile(rb";[^/]*")
BESIDE = re.compile(rb"[;?#].*", re.DOTALL)  # what comes after a name
ENDS = re.compile(rb"[?#].*", re.DOTALL)


def is_ambiguous(path: bytes) -> bool:
    if path.find(b"/.") < 0 and path.find(b"%") < 0 and path.find(b"\\") < 0 and path.isascii():
        return False  # as nearly all
    return NO_ESCAPE.search(path) is not None or _leaves(path)


def _leaves(path: bytes) -> bool:
    """By any number of decodings."""
    read = path
    for _ in range(DECODED_MAX):
        if _has_dots(read) or CONTROL.search(read) is not None:
            return True
        decoded = unquote_to_bytes(read)
        if decoded.count(b"/") != read.count(b"/"):
            return True
        if decoded == read:
            return _is_no_text(read)
        read = decoded
    return True


def _has_dots(path: bytes) -> bool:
    """A backslash, or a segment that means this folder or the one above. Windows drops spaces and dots at the
    end of a name, others whatever comes after a semicolon, a question mark or a number sign."""
    if path.find(b"\\") >= 0:
        return True
    segments = [BESIDE.sub(b"", segment) for segment in path.split(b"/")]
    return any(segment.find(b".") >= 0 and not segment.strip(b". ") for segment in segments)


def _is_no_text(path: bytes) -> bool:
    """Not UTF-8 (some read `%c0%ae` as a dot), or another path when Unicode is normalised."""
    try:
        text = path.decode()
    except UnicodeDecodeError:
        return True
    plain = unicodedata.normalize("NFKC", text).encode()
    return plain.count(b"/") != path.count(b"/") or _has_dots(plain)


def readings(path: bytes) -> set[bytes]:
    """How else it may be read: escapes undone, parameters dropped, empty segments and what comes after a
    question mark or a fragment too."""
    found = {path}
    decoded = path
    for _ in range(DECODED_MAX):
        decoded = unquote_to_bytes(decoded)
        found.add(decoded)
    for pattern, instead in ((ENDS, b""), (PARAMETERS, b""), (SLASHES, b"/")):
        found |= {pattern.sub(instead, each) for each in found}
    found |= {each.rstrip(b"/") for each in found}
    return {each for each in found if each}
