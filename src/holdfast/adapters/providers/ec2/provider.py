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
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final, Self

import msgspec
import structlog

from holdfast.adapters.providers.ec2 import order
from holdfast.adapters.providers.ec2.account import BOTO3, Account
from holdfast.adapters.providers.ec2.faults import TokenSpent, TokenTaken
from holdfast.adapters.providers.ec2.machine import user_data
from holdfast.adapters.providers.ec2.market import Market
from holdfast.adapters.providers.ec2.settings import TAKES, Ec2Settings, read_settings
from holdfast.model.action import LaunchNode
from holdfast.model.pool import Offer, Pool
from holdfast.model.verdict import Word
from holdfast.ports.errors import NotFound, OutcomeUnknown, PortError, Throttled, Unreachable
from holdfast.ports.provider import Credentials

CREDENTIALS_S = 10.0
GONE_S = 150.0  # for a termination, in all: less than the control plane waits
LOOK_FIRST_S, LOOK_LAST_S = 0.2, 5.0  # between two looks at a machine that is shutting down
FORGOTTEN_LOOKS = 5
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

log = structlog.get_logger()


class Found(msgspec.Struct, frozen=True):
    region: str
    id: str  # empty: a spot request that has no machine
    state: str  # empty: not shown yet


class Made(msgspec.Struct, frozen=True):
    """A machine of which we know where it is."""

    region: str
    at: float  # when we asked for it, by our own clock; 0: somebody else did


class Ec2Provider:
    takes = TAKES

    def __init__(self, settings: Ec2Settings, credentials: Credentials) -> None:
        self._settings = settings
        self._credentials = credentials
        self._account = Account(settings)
        self._market = Market(self._account, settings)
        self._made: dict[str, Made] = {}

    @classmethod
    def from_settings(cls, settings: dict[str, str], credentials: Credentials) -> Self:
        BOTO3.insist()
        return cls(read_settings(settings), credentials)

    # the port

    async def launch(self, request: LaunchNode) -> None:
        words = order.run_words(request, self._settings, await self._user_data(request))
        region = request.place.region
        if await self._find_in(region, request.node):
            self._made.setdefault(request.node, Made(region, 0.0))
            return  # it is there, or its name is spent
        self._note(request.node, region)
        try:
            await self._account.do(region, "run_instances", **words)
        except TokenSpent:
            self._made.pop(request.node, None)
        except TokenTaken as error:
            # We were upgraded, or our address changed, and so did what the machine is told: it is ours.
            if not await self._find_in(region, request.node):
                raise OutcomeUnknown(str(error)) from error
        except OutcomeUnknown:
            raise
        except PortError:
            self._made.pop(request.node, None)
            raise
        finally:
            if request.node in self._made:  # it may have been long in coming to its turn
                self._note(request.node, region)

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
                if not node:
                    log.error(
                        "machine_without_name", machine=instance["InstanceId"], region=region, pool=pool
                    )
                    continue
                self._made.setdefault(node, Made(region, 0.0))
                names[node] = None
        return tuple(names)

    async def offers(self, pool: Pool) -> tuple[Offer, ...]:
        return await self._market.offers(pool)

    async def close(self) -> None:
        """Nodes go on."""
        self._account.close()

    # launching

    def _note(self, node: str, region: str) -> None:
        """It may be there from now on."""
        self._made[node] = Made(region, time.monotonic())

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
        asked = await asyncio.gather(*(self._cancel(region, node) for region in regions))
        seen = await self._find(node)
        known = {each.id for each in seen}
        unseen = [each for requests in asked for each in requests if each.id and each.id not in known]
        found = [*(each for each in seen if each.state != OVER), *unseen]
        if not found:
            if any(asked):
                return
            raise self._missing(node, seen)
        ending = set[str]()
        for each in found:
            try:
                if each.state != ENDS:
                    await self._account.do(each.region, "terminate_instances", InstanceIds=[each.id])
                ending.add(each.id)
            except NotFound:
                if each in unseen:
                    raise OutcomeUnknown(f"{node} is {each.id}, and EC2 does not show it yet") from None
        await self._see_over(node, ending)

    async def _see_over(self, node: str, ending: set[str]) -> None:
        """EC2 shows a machine for an hour after its end. What it does not show for a moment may go on; what
        it does not show at look after look it has forgotten."""
        wait_s, unseen = LOOK_FIRST_S, 0
        while True:
            states = {each.id: each.state for each in await self._find(node)}
            unseen = unseen + 1 if ending - states.keys() else 0
            if all(state == OVER for state in states.values()) and unseen in (0, FORGOTTEN_LOOKS):
                return
            await asyncio.sleep(wait_s)
            wait_s = min(LOOK_LAST_S, wait_s * 1.5)

    async def _cancel(self, region: str, node: str) -> tuple[Found, ...]:
        """A spot request that waits would become a machine after we said that there is none, and one that was
        fulfilled has become one. The machines, as far as the requests know them."""
        asked = [
            *order.filters(node=node, fleet=self._settings.fleet),
            {"Name": "state", "Values": ["open", "active"]},
        ]
        found = await self._requests(region, Filters=asked)
        ids = list(found)
        if ids:
            await self._account.do(region, "cancel_spot_instance_requests", SpotInstanceRequestIds=ids)
        if not all(found.values()):  # it may have been fulfilled in the last moment
            found = await self._requests(region, SpotInstanceRequestIds=ids)
        return tuple(Found(region, machine, "") for machine in found.values())

    async def _requests(self, region: str, **which: Any) -> dict[str, str]:
        """Spot requests, and the machine that each became, if any."""
        answer = await self._account.look(region, "describe_spot_instance_requests", **which)
        return {
            each["SpotInstanceRequestId"]: str(each.get("InstanceId", ""))
            for each in answer.get("SpotInstanceRequests", [])
        }

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
