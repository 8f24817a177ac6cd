"""The hot path of a worker, compiled, if somebody has had that made (`compile`).

Two thirds of what Python costs a request is the interpreter and not the work. mypyc makes C of the same
annotated sources, and they go on running as they are where no compiler is: one code, tested both ways.

What is compiled is kept by a fingerprint of the sources, of those whose types they use, and of the
interpreter. Sources that were changed have another one, so what is old is never found: they run interpreted
until they are compiled again. The folder is named for its interpreter too: several may share one tree, and
each takes away what is old of its own and nothing of the others.

`HOLDFAST_NATIVE=0` says never, `HOLDFAST_NATIVE=1` that it must be there.

Refused: libraries beside their sources (an edit would have no effect, and nobody would see why); all of
holdfast (the rest is not hot, and mypyc hides the annotations that msgspec reads: what is decoded stands in
modules that are not compiled).
"""

import hashlib
import importlib.machinery
import importlib.util
import os
import re
import sys
import sysconfig
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from types import ModuleType

PACKAGE = Path(__file__).parent.parent
KEPT = PACKAGE / "native"
GROUP = "holdfast_native"
SWITCH = "HOLDFAST_NATIVE"
FOLDER = re.compile(r"\w.*-[0-9a-f]{8}-[0-9a-f]{16}")
SUFFIX: str = sysconfig.get_config_var("EXT_SUFFIX")
MODULES = (
    "core.gateway.quota.token_bucket",
    "core.gateway.request.lifecycle",
    "core.gateway.request.token_estimate",
    "core.gateway.routing.outlier",
    "core.gateway.routing.fair_queue",
    "core.gateway.routing.balancer",
    "core.gateway.quota.slice",
    "core.gateway.routing.prefix_affinity",
    "core.gateway.quota.local_quota",
    "core.gateway.routing.endpoints",
    "core.gateway.request.service",
    "core.gateway.routing.retry_budget",
    "gateway.addresses",
    "gateway.admit",
    "gateway.again",
    "gateway.ask",
    "gateway.attempt",
    "gateway.book",
    "gateway.buffers",
    "gateway.continued",
    "gateway.down",
    "gateway.exchange",
    "gateway.glance",
    "gateway.heads",
    "gateway.paths",
    "gateway.service",
    "gateway.siblings",
    "gateway.sse",
    "gateway.up",
    "gateway.worker",
)
# not compiled, but the types of what they hold are compiled into those above
TYPES = (
    "adapters.clock",
    "core.gateway.quota.broker",
    "core.gateway.quota.lent",
    "core.gateway.quota.limits",
    "core.gateway.routing.updates",
    "core.gateway.key_audit.audit",
    "gateway.connect",
    "gateway.counts",
    "gateway.link",
    "gateway.messages",
    "gateway.replies",
    "gateway.settings",
    "gateway.shapes",
    "gateway.target",
    "model.gateway",
    "model.units",
    "ports.clock",
    "wire.certificates",
)


class NotCompiled(Exception):
    """It must be there, and is not."""


def sources() -> list[Path]:
    return files(MODULES)


def files(modules: Sequence[str]) -> list[Path]:
    return [PACKAGE.joinpath(*name.split(".")).with_suffix(".py") for name in modules]


@cache
def fingerprint() -> str:
    found = hashlib.sha256(f"{SUFFIX} {sys.version}".encode())
    for path in files(MODULES + TYPES):
        found.update(hashlib.sha256(path.read_bytes()).digest())
    return found.hexdigest()[:16]


def interpreter() -> str:
    """What one has compiled is of no use to another, even where only the last number differs."""
    mark = hashlib.sha256(f"{SUFFIX} {sys.version}".encode()).hexdigest()
    return f"{sys.implementation.cache_tag}-{mark[:8]}"


def folder() -> Path:
    """Where what is compiled of these sources is, or will be."""
    return KEPT / f"{interpreter()}-{fingerprint()}"


def is_of_another(name: str) -> bool:
    """Is it a folder of another interpreter?"""
    return FOLDER.fullmatch(name) is not None and not name.startswith(f"{interpreter()}-")


def is_there() -> bool:
    """Will workers that are started now use it?"""
    return found() is not None


def found(made: Path | None = None) -> Path | None:
    """The folder to be used, if any is."""
    wanted = os.environ.get(SWITCH, "")
    if wanted == "0":
        return None
    here = made or folder()
    if here.is_dir():
        return here
    if wanted == "1":
        raise NotCompiled(f"{SWITCH}=1, and nothing is compiled: python -m holdfast.gateway.compile")
    return None


def use(made: Path | None = None) -> bool:
    """From here on the compiled modules are imported; False: there are none. To be called before any of them
    is imported. `made`: the folder they are in, if it is not where it belongs."""
    here = found(made)
    if here is None:
        return False
    names = [*(f"holdfast.{name}" for name in MODULES), f"{GROUP}__mypyc"]
    sys.meta_path.insert(0, Finder({name: here / (name.replace(".", "/") + SUFFIX) for name in names}))
    return True


class Finder:
    """Knows where the compiled modules are, and nothing else."""

    def __init__(self, files: dict[str, Path]) -> None:
        self.files = files

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        file = self.files.get(name)
        return importlib.util.spec_from_file_location(name, file) if file is not None else None
