"""Nodes that are jobs of a Slurm cluster: a pilot job holds an allocation and runs the agent on it.

An offer is a partition. Launching is `sbatch`, terminating `scancel`, and what exists is what `squeue` says.
What Slurm does not keep is in a folder that control planes and compute nodes share (`local.folders`): what
was asked for, the token, what the pilot says of itself, and the names that are spent.

- **Asking twice is one job.** A node's folder is held while it is submitted, and the queue is asked for its
  name first, so an answer that was lost is found again. Where the folder's locks do not reach, two askers may
  both submit: each then looks, and whoever finds several ends all but the oldest. What slips through even
  that cannot begin: a node lives once (`pilot`).
- **A job that waits** is a node that boots. `queued` tells that it waits, and when Slurm expects to start it;
  whether to wait or to go elsewhere is for others to say, and how long at most for the policy
  (`boot_timeout`). One that Slurm will never start is an error, at once if Slurm says so within the moment
  that we wait.
- **A node's end is known before it comes.** The end of each job is in the queue, whether it is the limit, a
  preemption's grace or an operator's change; `supervise` writes it where the agent looks for notices.
- **Gone** is only what is surely gone (`life`).
- **The shared folder may stand still**, so nobody waits for it for long, and nothing else waits with it
  (`shared`).

A job cannot be reset: Slurm would give it another machine.
"""

import asyncio
import contextlib
import errno
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Self

import structlog

from holdfast.adapters.providers.local.folders import Folders, write
from holdfast.adapters.providers.local.market import LocalTraits
from holdfast.adapters.providers.slurm import life, partitions, shared, submit
from holdfast.adapters.providers.slurm.commands import Commands
from holdfast.adapters.providers.slurm.queue import PENDING, Job, Queue, comment, ids
from holdfast.adapters.providers.slurm.settings import TAKES, SlurmSettings, read_settings
from holdfast.adapters.providers.slurm.shared import Shared
from holdfast.model.action import LaunchNode
from holdfast.model.pool import Offer, Pool
from holdfast.model.units import Millis
from holdfast.model.verdict import Word
from holdfast.ports.errors import Denied, Full, NotFound, OutcomeUnknown, PortError, Unreachable
from holdfast.ports.provider import Credentials, Join

CREDENTIALS_S = 10.0
SETTLE_S = 2.0  # a scheduler that is not busy has decided by then
SETTLE_LOOK_S = 0.05
END_S = 120.0  # Slurm waits half a minute before it kills, and a call may take three
END_LOOK_S = 0.1
ENDED_S = 5.0  # for `ended` to be seen, where folders are shared slowly
LOOK_S = 5.0  # how often `supervise` looks; a grace of less than this is no notice
NO_MARKET = LocalTraits(capacity=1 << 30)  # the queue knows what there is

log = structlog.get_logger()


