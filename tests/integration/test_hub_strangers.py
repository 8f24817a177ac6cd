"""Who is not let in, and what it costs: refusals, garbage, silence."""

import asyncio
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from msgspec.structs import replace

from holdfast.control import intake, strangers
from holdfast.core.state.index import put_node
from holdfast.model.event import NodeJoined, PoolApplied, PoolDeleted
from holdfast.model.finding import Finding, Severity
from holdfast.model.node import NodeState
from holdfast.model.resources import Resources
from holdfast.model.units import HOUR
from holdfast.model.workload import Needs, Service, Workload
from holdfast.ports.registry import Role, Token
from holdfast.wire.frame import LENGTH, pack
from holdfast.wire.identity import Key, hashed
from holdfast.wire.messages import PROTOCOL, Beat, Found, Refused
from tests.build import node
from tests.planes import FLEET, World, apply, until, within

UPGRADE = b"GET /v1/link HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: holdfast-link\r\n\r\n"


async def refusal(world: World, plane: Any, agent: Any) -> Refused:
    await world.connect(agent, plane)
    await within(agent.ended.wait())
    assert agent.refused is not None
    refused: Refused = agent.refused
    assert refused.why
    return refused


async def ready(world: World, plane: Any) -> None:
    await until(lambda: plane.leading)
    await plane.tell(PoolApplied(at=plane.now(), pool=FLEET))


def stranger(world: World, node: str, token: str = "") -> Any:
    return world.fleet.add(node, Key(Ed25519PrivateKey.generate()), token)


async def token(world: World, secret: str, **fields: Any) -> str:
    await world.registry.add(Token(secret, hashed(secret), Role.JOIN, **fields))
    return secret


async def test_a_join_token_enrols_one_node_and_after_that_its_key_is_enough() -> None:
    world = World()
    async with world.plane() as plane:
        await ready(world, plane)
        newcomer = stranger(world, "n1", await token(world, "once"))
        await world.connect(newcomer, plane)
        await within(newcomer.welcomed.wait())
        newcomer.hang_up()
        await within(newcomer.ended.wait())
        newcomer.token = ""
        await world.connect(newcomer, plane)
        await within(newcomer.welcomed.wait())


async def test_a_join_token_is_good_once() -> None:
    world = World()
    async with world.plane() as plane:
        await ready(world, plane)
        secret = await token(world, "once")
        first = stranger(world, "n1", secret)
        await world.connect(first, plane)
        await within(first.welcomed.wait())
        refused = await refusal(world, plane, stranger(world, "n2", secret))
        assert (refused.code, "used by n1" in refused.why) == ("token", True)


async def test_a_token_that_is_brought_with_its_pin_is_the_same_token() -> None:
    """Agents send the secret alone; one of an older version sends all that it was given."""
    world, behind = World(), "." + "0a" * 32
    async with world.plane() as plane:
        await ready(world, plane)
        first = stranger(world, "n1", await token(world, "once") + behind)
        await world.connect(first, plane)
        await within(first.welcomed.wait())


async def test_of_twenty_agents_with_one_token_as_many_join_as_it_may_and_the_rest_learn_why() -> None:
    world = World()
    async with world.plane() as plane:
        await ready(world, plane)
        secret = await token(world, "many", uses=8)
        agents = [stranger(world, f"n{number}", secret) for number in range(20)]
        await asyncio.gather(*(world.connect(agent, plane) for agent in agents))
        for agent in agents:
            ends = {asyncio.ensure_future(one.wait()) for one in (agent.welcomed, agent.ended)}
            done, rest = await within(asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED))
            assert done
            for each in rest:
                each.cancel()
        assert sum(agent.welcomed.is_set() for agent in agents) == 8
        refused = [agent.refused for agent in agents if not agent.welcomed.is_set()]
        assert all(one is not None and "8 of 8 nodes joined with it" in one.why for one in refused)
        again = next(agent for agent in agents if agent.welcomed.is_set())
        again.hang_up()
        await within(again.ended.wait())
        await world.connect(again, plane)
        await within(again.welcomed.wait())
        (kept,) = [one for one in await world.registry.tokens() if one.role is Role.JOIN]
        assert (kept.used, kept.left) == (8, 0)


