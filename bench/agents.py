"""How many agents does one control plane carry?

A real control plane (`holdfast serve`, SQLite) in a process of its own; the agents are emulated in this one,
each with a real connection over loopback, the real wire and the real agent's judgement, beating once a
second. All run one replica of a service. After they have joined: CPU and memory of the control plane over
`--seconds`, and every suspicion in that time is a false one. Then a tenth of them is dropped at once, as if
their machines had died: how long until the plan has replaced the last lost replica?
"""

import argparse
import asyncio
import secrets
import time
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from bench._plane import Process, started
from holdfast.adapters.clock import HostClock
from holdfast.adapters.stores import open_store
from holdfast.model.action import PlaceReplica
from holdfast.model.event import NodeJudged
from holdfast.model.plan import Plan
from holdfast.model.resources import Resources
from holdfast.model.verdict import Level
from holdfast.ports.registry import Identity
from holdfast.sim.live.emulated_agents import EmulatedFleet
from holdfast.wire.identity import Key

JOIN_AT_ONCE = 100
POOL = """
kind: pool
name: fleet
provider: join
min: 0
max: 20000
can_launch: false
can_terminate: false
can_reset: false
"""
SERVICE = """
kind: service
name: web
replicas: {count}
spread_over: node
command: [serve]
cpus: 2
"""


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--count", type=int, default=5_000)
    parser.add_argument("--seconds", type=float, default=300.0)


def run(args: argparse.Namespace) -> dict[str, object]:
    import uvloop

    with (
        started("serve") as plane,
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
    ):
        return runner.run(measure(plane, args.count, args.seconds))


async def measure(plane: Process, count: int, seconds: float) -> dict[str, object]:
    plane.apply(POOL)
    fleet = await enrolled(plane, count)
    joined_s = await join(plane, fleet)
    plane.apply(SERVICE.format(count=count))
    await until(lambda: ready(fleet) == count, 120)
    await asyncio.sleep(5)
    before, length, started_at = plane.cpu_s(), journal_length(plane), time.monotonic()
    await asyncio.sleep(seconds)
    core = (plane.cpu_s() - before) / (time.monotonic() - started_at)
    rss, quiet = plane.rss_mb(), journal_length(plane)
    dropped = list(fleet.agents.values())[: count // 10]
    dropped_at = HostClock().wall()
    for agent in dropped:
        agent.die()
    await until(lambda: ready(fleet) == count, 60)
    suspected, replaced_s = await from_the_journal(plane, length, quiet, dropped_at)
    for agent in fleet.agents.values():
        agent.hang_up()
        await agent.ended.wait()
    return {
        "agents": count,
        "seconds": seconds,
        "join_s": round(joined_s, 2),
        "core": round(core, 3),
        "rss_mb": round(rss, 1),
        "false_suspicions": suspected,
        "dropped": len(dropped),
        "replaced_in_the_plan_s": replaced_s,
        "beats_acknowledged": sum(agent.acks for agent in fleet.agents.values()),
    }


async def enrolled(plane: Process, count: int) -> EmulatedFleet:
    """Their keys are known already: this is not about join tokens."""
    fleet = EmulatedFleet(HostClock(), "fleet", Resources(4_000, 8_192), ("a", "b", "c", "d"))
    store, registry = await open_store(f"sqlite:///{plane.state / 'holdfast.db'}")
    try:
        for number in range(count):
            key = Key(Ed25519PrivateKey.generate())
            agent = fleet.add(f"n{number}-{secrets.token_hex(3)}", key)
            await registry.enrol(Identity(agent.node, key.public, "fleet", 0), None)
    finally:
        await store.close()
    return fleet


async def join(plane: Process, fleet: EmulatedFleet) -> float:
    host, port = plane.url.removeprefix("http://").split(":")
    begun, gate = time.monotonic(), asyncio.Semaphore(JOIN_AT_ONCE)

    async def one(agent: Any) -> None:
        async with gate:
            await agent.connect(host, int(port))
            async with asyncio.timeout(60):
                await agent.welcomed.wait()

    async with asyncio.TaskGroup() as group:
        for agent in fleet.agents.values():
            group.create_task(one(agent))
    return time.monotonic() - begun


def ready(fleet: EmulatedFleet) -> int:
    return sum(
        process.ready
        for agent in fleet.agents.values()
        if agent.lives
        for process in agent.machine.processes.values()
    )


async def until(true: Any, seconds: float) -> None:
    async with asyncio.timeout(seconds):
        while not true():
            await asyncio.sleep(0.05)


def journal_length(plane: Process) -> int:
    status = plane.get("/v1/status")
    assert isinstance(status, dict)
    return int(status["journal"])


async def from_the_journal(
    plane: Process, begun: int, quiet: int, dropped_at: int
) -> tuple[int, float | None]:
    """Suspicions while all was well, and when the last replacement was decided."""
    store, _ = await open_store(f"sqlite:///{plane.state / 'holdfast.db'}")
    try:
        entries = await store.read(begun)
    finally:
        await store.close()
    suspected = sum(
        isinstance(entry, NodeJudged) and entry.verdict.level is not Level.ALIVE
        for entry in entries[: quiet - begun]
    )
    placed = [
        entry.at
        for entry in entries[quiet - begun :]
        if isinstance(entry, Plan)
        for action in entry.actions
        if isinstance(action, PlaceReplica)
    ]
    return suspected, round((max(placed) - dropped_at) / 1000, 2) if placed else None
