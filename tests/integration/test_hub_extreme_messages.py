"""A node that sends every message there is, with every value that fits into it: the term goes on.

Drawn by chance from a fixed seed: numbers at every edge, texts of odd letters, names of replicas that are its
own, another's, or nobody's. What is thrown is told when something breaks.
"""

import random
import types
import typing
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from holdfast.adapters.stores import codec
from holdfast.control import intake
from holdfast.core import check
from holdfast.model.finding import Finding
from holdfast.model.resources import Resources
from holdfast.model.workload import Job, Needs, Service, Training, Workload
from holdfast.wire.messages import Beat, FromAgent, Hello
from tests.planes import World, apply, until, within

SMALL = Needs(Resources(100, 64))
NUMBERS = (
    0,
    1,
    -1,
    2,
    255,
    29_999,
    65_535,
    65_536,
    2**31,
    2**31 - 1,
    -(2**31),
    2**53,
    2**62,
    2**63 - 1,
    -(2**63),
)
UNSIGNED = (2**63, 2**64 - 1)
REALS = (0.0, -0.0, 1.0, -1.0, 1e308, -1e308, 5e-324, float("inf"), float("-inf"), float("nan"))
TEXTS = (
    "",
    " ",
    "n1",
    "n2",
    "once/0.1",
    "web/0.1",
    "web/1.1",
    "x" * 400,
    "\0",
    "\x1b]0;x\a",
    "../..",
    "ü" * 99,
    "1" * 400,
    "a/b/c.d",
    "web/0.99999999999999999999",
    "\u202e",
    "\ud7ff",
    "fleet",
)
MESSAGES = 2_000
AT_ONCE = 40  # on one connection


class Thrower:
    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)

    def value(self, kind: Any) -> Any:
        origin, arguments = typing.get_origin(kind), typing.get_args(kind)
        if origin in (typing.Union, types.UnionType):
            return self.value(self.dice.choice(arguments))
        if origin is tuple:
            if arguments[-1:] == (...,):
                return tuple(self.value(arguments[0]) for _ in range(self.few()))
            return tuple(self.value(each) for each in arguments)
        if origin is dict:
            return {self.value(arguments[0]): self.value(arguments[1]) for _ in range(self.few())}
        if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
            return self.struct(kind)
        if isinstance(kind, type) and hasattr(kind, "__members__"):
            members: Any = kind
            return self.dice.choice(list(members))
        return self.plain(kind)

    def plain(self, kind: Any) -> Any:
        draw: dict[Any, Callable[[], Any]] = {
            int: lambda: self.dice.choice(NUMBERS if self.dice.random() < 0.9 else UNSIGNED),
            float: lambda: self.dice.choice(REALS),
            bool: lambda: self.dice.random() < 0.5,
            bytes: lambda: self.dice.randbytes(self.dice.choice((0, 1, 32, 64, 1000))),
            str: lambda: self.dice.choice(TEXTS),
            type(None): lambda: None,
        }
        return draw[kind]()

    def few(self) -> int:
        return self.dice.choice((0, 0, 1, 1, 2, 3, 30))

    def struct(self, kind: type[msgspec.Struct]) -> msgspec.Struct:
        hints = typing.get_type_hints(kind)
        return kind(**{name: self.value(hints[name]) for name in kind.__struct_fields__})

    def message(self) -> Any:
        message: Any = self.struct(self.dice.choice(typing.get_args(FromAgent)))
        fields = dict(msgspec.structs.asdict(message))
        for name, value in fields.items():
            if isinstance(value, Finding) and self.dice.random() < 0.8:
                fields[name] = msgspec.structs.replace(value, node="n1")
            elif name == "reports" and self.dice.random() < 0.8:
                own = self.dice.choice(("once/0.1", "web/0.1", "web/1.1", "gang/0.1", "gang/1.1"))
                fields[name] = tuple(msgspec.structs.replace(each, replica=own) for each in value)
                fields["first"] = 0
        return type(message)(**fields)


@pytest.fixture(autouse=True)
def at_full_speed(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("BURST", "PER_S", "HELLOS_BURST", "HELLOS_PER_S"):
        monkeypatch.setattr(intake, name, 1e9)


async def working(world: World, plane: Any) -> tuple[Any, Any]:
    rogue, honest = await world.joined(plane, "n1", "n2")
    await apply(plane, Workload("once", Job(), SMALL))
    await apply(plane, Workload("web", Service(2), SMALL))
    await apply(plane, Workload("gang", Training(2, 2), SMALL))
    await until(lambda: len(plane.world.replicas) == 5)
    return rogue, honest


async def went_on(world: World, plane: Any, term: Any, honest: Any) -> None:
    assert plane._term is term
    assert not plane.metrics.get_sample_value("holdfast_unfoldable_events_total")
    await until(lambda: honest.welcomed.is_set())
    acks = honest.acks
    await until(lambda: honest.acks > acks)
    assert check.inconsistencies(plane.world) == []
    entries = await world.store.read()
    bodies = [row["body"] for row in codec.rows_of(0, entries, {})[0]]
    assert codec.entries_of(1, bodies) == entries, "whoever reads the journal finds all of it"


@pytest.mark.parametrize("seed", range(3))
async def test_whatever_a_node_sends_the_term_goes_on(seed: int) -> None:
    thrower = Thrower(seed)
    world = World()
    async with world.plane() as plane:
        rogue, honest = await working(world, plane)
        term, left = plane._term, MESSAGES
        while left > 0:
            for _ in range(AT_ONCE):
                left -= 1
                message = thrower.message()
                if not _packs(message):
                    continue
                rogue.send(message)
            rogue.send(Beat(1, 1))
            await until(lambda: rogue.ended.is_set() or rogue.acks)
            if rogue.ended.is_set():
                rogue.acks, rogue.refused = 0, None
                await world.connect(rogue, plane)
                await until(lambda: rogue.welcomed.is_set() or rogue.ended.is_set())
        await went_on(world, plane, term, honest)


@pytest.mark.parametrize("seed", range(3))
async def test_whatever_a_hello_claims_the_term_goes_on(seed: int) -> None:
    thrower = Thrower(seed)
    world = World()
    async with world.plane() as plane:
        rogue, honest = await working(world, plane)
        term, signed = plane._term, rogue._hello
        odd = [
            name for name in Hello.__struct_fields__ if name not in ("node", "key", "signature", "instance")
        ]
        hints = typing.get_type_hints(Hello)

        def hello(nonce: bytes) -> Hello:
            while True:
                chosen = thrower.dice.sample(odd, thrower.dice.choice((1, 2, 3, len(odd))))
                made: Hello = msgspec.structs.replace(
                    signed(nonce), **{name: thrower.value(hints[name]) for name in chosen}
                )
                if _packs(made):
                    return made

        rogue._hello = hello
        rogue.hang_up()
        await within(rogue.ended.wait())
        for _ in range(150):
            await world.connect(rogue, plane)
            await until(lambda: rogue.welcomed.is_set() or rogue.ended.is_set())
            rogue.hang_up()
            await within(rogue.ended.wait())
        await went_on(world, plane, term, honest)


def _packs(message: msgspec.Struct) -> bool:
    try:
        msgspec.msgpack.encode(message)
    except (ValueError, OverflowError):
        return False
    return True
