"""The documents of a workload file, field by field. The reference page is made from the descriptions here."""

import enum
import re
import signal
from collections.abc import Callable
from typing import Annotated

from pydantic import Field, model_validator

from holdfast.adapters.providers import names
from holdfast.adapters.providers.facts import LIMITS
from holdfast.files.fleet.fleet_schema import (
    Kind,
    OfferForm,
    PoolFields,
    ProjectFields,
    WorkloadFields,
)
from holdfast.files.struct_schema import Mirror
from holdfast.files.values import (
    FLAG,
    IDENTITY,
    NETWORKS,
    TEXT,
    URL_PATH,
    Leaf,
    choice,
    show_texts,
    whole,
)
from holdfast.model.program import Probe

SHELL = ("sh", "-c")
WORD_MAX = 32 * 1024  # well below what the kernel takes for one word of a command or its environment
ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")

# Below these keys everything is text, as it is written: a version 1.10, an answer no, an argument 8080.
TEXTS = frozenset(
    {
        "after",
        "command",
        "env",
        "exec",
        "gpu_kind",
        "labels",
        "models",
        "name",
        "rack",
        "region",
        "settings",
        "taints",
    }
    | {"tolerates", "user", "workdir", "zone", "zones"}
    | {"days", "end", "prometheus", "query", "start", "utc_offset"}
)


class DocumentKind(enum.StrEnum):
    SERVICE = "service"
    JOB = "job"
    TRAINING = "training"
    SWEEP = "sweep"
    POOL = "pool"
    POLICY = "policy"
    PROJECT = "project"


def _word(value: object) -> str:
    if not isinstance(value, str) or "\0" in value or len(value) > WORD_MAX:
        raise ValueError
    return value


def _command(value: object) -> tuple[str, ...]:
    words = (*SHELL, _word(value)) if isinstance(value, str) else value
    if not isinstance(words, list | tuple) or not words or not words[0] or not str(words[-1]).strip():
        raise ValueError
    return tuple(_word(word) for word in words)


def _env_name(value: object) -> str:
    if not isinstance(value, str) or not ENV_NAME.fullmatch(value):
        raise ValueError
    if value == "PORT" or value.startswith("HOLDFAST_"):
        raise ValueError
    return value


def _folder(value: object) -> str:
    if not isinstance(value, str) or not value.startswith("/") or "\0" in value or len(value) > 4096:
        raise ValueError
    return value


def _signal(value: object) -> str:
    name = _word(value).strip().upper()
    name = name if name.startswith("SIG") else f"SIG{name}"
    if name not in SIGNALS:
        raise ValueError
    return name


SIGNALS = {number.name for number in signal.Signals} - {"SIGKILL", "SIGSTOP"}
COMMAND = Leaf(
    'a command: a list such as ["python3", "app.py"], or one text for the shell',
    '["python3", "app.py"]',
    _command,
    show_texts,
)
NAME_OF_ENV = Leaf(
    "a name of letters, digits and _ that is not PORT or HOLDFAST_..., which holdfast sets itself",
    '"..."',
    _env_name,
)
VALUE_OF_ENV = Leaf("a text or a number, at most 32 KiB", '"..."', _word)
FOLDER = Leaf("an absolute path", "/srv/app", _folder)
OWN_PORT = Leaf("true: its own port, the one that it finds in $PORT", "true", FLAG.read, FLAG.show)
SIGNAL = Leaf("the name of a signal that a program can catch, such as SIGUSR1", "SIGUSR1", _signal)
PROBE = Mirror(
    Probe,
    least_ms=1,
    http=URL_PATH,
    tcp=OWN_PORT,
    exec=COMMAND,
    failures=whole(1, 1000, 3),
)


