"""Reads the provider profiles of a control plane's host: a YAML file that only its owner can write.

What pools may use of that host (`adapters.providers.profiles`), and which Prometheus servers an operator may
have asked. It is read at the start, and again when it has changed: no restart, and no signal, which a control
plane takes for its end. A change that cannot be read is told, and what was read before holds on; a file that
was taken away has no profiles.
"""

import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated

import msgspec
from pydantic import Field

from holdfast.adapters.providers.facts import LIMITS
from holdfast.adapters.providers.found import others, wrong_settings
from holdfast.adapters.providers.profiles import Profile
from holdfast.core.spelling import did_you_mean
from holdfast.files import read_text, yaml_lines
from holdfast.files.fleet.fleet_checks import ADDRESS
from holdfast.files.partial import Salvaged
from holdfast.files.problem import FileProblem, Problem, shown
from holdfast.files.struct_schema import Strict
from holdfast.files.validation_errors import YAML
from holdfast.files.values import IDENTITY, Leaf, show_texts
from holdfast.files.workload.workload_schema import VALUE_OF_ENV

TEXTS = frozenset({"settings", "telemetry"})
EMPTY = Problem("", "expected provider profiles, got an empty file", "Try: profiles: { cluster: { ... } }")
WRITTEN_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH


def _addresses(value: object) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(e, str) and ADDRESS.fullmatch(e) for e in value):
        raise ValueError
    return tuple(value)


ADDRESSES = Leaf(
    "a list of addresses such as http://127.0.0.1:9090", "[http://127.0.0.1:9090]", _addresses, show_texts
)


class ProfileForm(Strict):
    provider: Annotated[str, IDENTITY] = Field(description="for pools of this one")
    settings: dict[str, Annotated[str, VALUE_OF_ENV]] = Field(
        {}, description="what it says to each pool that names it; what it says here no pool may say"
    )


class ProfilesForm(Strict):
    profiles: dict[Annotated[str, IDENTITY], ProfileForm] = Field(
        {}, description="by the name that a pool has in `profile`"
    )
    telemetry: Annotated[tuple[str, ...], ADDRESSES] = Field(
        (), description="addresses that an operator may name in `prometheus`; others take an admin"
    )


class HostFile(msgspec.Struct, frozen=True):
    profiles: dict[str, Profile] = {}
    telemetry: tuple[str, ...] = ()


def parsed(text: str, name: str) -> HostFile:
    """FileProblem: everything that is wrong with it."""
    found = yaml_lines.documents(text, name, TEXTS)
    if not found:
        raise FileProblem(name, [EMPTY])
    document = found[0]
    if not isinstance(document.data, dict):
        raise FileProblem(
            name, [Problem("", f"expected fields such as profiles, got {shown(document.data)}")]
        )
    problems = list(document.problems)
    if len(found) > 1:
        problems.append(Problem("", f"expected one document, got {len(found)}"))
    read = Salvaged(ProfilesForm, document.data, YAML, {})
    if read.form is not None:
        read.tell(_checked(read.form))
    problems += read.problems
    if problems or read.form is None:
        placed = [each._replace(line=each.line or document.line_of(each.path)) for each in problems]
        raise FileProblem(name, sorted(placed, key=lambda problem: problem.line))
    form = read.form
    profiles = {name: Profile(each.provider, each.settings) for name, each in form.profiles.items()}
    return HostFile(profiles, form.telemetry)


def _checked(form: ProfilesForm) -> Iterator[Problem]:
    known = (*LIMITS, *others())
    for name, profile in form.profiles.items():
        where = f"profiles.{name}"
        if profile.provider not in known:
            text = f"expected one of: {', '.join(known)}, got {shown(profile.provider)}"
            yield Problem(f"{where}.provider", text, did_you_mean(profile.provider, known))
        for wrong in wrong_settings(profile.provider, profile.settings, (), whole=False):
            hint = f"Try: {wrong.name}: {wrong.example}" if wrong.example else ""
            hint = hint or did_you_mean(wrong.name, wrong.known)
            text = f"expected {wrong.expected}, got {wrong.got}"
            yield Problem(f"{where}.settings.{wrong.name}", text, hint)


Signature = tuple[int, ...]
GONE: Signature = ()


class ProviderFile:
    """The file as it is now. FileProblem, when it is made: it cannot be used."""

    def __init__(
        self,
        path: Path,
        on_problem: Callable[[FileProblem], None],
        on_change: Callable[[HostFile], None] = lambda file: None,
        *,
        must_be: bool,
    ) -> None:
        """Changes are noticed by looking at `now`. `must_be`: somebody named it, so it has to be there at the
        start."""
        self.path, self._on_problem, self._on_change = path, on_problem, on_change
        self._seen = _signature(path)
        if self._seen == GONE and must_be:
            read_text.content(path, "YAML", ("*.yaml", "*.yml"))  # says that there is none
        self._last = HostFile() if self._seen == GONE else self._read()

    @property
    def now(self) -> HostFile:
        seen = _signature(self.path)
        if seen != self._seen:
            self._seen = seen
            try:
                self._last = HostFile() if seen == GONE else self._read()
            except FileProblem as problem:
                self._on_problem(problem)
            else:
                self._on_change(self._last)
        return self._last

    def _read(self) -> HostFile:
        name = str(self.path)
        try:
            handle = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError as error:
            raise FileProblem(name, [_unreadable(str(error.strerror))]) from None
        try:
            if problem := _unsafe(os.fstat(handle), name):
                raise FileProblem(name, [problem])
            with open(handle, "rb", closefd=False) as file:
                found = file.read(read_text.BYTES_MAX)
        except OSError as error:
            raise FileProblem(name, [_unreadable(str(error.strerror))]) from None
        finally:
            os.close(handle)
        return parsed(read_text.decoded(found, name), name)


def _unreadable(why: str) -> Problem:
    return Problem("", f"expected a readable file, got: {why}")


def _unsafe(found: os.stat_result, name: str) -> Problem | None:
    """Whoever can write it can run programs as we do."""
    if not stat.S_ISREG(found.st_mode):
        return Problem("", "expected a file, got something else")
    if found.st_uid not in (os.geteuid(), 0):
        text = f"expected a file of the user that runs the control plane, got one of user {found.st_uid}"
        return Problem("", text, f"Try: chown {os.geteuid()} {name}")
    if found.st_mode & WRITTEN_BY_OTHERS:
        text = f"expected a file that only its owner can write, got mode {stat.S_IMODE(found.st_mode):04o}"
        return Problem("", text, f"Try: chmod go-w {name}")
    return None


def _signature(path: Path) -> Signature:
    """It changes whenever the file does. What cannot be looked at is there: reading it says why."""
    try:
        found = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return GONE
    except OSError as error:
        return (-1, error.errno or 0)
    return (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)