class SlurmProvider:
    takes = TAKES

    def __init__(
        self,
        settings: SlurmSettings,
        credentials: Credentials,
        *,
        look_s: float = LOOK_S,
        settle_s: float = SETTLE_S,
        answer_s: float = shared.ANSWER_S,
    ) -> None:
        self.settings = settings
        self._credentials = credentials
        self._look_s, self._settle_s = look_s, settle_s
        self._shared = Shared(settings.root, answer_s)
        self._commands = Commands(settings.bin, settings.conf, settings.inherit_env)
        self._folders: Folders  # these three when they are first asked for: the folder may not answer
        self._queue: Queue
        self._fleet = ""
        self._warned: set[tuple[int, str]] = set()

    @classmethod
    def from_settings(cls, settings: dict[str, str], credentials: Credentials) -> Self:
        return cls(read_settings(settings), credentials)

    async def _open(self) -> None:
        if not self._fleet:
            folders, fleet = await self._shared.opened()
            if not self._fleet:  # nobody was quicker
                self._folders, self._queue, self._fleet = folders, Queue(self._commands, fleet), fleet

    # the port

    async def launch(self, request: LaunchNode) -> None:
        node = request.node
        with _plainly(node):
            submit.options(request, self.settings, "", Path())  # what can never be, before anything is made
            await self._open()
            await self._shared(self._folders.reach)
            fresh = await self._shared(self._folders.enter, request, NO_MARKET)
            if not fresh and not await self._shared(self._folders.has, node):
                return  # its name is spent
            async with self._folders.held(node) as folder:
                if await self._shared(self._folders.is_ending, node):
                    return
                try:
                    await self._submit_once(request, folder)
                except OutcomeUnknown:
                    raise
                except (PortError, OSError):
                    if fresh:
                        await self._shared(self._folders.leave, node, spend=False)
                    raise

    async def terminate(self, node: str) -> None:
        with _plainly(node):
            await self._open()
            await self._shared(self._folders.reach)
            if not await self._shared(self._folders.has, node):
                await self._end_stray(node)
                return
            async with self._folders.held(node) as folder:
                jobs = await self._queue.of(node)
                await self._shared(self._folders.note_ending, node)
                if jobs:
                    await self._cancel(node, jobs)
                await self._see_gone(node, folder)
                await self._shared(self._folders.leave, node, spend=True)
            if not jobs:
                raise NotFound(f"the job of {node} had ended")

    async def reset(self, node: str) -> None:
        await self._open()
        if not await self._queue.of(node):
            raise NotFound(f"no job is {node}")
        raise Denied(f"{node} is a Slurm job: it cannot be reset, only ended and replaced")

    async def state(self, node: str) -> Word:
        with _plainly(node):
            await self._open()
            folder = self._folders.of(node)
            if (await self._told(folder)).over:
                return Word.STOPPED
            try:
                jobs = [job for job in await self._queue.all() if job.node == node]
            except Unreachable:
                return Word.UNKNOWN
            if jobs:
                return Word.STOPPED if isinstance(jobs[0].refusal, Denied) else Word.RUNNING
            gone = await self._is_gone(node, await self._told(folder))  # as it is after the queue was asked
            return Word.STOPPED if gone else Word.UNKNOWN

    async def list(self, pool: str) -> tuple[str, ...]:
        await self._open()
        jobs = await self._queue.all()
        return tuple(dict.fromkeys(job.node for job in jobs if job.pool == pool))

    async def queued(self, pool: str) -> dict[str, Millis | None]:
        """Slurm foretells the start of a job when its scheduler has come to it. Nobody knows when one starts
        that it refuses."""
        await self._open()
        jobs, now = await self._queue.all(), time.time()
        waiting = [job for job in jobs if job.pool == pool and job.state == PENDING]
        return {
            job.node: None
            if job.starts_at is None or job.refusal is not None
            else max(0, round(1000 * (job.starts_at - now)))
            for job in waiting
        }

    async def offers(self, pool: Pool) -> tuple[Offer, ...]:
        """The pool's own, as far as there are nodes for them now; whole nodes if it says nothing."""
        kinds = await partitions.kinds(self._commands)
        if not pool.offers:
            return partitions.offered(kinds, self.settings.partition)
        return tuple(offer for offer in pool.offers if self._is_there(offer, kinds))

    def _is_there(self, offer: Offer, kinds: Sequence[partitions.Kind]) -> bool:
        partition = submit.partition_of(offer.name, self.settings)
        return any(kind.partition == partition and offer.capacity.within(kind.has) for kind in kinds)

    async def _is_gone(self, node: str, told: life.Told) -> bool:
        return await life.is_gone(node, told, self.settings.time_s, self._queue, self._commands)

    # for whoever runs us

    async def supervise(self) -> None:
        """Until cancelled: pass on when nodes will end, and say which will never begin."""
        while True:
            await asyncio.sleep(self._look_s)
            try:
                with _plainly("the queue"):
                    await self._open()
                    for job in await self._queue.all():
                        await self._look_at(job)
            except PortError as error:
                log.warning("queue_not_looked_at", why=str(error))

    async def close(self) -> None:
        """Nodes go on."""

    async def _look_at(self, job: Job) -> None:
        if (refusal := job.refusal) is not None and (job.id, job.reason) not in self._warned:
            self._warned.add((job.id, job.reason))
            log.warning("node_will_not_start", node=job.node, job=job.id, why=str(refusal))
        if job.state != "RUNNING" or job.ends_at is None:
            return
        if job.ends_at - time.time() <= self._notice_s(job.ends_at - (job.starts_at or 0.0)):
            await self._shared(_tell, self._folders, job.node, f"{job.ends_at:.3f}\n".encode())

    def _notice_s(self, life_s: float) -> float:
        """Where only the partition knows the limit, it may be so short that all of a life would be notice."""
        longest_s = self.settings.notice_s
        return longest_s if self.settings.time_s else min(longest_s, life_s / 4 + life.SHORT_S)

    # launching

    async def _submit_once(self, request: LaunchNode, folder: Path) -> None:
        node = request.node
        if not await self._queue.of(node):
            if await self._shared(_was_submitted, folder):
                return  # it has ended since
            join = await self._join(node)
            await self._shared(
                submit.furnish, folder, request, join, self.settings, self._commands.path("squeue")
            )
            await self._submit(request, folder)
        with contextlib.suppress(Unreachable):  # it is submitted
            await self._settle(node, folder)

    async def _join(self, node: str) -> Join:
        try:
            async with asyncio.timeout(CREDENTIALS_S):
                return await self._credentials(node)
        except TimeoutError as error:
            raise Unreachable(f"no credentials for {node} within {CREDENTIALS_S:g} s") from error

    async def _submit(self, request: LaunchNode, folder: Path) -> None:
        words = submit.options(request, self.settings, comment(self._fleet, request.pool), folder)
        said = await self._commands.act("sbatch", *words, text=submit.script(folder, self.settings))
        try:
            job = submit.number(said)
        except ValueError:
            raise OutcomeUnknown(f"sbatch said {said[:200]!r}, and no number of a job") from None
        await self._shared(write, folder / "job", str(job).encode())

    async def _settle(self, node: str, folder: Path) -> None:
        """Until it runs, or waits for a reason; an error if that is a bad one. And only one of it is left."""
        until = time.monotonic() + self._settle_s
        while job := await self._keep_one(node):
            waits = job.state == PENDING
            decided = job.reason != "None" if waits else (await self._told(folder)).began is not None
            if decided or time.monotonic() > until:
                break
            await asyncio.sleep(SETTLE_LOOK_S)
        if job is None:
            words = await self._shared(life.last_words, folder)
            raise Denied(f"the job of {node} ended at once: {words}")
        if (refusal := job.refusal) is not None:
            await self._cancel(node, (job,))
            raise refusal

    async def _keep_one(self, node: str) -> Job | None:
        jobs = await self._queue.of(node)
        if len(jobs) > 1:
            with contextlib.suppress(NotFound):  # it has ended meanwhile
                await self._commands.act("scancel", *ids(jobs[1:]))
            log.warning("node_submitted_twice", node=node, kept=jobs[0].id, cancelled=ids(jobs[1:]))
        return jobs[0] if jobs else None

    # ending

    async def _cancel(self, node: str, jobs: Sequence[Job]) -> None:
        """Returns when no job is left in the queue, also none that is still completing. Whether scancel was
        answered does not matter: the queue tells."""
        try:
            await self._commands.act("scancel", *ids(jobs))
        except (NotFound, OutcomeUnknown) as error:
            log.info("cancel_not_answered", node=node, why=str(error))
        until = time.monotonic() + END_S
        try:
            while left := await self._queue.of(node):
                if time.monotonic() > until:
                    raise OutcomeUnknown(f"job {left[0].id} ({node}) is still {left[0].state.lower()}")
                await asyncio.sleep(END_LOOK_S)
        except Unreachable as error:
            raise OutcomeUnknown(f"{node} was cancelled, and then: {error}") from error

    async def _end_stray(self, node: str) -> None:
        """A job whose folder somebody removed."""
        jobs = await self._queue.of(node)
        if not jobs:
            raise NotFound(f"no job is {node}")
        await self._cancel(node, jobs)

    async def _see_gone(self, node: str, folder: Path) -> None:
        until = time.monotonic() + ENDED_S
        while (told := await self._told(folder)).began and not told.over and time.monotonic() < until:
            await asyncio.sleep(END_LOOK_S)
        if not await self._is_gone(node, told):
            host = (told.began or life.Began()).host or "its machine"
            raise OutcomeUnknown(
                f"the job of {node} is not in the queue, but nobody saw it off, and {host} may run it still; "
                f"if you know that it does not, make the file {folder / 'ended'}"
            )

    async def _told(self, folder: Path) -> life.Told:
        return await self._shared(life.told, folder)


def _was_submitted(folder: Path) -> bool:
    return (folder / "job").exists() or life.began(folder) is not None


def _tell(folders: Folders, node: str, text: bytes) -> None:
    """Where the agent looks for it, once."""
    notice = folders.of(node) / "agent" / "notice"
    if folders.has(node) and (not notice.exists() or notice.read_bytes() != text):
        write(notice, text)


@contextlib.contextmanager
def _plainly(what: str) -> Iterator[None]:
    """The shared folder's errors, in the words of the port."""
    try:
        yield
    except OSError as error:
        why = f"{what}: {error.strerror or error}" + (f": {error.filename}" if error.filename else "")
        match error.errno:
            case errno.ENOSPC | errno.EDQUOT:
                raise Full(why) from error
            case errno.EACCES | errno.EPERM | errno.EROFS:
                raise Denied(why) from error
            case _:
                raise Unreachable(why) from error
