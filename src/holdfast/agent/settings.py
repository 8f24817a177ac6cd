"""What an agent is told when it is started: its arguments and one variable of the environment.

Read with argparse: it costs 3 ms and half a megabyte, and the agent has little of either. `holdfast agent`
takes the same words and becomes this program.
"""

import argparse
import contextlib
import os
import re
from collections.abc import Mapping, MutableMapping, Sequence
from pathlib import Path
from typing import NoReturn
from urllib.parse import urlsplit

import msgspec

from holdfast.agent.home import Unusable
from holdfast.agent.machine_facts import host_name
from holdfast.model.place import Place
from holdfast.ports import secret_file
from holdfast.wire.address import is_loopback, is_plain, usual_scheme
from holdfast.wire.pin import is_damaged, read_pin

TOKEN_VARIABLE = "HOLDFAST_JOIN_TOKEN"
OF_PEOPLE = "hf_"  # how tokens of other roles begin
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}")
PORTS = {"http": 80, "https": 443}


class Url(msgspec.Struct, frozen=True):
    """Where a control plane listens."""

    scheme: str
    host: str
    port: int

    @property
    def authority(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    @property
    def loopback(self) -> bool:
        return is_loopback(self.host)

    @property
    def plain(self) -> bool:
        """Whoever is in between reads along, or answers in its place."""
        return is_plain(self.scheme, self.host)

    def __str__(self) -> str:
        return f"{self.scheme}://{self.authority}"


class Settings(msgspec.Struct, frozen=True):
    join: tuple[Url, ...]
    name: str
    root: Path
    checkpoints: Path
    token: str = ""
    token_file: Path | None = None
    pool: str = ""
    offer: str = ""
    place: Place | None = None
    cpu_milli: int | None = None  # these three: None: find out
    memory_mib: int | None = None
    gpus: int | None = None
    gpu_kind: str = ""
    address: str = ""  # empty: whichever the control plane sees
    allow_chaos: bool = False
    ca: Path | None = None
    ca_pin: str = ""  # of the fleet's own authority
    insecure: bool = False
    log_json: bool = False
    stop_all_on_exit: bool = False
    contain: bool = True  # what is exclusive, where the kernel lets us
    isolation: str = "auto"  # user: or do not start; none: not even where it is possible


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise Unusable(message, "holdfast agent --help")


def read_url(text: str) -> Url:
    no_address = f"{text!r} is no address of a control plane: http(s)://HOST:PORT"
    try:
        parts = urlsplit(text if "//" in text else f"//{text}")
        port = parts.port
    except ValueError:
        raise argparse.ArgumentTypeError(no_address) from None
    extra = parts.path.strip("/") or parts.query or parts.fragment or parts.username
    scheme = parts.scheme or usual_scheme(parts.hostname or "")
    if scheme not in PORTS or not parts.hostname or extra:
        raise argparse.ArgumentTypeError(no_address)
    return Url(scheme, parts.hostname, port or PORTS[scheme])


def read_urls(text: str) -> tuple[Url, ...]:
    """Those that make sense: what others tell us of may be anything."""
    found = []
    for word in text.split():
        with contextlib.suppress(argparse.ArgumentTypeError):
            found.append(read_url(word))
    return tuple(found)


def _urls(text: str) -> tuple[Url, ...]:
    return tuple(read_url(word.strip()) for word in text.split(",") if word.strip())


def _name(text: str) -> str:
    if not NAME.fullmatch(text):
        raise argparse.ArgumentTypeError(
            f"{text!r} is no name of a node: letters, digits, - _ and ., at most 63"
        )
    return text


def _place(text: str) -> Place:
    parts = text.split("/")
    if len(parts) > 4 or not all(parts):
        raise argparse.ArgumentTypeError(
            f"{text!r} is no place: provider/region/zone/rack, as much as is known"
        )
    return Place(*parts)


def _pin(text: str) -> str:
    try:
        return read_pin(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _milli(text: str) -> int:
    try:
        milli = round(float(text) * 1000)
    except (ValueError, OverflowError):
        milli = 0
    if not 0 < milli < 1 << 40:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of processors")
    return milli


def _whole(text: str) -> int:
    if not text.isdecimal() or int(text) >= 1 << 40:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number")
    return int(text)


def parser() -> argparse.ArgumentParser:
    words = _Parser(
        prog="holdfast agent",
        description="Make this machine a node: run what the control plane wants here.",
        allow_abbrev=False,
    )
    say = words.add_argument
    say("--join", type=_urls, action="extend", metavar="URL[,URL...]", help="the control planes")
    say("--name", type=_name, metavar="NODE", help="of this node; otherwise the host's")
    say("--root", type=Path, metavar="DIR", help="where the node keeps its key, its replicas and their logs")
    say("--token", default="", metavar="T", help=f"join token; better in ${TOKEN_VARIABLE} or a file")
    say("--token-file", type=Path, metavar="FILE", help="a file with the join token")
    say("--pool", default="", metavar="POOL", help="the pool to join")
    say("--offer", default="", metavar="OFFER", help="which of the pool's offers this machine is")
    say("--place", type=_place, metavar="PROVIDER/REGION/ZONE/RACK", help="its failure domains")
    say("--cpus", type=_milli, metavar="N", help="processors to lend; otherwise all there are")
    say("--memory", type=_whole, metavar="MIB", help="memory to lend; otherwise all there is")
    say("--gpus", type=_whole, metavar="N", help="GPUs to lend; otherwise all there are")
    say("--gpu-kind", default="", metavar="KIND", help="h100, a100, ...")
    say(
        "--address",
        default="",
        metavar="HOST",
        help="where it is reached: where its link comes from, or inside its pool's network",
    )
    say("--allow-chaos", action="store_true", help="let the control plane rehearse partitions with it")
    say("--ca", type=Path, metavar="FILE", help="certificates to trust instead of the system's")
    say("--ca-pin", type=_pin, metavar="sha256:HEX", help="of the control plane's own authority")
    say("--insecure", action="store_true", help="trust any certificate, and plain http")
    say("--checkpoints", type=Path, metavar="DIR", help="where programs keep checkpoints; better shared")
    say(
        "--fencing",
        choices=("auto", "none"),
        default="auto",
        help="auto: jobs run in a PID namespace, so that nothing of them outlives its shim; none: not",
    )
    say(
        "--isolation",
        choices=("auto", "user", "none"),
        default="auto",
        help="auto: each workload runs as a user of its own, if possible; user: or do not start; none: not",
    )
    say("--log-json", action="store_true", help="log lines as JSON")
    say("--stop-all-on-exit", action="store_true", help="stop what runs here when the agent is ended")
    return words


def read(arguments: Sequence[str], environment: Mapping[str, str]) -> Settings:
    """Raises Unusable for anything that does not make sense."""
    words = parser().parse_args(arguments)
    if not words.join:
        raise Unusable("nobody to join", "say where the control plane is: --join https://HOST:PORT")
    plain = [url for url in words.join if url.plain]
    if plain and not words.insecure:
        raise Unusable(
            f"{plain[0]} is plain http to another machine: anybody in between could give this one orders",
            f"--join https://{plain[0].authority}; or --insecure if the network is really your own",
        )
    if words.token and words.token_file:
        raise Unusable("--token and --token-file say the same thing twice", "give one of them")
    name = words.name or host_name()
    root = (words.root or _state(environment) / "holdfast" / "nodes" / name).absolute()
    return Settings(
        join=tuple(dict.fromkeys(words.join)),
        name=name,
        root=root,
        checkpoints=(words.checkpoints or root / "checkpoints").absolute(),
        token=words.token or ("" if words.token_file else environment.get(TOKEN_VARIABLE, "")),
        token_file=words.token_file,
        pool=words.pool,
        offer=words.offer,
        place=words.place,
        cpu_milli=words.cpus,
        memory_mib=words.memory,
        gpus=words.gpus,
        gpu_kind=words.gpu_kind,
        address=words.address,
        allow_chaos=words.allow_chaos,
        ca=words.ca,
        ca_pin=words.ca_pin or "",
        insecure=words.insecure,
        log_json=words.log_json,
        stop_all_on_exit=words.stop_all_on_exit,
        contain=words.fencing == "auto",
        isolation=words.isolation,
    )


def forget_secrets(environment: MutableMapping[str, str]) -> None:
    """What runs here inherits our environment, and is not meant to join under our name."""
    environment.pop(TOKEN_VARIABLE, None)


def _state(environment: Mapping[str, str]) -> Path:
    """Root's is where the users of replicas can reach it."""
    folder = environment.get("XDG_STATE_HOME")
    if folder:
        return Path(folder)
    return Path("/var/lib") if os.geteuid() == 0 else Path(os.path.expanduser("~/.local/state"))


def join_token(settings: Settings, *, joined: bool) -> str:
    """A node that has joined proves itself with its key: then the file may be gone."""
    token = _join_token(settings, joined=joined)
    if is_damaged(token):
        raise Unusable("the join token is not whole: what is behind its dot is no pin", "copy all of it")
    if token.startswith(OF_PEOPLE):  # it is not sent to whoever answers there: it may do more than join
        why = "the token is one for people, programs or gateways, and no join token"
        raise Unusable(why, "holdfast token create --role join --pool POOL makes one")
    return token


def _join_token(settings: Settings, *, joined: bool) -> str:
    if settings.token_file is None:
        return settings.token
    try:
        return secret_file.read(settings.token_file)
    except (OSError, UnicodeDecodeError) as error:
        if joined:
            return ""
        if isinstance(error, secret_file.Exposed):
            raise Unusable(f"the token file {error}", error.hint) from None
        why = getattr(error, "strerror", None) or error
        raise Unusable(
            f"the token file {settings.token_file} cannot be read: {why}", "check --token-file"
        ) from None