@pytest.mark.parametrize(
    ("fields", "given", "code", "why"),
    [
        ({}, "", "token", "brings no join token"),
        ({}, "guessed", "token", "not known"),
        ({"expires_at": HOUR}, "made", "token", "expired"),
        ({"node": "n7"}, "made", "token", "is for n7"),
        ({"pool": "other"}, "made", "token", "pool other"),
    ],
)
async def test_a_token_that_does_not_fit_is_refused_with_the_reason(
    fields: dict[str, Any], given: str, code: str, why: str
) -> None:
    world = World()
    async with world.plane() as plane:
        await ready(world, plane)
        await token(world, "made", **fields)
        refused = await refusal(world, plane, stranger(world, "n1", given))
        assert refused.code == code
        assert why in refused.why
        assert refused.hint
        assert "n1" not in plane.world.nodes


async def test_a_name_belongs_to_the_key_that_had_it_first() -> None:
    world = World()
    async with world.plane() as plane:
        await world.joined(plane, "n1")
        thief = stranger(world, "n1", await token(world, "fresh"))
        refused = await refusal(world, plane, thief)
        assert refused.code == "taken"


async def test_a_copy_of_a_living_agent_is_refused_and_the_first_goes_on() -> None:
    world = World()
    async with world.plane() as plane:
        (first,) = await world.joined(plane, "n1")
        await until(lambda: first.acks >= 1)
        beats = plane.senses.beats if plane.senses is not None else None
        assert beats is not None
        beats.policy = replace(beats.policy, beat_ms=60_000)  # on a busy machine a beat of a second is late
        copy = world.fleet.add("n1", first.key)
        copy.instance = "another"
        refused = await refusal(world, plane, copy)
        assert refused.code == "connected"
        acks = first.acks
        await until(lambda: first.acks > acks)


async def test_a_signature_that_does_not_fit_is_refused() -> None:
    world = World()
    async with world.plane() as plane:
        await ready(world, plane)
        agent = await world.known("n1")
        other = Key(Ed25519PrivateKey.generate())
        agent.key = Key(Ed25519PrivateKey.generate())
        agent.key.public = other.public
        assert (await refusal(world, plane, agent)).code == "key"


@pytest.mark.parametrize(("spoken", "hint"), [(0, "upgrade the agent"), (PROTOCOL + 1, "control plane")])
async def test_another_version_of_the_protocol_is_refused_and_says_who_must_be_upgraded(
    spoken: int, hint: str
) -> None:
    world = World()
    async with world.plane() as plane:
        await ready(world, plane)
        agent = await world.known("n1")
        agent.protocol = spoken
        refused = await refusal(world, plane, agent)
        assert refused.code == "protocol"
        assert hint in refused.hint


@pytest.mark.parametrize("name", ["", "a/b", "x" * 64, "ü", "-n"])
async def test_a_name_that_no_node_may_have_is_refused(name: str) -> None:
    world = World()
    async with world.plane() as plane:
        await ready(world, plane)
        assert (await refusal(world, plane, stranger(world, name, "t"))).code == "name"


async def test_a_pool_that_is_not_there_is_refused() -> None:
    world = World()
    world.fleet.pool = "nowhere"
    async with world.plane() as plane:
        await ready(world, plane)
        refused = await refusal(world, plane, stranger(world, "n1", await token(world, "t")))
        assert (refused.code, "fleet" in refused.hint) == ("pool", True)


async def test_a_pool_that_is_being_deleted_takes_nobody_and_no_token_is_used_up_for_that() -> None:
    world = World()
    async with world.plane() as plane:
        await world.joined(plane, "n1")
        await plane.tell(PoolDeleted(at=plane.now(), pool="fleet"))
        secret = await token(world, "t")
        refused = await refusal(world, plane, stranger(world, "n2", secret))
        assert (refused.code, refused.why) == ("pool", "the pool fleet is being deleted")
        await plane.tell(PoolApplied(at=plane.now(), pool=FLEET))
        another = stranger(world, "n3", secret)
        await world.connect(another, plane)
        await within(another.welcomed.wait())


# garbage


async def rest(reader: asyncio.StreamReader) -> bytes:
    """All that is said until the end. Whoever closes before everything was read resets the connection, which
    may be noticed first."""
    try:
        return bytes(await within(reader.read(-1)))
    except ConnectionError:
        return b""


