"""A node that runs what it should not is ordered to stop it, again, and found out if it does not."""

from typing import Any

import pytest

from holdfast.control import intake, inventory
from holdfast.core.agent.machine import Process, Wanted
from holdfast.model.resources import Resources
from holdfast.model.workload import Needs, Service, Workload
from holdfast.wire.messages import Beat, Confirmed, Desired, Used
from tests.planes import World, apply, until, within

SMALL = Needs(Resources(100, 64))


def counted(plane: Any, name: str) -> float:
    return plane.metrics.get_sample_value(name) or 0.0


async def serving(world: World, plane: Any) -> Any:
    (agent,) = await world.joined(plane, "n1")
    await apply(plane, Workload("web", Service(2), SMALL))
    await until(lambda: sum(each.ready_at > 0 for each in plane.world.replicas.values()) == 2)
    agent.tells_use = True
    return agent


async def test_what_is_not_placed_on_a_node_is_ordered_to_stop_again() -> None:
    world = World()
    async with world.plane() as plane:
        agent = await serving(world, plane)
        agent.machine.processes["old/0.3"] = Process(Wanted("old/0.3", "old/0", 3, False))
        await until(lambda: "old/0.3" not in agent.machine.processes)
        assert set(agent.machine.processes) == {"web/0.1", "web/1.1"}
        assert counted(plane, "holdfast_stray_replicas_total") == 1
        assert not plane.world.findings


async def test_what_runs_on_all_the_same_is_a_finding_until_it_has_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(inventory, "PERSISTS_MS", 500)
    world = World()
    async with world.plane() as plane:
        agent = await serving(world, plane)
        agent.also_used = ("old/0.3", *(f"miner/{number}.1" for number in range(200)))
        await until(lambda: ("n1", inventory.NAME) in plane.world.findings)
        finding = plane.world.findings["n1", inventory.NAME]
        assert "old/0.3" in finding.evidence
        assert len(finding.evidence) < 1_000
        assert set(agent.machine.processes) == {"web/0.1", "web/1.1"}, "what should run is left alone"
        agent.also_used = ()
        await until(lambda: not plane.world.findings)


async def test_a_node_that_runs_what_it_should_is_told_nothing() -> None:
    world = World()
    async with world.plane() as plane:
        agent = await serving(world, plane)
        acks = agent.acks
        await until(lambda: agent.acks >= acks + 4)
        assert counted(plane, "holdfast_stray_replicas_total") == 0
        assert not plane.hub._inventory._seen


async def test_a_flood_of_large_beats_is_read_no_quicker_than_it_may_and_others_are_heard(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(intake, "BYTES_PER_S", 100_000)
    monkeypatch.setattr(intake, "BYTES_BURST", 300_000)
    world = World()
    async with world.plane() as plane:
        rogue, honest = await world.joined(plane, "n1", "n2")
        session = plane.hub._sessions["n1"]
        read, began = [0], plane.hub.clock.monotonic()
        uses = plane.hub.uses

        def counting(node: str, used: Used) -> None:
            read[0] += 1
            uses(node, used)

        monkeypatch.setattr(plane.hub, "uses", counting)
        large = Used(1, 1, {f"stray/{number}.{'x' * 40}": (1, 1) for number in range(1_000)})
        for number in range(300):
            rogue.send(Beat(number, number, large))
        await until(lambda: session._paused)
        acks = honest.acks
        await until(lambda: honest.acks >= acks + 3)
        seconds = (plane.hub.clock.monotonic() - began) / 1000
        assert read[0] * 50_000 <= 300_000 + 100_000 * seconds + (1 << 20), "and what one read brings at once"
        rogue.hang_up()
        await within(rogue.ended.wait())


async def test_one_who_reports_strays_at_full_speed_is_sent_its_set_no_quicker_than_once_a_second() -> None:
    """It never confirms a set either: each of them must not begin a series of its own."""
    world = World()
    async with world.plane() as plane:
        rogue = await serving(world, plane)
        rogue.tells_use = False
        sets, send, receive = [0], rogue.send, rogue._receive

        def counting(message: object) -> None:
            sets[0] += isinstance(message, Desired)
            receive(message)

        rogue.send = lambda message: None if isinstance(message, Confirmed) else send(message)
        rogue._receive = counting
        began, acks = plane.now(), rogue.acks
        for number in range(1_000, 1_400):
            send(Beat(number, number, Used(1, 1, {"ghost/0.1": (1, 1)})))
        await until(lambda: rogue.acks >= acks + 400)
        await until(lambda: sets[0] >= 3)
        seconds = (plane.now() - began) / 1000
        assert sets[0] <= 2 * (seconds + 1), "one for being a stray, one for not being confirmed"
