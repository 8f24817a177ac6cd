"""The audit log: it names whoever did it, whence, and holds up nobody."""

import asyncio
import json
import stat
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from holdfast.adapters.audit_file import AuditFile
from holdfast.api import audit_log
from holdfast.api.access import Access
from holdfast.api.audit_log import AuditLog
from holdfast.api.projects import HEADER
from holdfast.control import first_token
from holdfast.control.enrol import Joining
from holdfast.model.event import OperatorOrdered, Order, PoolApplied, WorkloadApplied
from holdfast.ports.audit import Kind, Record
from holdfast.ports.registry import Role, Token
from holdfast.sim.twins.registry import SimRegistry
from holdfast.sim.twins.store import SimStore
from holdfast.wire.identity import Key, hashed
from tests.planes import FLEET, World, until, within
from tests.served import WEB, YAML, Served, answered, bearer, served

HERE = "127.0.0.1"


def kept(api: Served) -> list[Record]:
    assert isinstance(api.world.registry, SimRegistry)
    return api.world.registry.kept


def some(api: Served, kind: Kind) -> list[tuple[str, str, str, str]]:
    return [(one.actor, one.origin, one.subject, one.text) for one in kept(api) if one.kind is kind]


async def test_each_order_says_whose_token_it_was_and_from_where_and_what_changed() -> None:
    async with served("n1", access=Access()) as api:
        made = Token("t-ann", hashed("secret"), Role.OPERATOR, note="ann")
        await api.world.registry.add(made)
        ann = bearer("secret")
        await api.client.post("/v1/apply", content=WEB, headers={**YAML, **ann})
        await api.post("/v1/workloads/web/scale", {"count": 3}, headers=ann)
        await api.post("/v1/nodes/n1/cordon", headers=ann)
        await until(lambda: len(some(api, Kind.ORDER)) == 3)
        assert some(api, Kind.ORDER) == [
            ("ann", HERE, "web", "applied, version 1"),
            ("ann", HERE, "web", "applied, version 1: replicas 2 -> 3"),
            ("ann", HERE, "n1", "cordon"),
        ]
        assert {one.token for one in kept(api)} == {"t-ann"}
        assert isinstance(api.world.store, SimStore)
        orders = [e for e in api.world.store.entries if isinstance(e, WorkloadApplied | OperatorOrdered)]
        assert {(e.actor, e.actor_id, e.origin) for e in orders} == {("ann", "t-ann", HERE)}


async def test_the_life_of_a_token_is_in_the_log() -> None:
    async with served(access=Access()) as api:
        admin = await api.token(Role.ADMIN)
        made = await api.post("/v1/tokens", {"role": "read", "note": "bob", "ttl_ms": 1}, headers=admin)
        for _ in range(3):
            await api.get("/v1/status", headers=admin)
        refused = await api.get("/v1/status", 401, headers=bearer(made["token"]))
        assert "expired" in refused["detail"]
        answered(await api.client.delete(f"/v1/tokens/{made['id']}", headers=admin), 200)
        await until(lambda: len(some(api, Kind.TOKEN)) == 4)
        assert sorted(some(api, Kind.TOKEN)) == sorted(
            [
                ("id-admin-0", HERE, "token:id-admin-0", "used first"),
                ("id-admin-0", HERE, f"token:{made['id']}", "made: role read, for bob, for 0.0 s"),
                ("bob", HERE, "GET /v1/status", f"the token {made['id']} has expired"),
                ("id-admin-0", HERE, f"token:{made['id']}", "revoked"),
            ]
        )
        assert made["token"] not in str(kept(api))


async def test_failed_log_ins_are_counted_and_not_written_one_by_one() -> None:
    async with served(access=Access()) as api:
        for number in range(40):
            await api.client.get("/v1/status", headers=bearer(f"guess-{number}"))
        await until(lambda: some(api, Kind.LOGIN))
        assert len(some(api, Kind.LOGIN)) == 1
        await api.edge.audit.close()
        first, others = (one for one in kept(api) if one.kind is Kind.LOGIN)
        assert (first.origin, first.count, others.count) == (HERE, 1, 39)


async def test_what_a_token_is_not_for_is_in_the_log_and_cannot_write_to_a_terminal() -> None:
    async with served(access=Access()) as api:
        reader = await api.token(Role.READ)
        answered(await api.client.delete("/v1/workloads/%1b%5d0%3bPWNED%07", headers=reader), 403)
        await until(lambda: some(api, Kind.DENIED))
        ((actor, origin, subject, text),) = some(api, Kind.DENIED)
        assert (actor, origin) == ("id-read-0", HERE)
        assert "role operator" in text
        assert "PWNED" in subject
        assert subject.isprintable()