class WorkloadDocument(WorkloadFields):
    kind: Annotated[Kind, choice(Kind)] = Field(description="what it is")
    command: Annotated[tuple[str, ...], COMMAND] = Field(
        description="what each replica runs; a text is run by `sh -c`, which replaces `$PORT` and the like"
    )
    env: dict[Annotated[str, NAME_OF_ENV], Annotated[str, VALUE_OF_ENV]] = Field(
        {}, description="its environment; numbers and words such as `true` are taken as they are written"
    )
    workdir: Annotated[str, FOLDER] = Field("", description="where it starts; a folder of its own")
    ready: Annotated[Probe | None, PROBE] = Field(
        None, description="how to tell that it can serve; ready as soon as it runs"
    )
    alive: Annotated[Probe | None, PROBE] = Field(
        None,
        description="how to tell that it still works; if it does not, it is stopped and counts as failed",
    )
    tell: Annotated[str, SIGNAL] = Field(
        "",
        description="a signal it wants when its role, epoch or gang changes; none: the members of a training "
        "are started anew, others find it in their state file",
    )
    paused: Annotated[bool, FLAG] = Field(False, description="wanted, but not now")


def _matching(form: re.Pattern[str]) -> Callable[[object], str]:
    def read(value: object) -> str:
        if not isinstance(value, str) or not form.fullmatch(value):
            raise ValueError
        return value

    return read


HOST = Leaf("a name or an address", "192.0.2.11", _matching(names.ADDRESS))
USER = Leaf("the name of a user", "holdfast", _matching(names.USER))


class HostForm(OfferForm):
    """A machine that is there already. What is not said here is taken from the pool."""

    name: Annotated[str, IDENTITY] = Field(description="unique in its pool")
    address: Annotated[str, HOST] = Field("", description="name or address to reach it by; its `name`")
    port: Annotated[int | None, whole(1, 65_535, 22)] = Field(None, description="22")
    user: Annotated[str, USER] = Field("", description="who logs in there; whoever runs the control plane")
    key_file: Annotated[str, TEXT] = Field("", description="only from `profile`, for all hosts")
    known_hosts: Annotated[str, TEXT] = Field("", description="only from `profile`, for all hosts")
    python: Annotated[str, TEXT] = Field("", description="Python 3.11 or newer there; python3")
    root: Annotated[str, TEXT] = Field("", description="folder there that the agent lives in")


class ProjectDocument(ProjectFields):
    kind: Annotated[str, choice(("project",))] = Field(description="`project`")


class PoolDocument(PoolFields):
    kind: Annotated[str, choice(("pool",))] = Field(description="`pool`")
    provider: Annotated[str, IDENTITY] = Field(
        "local", description="who launches and terminates its nodes; must be given with `hosts`"
    )
    nodes: Annotated[int | None, whole(0, 20_000, 3)] = Field(
        None, description="exactly so many: `min` and `max` at once"
    )
    min: Annotated[int | None, whole(0, 20_000)] = Field(
        None, description="never fewer; 0, or all of the `hosts`"
    )
    max: Annotated[int | None, whole(0, 20_000, 10)] = Field(
        None, description="never more; must be given if nothing else says how many there may be"
    )
    hosts: list[HostForm] = Field([], description="the machines, if they are there already: one offer each")
    network: Annotated[tuple[str, ...], NETWORKS] = Field(
        (),
        description="where its nodes may say that they are reached (`--address`); each is otherwise reached "
        "where its link comes from",
    )
    settings: dict[str, Annotated[str, VALUE_OF_ENV]] = Field(
        {}, description="for its provider alone, taken as they are written"
    )
    profile: Annotated[str, IDENTITY] = Field(
        "",
        description="more of them, under this name in the "
        "[provider profiles](provider-profiles.md) of the control plane's host",
    )

    @model_validator(mode="before")
    @classmethod
    def _limited(cls, data: object) -> object:
        """What its provider cannot do is not promised, unless somebody says otherwise."""
        if not isinstance(data, dict):
            return data
        provider = data.get("provider", "local")
        return {**LIMITS.get(provider, {}), **data} if isinstance(provider, str) else data
