"""What every registry must do. To hold a new adapter to it, add a rig for it to `REGISTRIES`."""

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
from msgspec.structs import replace

from holdfast.adapters.stores import registry as sql_registry
from holdfast.adapters.stores.registry import SqlRegistry
from holdfast.ports.audit import Kind, Record
from holdfast.ports.errors import Denied, Unreachable
from holdfast.ports.registry import Identity, Registry, Role, Token
from holdfast.sim.twins import registry as sim_registry
from holdfast.sim.twins.registry import SimRegistry
from tests.contract.conftest import Run
from tests.contract.databases import Failing, postgres_database, sqlite_database
from tests.postgres import Postgres

NOW = 1_700_000_000_000


@dataclass
class Rig:
    registry: Registry
    go_down: Callable[[], None]
    come_back: Callable[[], None]


class Ground:
    """What a rig may be built on."""

    def __init__(self, request: pytest.FixtureRequest, run: Run) -> None:
        self.request, self.run = request, run


@contextmanager
def simulated(ground: Ground) -> Iterator[Rig]:
    registry = SimRegistry()
    yield Rig(
        registry,
        go_down=lambda: setattr(registry, "down", True),
        come_back=lambda: setattr(registry, "down", False),
    )


@contextmanager
def sqlite(ground: Ground) -> Iterator[Rig]:
    with sqlite_database(ground.run, ground.request.getfixturevalue("tmp_path")) as failing:
        yield over_sql(failing)


@contextmanager
def postgres(ground: Ground) -> Iterator[Rig]:
    server: Postgres = ground.request.getfixturevalue("server")
    with postgres_database(ground.run, server) as failing:
        yield over_sql(failing)


def over_sql(failing: Failing) -> Rig:
    return Rig(SqlRegistry(failing.database), failing.go_down, failing.come_back)


REGISTRIES: dict[str, Callable[[Ground], AbstractContextManager[Rig]]] = {
    "simulated": simulated,
    "sqlite": sqlite,
    "postgres": postgres,
}


@pytest.fixture(params=REGISTRIES)
def rig(request: pytest.FixtureRequest, run: Run) -> Iterator[Rig]:
    with REGISTRIES[request.param](Ground(request, run)) as made:
        yield made


@pytest.fixture
def registry(rig: Rig) -> Registry:
    return rig.registry


def token(number: int, role: Role = Role.JOIN, **rest: Any) -> Token:
    return Token(f"id-{number}", bytes([number]) * 32, role, created_at=NOW + number, **rest)


def node(name: str = "n1", key: int = 1, pool: str = "spare", at: int = NOW) -> Identity:
    return Identity(name, bytes([key]) * 32, pool, at)


# secrets


def test_whoever_asks_first_sets_a_secret(registry: Registry, run: Run) -> None:
    assert run(registry.secret("tokens", b"\0mine\xff")) == b"\0mine\xff"
    assert run(registry.secret("tokens", b"yours")) == b"\0mine\xff"
    assert run(registry.secret("other", b"yours")) == b"yours"


def test_all_who_ask_at_once_get_the_same_secret(registry: Registry, run: Run) -> None:
    async def ask() -> set[bytes]:
        return set(await asyncio.gather(*(registry.secret("s", bytes([n])) for n in range(20))))

    assert len(run(ask())) == 1


# tokens


def test_a_token_is_found_by_its_hash_as_it_was_added(registry: Registry, run: Run) -> None:
    words = {"note": "für die Nacht", "pool": "p", "node": "n", "project": "vision"}
    added = token(1, Role.OPERATOR, **words, expires_at=NOW + 9)
    run(registry.add(added))
    assert run(registry.find(added.hash)) == added
    assert run(registry.find(b"x" * 32)) is None


@pytest.mark.parametrize("role", Role)
def test_every_role_is_kept(registry: Registry, run: Run, role: Role) -> None:
    run(registry.add(token(1, role)))
    assert [found.role for found in run(registry.tokens())] == [role]


def test_tokens_are_listed_the_oldest_first(registry: Registry, run: Run) -> None:
    assert run(registry.tokens()) == ()
    for number in (2, 3, 1):
        run(registry.add(token(number)))
    assert run(registry.tokens()) == (token(1), token(2), token(3))


def test_to_add_a_token_twice_adds_it_once(registry: Registry, run: Run) -> None:
    """Whoever lost the answer asks again."""
    run(registry.add(token(1)))
    run(registry.add(token(1)))
    assert run(registry.tokens()) == (token(1),)


def test_two_tokens_have_neither_id_nor_secret_in_common(registry: Registry, run: Run) -> None:
    run(registry.add(token(1)))
    for other in (replace(token(1), hash=b"2" * 32), replace(token(1), id="id-2")):
        with pytest.raises(Denied, match="another token"):
            run(registry.add(other))
    assert run(registry.tokens()) == (token(1),)


