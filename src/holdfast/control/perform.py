"""The hands: what a plan says is asked of peers and providers, and what comes of it is an event.

Nothing here raises into the loop. Every call is under a time-out, and at most a few go to one provider at a
time. A call that was cut off because the term ended is asked again by the next one, under the same id.

A provider may be anybody's code. Whatever it raises becomes one of the port's errors: what fails by a mistake
may have had an effect, so its outcome is unknown. What it answers is read as the journal will read it, for
what could not be read again would keep every later leader from leading.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import TypeVar

import msgspec
import structlog

from holdfast.control.hub import Hub
from holdfast.control.term import Term
from holdfast.core.turn import Perform
from holdfast.model import action as do
from holdfast.model import event as ev
from holdfast.model.node import NodeState
from holdfast.model.pool import Offer, Pool
from holdfast.model.units import Millis
from holdfast.model.verdict import Word
from holdfast.ports import errors
from holdfast.ports.errors import Denied, NotFound, OutcomeUnknown, PortError, Unreachable
from holdfast.ports.provider import Provider, Queueing

STATE_S = 5.0
CALL_S = 180.0
CALLS_AT_ONCE = 16  # to one provider
WHY_MAX = 1_000  # characters: some answer with a whole page

log = structlog.get_logger("holdfast.perform")

T = TypeVar("T")
Providers = Callable[[Pool], Provider]
Done = ev.NodeLaunched | ev.NodeTerminated | ev.NodeReset


class Performer:
    def __init__(
        self, term: Term, hub: Hub, providers: Providers, unlisted: dict[str, str] | None = None
    ) -> None:
        """`unlisted`: is told which pools could not be asked what they offer, and why."""
        self.term, self.hub, self.providers = term, hub, providers
        self.unlisted = {} if unlisted is None else unlisted
        self._tasks: set[asyncio.Task[None]] = set()
        self._gates: dict[str, asyncio.Semaphore] = {}

    # as the hands of a term

    def send_set(self, node: str) -> None:
        self.hub.send_set(node)

    def heard(self) -> dict[str, int]:
        return self.hub.heard()

    def refuse(self, node: str, why: str) -> None:
        self.hub.bar(node, why)

    def resume(self) -> None:
        self.hub.resume()

    def perform(self, step: Perform) -> None:
        match step.action:
            case do.AskPeers(node=node, peers=peers):
                for peer in peers:
                    self.hub.ask(node, peer)
            case do.AskProvider(node=node):
                self._begin(self._ask_provider(node))
            case do.ListPool(pool=pool):
                self._begin(self._list(pool))
            case do.ListOffers(pool=pool):
                self._begin(self._list_offers(pool))
            case do.LaunchNode(node=node, pool=pool) as launch:
                self._begin(self._call(step, pool, node, lambda p: p.launch(launch), ev.NodeLaunched))
            case do.TerminateNode(node=node):
                pool = self._pool_of(node)
                self._begin(self._call(step, pool, node, lambda p: p.terminate(node), ev.NodeTerminated))
            case do.ResetNode(node=node):
                pool = self._pool_of(node)
                self._begin(self._call(step, pool, node, lambda p: p.reset(node), ev.NodeReset))
            case _:
                raise AssertionError(f"nobody carries out {step.action}")

    async def close(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _begin(self, work: Awaitable[None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        """What a provider did wrong is an event by now. This is a mistake of ours, and is not passed over."""
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("an action failed in a way that it should not", exc_info=error)

    # calls

    def _pool_of(self, node: str) -> str:
        world = self.term.mind.world
        known = world.nodes.get(node)
        return known.pool if known is not None else world.orphans.get(node, node.rsplit("-", 1)[0])

    def _provider(self, pool: str) -> Provider:
        known = self.term.mind.world.pools.get(pool)
        if known is None:
            raise Denied(f"there is no pool called {pool}")
        return self.providers(known)

    async def _call(
        self,
        step: Perform,
        pool: str,
        node: str,
        call: Callable[[Provider], Awaitable[None]],
        done: type[Done],
    ) -> None:
        gate = self._gates.setdefault(pool, asyncio.Semaphore(CALLS_AT_ONCE))
        outcome: ev.Event
        try:
            async with gate:
                if not self.hub.may_renew():  # we waited, or were paused: it may be another's to do by now
                    raise Unreachable("this control plane does not surely lead")
                if done is ev.NodeLaunched and not self._is_wanted(node):
                    return
                await answer_of(lambda: call(self._provider(pool)), CALL_S)
        except NotFound as error:
            outcome = (
                ev.NodeTerminated(at=self.term.now, node=node, found=False)
                if done is ev.NodeTerminated
                else self._failed(step.id, node, error)
            )
        except PortError as error:
            log.warning("provider failed", node=node, error=name_of(error), why=why_of(error))
            outcome = self._failed(step.id, node, error)
        else:
            outcome = done(at=self.term.now, node=node)
        self.term.post(outcome)
        if isinstance(outcome, ev.NodeTerminated):
            with contextlib.suppress(PortError):  # an entry too many does no harm
                await self.hub.enrolment.forget(node)

    def _is_wanted(self, node: str) -> bool:
        """False: it was given up while its launch waited for its turn."""
        known = self.term.mind.world.nodes.get(node)
        return known is None or known.state is not NodeState.TERMINATING

    def _failed(self, action: str, node: str, error: PortError) -> ev.ActionFailed:
        return ev.ActionFailed(
            at=self.term.now,
            action=action,
            node=node,
            error=name_of(error),
            why=why_of(error),
            retry_after_ms=int(error.retry_after_ms),
        )

    async def _ask_provider(self, node: str) -> None:
        try:
            word = await answer_of(lambda: self._provider(self._pool_of(node)).state(node), STATE_S, Word)
        except PortError:
            word = Word.UNKNOWN
        self.term.post(ev.ProviderAnswered(at=self.term.now, node=node, word=word))

    async def _list(self, pool: str) -> None:
        asked = self.term.now
        try:
            nodes = await answer_of(lambda: self._provider(pool).list(pool), CALL_S, tuple[str, ...])
        except PortError as error:
            log.warning("cannot list", pool=pool, why=why_of(error))
            return
        queued = await self._queued(pool)
        self.term.post(ev.PoolListed(at=self.term.now, pool=pool, nodes=nodes, asked_at=asked, queued=queued))

    async def _queued(self, pool: str) -> dict[str, Millis | None] | None:
        """`None`: it has no queue, or cannot tell now."""
        try:
            provider = self._provider(pool)
            if not isinstance(provider, Queueing):
                return None
            return await answer_of(lambda: provider.queued(pool), CALL_S, dict[str, Millis | None])
        except PortError as error:
            log.warning("cannot see the queue", pool=pool, why=why_of(error))
            return None

    async def _list_offers(self, name: str) -> None:
        """Told as often as it is asked: that something is still there is worth knowing."""
        pool = self.term.mind.world.pools.get(name)
        if pool is None:
            return
        try:
            offers = await answer_of(lambda: self._provider(name).offers(pool), CALL_S, tuple[Offer, ...])
        except PortError as error:
            self.unlisted[name] = why_of(error)
            log.warning("cannot list offers", pool=name, why=why_of(error))
            return
        self.unlisted.pop(name, None)
        offers = possible(offers, name)
        known = self.term.mind.world.offers.get(name)
        news = None if offers == known else offers
        self.term.post(ev.OffersListed(at=self.term.now, pool=name, offers=news))


async def answer_of(call: Callable[[], Awaitable[T]], within_s: float, kind: type[T] | None = None) -> T:
    """What a provider answers, or one of the port's errors."""
    limit = asyncio.timeout(within_s)
    try:
        async with limit:
            answer = await call()
        return answer if kind is None else msgspec.json.decode(msgspec.json.encode(answer), type=kind)
    except PortError:
        raise
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is None or task.cancelling():  # we are to end
            raise
        raise OutcomeUnknown("its provider gave up half-way") from None
    except Exception as error:
        if limit.expired():
            raise OutcomeUnknown(f"no answer within {within_s:g} s") from None
        log.error("a provider failed in a way that it should not", exc_info=error)
        raise OutcomeUnknown(f"its provider fails by a mistake: {type(error).__name__}: {error}") from error


def possible(offers: tuple[Offer, ...], pool: str) -> tuple[Offer, ...]:
    """Those that could be, each once: a price below zero would pay for everything else."""
    found: dict[str, Offer] = {}
    for offer in offers:
        has = offer.capacity
        least = min(offer.price_micro_usd, has.cpu_milli, has.memory_mib, has.gpu_milli)
        if least < 0 or not offer.name or offer.name in found:
            log.warning("an offer that cannot be", pool=pool, offer=str(offer)[:WHY_MAX])
        else:
            found[offer.name] = offer
    return tuple(found.values())


def name_of(error: PortError) -> str:
    """Of the port's own error, whichever its provider made of it."""
    return next(kind.__name__ for kind in type(error).__mro__ if kind.__module__ == errors.__name__)


def why_of(error: PortError) -> str:
    return str(error)[:WHY_MAX].encode(errors="replace").decode()
