"""What a snapshot keeps, what it works out anew, and what it refuses to read."""

from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from holdfast.core import check
from holdfast.core.decide import decide
from holdfast.core.state import fold
from holdfast.core.state.snapshot import (
    LINES,
    LINES_BY_NAME,
    VERSION,
    Saved,
    UnknownSnapshot,
    dump,
    load,
)
from holdfast.model import action as do
from holdfast.model import event as ev
from holdfast.model.finding import Severity
from holdfast.model.market import OfferRecord
from holdfast.model.node import NodeState
from holdfast.model.plan import Plan
from holdfast.model.policy import Policy
from holdfast.model.resources import GPU
from holdfast.model.units import MINUTE
from holdfast.model.verdict import Level
from holdfast.model.workload import Job, Needs, Service, Workload
from holdfast.model.world import World
from tests.build import resources
from tests.play import BIG, Play, of, offer

EIGHT = Needs(resources(cpu=8))


def at_rest(*workloads: Workload, nodes: tuple[str, ...] = ("a", "b", "c"), **rules: Any) -> Play:
    play = Play(**{"max": 3, **rules})
    play.tell(ev.LeaderChanged(at=play.now, leader="cp", generation=3))
    play.join(*nodes)
    play.apply(*workloads)
    play.obey()
    return play


def test_an_empty_world_is_read_back() -> None:
    again = load(dump(World()))
    assert (again.nodes, again.policy, again.plans) == ({}, Policy(), 0)


def test_the_rules_and_the_leader_are_kept() -> None:
    leases = replace(Policy().leases, lease_ms=7_000)
    play = at_rest()
    play.tell(ev.PolicyApplied(at=play.now, policy=replace(Policy(), leases=leases)))
    again = load(dump(play.world))
    assert again.policy.leases == leases
    assert again.leader == play.world.leader
    assert again.lease_before == play.world.lease_before != (0, 0)


def test_a_node_has_the_row_it_had_and_so_has_the_next_that_comes() -> None:
    play = at_rest(nodes=("a", "b", "c", "d"), max=9)
    for name in ("b", "c"):
        play.tell(ev.NodeTerminated(at=play.now, node=name))
    again = load(dump(play.world))
    assert again.room.row == play.world.room.row == {"a": 0, "d": 3}
    play.join("e")
    fold.observe(again, play.journal[-1])  # type: ignore[arg-type]
    assert again.room.row["e"] == play.world.room.row["e"] == 2


def test_a_node_that_is_leaving_keeps_its_row_and_takes_nothing_new() -> None:
    play = at_rest(Workload("web", Service(1)))
    plan = Plan(play.world.plans + 1, play.now, (do.TerminateNode(node="a", why="w"),))
    fold.accept(play.world, plan)
    again = load(dump(play.world))
    assert again.nodes["a"].state is NodeState.TERMINATING
    assert again.room.row["a"] == play.world.room.row["a"]
    assert not again.room.open[again.room.row["a"]]


def test_seats_wait_in_the_order_in_which_they_were_emptied() -> None:
    play = at_rest(Workload("web", Service(3), EIGHT))
    for name in ("web/2.1", "web/0.1", "web/1.1"):
        play.end(name, ev.Ended.FAILED)
    again = load(dump(play.world))
    assert list(again.waiting["web"]) == ["web/2", "web/0", "web/1"]
    assert list(again.slots) == ["web/0", "web/1", "web/2"]


def test_a_finding_a_brake_and_an_orphan_are_kept() -> None:
    play = at_rest()
    play.find("a", Severity.NOTE, "warm")
    engaged = do.EngageBrake(scope="fleet", why="too many")
    fold.accept(play.world, Plan(play.world.plans + 1, play.now, (engaged,)))
    play.tell(ev.PoolListed(at=play.now, pool="pool", nodes=("a", "stray"), asked_at=play.now))
    again = load(dump(play.world))
    assert again.findings == play.world.findings
    assert list(again.findings) == [("a", "warm")]
    assert again.brakes["fleet"].why == "too many"
    assert again.orphans == {"stray": "pool"}


def test_everything_that_was_read_gets_a_look() -> None:
    play = at_rest(Workload("web", Service(2)))
    assert play.world.agenda.quiet(play.now)
    look = load(dump(play.world)).agenda.look(play.now)
    assert set(look["node"]) == {"a", "b", "c"}
    assert set(look["slot"]) == {"web/0", "web/1"}
    assert set(look["workload"]) == {"web"}
    assert set(look["pool"]) == {"pool"}


def test_a_look_at_a_world_at_rest_finds_nothing_to_do() -> None:
    play = at_rest(Workload("web", Service(2)), Workload("job", Job()), min=3)
    again = load(dump(play.world))
    assert decide(again, play.now).actions == ()


def test_what_was_due_later_is_due_then() -> None:
    play = at_rest(Workload("job", Job()), max=2)
    play.judge("a", Level.DEAD)
    play.settle()
    again = load(dump(play.world))
    assert again.agenda.due == play.world.agenda.due
    fold.accept(again, decide(again, play.now))
    assert again.agenda.next_due() == play.world.agenda.next_due()


def test_what_happens_to_one_does_not_happen_to_the_other() -> None:
    play = at_rest(Workload("web", Service(2)))
    body = dump(play.world)
    again = load(body)
    fold.observe(again, ev.WorkloadDeleted(at=play.now, workload="web"))
    fold.observe(again, ev.NodeTerminated(at=play.now, node="a"))
    assert dump(play.world) == body