def test_a_revoked_token_is_gone(registry: Registry, run: Run) -> None:
    run(registry.add(token(1)))
    assert run(registry.revoke("id-1")) is True
    assert run(registry.revoke("id-1")) is False
    assert run(registry.find(token(1).hash)) is None


# nodes


def test_a_node_is_enrolled_with_a_join_token_which_is_used_up(registry: Registry, run: Run) -> None:
    run(registry.add(token(1)))
    assert run(registry.identity("n1")) is None
    assert run(registry.enrol(node(), token(1).hash)) == ""
    assert run(registry.identity("n1")) == node()
    assert run(registry.find(token(1).hash)) == token(1, used_by="n1", used=1)
    assert "used by n1" in run(registry.enrol(node("n2", key=2), token(1).hash))
    assert run(registry.identity("n2")) is None


def test_a_node_of_our_own_is_enrolled_without_a_token(registry: Registry, run: Run) -> None:
    assert run(registry.enrol(node(), None)) == ""
    assert run(registry.identity("n1")) == node()


def test_to_enrol_again_with_the_same_key_is_no_error(registry: Registry, run: Run) -> None:
    run(registry.add(token(1)))
    for _ in range(2):
        assert run(registry.enrol(node(), token(1).hash)) == ""
    assert run(registry.enrol(node(at=NOW + 5), None)) == ""
    assert run(registry.identity("n1")) == node()


def test_a_name_that_is_taken_is_refused_and_the_token_stays_good(registry: Registry, run: Run) -> None:
    run(registry.add(token(1)))
    run(registry.enrol(node(), None))
    assert "belongs to another key" in run(registry.enrol(node(key=2), token(1).hash))
    assert run(registry.identity("n1")) == node()
    assert run(registry.find(token(1).hash)) == token(1)


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (None, "not known"),
        (token(1, Role.ADMIN), "not known"),
        (token(1, used_by="n7"), "used by n7"),
        (token(1, expires_at=NOW), "expired"),
        (token(1, node="n2"), "for n2"),
        (token(1, pool="gpu"), "for the pool gpu"),
    ],
)
def test_a_token_that_does_not_fit_enrols_nobody(
    registry: Registry, run: Run, given: Token | None, why: str
) -> None:
    if given is not None:
        run(registry.add(given))
    assert why in run(registry.enrol(node(), token(1).hash))
    assert run(registry.identity("n1")) is None
    assert run(registry.tokens()) == (() if given is None else (given,))


def test_a_token_made_for_this_node_fits(registry: Registry, run: Run) -> None:
    run(registry.add(token(1, node="n1", pool="spare", expires_at=NOW + 1)))
    assert run(registry.enrol(node(), token(1).hash)) == ""


def test_of_many_that_use_one_token_at_once_one_is_enrolled(registry: Registry, run: Run) -> None:
    run(registry.add(token(1)))

    async def all_at_once() -> list[str]:
        newcomers = (node(f"n{number}", key=number) for number in range(1, 11))
        return await asyncio.gather(*(registry.enrol(one, token(1).hash) for one in newcomers))

    assert sorted(run(all_at_once())).count("") == 1
    found = [run(registry.identity(f"n{number}")) for number in range(1, 11)]
    assert sum(one is not None for one in found) == 1


@pytest.mark.parametrize("uses", [1, 7, 20, 30])
def test_of_many_that_use_one_token_at_once_exactly_as_many_as_it_may_are_enrolled(
    registry: Registry, run: Run, uses: int
) -> None:
    run(registry.add(token(1, uses=uses)))

    async def all_at_once() -> list[str]:
        newcomers = (node(f"n{number}", key=number) for number in range(1, 21))
        return await asyncio.gather(*(registry.enrol(one, token(1).hash) for one in newcomers))

    answers = run(all_at_once())
    assert answers.count("") == min(uses, 20)
    found = [run(registry.identity(f"n{number}")) for number in range(1, 21)]
    assert sum(one is not None for one in found) == min(uses, 20)
    (kept,) = run(registry.tokens())
    assert (kept.used, kept.left) == (min(uses, 20), max(0, uses - 20))
    refused = {answer.partition(", the last was")[0] for answer in answers if answer}
    if 1 < uses < 20:
        assert refused == {f"this join token is used up: {uses} of {uses} nodes joined with it"}


def test_a_node_that_comes_again_with_its_key_uses_nothing_up(registry: Registry, run: Run) -> None:
    run(registry.add(token(1, uses=2)))
    for _ in range(5):
        assert run(registry.enrol(node(), token(1).hash)) == ""
    assert [one.left for one in run(registry.tokens())] == [1]
    assert run(registry.enrol(node("n2", key=2), token(1).hash)) == ""
    assert "used up" in run(registry.enrol(node("n3", key=3), token(1).hash))


