"""Starting the agent of a local node: what it is told, and the note of who it is."""

import asyncio
import functools
from collections.abc import Mapping, Sequence
from urllib.parse import SplitResult, urlsplit

from holdfast.adapters.providers.local import tree
from holdfast.adapters.providers.local.folders import Folders, Started, write
from holdfast.model.action import LaunchNode
from holdfast.ports import private_folder
from holdfast.ports.errors import Denied
from holdfast.ports.provider import Join, agent_arguments

ANSWER_S = 1.0

boot_id = functools.cache(tree.boot_id)


def start(
    folders: Folders, request: LaunchNode, join: Join, command: Sequence[str], environment: Mapping[str, str]
) -> Started:
    """Starts the agent, with this environment, and notes it. The caller holds the node."""
    folder = folders.of(request.node)
    write(folder / "token", join.token.encode())
    told = agent_arguments(
        request,
        join,
        root=str(folder / "agent"),
        token_file=str(folder / "token"),
        checkpoints=str(folders.checkpoints),
    )
    told += ["--address", "127.0.0.1", "--allow-chaos"]
    if join.ca:
        write(folder / "ca.pem", join.ca.encode())
        told += ["--ca", str(folder / "ca.pem")]
    private_folder.close_to_others(folders.checkpoints)
    try:
        pid = tree.start(str(folder), [*command, *told], environment)
    except FileNotFoundError as error:
        if error.filename == command[0]:
            raise Denied(f"cannot start an agent: {error.strerror}: {error.filename}") from error
        raise
    found = tree.look(pid)  # None: it has ended already, and counts as a machine that did not come up
    started = Started(pid, found.start if found else 0, boot_id(), join.urls)
    folders.note_started(request.node, started)
    return started


def is_running(started: Started) -> bool:
    return started.boot == boot_id() and tree.is_alive(started.pid, started.start)


async def answers(urls: Sequence[str]) -> bool:
    """Does anybody listen at one of them?"""
    return any([await _listens(urlsplit(url)) for url in urls])


async def _listens(where: SplitResult) -> bool:
    try:
        async with asyncio.timeout(ANSWER_S):
            _, writer = await asyncio.open_connection(where.hostname, where.port)
    except (OSError, TimeoutError):
        return False
    writer.close()
    return True