async def opened(world: World, first: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", world.ports["cp-1"])
    writer.write(first)
    return reader, writer


@pytest.mark.parametrize(
    "garbage",
    [
        b"\xff" * 64,
        LENGTH.pack(1 << 30),
        LENGTH.pack(0),
        LENGTH.pack(5) + b"hello",
        LENGTH.pack(3) + b"\x93\x01\x02",
        pack(Beat(1, 0)) * 3 + LENGTH.pack(2) + b"{}",
    ],
)
async def test_garbage_on_the_link_ends_that_connection_and_nothing_else(garbage: bytes) -> None:
    world = World()
    async with world.plane() as plane:
        (agent,) = await world.joined(plane, "n1")
        reader, writer = await opened(world, UPGRADE + garbage)
        await rest(reader)
        writer.close()
        acks = agent.acks
        await until(lambda: agent.acks > acks)


@pytest.mark.parametrize(
    "request_",
    [
        b"\x16\x03\x01 not http at all\r\n\r\n",
        b"GET /v1/link HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET /v1/link HTTP/1.1\r\n" + b"x: y\r\n" * 4000,
        b"\r\n" * 10_000,
    ],
)
async def test_requests_that_are_none_are_answered_or_dropped(request_: bytes) -> None:
    world = World()
    async with world.plane() as plane:
        await ready(world, plane)
        reader, writer = await opened(world, request_)
        answer = await rest(reader)
        assert answer == b"" or answer.startswith(b"HTTP/1.1 4")
        writer.close()


async def test_a_connection_that_says_nothing_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(strangers, "HELLO_WITHIN_MS", 200)
    world = World()
    async with world.plane() as plane:
        await ready(world, plane)
        silent = [await opened(world, UPGRADE) for _ in range(50)]
        for reader, writer in silent:
            await rest(reader)
            writer.close()
        await until(lambda: not plane.hub.strangers)


async def test_a_stranger_sends_small_frames_only() -> None:
    world = World()
    async with world.plane() as plane:
        (agent,) = await world.joined(plane, "n1")
        for _ in range(40):
            reader, writer = await opened(world, UPGRADE + LENGTH.pack(strangers.FRAME_MAX + 1))
            await rest(reader)
            writer.close()
        agent.send(Found(Finding("large", "n1", Severity.NOTE, 1.0, "x" * (2 * strangers.FRAME_MAX), 0)))
        await until(lambda: ("n1", "large") in plane.world.findings)


async def test_one_address_holds_so_many_connections_and_honest_agents_join_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(strangers, "PER_ADDRESS", 10)
    world = World()
    async with world.plane() as plane:
        await ready(world, plane)
        silent = [await opened(world, UPGRADE) for _ in range(50)]
        await until(lambda: len(plane.hub.strangers) == 10)
        await world.joined(plane, "n1")
        assert len(plane.hub.strangers) <= 10
        for _, writer in silent:
            writer.close()


async def test_half_messages_of_one_address_hold_so_many_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(strangers, "BYTES_PER_ADDRESS", 10 * strangers.FRAME_MAX)
    monkeypatch.setattr(strangers, "HELLO_WITHIN_MS", 600_000)
    world = World()
    async with world.plane() as plane:
        await ready(world, plane)
        half = UPGRADE + LENGTH.pack(strangers.FRAME_MAX) + b"x" * (strangers.FRAME_MAX - 1)
        held = [await opened(world, half) for _ in range(30)]
        await until(lambda: 8 <= len(plane.hub.strangers) <= 10)
        await world.joined(plane, "n1")
        for _, writer in held:
            writer.close()
        await until(lambda: not plane.hub.strangers)
        await until(lambda: not plane.hub.strangers._held_in_all)


async def test_a_hello_that_names_more_than_fits_comes_in_several_messages() -> None:
    world = World()
    async with world.plane() as plane:
        (agent,) = await world.joined(plane, "n1")
        await apply(plane, Workload("web", Service(3), Needs(Resources(100, 64))))
        await until(lambda: sum(each.ready_at > 0 for each in plane.world.replicas.values()) == 3)
        known = list(plane.world.replicas)
        agent.hang_up()
        await within(agent.ended.wait())
        agent.also_running = tuple(f"unknown/{number}.1" for number in range(20_000))
        await world.connect(agent, plane)
        await within(agent.welcomed.wait())
        assert list(plane.world.replicas) == known
        joined = [entry for entry in await plane.store.read(0) if isinstance(entry, NodeJoined)]
        assert set(joined[-1].running) == set(known)


async def test_what_follows_a_hello_is_not_read_from_who_has_not_proved_a_name() -> None:
    world = World()
    async with world.plane() as plane:
        await ready(world, plane)
        bold = stranger(world, "n1", "guessed")
        bold.also_running = tuple(f"unknown/{number}.1" for number in range(20_000))
        assert (await refusal(world, plane, bold)).code == "token"


async def test_a_node_that_says_hello_too_often_is_sent_away_and_comes_back_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(intake, "HELLOS_BURST", 5.0)
    monkeypatch.setattr(intake, "HELLOS_PER_S", 2.0)
    world = World()
    async with world.plane() as plane:
        (rogue,) = await world.joined(plane, "n1")
        rogue.hang_up()
        await within(rogue.ended.wait())
        length = plane.length
        for _ in range(200):
            await world.connect(rogue, plane)
            await until(lambda: rogue.welcomed.is_set() or rogue.ended.is_set())
            if rogue.refused is not None:
                break
            rogue.hang_up()
            await within(rogue.ended.wait())
        assert rogue.refused is not None
        assert rogue.refused.code == "often"
        assert plane.length - length < 200
        rogue.refused = None
        await until(lambda: plane.hub._rates["n1"].hellos.wait_ms(plane.hub.clock.monotonic()) == 0)
        await world.connect(rogue, plane)
        await within(rogue.welcomed.wait())


@pytest.mark.parametrize(("pool", "joins"), [("", False), ("fleet", True)])
async def test_a_token_without_a_pool_joins_no_pool_that_launches_its_nodes(pool: str, joins: bool) -> None:
    world = World()
    async with world.plane() as plane:
        await until(lambda: plane.leading)
        await plane.tell(PoolApplied(at=plane.now(), pool=replace(FLEET, can_launch=True)))
        newcomer = stranger(world, "n1", await token(world, "made", pool=pool))
        await world.connect(newcomer, plane)
        if joins:
            await within(newcomer.welcomed.wait())
            return
        await within(newcomer.ended.wait())
        assert newcomer.refused is not None
        assert (newcomer.refused.code, "--pool fleet" in newcomer.refused.hint) == ("pool", True)
        assert "n1" not in plane.world.nodes


async def test_a_key_that_was_enrolled_for_one_pool_joins_none_that_launches_its_nodes() -> None:
    world = World()
    async with world.plane() as plane:
        await ready(world, plane)
        await plane.tell(PoolApplied(at=plane.now(), pool=replace(FLEET, name="cloud", can_launch=True)))
        agent = await world.known("n1")  # of the pool `fleet`; the world has never seen it
        world.fleet.pool = "cloud"
        assert (await refusal(world, plane, agent)).code == "pool"


async def test_a_token_in_letters_that_no_token_has_is_refused_with_the_reason() -> None:
    world = World()
    async with world.plane() as plane:
        await ready(world, plane)
        refused = await refusal(world, plane, stranger(world, "n1", "schlüssel"))
        assert refused.code == "token"


async def test_a_join_token_does_not_take_the_name_of_a_node_that_is_being_launched() -> None:
    world = World()
    async with world.plane() as plane:
        await ready(world, plane)
        coming = replace(node("std-1"), pool="std", state=NodeState.BOOTING)
        put_node(plane.world, coming)
        bold = stranger(world, "std-1", await token(world, "for the fleet", pool="fleet"))
        assert (await refusal(world, plane, bold)).code == "taken"
        assert await world.registry.identity("std-1") is None


@pytest.mark.parametrize("cpu_milli", [2**63, -1])
async def test_a_node_that_says_it_has_what_nobody_has_is_turned_away_and_the_term_goes_on(
    cpu_milli: int,
) -> None:
    world = World()
    async with world.plane() as plane:
        await world.joined(plane, "n1")
        term = plane._term
        boaster = await world.known("n2")
        world.fleet.capacity = Resources(cpu_milli, 1)
        await world.connect(boaster, plane)
        await within(boaster.ended.wait())
        await plane.tell(PoolApplied(at=plane.now(), pool=FLEET))
        assert plane._term is term
        assert "n2" not in plane.world.nodes
