"""Nodes that are machines of EC2.

EC2 keeps what there is to know: every machine carries the node's name, its pool and its fleet as tags from
its first moment, so any control plane finds them all by asking, and nothing is kept here but where a node was
last seen. Before a launch we look, so that what is there already is not asked for again and is not denied
because EC2 has nothing left; the client token settles what two control planes do at once.

A name is spent when its machine was terminated: EC2 shows such a machine for about an hour and knows its
token for a day, and a launch under it does nothing. No plan uses a name twice, so longer is not needed.

What EC2 has just made it may not show for some seconds. So a node that we launched a moment ago and cannot
see is not gone: we do not know.
"""

import asyncio
import contextlib
import time
from collections.abc import Mapping, Sequence
from typing import Final, Self

import msgspec

from holdfast.adapters.providers.ec2 import order
from holdfast.adapters.providers.ec2.account import Account
from holdfast.adapters.providers.ec2.faults import TokenSpent, TokenTaken
from holdfast.adapters.providers.ec2.machine import user_data
from holdfast.adapters.providers.ec2.market import Market
from holdfast.adapters.providers.ec2.settings import Ec2Settings, read_settings
from holdfast.model.action import LaunchNode
from holdfast.model.pool import Offer, Pool
from holdfast.model.verdict import Word
from holdfast.ports.errors import Denied, NotFound, OutcomeUnknown, PortError, Throttled, Unreachable
from holdfast.ports.provider import Credentials

CREDENTIALS_S = 10.0
GONE_S = 150.0  # for a termination, in all: less than the control plane waits
LOOK_FIRST_S, LOOK_LAST_S = 0.2, 5.0  # between two looks at a machine that is shutting down
FRESH_S = 60.0  # by then EC2 shows what it made

COSTS: Final = ("pending", "running", "stopping", "stopped")
ENDS: Final = "shutting-down"
OVER: Final = "terminated"
WORDS: Final[Mapping[str, Word]] = {
    "pending": Word.RUNNING,  # it boots
    "running": Word.RUNNING,
    "stopping": Word.UNKNOWN,  # what runs there may go on for a while
    ENDS: Word.UNKNOWN,
    "stopped": Word.STOPPED,
    OVER: Word.STOPPED,
}


class Found(msgspec.Struct, frozen=True):
    region: str
    id: str
    state: str


class Made(msgspec.Struct, frozen=True):
    """A machine of which we know where it is."""

    region: str
    at: float  # when we asked for it, by our own clock; 0: somebody else did


