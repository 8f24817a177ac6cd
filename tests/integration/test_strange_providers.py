"""Providers may be anybody's code: what they raise and answer by mistake stays one pool's trouble."""

import asyncio
from typing import Any, cast

import pytest
from msgspec.structs import replace
from structlog.testing import capture_logs

from holdfast.adapters.providers.join import JoinProvider
from holdfast.control.perform import CALLS_AT_ONCE, WHY_MAX
from holdfast.core.state import fold
from holdfast.core.turn import Perform
from holdfast.model import event as ev
from holdfast.model.action import AskProvider, LaunchNode, ListOffers, ListPool, ResetNode, TerminateNode
from holdfast.model.place import Place
from holdfast.model.plan import Plan
from holdfast.model.pool import Offer, Pool
from holdfast.model.resources import Resources
from holdfast.model.verdict import Word
from holdfast.ports.errors import CapacityShort, Denied, Throttled
from holdfast.sim.twins.store import SimStore
from tests.planes import World, until


def sim(world: World) -> SimStore:
    assert isinstance(world.store, SimStore)
    return world.store


class Mistaken(JoinProvider):
    """Somebody else's, and wrong in every call."""

    error: BaseException = ZeroDivisionError("division by \udcff zero")
    answer: Any = None

    def __init__(self, error: BaseException | None = None, answer: Any = None) -> None:
        self.error, self.answer = error or self.error, answer

    async def _fail(self) -> Any:
        if self.answer is None:
            raise self.error
        return self.answer

    async def launch(self, request: LaunchNode) -> None:
        await self._fail()

    async def terminate(self, node: str) -> None:
        await self._fail()

    async def reset(self, node: str) -> None:
        await self._fail()

    async def state(self, node: str) -> Word:
        return cast(Word, await self._fail())

    async def list(self, pool: str) -> tuple[str, ...]:
        return cast(tuple[str, ...], await self._fail())

    async def offers(self, pool: Pool) -> tuple[Offer, ...]:
        return cast(tuple[Offer, ...], await self._fail())


class Shorter(CapacityShort):
    """A port error of somebody's own."""


LAUNCH = LaunchNode(
    node="rented-1",
    pool="fleet",
    offer="big",
    place=Place("theirs"),
    capacity=Resources(1000, 1024),
    price_micro_usd=1,
    spot=False,
    why="",
)


async def asked(provider: Mistaken, action: LaunchNode | TerminateNode | ResetNode) -> ev.ActionFailed:
    """What comes of it in the journal."""
    world = World(provider=provider)
    async with world.plane() as plane:
        await world.joined(plane, "n1")
        assert plane._term is not None
        plane._term.hands.perform(Perform("1.0", action))
        await until(lambda: any(isinstance(entry, ev.ActionFailed) for entry in sim(world).entries))
        (failed,) = (entry for entry in sim(world).entries if isinstance(entry, ev.ActionFailed))
        return failed


@pytest.mark.parametrize(
    "action", [LAUNCH, TerminateNode(node="n1", why=""), ResetNode(node="n1", why="")], ids=lambda a: type(a)
)
async def test_a_call_that_fails_by_a_mistake_is_an_event_of_which_nobody_knows_the_outcome(
    action: LaunchNode | TerminateNode | ResetNode,
) -> None:
    failed = await asked(Mistaken(), action)
    assert (failed.action, failed.node, failed.error) == ("1.0", action.node, "OutcomeUnknown")
    assert failed.why == "its provider fails by a mistake: ZeroDivisionError: division by ? zero"


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (asyncio.CancelledError(), ("OutcomeUnknown", "its provider gave up half-way", 0)),
        (TimeoutError("late"), ("OutcomeUnknown", "its provider fails by a mistake: TimeoutError: late", 0)),
        (Shorter("none left"), ("CapacityShort", "none left", 0)),
        (Throttled("slowly", 1500.5), ("Throttled", "slowly", 1500)),  # type: ignore[arg-type]
        (Denied("<html>" * 1_000_000), ("Denied", ("<html>" * 1_000)[:WHY_MAX], 0)),
    ],
    ids=lambda it: type(it).__name__,
)
async def test_whatever_somebody_elses_provider_raises_is_an_error_of_the_port(
    error: BaseException, told: tuple[str, str, int]
) -> None:
    failed = await asked(Mistaken(error), LAUNCH)
    assert (failed.error, failed.why, failed.retry_after_ms) == told


