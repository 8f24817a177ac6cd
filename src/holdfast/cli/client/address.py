"""Which control plane to talk to, and as whom.

The first of these that says something: the option, the environment, the files that `holdfast up` and
`holdfast serve` leave in `.holdfast` of this folder or one above it, or in the user's home (`holdfast
login`, for another machine), and at last the usual address on this machine. Two things would give a token
to a stranger, so they are refused: a file that belongs to somebody else, and the token of a folder for a
control plane that is neither that folder's nor on this machine.
"""

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from holdfast.ports import secret_file
from holdfast.wire import pin
from holdfast.wire.address import is_loopback, is_plain, usual_scheme

FOLDER = ".holdfast"
GATEWAY_FOLDER = ".holdfast-gateway"
AUTHORITY = "ca/ca.pem"  # in it: of the fleet itself, whose control planes are known by it alone
GIVEN = "ca.pem"  # in it, by `login --ca`: certificates that others use as well, so the host's name counts
USUAL = "http://127.0.0.1:7700"
LONGEST = 10_000  # characters in such a file
HOST = re.compile(r"[\w.-]+|[0-9a-f:.]+(%[\w.-]+)?")
MISSPELT = re.compile(r"https?(:(?!//)|/)", re.IGNORECASE)  # else http would be taken for a host


class BadAddress(Exception):
    """What was given is no address of a control plane."""

    hint = f"--url {USUAL}"


class PlainHttp(BadAddress):
    """It could be asked, but everybody in between would read along."""

    def __init__(self, why: str, url: str) -> None:
        super().__init__(why)
        self.hint = f"https{url.removeprefix('http')}, or --insecure if the network is really your own"


class NothingNoted(BadAddress):
    """A folder was named, and another control plane must not be asked in its place."""

    hint = (
        "is it running? --url names another; holdfast login HOST --dir DIR keeps the address of one elsewhere"
    )


class BadToken(BadAddress):
    """It is not sent, for it is not whole, or others could have read it."""

    def __init__(self, why: str, hint: str) -> None:
        super().__init__(why)
        self.hint = hint


class Server(NamedTuple):
    urls: tuple[str, ...]  # of control planes on one database: asked in turn
    token: str = ""
    ca: str = ""
    insecure: bool = False
    project: str = ""  # the only one that is asked about; empty: all that the token is for
    is_gateway: bool = False  # one that works alone: it knows keys and limits, and nothing else
    pin: str = ""  # of the fleet's authority, which is then asked for
    authority: str = ""  # the file with its certificate
    because: str = ""  # why it is asked, where nobody named it and it could have been another

    @property
    def called(self) -> str:
        return f"the {'gateway' if self.is_gateway else 'control plane'} at {', '.join(self.urls)}"


def server(
    url: str = "",
    token: str = "",
    ca: str = "",
    insecure: bool = False,
    project: str = "",
    *,
    folder: Path | None = None,
    environment: Mapping[str, str] = os.environ,
) -> Server:
    home = next(_homes(folder or Path.cwd(), environment), None)
    noted = _noted(home, "url")
    named = url or environment.get("HOLDFAST_URL", "")
    place = environment.get("HOLDFAST_DIR")
    if place and not named and home != Path(place):
        why = f"$HOLDFAST_DIR is {place}, and no control plane of yours has left its address there"
        raise NothingNoted(why)
    chosen = named or noted or USUAL
    plain = insecure or not named  # what is noted here was wanted so
    urls = tuple(_checked(part, plain=plain) for part in chosen.split(",") if part.strip())
    if not urls:
        raise BadAddress(f"expected the address of a control plane, got {chosen!r}")
    given, ca = token or environment.get("HOLDFAST_TOKEN", ""), ca or environment.get("HOLDFAST_CA", "")
    secret, known_by, authority = *_split(given), ""
    ours = {part.strip().rstrip("/") for part in noted.split(",")}
    if all(one in ours or stays_here(one) for one in urls):
        secret = secret or _split(_token(home, "token"))[0]
        if home is not None and not ca and not known_by:
            authority = _if_ours(home / AUTHORITY)
            ca = "" if authority else _if_ours(home / GIVEN)
    project = project or environment.get("HOLDFAST_PROJECT", "")
    return Server(urls, secret, ca, insecure, project, pin="" if ca else known_by, authority=authority)