def test_a_world_read_back_decides_what_the_other_would() -> None:
    """Zones that are equal are taken in the order in which they were first seen, gone ones included."""
    play = Play(offers=(offer(), offer("far", "b")), max=9)
    play.join("a", zone="b")
    play.join("b", zone="a")
    play.join("c", zone="c")
    play.tell(ev.NodeTerminated(at=play.now, node="a"))
    play.join("d", zone="b")
    play.settle()
    again = load(dump(play.world))
    wanted = ev.WorkloadApplied(at=play.now, workload=Workload("web", Service(4)))
    for _ in range(2):
        for world in (play.world, again):
            if wanted.workload.name not in world.workloads:
                fold.observe(world, wanted)
        here, there = decide(play.world, play.now), decide(again, play.now)
        assert here.actions == there.actions
        fold.accept(play.world, here)
        fold.accept(again, there)
    assert len(of(do.PlaceReplica, list(here.actions))) + len(play.world.replicas) >= 4


def test_a_field_that_a_model_gained_since_has_its_default() -> None:
    version, body, _ = msgspec.msgpack.decode(dump(at_rest(Workload("web", Service(1))).world))
    for node in body["nodes"]:
        del node["probe_port"]
    again = load(msgspec.msgpack.encode((version, body)))
    assert {node.probe_port for node in again.nodes.values()} == {0}


def test_what_is_remembered_of_an_offer_is_read_as_it_was_written_before_a_field_was_added() -> None:
    world = at_rest(Workload("web", Service(1))).world
    key = "pool/std"
    world.records[key] = replace(OfferRecord(key), retry_at=5, why="none left", taken_at=7, why_at=9)
    version, body, _ = msgspec.msgpack.decode(dump(world))
    body["records"] = [record[:19] for record in body["records"]]  # so many fields there were at first
    again = load(msgspec.msgpack.encode((version, body)))
    assert again.records[key] == replace(world.records[key], why_at=0)


def test_a_snapshot_of_another_version_is_refused_by_its_number() -> None:
    with pytest.raises(UnknownSnapshot, match=f"version {VERSION + 1}"):
        load(msgspec.msgpack.encode((VERSION + 1, {"anything": 1})))


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"not a snapshot at all",
        msgspec.msgpack.encode({"version": VERSION}),
        msgspec.msgpack.encode((VERSION, {"nodes": []})),
        msgspec.msgpack.encode((VERSION, [])),
        dump(World())[:-3],
        dump(World()) + b"\x00",
    ],
    ids=["empty", "text", "no envelope", "fields missing", "no fields", "cut off", "too long"],
)
def test_what_is_no_snapshot_is_refused(body: bytes) -> None:
    with pytest.raises(UnknownSnapshot, match="not a snapshot"):
        load(body)


def test_a_snapshot_with_one_bit_turned_is_not_believed() -> None:
    """Also where it can still be read: in the name of a node."""
    play = Play()
    play.join("alpha")
    body = bytearray(dump(play.world))
    body[body.index(b"alpha")] ^= 1
    with pytest.raises(UnknownSnapshot, match="its sum is wrong"):
        load(bytes(body))


def test_every_field_of_the_world_is_written_or_derived() -> None:
    kept = set(Saved.__struct_fields__) - {"lines", "lines_by_name", "rows", "due", "fleet"}
    derived = {*check.derived(World()), "joined", "serving", "of_priority", "market", "room", "agenda"}
    derived |= {"numbered"}
    assert set(vars(World())) == kept | derived
    assert {*LINES, *LINES_BY_NAME} <= derived


def test_an_order_that_a_snapshot_does_not_tell_is_that_of_the_entries() -> None:
    play = at_rest(Workload("web", Service(3), EIGHT))
    for name in ("web/2.1", "web/0.1"):
        play.end(name, ev.Ended.FAILED)
    version, body, _ = msgspec.msgpack.decode(dump(play.world))
    body["lines"], body["lines_by_name"] = {}, {"waiting": {"gone": ["gone/0", "gone/1"]}}
    again = load(msgspec.msgpack.encode((version, body)))
    assert list(again.waiting["web"]) == ["web/0", "web/2"]
    assert check.inconsistencies(again) == []


def test_gpus_are_given_back_to_whom_they_were_given() -> None:
    play = Play(max=2)
    play.join("g", capacity=replace(BIG, gpu_milli=4 * GPU, gpu_kind="h100"))
    play.apply(
        Workload("half", Service(3), Needs(resources(cpu=1, gpu=0.5))),
        Workload("two", Job(), Needs(resources(cpu=1, gpu=2))),
    )
    play.obey()
    again = load(dump(play.world))
    row = again.room.row["g"]
    assert again.room.devices[row].tolist() == play.world.room.devices[row].tolist()
    assert again.room.devices[row].tolist().count(0) >= 2
    assert check.inconsistencies(again) == []


def test_a_node_in_doubt_stays_in_doubt() -> None:
    play = at_rest(Workload("job", Job()))
    play.judge("a", Level.SUSPECT, heard_at=play.now - MINUTE)
    again = load(dump(play.world))
    assert again.nodes["a"] == play.world.nodes["a"]
    assert list(again.doubtful) == ["a"]