@pytest.mark.parametrize(
    ("action", "answer"),
    [
        (ListPool(pool="fleet", why=""), None),
        (ListPool(pool="fleet", why=""), ("n1", 7)),
        (ListPool(pool="fleet", why=""), {"n1": object()}),
        (ListPool(pool="fleet", why=""), ("\udcff",)),
        (ListOffers(pool="fleet", why=""), None),
        (ListOffers(pool="fleet", why=""), (Offer("a", Place("p"), Resources(1), 0.5),)),  # type: ignore[arg-type]
    ],
    ids=("no names", "a number", "a table", "no text", "no offers", "half a price"),
)
async def test_an_answer_that_makes_no_sense_is_in_the_log_and_not_in_the_journal(
    action: ListPool | ListOffers, answer: Any
) -> None:
    world = World(provider=Mistaken(answer=answer))
    async with world.plane() as plane:
        await world.joined(plane, "n1")
        term = plane._term
        assert term is not None
        with capture_logs() as logged:
            term.hands.perform(Perform("1", action))
            await until(lambda: any(line["log_level"] == "error" for line in logged), 2)
        assert plane._term is term
        assert not any(isinstance(entry, ev.PoolListed | ev.OffersListed) for entry in sim(world).entries)


@pytest.mark.parametrize(
    ("answer", "word"), [("running", Word.RUNNING), (Word.STOPPED, Word.STOPPED), ("up", Word.UNKNOWN)]
)
async def test_a_state_is_a_word_that_we_know_or_unknown(answer: Any, word: Word) -> None:
    world = World(provider=Mistaken(answer=answer))
    async with world.plane() as plane:
        await world.joined(plane, "n1")
        assert plane._term is not None
        plane._term.hands.perform(Perform("1", AskProvider(node="n1", why="")))
        await until(lambda: any(isinstance(entry, ev.ProviderAnswered) for entry in sim(world).entries))
        (said,) = (entry for entry in sim(world).entries if isinstance(entry, ev.ProviderAnswered))
        assert said.word is word


class Slow(JoinProvider):
    def __init__(self) -> None:
        self.launched: list[str] = []
        self.goes_on = asyncio.Event()

    async def launch(self, request: LaunchNode) -> None:
        self.launched.append(request.node)
        await self.goes_on.wait()


async def test_a_launch_that_waited_until_nobody_wants_it_any_more_is_not_carried_out() -> None:
    """So many go to one provider at a time; the others wait, and may be given up meanwhile."""
    provider = Slow()
    world = World(provider=provider)
    async with world.plane() as plane:
        await world.joined(plane, "n1")
        term = plane._term
        assert term is not None
        names = [f"fleet-{number}" for number in range(1, CALLS_AT_ONCE + 2)]
        for name in names:
            launch = replace(LAUNCH, node=name)
            fold.accept(term.mind.world, Plan(term.mind.world.plans + 1, term.now, (launch,)))
            term.hands.perform(Perform(name, launch))
        await until(lambda: len(provider.launched) == CALLS_AT_ONCE)
        end = TerminateNode(node=names[-1], why="")
        fold.accept(term.mind.world, Plan(term.mind.world.plans + 1, term.now, (end,)))
        provider.goes_on.set()
        await until(lambda: sum(node.answered for node in term.mind.world.nodes.values()) == CALLS_AT_ONCE)
        assert names[-1] not in provider.launched


@pytest.mark.parametrize(
    "offers",
    [
        (Offer("a", Place("p"), Resources(1000), -1),),
        (Offer("a", Place("p"), Resources(-1000), 1),),
        (Offer("a", Place("p"), Resources(1000), 1), Offer("a", Place("q"), Resources(1000), 2)),
        (Offer("", Place("p"), Resources(1000), 1),),
    ],
    ids=("it pays us", "less than nothing", "twice", "nameless"),
)
async def test_offers_that_cannot_be_are_in_the_log_and_not_in_the_journal(offers: tuple[Offer, ...]) -> None:
    """A price below zero would pay for everything else in the budget."""
    good = Offer("good", Place("p"), Resources(1000), 1)
    world = World(provider=Mistaken(answer=(good, *offers)))
    async with world.plane() as plane:
        await world.joined(plane, "n1")
        assert plane._term is not None
        with capture_logs() as logged:
            plane._term.hands.perform(Perform("1", ListOffers(pool="fleet", why="")))
            await until(lambda: any(isinstance(entry, ev.OffersListed) for entry in sim(world).entries))
        (listed,) = (entry for entry in sim(world).entries if isinstance(entry, ev.OffersListed))
        assert listed.offers is not None
        assert [offer.price_micro_usd for offer in listed.offers] == [1] * len(listed.offers)
        assert good in listed.offers
        assert any(line["event"] == "an offer that cannot be" for line in logged)