def keeper_of_keys(
    gateway: str = "",
    url: str = "",
    token: str = "",
    ca: str = "",
    insecure: bool = False,
    project: str = "",
    *,
    folder: Path | None = None,
    environment: Mapping[str, str] = os.environ,
) -> Server:
    """A gateway that works alone, if one is named or has left its address here; else the control plane."""
    if gateway and url:
        raise BadAddress("expected --url of a control plane or --gateway, got both")
    start = folder or Path.cwd()
    named = environment.get("HOLDFAST_GATEWAY_DIR")
    places = [Path(named)] if named else [each / GATEWAY_FOLDER for each in (start, *start.parents)]
    home = next((place for place in places if _is_ours(place / "admin-url")), None)
    noted = _noted(home, "admin-url")
    if not gateway and (url or environment.get("HOLDFAST_URL") or not noted):
        found = server(url, token, ca, insecure, project, folder=folder, environment=environment)
        there = next((place for place in places if place.is_dir()), None)
        if url or environment.get("HOLDFAST_URL") or there is None:
            return found
        why = f": the gateway of {_near(there, start)} does not run, or follows a control plane"
        return found._replace(because=why)
    because = f", by {_near(home / 'admin-url', start)}" if home is not None and not gateway else ""
    chosen = _checked(gateway or noted, plain=insecure or not gateway)
    if not token and (chosen == noted.rstrip("/") or stays_here(chosen)):
        token = _token(home, "admin-token")
    return Server((chosen,), token.strip(), ca, insecure, is_gateway=True, because=because)


def stays_here(url: str) -> bool:
    return is_loopback(urlsplit(url).hostname or "")


def is_plain_http(url: str) -> bool:
    """By all between here and there."""
    parts = urlsplit(url)
    return is_plain(parts.scheme, parts.hostname or "")


def _checked(url: str, *, plain: bool) -> str:
    text = url.strip()
    try:
        bare = urlsplit(f"//{text}").hostname or ""
        full = text if "://" in text else f"{usual_scheme(bare)}://{text}"
        parts = urlsplit(full)
        fine = parts.scheme in ("http", "https") and parts.port != 0 and not (parts.query or parts.fragment)
        fine = fine and HOST.fullmatch(parts.hostname or "") is not None and not MISSPELT.match(text)
    except ValueError:
        fine = False
    if not fine:
        raise BadAddress(f"expected an address such as {USUAL}, got {url.strip()!r}")
    if is_plain_http(full) and not plain:
        raise PlainHttp(f"{full} is plain http to another machine: all in between could read the token", full)
    return full.rstrip("/")


def _homes(start: Path, environment: Mapping[str, str]) -> Iterator[Path]:
    """The folders that a control plane of ours has left its address in, the nearest first."""
    named = environment.get("HOLDFAST_DIR")
    places = [Path(named)] if named else []
    around = [folder / FOLDER for folder in (start, *start.parents)]
    own = environment.get("HOME")  # where `holdfast login` keeps what it is told, wherever it is typed
    for home in (*places, *around, *([Path(own) / FOLDER] if own else [])):
        if _is_ours(home / "url"):
            yield home


def _near(path: Path, start: Path) -> str:
    return str(path.relative_to(start) if path.is_relative_to(start) else path)


def _is_ours(file: Path) -> bool:
    try:
        return file.is_file() and file.stat().st_uid in (os.geteuid(), 0)
    except OSError:
        return False


def _if_ours(file: Path) -> str:
    return str(file) if _is_ours(file) else ""


def _split(token: str) -> tuple[str, str]:
    if not token.isascii() or not token.isprintable():
        raise BadToken("the token has letters that no token has", "copy it again, and nothing around it")
    if pin.is_damaged(token):
        raise BadToken("the token is not whole: what is behind its dot is no pin", "copy all of it")
    return pin.split(token)


def _token(home: Path | None, name: str) -> str:
    """BadToken: others on this machine could read it too."""
    if home is None or not _is_ours(home / name):
        return ""
    try:
        secret_file.check(home / name)
    except secret_file.Exposed as error:
        raise BadToken(str(error), error.hint) from None
    except OSError:
        return ""
    return _noted(home, name)


def _noted(home: Path | None, name: str) -> str:
    if home is None or not _is_ours(home / name):
        return ""
    try:
        return (home / name).read_text(encoding="utf-8")[:LONGEST].strip()
    except (OSError, ValueError):
        return ""