async def test_admins_read_the_log_and_others_do_not() -> None:
    async with served(access=Access()) as api:
        admin, operator = await api.token(Role.ADMIN), await api.token(Role.OPERATOR)
        await api.client.post("/v1/apply", content=WEB, headers={**YAML, **admin})
        await api.get("/v1/audit", 403, headers=operator)
        await until(lambda: some(api, Kind.DENIED))
        shown = await api.get("/v1/audit", headers=admin)
        assert [one["kind"] for one in shown] == ["token", "order", "denied"]
        mine = await api.get("/v1/audit?actor=id-operator-0", headers=admin)
        assert [one["kind"] for one in mine] == ["denied"]
        assert await api.get("/v1/audit?after=1&limit=1", headers=admin) == shown[1:2]


async def test_a_registry_that_does_not_answer_holds_up_no_order_and_what_is_lost_is_counted(
    monkeypatch: Any,
) -> None:
    monkeypatch.setattr(audit_log, "QUEUE_MAX", 5)
    monkeypatch.setattr(audit_log, "AGAIN_S", 0.02)
    world = World()
    assert isinstance(world.registry, SimRegistry)
    registry = world.registry
    still = Access(clock=lambda: 0.0)  # a token that was looked up once is believed for as long as this takes
    async with served(world=world, access=still) as api:
        api.client.headers.update(await api.token(Role.ADMIN))
        await api.get("/v1/status")
        registry.down = True
        for count in range(1, 11):
            await api.apply(WEB.replace("replicas: 2", f"replicas: {count}"))
        dropped = api.plane.metrics.get_sample_value("holdfast_audit_dropped_total")
        assert dropped == 5
        registry.down = False
        await until(lambda: any(one.kind is Kind.LOST for one in kept(api)))
        assert len(some(api, Kind.ORDER)) == 5
        (lost,) = (one for one in kept(api) if one.kind is Kind.LOST)
        assert lost.count == 5


class FullDisk:
    def write(self, lines: list[bytes]) -> None:
        raise OSError(28, "No space left on device")


async def test_a_full_disk_costs_the_file_its_lines_and_nothing_else() -> None:
    registry, dropped = SimRegistry(), [0]

    def drop(count: int) -> None:
        dropped[0] += count

    log = AuditLog(registry, "cp-1", lambda: 1, FullDisk(), drop)
    for number in range(3):
        log.note(Record(1, Kind.ORDER, text=f"{number}"))
    await until(lambda: len(registry.kept) == 3)
    await log.close()
    assert dropped == [3]


async def test_the_file_has_a_line_for_each_record_and_is_for_its_owner_alone(tmp_path: Path) -> None:
    registry = SimRegistry()
    log = AuditLog(registry, "cp-1", lambda: 1, AuditFile(tmp_path / "audit.log"))
    await asyncio.gather(*(asyncio.to_thread(lambda: None) for _ in range(2)))
    for number in range(3):
        log.note(Record(1, Kind.ORDER, actor="ann", text=f"{number}"))
    await log.close()
    lines = [json.loads(line) for line in (tmp_path / "audit.log").read_text().splitlines()]
    assert [(line["actor"], line["text"], line["plane"]) for line in lines] == [
        ("ann", f"{number}", "cp-1") for number in range(3)
    ]
    assert stat.S_IMODE((tmp_path / "audit.log").stat().st_mode) == 0o600


def test_files_are_put_aside_and_the_oldest_goes(tmp_path: Path) -> None:
    file = AuditFile(tmp_path / "audit.log", size_max=100, files=3)
    for number in range(40):
        file.write([b"%020d" % number])
    found = sorted(path.name for path in tmp_path.iterdir())
    assert found in (["audit.log", "audit.log.1", "audit.log.2"], ["audit.log.1", "audit.log.2"])
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) < 400
    assert (tmp_path / "audit.log.1").read_bytes().endswith(b"%020d\n" % 39)


def test_failures_of_many_addresses_are_counted_within_bounds() -> None:
    failures = audit_log.Failures()
    written = sum(
        failures.add(Record(1, Kind.LOGIN, origin=f"2001:db8:0:{number:x}::1")) for number in range(10_000)
    )
    assert written == audit_log.KINDS_MAX + 1
    assert len(failures.counted) == audit_log.KINDS_MAX + 1
    assert failures.over(2) == []
    (others,) = failures.over(100_000)
    assert (others.subject, others.count) == ("others", 10_000 - written)


def test_no_token_or_network_drives_what_others_did_out_of_the_log() -> None:
    failures = audit_log.Failures()
    written = 0
    for number in range(1_000):
        denied = Record(1, Kind.DENIED, token="t", origin="10.0.0.1", subject=f"GET /v1/{number}")
        stranger = Record(1, Kind.LOGIN, origin=f"2001:db8::{number:x}")
        written += failures.add(denied) + failures.add(stranger)
    assert written <= audit_log.OF_ONE_MAX + 2
    assert len(failures.over(None)) <= audit_log.OF_ONE_MAX + 2