class Ec2Provider:
    def __init__(self, settings: Ec2Settings, credentials: Credentials) -> None:
        self._settings = settings
        self._credentials = credentials
        self._account = Account(settings)
        self._market = Market(self._account, settings)
        self._made: dict[str, Made] = {}

    @classmethod
    def from_settings(cls, settings: dict[str, str], credentials: Credentials) -> Self:
        return cls(read_settings(settings), credentials)

    # the port

    async def launch(self, request: LaunchNode) -> None:
        words = order.run_words(request, self._settings, await self._user_data(request))
        region = request.place.region
        if await self._find_in(region, request.node):
            self._made.setdefault(request.node, Made(region, 0.0))
            return  # it is there, or its name is spent
        self._made[request.node] = Made(region, time.monotonic())
        try:
            await self._account.do(region, "run_instances", **words)
        except TokenSpent:
            self._made.pop(request.node, None)
        except TokenTaken as error:
            self._made.pop(request.node, None)
            # We were upgraded, or our address changed, and so did what the machine is told: it is ours.
            if not await self._find_in(region, request.node):
                raise Denied(str(error)) from error
        except OutcomeUnknown:
            raise
        except PortError:
            self._made.pop(request.node, None)
            raise

    async def terminate(self, node: str) -> None:
        """A machine that is still shutting down when our time is over is for the next call."""
        try:
            async with asyncio.timeout(GONE_S):
                await self._end(node)
        except TimeoutError:
            raise OutcomeUnknown(f"{node} was not gone within {GONE_S:g} s") from None
        self._made.pop(node, None)

    async def reset(self, node: str) -> None:
        seen = await self._find(node)
        found = [each for each in seen if each.state not in (ENDS, OVER)]
        if not found:
            raise self._missing(node, seen)
        for each in found:
            await self._account.do(each.region, "reboot_instances", InstanceIds=[each.id])

    async def state(self, node: str) -> Word:
        try:
            found = await self._find(node)
        except (Unreachable, OutcomeUnknown, Throttled):
            return Word.UNKNOWN
        if not found:
            return Word.UNKNOWN if self._is_fresh(node) else Word.STOPPED
        words = {WORDS.get(each.state, Word.UNKNOWN) for each in found}
        return next(word for word in (Word.RUNNING, Word.UNKNOWN, Word.STOPPED) if word in words)

    async def list(self, pool: str) -> tuple[str, ...]:
        """Of all regions, or an error: a part of them would look like the whole."""
        asked = [
            *order.filters(pool=pool, fleet=self._settings.fleet),
            *order.in_states(*COSTS),
        ]
        answers = await asyncio.gather(
            *(self._account.look(region, "describe_instances", Filters=asked) for region in self._regions)
        )
        names: dict[str, None] = {}
        for region, answer in zip(self._regions, answers, strict=True):
            for instance in order.instances(answer):
                node = order.node_of(instance)
                self._made.setdefault(node, Made(region, 0.0))
                names[node] = None
        return tuple(names)

    async def offers(self, pool: Pool) -> tuple[Offer, ...]:
        return await self._market.offers(pool)

    async def close(self) -> None:
        """Nodes go on."""
        self._account.close()

    # launching

    async def _user_data(self, request: LaunchNode) -> str:
        try:
            async with asyncio.timeout(CREDENTIALS_S):
                join = await self._credentials(request.node)
        except TimeoutError as error:
            raise Unreachable(f"no credentials for {request.node} within {CREDENTIALS_S:g} s") from error
        return user_data(request, join, self._settings.install)

    # ending

    async def _end(self, node: str) -> None:
        regions = self._where(node)
        cancelled = await asyncio.gather(*(self._cancel(region, node) for region in regions))
        seen = await self._find(node)
        found = [each for each in seen if each.state != OVER]
        if not found:
            if any(cancelled):
                return
            raise self._missing(node, seen)
        for each in found:
            if each.state != ENDS:
                with contextlib.suppress(NotFound):
                    await self._account.do(each.region, "terminate_instances", InstanceIds=[each.id])
        wait_s = LOOK_FIRST_S
        while any(each.state != OVER for each in await self._find(node)):
            await asyncio.sleep(wait_s)
            wait_s = min(LOOK_LAST_S, wait_s * 1.5)

    async def _cancel(self, region: str, node: str) -> bool:
        """A spot request that waits would become a machine after we said that there is none."""
        asked = [
            *order.filters(node=node, fleet=self._settings.fleet),
            {"Name": "state", "Values": ["open", "active"]},
        ]
        answer = await self._account.look(region, "describe_spot_instance_requests", Filters=asked)
        ids = [each["SpotInstanceRequestId"] for each in answer.get("SpotInstanceRequests", [])]
        if ids:
            await self._account.do(region, "cancel_spot_instance_requests", SpotInstanceRequestIds=ids)
        return bool(ids)

    # finding

    @property
    def _regions(self) -> Sequence[str]:
        return self._settings.regions

    def _where(self, node: str) -> Sequence[str]:
        known = self._made.get(node)
        return (known.region,) if known else self._regions

    def _is_fresh(self, node: str) -> bool:
        known = self._made.get(node)
        return known is not None and known.at > 0 and time.monotonic() - known.at < FRESH_S

    def _missing(self, node: str, seen: Sequence[Found]) -> PortError:
        """`seen`: what there was of it."""
        if not seen and self._is_fresh(node):
            return OutcomeUnknown(f"{node} was launched a moment ago, and EC2 does not show it yet")
        return NotFound(f"EC2 has no machine that is {node}")

    async def _find(self, node: str) -> tuple[Found, ...]:
        """Also what is terminated, as long as EC2 remembers it. Unreachable: a region did not answer."""
        found = await asyncio.gather(*(self._find_in(region, node) for region in self._where(node)))
        return tuple(each for several in found for each in several)

    async def _find_in(self, region: str, node: str) -> tuple[Found, ...]:
        asked = order.filters(node=node, fleet=self._settings.fleet)
        answer = await self._account.look(region, "describe_instances", Filters=asked)
        return tuple(
            Found(region, each["InstanceId"], order.state_of(each)) for each in order.instances(answer)
        )