def test_a_token_for_several_expires_as_others_do(registry: Registry, run: Run) -> None:
    run(registry.add(token(1, uses=9, expires_at=NOW)))
    assert "has expired" in run(registry.enrol(node(), token(1).hash))


def test_a_token_that_was_used_before_uses_were_counted_is_used_up(registry: Registry, run: Run) -> None:
    run(registry.add(token(1, used_by="n7", used=0)))
    assert "was used by n7" in run(registry.enrol(node(), token(1).hash))


def test_a_forgotten_name_can_be_taken_again_with_a_new_token(registry: Registry, run: Run) -> None:
    run(registry.add(token(1)))
    run(registry.add(token(2)))
    run(registry.enrol(node(), token(1).hash))
    run(registry.forget("n1"))
    assert run(registry.identity("n1")) is None
    assert "used by n1" in run(registry.enrol(node(key=2), token(1).hash))
    assert run(registry.enrol(node(key=2), token(2).hash)) == ""
    assert run(registry.identity("n1")) == node(key=2)


def test_to_forget_a_name_that_nobody_has_is_no_error(registry: Registry, run: Run) -> None:
    run(registry.forget("nobody"))
    assert run(registry.identity("nobody")) is None


# failing

CALLS: dict[str, Callable[[Registry], Coroutine[Any, Any, object]]] = {
    "secret": lambda registry: registry.secret("s", b"s"),
    "add": lambda registry: registry.add(token(1)),
    "tokens": lambda registry: registry.tokens(),
    "find": lambda registry: registry.find(b"x"),
    "revoke": lambda registry: registry.revoke("id-1"),
    "identity": lambda registry: registry.identity("n1"),
    "enrol": lambda registry: registry.enrol(node(), None),
    "forget": lambda registry: registry.forget("n1"),
}


@pytest.mark.parametrize("call", CALLS)
def test_a_registry_that_is_down_says_so_and_answers_when_it_is_back(rig: Rig, run: Run, call: str) -> None:
    rig.go_down()
    with pytest.raises(Unreachable):
        run(CALLS[call](rig.registry))
    rig.come_back()
    run(CALLS[call](rig.registry))


# the audit log


def record(number: int, **rest: Any) -> Record:
    words = {"actor": "ann", "token": "id-1", "origin": "192.0.2.7", "subject": "web", "plane": "cp-1"}
    return Record(NOW + number, Kind.ORDER, id=f"r{number}", text="applied\0", **{**words, **rest})


def test_a_token_is_used_first_once(registry: Registry, run: Run) -> None:
    run(registry.add(token(1)))
    assert run(registry.first_use("id-1", NOW)) is True
    assert run(registry.first_use("id-1", NOW + 1)) is False
    assert run(registry.first_use("id-2", NOW)) is False
    assert run(registry.find(token(1).hash)) == token(1, first_used=NOW)


def test_records_are_numbered_in_their_order_and_kept_once(registry: Registry, run: Run) -> None:
    run(registry.record((record(1), record(2))))
    run(registry.record((record(2), record(3, count=7))))
    run(registry.record(()))
    found = run(registry.audited())
    assert [(one.seq, one.id, one.count) for one in found] == [(1, "r1", 1), (2, "r2", 1), (3, "r3", 7)]
    assert found[0].text.startswith("applied")
    assert (found[0].actor, found[0].token, found[0].origin) == ("ann", "id-1", "192.0.2.7")


def test_records_are_found_by_actor_time_and_number(registry: Registry, run: Run) -> None:
    run(registry.record(tuple(record(n, actor="bob" * (n % 2), token=f"id-{n % 2}") for n in range(1, 9))))

    def ids(**asked: Any) -> list[int]:
        return [int(one.id[1:]) for one in run(registry.audited(**asked))]

    assert ids(limit=3) == [6, 7, 8]
    assert ids(after=2, limit=3) == [3, 4, 5]
    assert ids(before=3) == [1, 2]
    assert ids(since=NOW + 3, until=NOW + 5) == [3, 4]
    assert ids(actor="bob") == ids(actor="id-1") == [1, 3, 5, 7]
    assert ids(actor="nobody") == []


def test_only_so_many_records_are_kept_and_of_each_kind_by_itself(
    registry: Registry, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sql_registry, "LOOK_EVERY", 1)
    for module in (sql_registry, sim_registry):
        monkeypatch.setattr(module, "KEPT", dict.fromkeys(Kind, 5))
    run(registry.record((replace(record(100), kind=Kind.LOGIN),)))
    for start in range(1, 13, 4):
        run(registry.record(tuple(replace(record(n), kind=Kind.ORDER) for n in range(start, start + 4))))
    assert [one.seq for one in run(registry.audited())] == [1, 9, 10, 11, 12, 13]