async def test_an_apply_is_one_record_however_much_it_changes() -> None:
    async with served(access=Access()) as api:
        operator = await api.token(Role.OPERATOR)
        text = "---\n".join(f"kind: service\nname: s{n}\nreplicas: 1\ncommand: [x]\n" for n in range(40))
        answered(await api.client.post("/v1/apply", content=text, headers={**YAML, **operator}), 200)
        await until(lambda: some(api, Kind.ORDER))
        (one,) = (one for one in kept(api) if one.kind is Kind.ORDER)
        assert (one.subject, one.count) == ("s0 and 39 more", 40)
        assert one.text.startswith("s0 applied, version 1; s1 applied")
        assert one.text.endswith("; and 32 more")


async def test_one_token_has_its_share_of_the_records_and_what_is_beyond_is_counted() -> None:
    registry, now = SimRegistry(), [0]
    log = AuditLog(registry, "cp-1", lambda: now[0])

    def order(token: str) -> None:
        log.orders([OperatorOrdered(at=1, order=Order.CORDON, node="n", actor_id=token)])

    for _ in range(3 * audit_log.ORDERS):
        order("greedy")
    order("other")
    await until(lambda: any(one.token == "other" for one in registry.kept))
    await log.close()
    greedy = [one for one in registry.kept if one.token == "greedy"]
    assert len(greedy) == audit_log.ORDERS + 2
    assert sum(one.count for one in greedy) == 3 * audit_log.ORDERS
    assert greedy[-1].subject == audit_log.MORE_ORDERS
    now[0] = 60_000
    order("greedy")
    assert log._queue[-1].subject == "n", "its share grows again"
    await log.close()


async def test_what_was_counted_is_told_at_the_time_at_which_it_is_written() -> None:
    registry, now = SimRegistry(), [1_000]
    log = AuditLog(registry, "cp-1", lambda: now[0])
    for _ in range(3):
        log._count(Record(now[0], Kind.LOGIN, origin=HERE))
    now[0] = 30_000
    log.note(Record(now[0], Kind.ORDER))
    now[0] = 70_000
    await log.close()
    assert [(one.at, one.count) for one in registry.kept] == [(1_000, 1), (30_000, 1), (70_000, 2)]


async def test_who_joins_by_a_token_and_who_is_refused_is_in_the_log() -> None:
    registry = SimRegistry()
    log = AuditLog(registry, "cp-1", lambda: 1)
    token = Token("t-join", b"", Role.JOIN, note="rack 7")
    log.joined(Joining("n1", HERE, token))
    for _ in range(5):
        log.joined(Joining("n2", HERE, token, "it was used up"))
        log.joined(Joining("n3", HERE, None, "the join token is not known"))
    await log.close()
    assert [(one.kind, one.actor, one.subject, one.text, one.count) for one in registry.kept] == [
        (Kind.TOKEN, "rack 7", "token:t-join", "enrolled the node n1", 1),
        (Kind.DENIED, "rack 7", "join as n2", "it was used up", 1),
        (Kind.LOGIN, "", "join as n3", "the join token is not known", 1),
        (Kind.DENIED, "rack 7", "join as n2", "it was used up", 4),
        (Kind.LOGIN, "", "join as n3", "the join token is not known", 4),
    ]


async def test_a_join_token_leaves_a_record_with_the_address_of_its_agent() -> None:
    async with served(access=Access()) as api:
        await api.world.registry.add(Token("t-join", hashed("once"), Role.JOIN))
        await api.plane.tell(PoolApplied(at=api.plane.now(), pool=FLEET))
        first, second = (
            api.world.fleet.add(name, Key(Ed25519PrivateKey.generate()), "once") for name in ("n1", "n2")
        )
        await api.world.connect(first, api.plane)
        await within(first.welcomed.wait())
        await api.world.connect(second, api.plane)
        await until(lambda: second.refused is not None)
        await until(lambda: len([one for one in kept(api) if one.token == "t-join"]) == 2)
        joined, refused = (one for one in kept(api) if one.token == "t-join")
        assert (joined.kind, joined.text, joined.origin) == (Kind.TOKEN, "enrolled the node n1", HERE)
        assert (refused.kind, refused.subject, refused.origin) == (Kind.DENIED, "join as n2", HERE)


async def test_a_new_first_token_is_in_the_log_and_the_log_is_of_no_project(tmp_path: Path) -> None:
    async with served(access=Access()) as api:
        admin = await api.token(Role.ADMIN)
        await first_token.ensure(tmp_path / "token", api.world.registry, 1, ours=False, again=True)
        assert any(one.subject == "token:first" and "asked for anew" in one.text for one in kept(api))
        problem = await api.get("/v1/audit", 422, headers={**admin, HEADER: "vision"})
        assert "whole fleet" in problem["detail"]
