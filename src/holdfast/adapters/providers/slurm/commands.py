"""Slurm's commands, each a process under a time-out, and every way of failing named for the next move.

Slurm's library and its REST service were refused: the first changes with every version and must match the
cluster's, the second is not there on most clusters. The commands are, and their formats are stable when
the fields are named. There is never a shell between us and them.

What matters is whether the controller may have heard the request. A command that only looks and fails tells
nothing (Unreachable). One that acts and got no answer may have been obeyed (OutcomeUnknown).
"""

import asyncio
import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence

import msgspec

from holdfast.adapters.providers.inherited import inherited
from holdfast.ports.errors import (
    CapacityShort,
    Denied,
    NotFound,
    OutcomeUnknown,
    PortError,
    Throttled,
    Unreachable,
)

LOOK_S = 4.0  # whoever asks for a state waits five
ACT_S = 45.0
AT_ONCE = 4  # a controller is shared with everybody else
BUSY_MS = 60_000
# Settings of the commands themselves, which may be in our environment: a control plane may be in a job.
FOREIGN = ("HOLDFAST_", "SLURM", "SBATCH_", "SQUEUE_", "SINFO_", "SCANCEL_", "SALLOC_", "SRUN_")

MUNGE = "is munged running here, with the key of the cluster?"
# Which words in a complaint mean which error; the first that fits. What fits none is a refusal.
UNSURE = ("Socket timed out", "Zero Bytes were transmitted", "Connection reset", "receive failure")
TABLE: tuple[tuple[type[PortError], str, tuple[str, ...]], ...] = (
    (Unreachable, MUNGE, ("Munge encode failed", "Failed to access", "Did you start munged")),
    (Denied, MUNGE, ("Protocol authentication error", "Invalid authentication credential", "Munge decode")),
    (
        Unreachable,
        "",
        (
            "Unable to contact slurm controller",
            "Connection refused",
            "Connection timed out",
            "in standby mode",
        ),
    ),
    (Denied, "say in `conf` where slurm.conf is", ("onfiguration source", "configuration file")),
    (NotFound, "", ("Invalid job id", "already completing or completed")),
    (Throttled, "", ("temporarily unable to accept job", "RPC limit exceeded", "Too many open")),
    (
        Denied,
        "",
        (
            "Access/permission denied",
            "Access denied",
            "Invalid account",
            "Invalid qos",
            "Invalid partition",
            "group not permitted",
            "not permitted to use",
            "Requested time limit is invalid",
        ),
    ),
    (
        CapacityShort,
        "",
        (
            "Requested node configuration is not available",
            "Required partition not available",
            "Requested partition configuration not available",
            "Job violates accounting/QOS policy",
            "QOS",
            "Assoc",
            "MaxSubmitJobs",
            "Node count specification invalid",
            "Memory specification can not be satisfied",
            "CPU count",
            "gres",
            "nodes are busy",
            "Nodes required for job are DOWN",
        ),
    ),
)


class Said(msgspec.Struct, frozen=True):
    code: int
    out: str
    complaint: str


class Commands:
    def __init__(self, folder: str = "", conf: str = "", inherit_env: Sequence[str] = ()) -> None:
        """`inherit_env`: what of our environment they, and so the jobs, get besides the usual."""
        self._folder = folder
        self._gate = asyncio.Semaphore(AT_ONCE)
        passed_on = inherited(inherit_env)
        kept = {name: value for name, value in passed_on.items() if not name.startswith(FOREIGN)}
        where = conf or os.environ.get("SLURM_CONF", "")
        self._environment = kept | ({"SLURM_CONF": where} if where else {})

    def path(self, name: str) -> str:
        return os.path.join(self._folder, name)

    async def look(self, name: str, *words: str) -> str:
        """What it prints. Times in it are seconds since 1970."""
        more = {"SLURM_TIME_FORMAT": "%s", "LC_ALL": "C"}
        try:
            async with asyncio.timeout(LOOK_S):
                said = await self._run(name, words, b"", more)
        except TimeoutError:
            raise Unreachable(f"{name} got no answer within {LOOK_S:g} s") from None
        if said.code:
            error = _error(name, said, acted=False)
            raise error if isinstance(error, Denied) else Unreachable(str(error))
        if said.out and not said.out.endswith("\n"):
            raise Unreachable(f"what {name} said was cut off: {said.out[-80:]!r}")
        return said.out

    async def act(self, name: str, *words: str, text: bytes = b"") -> str:
        try:
            async with asyncio.timeout(ACT_S):
                said = await self._run(name, words, text, {})
        except TimeoutError:
            raise OutcomeUnknown(f"{name} got no answer within {ACT_S:g} s") from None
        if said.code:
            raise _error(name, said, acted=True)
        return said.out

    async def _run(self, name: str, words: tuple[str, ...], text: bytes, more: Mapping[str, str]) -> Said:
        async with self._gate:
            with _as_file(text) as stdin:
                process = await self._begin(name, words, stdin, {**self._environment, **more})
            try:
                out, err = await process.communicate()
            finally:
                if process.returncode is None:
                    with contextlib.suppress(ProcessLookupError):
                        process.kill()
                    await process.wait()
        return Said(process.returncode or 0, out.decode(errors="replace"), _complaint(err))

    async def _begin(
        self, name: str, words: tuple[str, ...], stdin: int, environment: dict[str, str]
    ) -> asyncio.subprocess.Process:
        try:
            return await asyncio.create_subprocess_exec(
                self.path(name),
                *words,
                stdin=stdin,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                env=environment,
                start_new_session=True,  # Ctrl-C is for us
            )
        except (FileNotFoundError, PermissionError, NotADirectoryError) as error:
            why = f"{self.path(name)} cannot be run here ({error.strerror})"
            raise Denied(f"{why}: install Slurm's commands, or say in `bin` where they are") from error
        except OSError as error:  # no processes or memory left
            raise Unreachable(f"{name} cannot be started: {error.strerror}") from error


@contextlib.contextmanager
def _as_file(text: bytes) -> Iterator[int]:
    """What a command reads. Not through a pipe: a command that ends before it reads would be an error of
    ours."""
    handle = os.memfd_create("stdin")
    try:
        os.write(handle, text)
        os.lseek(handle, 0, os.SEEK_SET)
        yield handle
    finally:
        os.close(handle)


def _complaint(err: bytes) -> str:
    lines = [line.strip() for line in err.decode(errors="replace").splitlines() if line.strip()]
    return " / ".join(line.partition("error: ")[2] or line for line in lines[-4:])


def _error(name: str, said: Said, *, acted: bool) -> PortError:
    if said.code < 0:
        why = f"{name} was killed by signal {-said.code}"
        return OutcomeUnknown(why) if acted else Unreachable(why)
    why = f"{name}: {said.complaint or f'it ended with {said.code} and said nothing'}"
    if any(words in said.complaint for words in UNSURE):
        return OutcomeUnknown(why) if acted else Unreachable(why)
    for kind, hint, fragments in TABLE:
        if any(words in said.complaint for words in fragments):
            text = f"{why}; {hint}" if hint else why
            return Throttled(text, BUSY_MS) if kind is Throttled else kind(text)
    return Denied(why) if acted else Unreachable(why)
