"""Whatever happens, in whatever order: the core never fails, never contradicts itself, and comes to rest.

A walk is a list of numbers; each three of them choose something that could happen next in the world as it is
then (an answer is only given to what was asked, a replica only reports if it is there, though it may report
nonsense). So every failing walk shrinks to a short one.
"""

import random
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from holdfast.core import check
from holdfast.core.decide import decide
from holdfast.core.state import fold
from holdfast.model import event as ev
from holdfast.model.finding import Severity
from holdfast.model.gateway import Key, Limits
from holdfast.model.node import JOINED, Answer, NodeState
from holdfast.model.place import Place
from holdfast.model.project import Project
from holdfast.model.resources import Resources
from holdfast.model.units import HOUR, MINUTE, SECOND
from holdfast.model.verdict import Level, Word
from holdfast.model.workload import (
    DEFAULT_PROJECT,
    Job,
    Needs,
    Restart,
    Service,
    Spread,
    Sweep,
    Training,
    Workload,
)
from holdfast.model.world import World
from tests.play import Play, offer

WHOLE = 1 << 16
NAMES = ("n1", "n2", "n3", "n4", "n5", "n6", "n7")
ERRORS = ("CapacityShort", "Throttled", "NotFound", "Denied", "Unreachable", "OutcomeUnknown")
SEVERITIES = tuple(Severity)


def wants(cpu: int, spread: Spread = Spread.PREFER) -> Needs:
    return Needs(Resources(cpu_milli=1000 * cpu, memory_mib=512), spread=spread)


WORKLOADS = (
    Workload("web", Service(3), wants(2), restart=Restart(limit=4)),
    Workload("web", Service(1, standby=1), wants(3), restart=Restart(limit=4)),
    Workload("db", Service(2), wants(4, Spread.REQUIRE), priority=5),
    Workload("job", Job(), wants(8), checkpoint_ms=MINUTE, priority=2),
    Workload("job", Job(standby=1), wants(2), checkpoint_ms=MINUTE),
    Workload("gang", Training(2, 4), wants(6), priority=1),
    Workload("gang", Training(3, 3, standby=1), wants(4)),
    Workload("many", Sweep(6, parallel=3), wants(1)),
    Workload("many", Sweep(3), wants(5), priority=3),
    Workload("late", Service(1), wants(1), after=("job", "web")),
)


