"""Nodes that are machines we can log in to: a fixed set of them, one node each.

An offer is a host: it has the host's name, its place and its size. Launching is installing the agent there
and starting it; terminating is ending everything of the node, so that the host can be another node later. The
host itself keeps what it is (`remote`), so any control plane finds it out by asking.

A host that does not answer is not a host without a node: then we do not know.
"""

import asyncio
import base64
from collections.abc import Sequence
from typing import Any, Self

import msgspec
import structlog

from holdfast.adapters.providers.ssh import remote
from holdfast.adapters.providers.ssh.hosts import TAKES, SshHost, read_hosts
from holdfast.adapters.providers.ssh.line import ANSWER_S, ASYNCSSH, Line, NeedsInstall
from holdfast.adapters.providers.ssh.package import wheel
from holdfast.model.action import LaunchNode
from holdfast.model.place import Place
from holdfast.model.pool import Offer, Pool
from holdfast.model.resources import Resources
from holdfast.model.verdict import Word
from holdfast.ports.errors import Denied, NotFound, OutcomeUnknown, PortError, Unreachable
from holdfast.ports.provider import Credentials, agent_arguments

CREDENTIALS_S = 10.0
LOOK_S = 10.0  # how often `supervise` looks
INSTALL_STEP_S = 180.0  # pip, over a slow network
INSTALL_S = 2 * INSTALL_STEP_S + ANSWER_S


NOBODY = LaunchNode(
    node="", pool="", offer="", place=Place(""), capacity=Resources(), price_micro_usd=0, spot=False, why=""
)

log = structlog.get_logger()


class Seen(msgspec.Struct, frozen=True):
    """What a host says of itself."""

    line: Line
    node: str = ""  # empty: it is none
    request: LaunchNode = NOBODY
    up: bool = False
    agent: bool = False


class SshProvider:
    takes = TAKES

    def __init__(
        self, hosts: Sequence[SshHost], credentials: Credentials, *, agent_command: Sequence[str] = ()
    ) -> None:
        """`agent_command`: an agent that is on the hosts already; without it ours is installed."""
        self._lines = {host.name: Line(host) for host in hosts}
        self._credentials = credentials
        self._command = tuple(agent_command)
        self._homes: dict[str, Line] = {}  # where a node was last seen: saves asking them all

    @classmethod
    def from_settings(cls, settings: dict[str, str], credentials: Credentials) -> Self:
        ASYNCSSH.insist()
        return cls(read_hosts(settings), credentials)

    # the port

    async def launch(self, request: LaunchNode) -> None:
        line = self._lines.get(request.offer)
        if line is None:
            raise Denied(f"no host is called {request.offer}; there are {', '.join(sorted(self._lines))}")
        await self._ask_and_install(line, await self._start_request("launch", request))
        self._homes[request.node] = line

    async def terminate(self, node: str) -> None:
        line = self._homes.get(node) or (await self._find(node)).line
        await line.ask({"do": "terminate", "node": node}, only_looks=False)
        self._homes.pop(node, None)

    async def reset(self, node: str) -> None:
        seen = await self._find(node)
        asked = await self._start_request("reset", seen.request)
        await self._ask_and_install(seen.line, asked)

    async def state(self, node: str) -> Word:
        try:
            seen = await self._find(node)
        except NotFound:
            return Word.STOPPED
        except (Unreachable, OutcomeUnknown):
            return Word.UNKNOWN
        return Word.RUNNING if seen.up else Word.STOPPED

    async def list(self, pool: str) -> tuple[str, ...]:
        """Of the hosts that answer. Unreachable: none did."""
        found, errors = await self._look_at_all()
        if errors and not found:
            raise errors[0]
        return tuple(seen.node for seen in found if seen.node and seen.request.pool == pool)

    async def offers(self, pool: Pool) -> tuple[Offer, ...]:
        return pool.offers

    # for whoever runs us

    async def supervise(self) -> None:
        """Until cancelled: start agents again that ended before their node."""
        while True:
            await asyncio.sleep(LOOK_S)
            found, errors = await self._look_at_all()
            for error in errors:
                log.warning("host_not_looked_at", why=str(error))
            for seen in found:
                if seen.up and not seen.agent:
                    await self._revive(seen)

    async def close(self) -> None:
        """Nodes go on."""
        await asyncio.gather(*(line.close() for line in self._lines.values()))

    # asking

    async def _ask_and_install(self, line: Line, asked: dict[str, Any]) -> None:
        try:
            await line.ask(asked, only_looks=False)
        except NeedsInstall:
            await self._install(line)
            await line.ask(asked, only_looks=False)

    async def _install(self, line: Line) -> None:
        ours = await asyncio.to_thread(wheel)
        asked = {
            "do": "install",
            "version": ours.version,
            "wheel": ours.name,
            "content": base64.b64encode(ours.content).decode(),
            "constraints": ours.constraints,
            "patience_s": INSTALL_STEP_S,
        }
        log.info("agent_install_begins", host=line.host.name, version=ours.version)
        # Losing the line here makes no machine: it is as good as looking.
        await line.ask(asked, only_looks=True, within_s=INSTALL_S)

    async def _start_request(self, do: str, request: LaunchNode) -> dict[str, Any]:
        try:
            async with asyncio.timeout(CREDENTIALS_S):
                join = await self._credentials(request.node)
        except TimeoutError as error:
            raise Unreachable(f"no credentials for {request.node} within {CREDENTIALS_S:g} s") from error
        told = agent_arguments(
            request,
            join,
            root=f"{remote.ROOT}/node/agent",
            token_file=f"{remote.ROOT}/node/token",
            checkpoints=f"{remote.ROOT}/checkpoints",
        )
        return {
            "do": do,
            "node": request.node,
            "launch": msgspec.json.encode(request).decode(),
            "version": "" if self._command else (await asyncio.to_thread(wheel)).version,
            "command": list(self._command),
            "arguments": told,
            "token": join.token,
            "ca.pem": join.ca,
        }

    async def _find(self, node: str) -> Seen:
        """NotFound: every host was asked, and none is it."""
        known = self._homes.get(node)
        found, errors = ([await self._look_at(known)], []) if known else await self._look_at_all()
        for seen in found:
            if seen.node == node:
                return seen
        if errors:
            raise Unreachable(f"nobody who answers is {node}: {errors[0]}")
        raise NotFound(f"no host is {node}")

    async def _look_at(self, line: Line) -> Seen:
        said = await line.ask({"do": "look"}, only_looks=True)
        if not said["node"]:
            return Seen(line)
        self._homes[said["node"]] = line
        request = msgspec.json.decode(said["launch"], type=LaunchNode)
        return Seen(line, said["node"], request, said["up"], said["agent"])

    async def _look_at_all(self) -> tuple[tuple[Seen, ...], tuple[PortError, ...]]:
        async def attempt(line: Line) -> Seen | PortError:
            try:
                return await self._look_at(line)
            except PortError as error:
                return error

        answers = await asyncio.gather(*map(attempt, self._lines.values()))
        return (
            tuple(answer for answer in answers if isinstance(answer, Seen)),
            tuple(answer for answer in answers if isinstance(answer, PortError)),
        )

    async def _revive(self, seen: Seen) -> None:
        try:
            await self._ask_and_install(seen.line, await self._start_request("revive", seen.request))
        except PortError as error:
            log.warning("agent_not_started_again", node=seen.node, why=str(error))
        else:
            log.info("agent_started_again", node=seen.node)
