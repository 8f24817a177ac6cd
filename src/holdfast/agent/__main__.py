"""`python -m holdfast.agent`: from words to a running agent, and from its end to an exit status.

0: it was ended. 2: it cannot begin, or is refused for good; a person must change something. 1: anything else.
"""

import asyncio
import gc
import os
import signal
import socket
import sys
from collections.abc import Sequence
from pathlib import Path

from holdfast.agent import cgroup, init, machine_facts, neighbours, settings, trust, users
from holdfast.agent.agent import Agent
from holdfast.agent.home import Home, Unusable
from holdfast.agent.processes import ProcessRuntime
from holdfast.agent.say import Log
from holdfast.agent.settings import Settings
from holdfast.wire.address import is_loopback

UNUSABLE = 2


def main(arguments: Sequence[str]) -> int:
    try:
        told = settings.read(arguments, os.environ)
        settings.forget_secrets(os.environ)
        home = Home(told.root)
        home.enter()
        try:
            _run(told, home)
        finally:
            home.leave()
    except Unusable as problem:
        print(f"error: {problem}\nhint: {problem.hint}", file=sys.stderr)
        return UNUSABLE
    return 0


def _run(told: Settings, home: Home) -> None:
    settings.join_token(told, joined=bool(home.read("joined")))  # better to hear of a missing file now,
    trust.Trust(told, home)  # or of one without certificates
    loopback = is_loopback(told.address) if told.address else all(url.loopback for url in told.join)
    listener = neighbours.listen(home, loopback=loopback, v6=":" in told.address)
    log = Log(as_json=told.log_json)
    for url in told.join:
        if url.plain:
            log.warning("no TLS: whoever is in between can give this machine orders", to=url)
        elif told.insecure and not url.loopback:
            log.warning(
                "any certificate is trusted: whoever is in between can give this machine orders", to=url
            )
    contain, own = _can_contain(told, log), _users(told, home, log)  # before there is a second thread
    try:
        asyncio.run(_live(told, home, listener, log, contain=contain, own=own))
    finally:
        listener.close()


def _can_contain(told: Settings, log: Log) -> bool:
    if not told.contain:
        log.warning("fencing none", why="--fencing none")
        return False
    why, own_proc = init.refusal()
    if why:
        log.warning("fencing none", why=f"no PID namespace can be made here: {why}")
    elif not own_proc:
        log.warning("jobs find the processes of this machine in /proc, not their own")
    return not why


def _users(told: Settings, home: Home, log: Log) -> users.Users | None:
    if told.isolation == "none":
        log.warning("isolation none", why="--isolation none")
        return None
    insists = told.isolation == "user"
    own, why = users.found(str(home.path), str(told.checkpoints), "" if insists else sys.executable)
    if why and insists:
        raise Unusable(f"replicas cannot have users of their own: {why}", "--isolation auto goes on without")
    if why:
        log.warning("isolation none", why=f"replicas run as the agent's user: {why}")
    return own


async def _live(
    told: Settings,
    home: Home,
    listener: socket.socket,
    log: Log,
    *,
    contain: bool,
    own: users.Users | None,
) -> None:
    runtime = ProcessRuntime(
        home.path,
        probe_socket=listener,
        environment={**os.environ, "HOLDFAST_NODE": told.name},
        checkpoint_root=told.checkpoints,
        cgroup_root=Path(group) if (group := cgroup.find()) else None,
        contain=contain,
        users=own,
        log=log,
    )
    capacity = machine_facts.resources(told.cpu_milli, told.memory_mib, told.gpus, told.gpu_kind)
    agent = Agent(told, home, runtime, neighbours.Neighbours(listener), capacity, log)
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, agent.end)
    gc.freeze()  # what is here now stays: no need to look at it again and again
    await agent.run()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