class Walk:
    def __init__(self) -> None:
        self.play = Play(
            offers=(offer(), offer("far", "b", price=150), offer("spot", "c", price=50, spot=True)),
            min=2,
            max=9,
            standby=1,
            idle_ms=5 * MINUTE,
        )
        self.world: World = self.play.world

    def step(self, kind: int, which: int, how: int) -> None:
        HAPPENINGS[kind % len(HAPPENINGS)](self, which, how)
        self.rest()

    def rest(self) -> None:
        """Turns until nothing is left to do at this instant."""
        for _ in range(60):
            before = snapshot(self.world)
            plan = decide(self.world, self.play.now)
            assert decide(self.world, self.play.now) == plan, "the same question has two answers"
            assert snapshot(self.world) == before, "deciding changed the world"
            examined, refused = check.examine(self.world, plan)
            assert not refused, refused
            self.play.journal.append(examined)
            fold.accept(self.world, examined)
            assert check.inconsistencies(self.world) == []
            if not plan.actions:
                return
        raise AssertionError(f"it never comes to rest: {plan.actions}")

    # what can happen

    def time_passes(self, which: int, how: int) -> None:
        self.play.now += (200, SECOND, 12 * SECOND, 35 * SECOND, 2 * MINUTE, 16 * MINUTE, HOUR)[which % 7]

    def due_time_comes(self, which: int, how: int) -> None:
        self.play.now = max(self.play.now, min(self.world.agenda.next_due(), self.play.now + HOUR))

    def node_joins(self, which: int, how: int) -> None:
        names = dict.fromkeys((*NAMES, *self.world.nodes))
        name = list(names)[which % len(names)]
        there = list(self.world.on_node.get(name, ()))
        running = tuple(there if how % 3 == 0 else there[::2] if how % 3 == 1 else ())
        zone = "abc"[which % 3]
        self.play.join(name, running=running, place=Place("prov", "here", zone, f"{zone}{which % 2}"))

    def node_is_judged(self, which: int, how: int) -> None:
        if node := pick(which, [n for n in self.world.nodes.values() if n.state in JOINED]):
            heard = max(node.heard_at, self.play.now - (how // 4 % 5) * 10 * SECOND)
            self.play.judge(node.id, list(Level)[how % 4], heard_at=min(heard, self.play.now))

    def provider_answers(self, which: int, how: int) -> None:
        asked = (NodeState.LAUNCHING, NodeState.BOOTING, NodeState.TERMINATING, NodeState.RESETTING)
        if node := pick(which, [n for n in self.world.nodes.values() if n.state in asked]):
            now = self.play.now
            failed = ev.ActionFailed(
                at=now, action="p1.0", node=node.id, error=ERRORS[how // 4 % 6], why="no", retry_after_ms=how
            )
            answers: dict[NodeState, ev.Event] = {
                NodeState.LAUNCHING: ev.NodeLaunched(at=now, node=node.id),
                NodeState.BOOTING: ev.NodeJoined(at=now, node=node.id),
                NodeState.TERMINATING: ev.NodeTerminated(at=now, node=node.id),
                NodeState.RESETTING: ev.NodeReset(at=now, node=node.id),
            }
            self.play.tell(failed if how % 4 == 0 else answers[node.state])

    def machine_vanishes(self, which: int, how: int) -> None:
        if name := pick(which, list(self.world.nodes)):
            self.play.tell(ev.NodeTerminated(at=self.play.now, node=name))

    def replica_reports(self, which: int, how: int) -> None:
        if replica := pick(which, list(self.world.replicas.values())):
            fields: dict[str, Any] = {"at": self.play.now, "replica": replica.id, "node": replica.node}
            ended = [ev.ReplicaEnded(how=end, progress_ms=how * 100, **fields) for end in ev.Ended]
            ready = ev.ReplicaReady(**fields)
            reports: list[ev.Event] = [ev.ReplicaStarted(**fields), ready, ready, *ended]
            self.play.tell(reports[how % len(reports)])

    def replicas_obey(self, which: int, how: int) -> None:
        for replica in list(self.world.replicas.values()):
            if replica.state == "stopping":
                self.play.end(replica.id)
            elif replica.state != "lost":
                self.play.ready(replica.id)

    def checkpoint_is_saved(self, which: int, how: int) -> None:
        if name := pick(which, list(self.world.replicas)):
            self.play.tell(ev.CheckpointSaved(at=self.play.now, replica=name, progress_ms=how * 1000))

    def workload_is_applied(self, which: int, how: int) -> None:
        workload = WORKLOADS[which % len(WORKLOADS)]
        self.play.apply(replace(workload, version=1 + how % 3, paused=how % 7 == 0))

    def workload_is_deleted(self, which: int, how: int) -> None:
        if name := pick(which, list(self.world.workloads)):
            self.play.tell(ev.WorkloadDeleted(at=self.play.now, workload=name))

    def clue_arrives(self, which: int, how: int) -> None:
        if node := pick(which, list(self.world.nodes.values())):
            now, name = self.play.now, node.id
            peer = pick(how, list(node.clues.asked)) or "nobody"
            clues: list[ev.Event] = [
                ev.LinkClosed(at=now, node=name),
                ev.NodeSaidGoodbye(at=now, node=name),
                ev.SpotNoticed(at=now, node=name, deadline=now + 2 * MINUTE),
                *(ev.ProviderAnswered(at=now, node=name, word=word) for word in Word),
                *(ev.PeerAnswered(at=now, node=name, peer=peer, answer=answer) for answer in Answer),
            ]
            self.play.tell(clues[how % len(clues)])

    def pool_is_listed(self, which: int, how: int) -> None:
        names = tuple(
            name for number, name in enumerate((*self.world.nodes, "stray-1")) if number % 3 != how % 3
        )
        self.play.tell(ev.PoolListed(at=self.play.now, pool="pool", nodes=names, asked_at=self.play.now))

    def finding_changes(self, which: int, how: int) -> None:
        if name := pick(which, list(self.world.nodes)):
            if how % 3:
                self.play.find(name, SEVERITIES[how // 3 % len(SEVERITIES)], "ecc errors", 0.3 + how % 2)
            else:
                self.play.tell(ev.FindingCleared(at=self.play.now, node=name, name="ecc errors"))

    def operator_orders(self, which: int, how: int) -> None:
        name = pick(which, list(self.world.nodes)) or ""
        order = list(ev.Order)[how % 4]
        deadline = self.play.now + 3 * MINUTE
        self.play.tell(ev.OperatorOrdered(at=self.play.now, order=order, node=name, deadline=deadline))

    def key_changes(self, which: int, how: int) -> None:
        now, id = self.play.now, f"k{which % 3}"
        news: tuple[ev.Event, ...] = (
            ev.KeyPut(at=now, key=Key(id, b"%d" % how, limits=Limits(tokens_total=how))),
            ev.KeyDeleted(at=now, key=id),
            ev.LimitsSet(at=now, scope=f"team:{id}", limits=Limits(concurrent=how % 3 or None)),
            ev.BudgetDrawn(at=now, drawn={f"key:{id}": how, f"key:{id}/model:m": 1, "global": 2}),
        )
        self.play.tell(news[how % 4])

    def quota_changes(self, which: int, how: int) -> None:
        few = {"nodes": how % 4, "cpu_milli": how % 9 * 2_000, "month_micro_usd": how % 5 * 730 * 60}
        names = [name for number, name in enumerate(few) if which >> number & 1]
        quota = Project(DEFAULT_PROJECT, **{name: few[name] for name in names})
        self.play.tell(ev.ProjectApplied(at=self.play.now, project=quota))

    def leader_changes(self, which: int, how: int) -> None:
        generation = self.world.leader.generation + 1
        self.play.tell(ev.LeaderChanged(at=self.play.now, leader="cp-1", generation=generation))

    def stranger_is_named(self, which: int, how: int) -> None:
        """Events about what nobody knows (any more)."""
        now = self.play.now
        strangers: list[ev.Event] = [
            ev.NodeJoined(at=now, node="stranger"),
            ev.NodeTerminated(at=now, node="stranger"),
            ev.ReplicaEnded(at=now, replica="web/0.999", node="stranger", how=ev.Ended.FAILED),
            ev.ActionFailed(at=now, action="p0.0", node="stranger", error="Denied", why="no"),
            ev.WorkloadDeleted(at=now, workload="stranger"),
        ]
        self.play.tell(strangers[how % len(strangers)])


Happening = Callable[[Walk, int, int], None]
HAPPENINGS: tuple[Happening, ...] = (
    *[Walk.time_passes] * 3,
    *[Walk.due_time_comes] * 3,
    *[Walk.replicas_obey] * 3,
    *[Walk.node_joins] * 2,
    *[Walk.node_is_judged] * 2,
    *[Walk.provider_answers] * 4,
    *[Walk.replica_reports] * 2,
    *[Walk.workload_is_applied] * 2,
    Walk.workload_is_deleted,
    Walk.machine_vanishes,
    Walk.checkpoint_is_saved,
    Walk.clue_arrives,
    Walk.pool_is_listed,
    Walk.finding_changes,
    Walk.operator_orders,
    Walk.leader_changes,
    Walk.stranger_is_named,
    Walk.key_changes,
    *[Walk.quota_changes] * 2,
)


def pick(which: int, among: list[Any]) -> Any:
    return among[which % len(among)] if among else None


def snapshot(world: World) -> dict[str, object]:
    """Everything in the world, as values that a change of it would not change."""
    seen: dict[str, object] = {}
    for name, value in vars(world).items():
        if isinstance(value, dict):
            seen[name] = {key: dict(item) if isinstance(item, dict) else item for key, item in value.items()}
        elif name not in (
            "room",
            "market",
            "agenda",
        ):  # whoever asks brings the table up to date
            seen[name] = value
    room, agenda = world.room, world.agenda
    seen["room.sums"] = [getattr(room, name) for name in room.SUMS]
    seen["room"] = [getattr(room, column).tolist() for column in (*room.CHANGING, *room.FIXED)]
    seen["rows"] = (dict(room.row), list(room.ids), list(room.unused))
    seen["agenda"] = ({k: list(v) for k, v in agenda.changed.items()}, list(agenda.due), agenda.room_freed)
    return seen


numbers = st.integers(0, WHOLE - 1)


@given(st.lists(st.tuples(numbers, numbers, numbers), max_size=60))
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_whatever_happens_the_core_stays_sane_and_comes_to_rest(steps: list[tuple[int, int, int]]) -> None:
    walk = Walk()
    for step in steps:
        walk.step(*step)


@pytest.mark.parametrize("seed", range(12))
def test_a_long_life_stays_sane_and_comes_to_rest(seed: int) -> None:
    dice = random.Random(seed)
    walk = Walk()
    for workload in WORKLOADS[seed % 2 :: 2]:
        walk.play.apply(workload)
    for _ in range(250):
        walk.step(dice.randrange(WHOLE), dice.randrange(WHOLE), dice.randrange(WHOLE))


def test_folding_a_walk_again_gives_the_same_world() -> None:
    dice = random.Random(5)
    walk = Walk()
    for workload in WORKLOADS[::2]:
        walk.play.apply(workload)
    for _ in range(150):
        walk.step(dice.randrange(WHOLE), dice.randrange(WHOLE), dice.randrange(WHOLE))
    again = World()
    for entry in walk.play.journal:
        fold.apply(again, entry)
    entries = ("nodes", "slots", "replicas", "workloads", "pool_states", "gangs", "findings", "brakes")
    for name in entries:
        assert getattr(again, name) == getattr(walk.world, name)
