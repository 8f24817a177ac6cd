"""The history: which lines an entry has, in whose file they go, and which entries have none."""

from typing import get_args

import msgspec
import pytest

from holdfast.core.explain.history import (
    BOOKKEEPING,
    lines,
    tell_action,
    workload_of,
)
from holdfast.model import action as do
from holdfast.model import event as ev
from holdfast.model.action import Proof
from holdfast.model.course import Way
from holdfast.model.finding import Finding, Severity
from holdfast.model.gateway import Key, Limits
from holdfast.model.node import Answer
from holdfast.model.place import Place
from holdfast.model.plan import Held, Plan
from holdfast.model.policy import Policy
from holdfast.model.project import Project
from holdfast.model.replica import Role
from holdfast.model.resources import Resources
from holdfast.model.told import Told
from holdfast.model.units import SECOND
from holdfast.model.verdict import Evidence, Level, Link, Verdict, Word
from holdfast.model.workload import Service, Workload
from tests.play import pool

NOW = 61 * SECOND
KEY = Key("k1", b"the hash", owner="ann", team="search")
FINDING = Finding("gpu fell off the bus", "n1", Severity.RESET, 1.0, "xid 79", NOW)
PLACE = do.PlaceReplica(
    replica="web/0.2",
    slot="web/0",
    node="n1",
    epoch=2,
    role=Role.ACTIVE,
    needs=Resources(),
    exclusive=False,
    resume_ms=90_000,
    why="w",
)
LAUNCH = do.LaunchNode(
    node="n9",
    pool="p",
    offer="std",
    place=Place("prov"),
    capacity=Resources(),
    price_micro_usd=1,
    spot=False,
    why="w",
)
PROMOTE = do.PromoteStandby(replica="web/s0.1", slot="web/0", epoch=2, why="w")
ADD = do.AddSlot(slot="web/0", workload="web", index=0, role=Role.ACTIVE, why="w")

# Every action: who it is about, what its line says besides its reason, and its node and workload.
ACTIONS: list[tuple[do.Action, str, str, str, str]] = [
    (do.AskPeers(node="n1", peers=("n2", "n3"), why="w"), "n1", " n2, n3", "n1", ""),
    (do.AskProvider(node="n1", why="w"), "n1", "", "n1", ""),
    (do.ListPool(pool="p", why="w"), "p", "", "", ""),
    (do.ForgetPool(pool="p", why="w"), "p", "", "", ""),
    (do.ListOffers(pool="p", why="w"), "p", "", "", ""),
    (
        do.TakeWay(workload="job", way=Way.SPOT, safe_until=1, ask_at=1, why="w"),
        "job",
        " spot",
        "",
        "job",
    ),
    (do.DeclareLate(workload="job", deadline=1, why="w"), "job", "", "", "job"),
    (do.GiveNotice(node="n", deadline=1, why="w"), "n", "", "n", ""),
    (LAUNCH, "n9", " std", "n9", ""),
    (do.TerminateNode(node="n1", why="w"), "n1", "", "n1", ""),
    (do.WatchNode(node="n1", why="w"), "n1", "", "n1", ""),
    (do.CordonNode(node="n1", why="w"), "n1", "", "n1", ""),
    (do.UncordonNode(node="n1", why="w"), "n1", "", "n1", ""),
    (do.DrainNode(node="n1", deadline=1, why="w"), "n1", "", "n1", ""),
    (do.ResetNode(node="n1", why="w"), "n1", "", "n1", ""),
    (do.QuarantineNode(node="n1", why="w"), "n1", "", "n1", ""),
    (do.RaiseFinding(finding=FINDING, why="w"), "n1", " gpu fell off the bus", "n1", ""),
    (do.ClearFinding(node="n1", name="flapping", why="w"), "n1", " flapping", "n1", ""),
    (PLACE, "web/0.2", " on n1 from 90s", "n1", "web"),
    (do.StopReplica(replica="web/0.1", deadline=1, why="w"), "web/0.1", "", "", "web"),
    (PROMOTE, "web/0", " web/s0.1", "", "web"),
    (do.RegroupGang(workload="gang", generation=3, members=(), why="w"), "gang", " generation 3", "", "gang"),
    (do.DeclareGone(replica="job/0.1", proof=Proof.LEASE_OVER, why="w"), "job/0.1", "", "", "job"),
    (ADD, "web/0", "", "", "web"),
    (do.CloseSlot(slot="web/0", why="w"), "web/0", "", "", "web"),
    (do.RemoveSlot(slot="web/0", why="w"), "web/0", "", "", "web"),
    (do.GiveUpSlot(slot="web/0", why="w"), "web/0", "", "", "web"),
    (do.EngageBrake(scope="fleet", why="w"), "fleet", "", "", ""),
    (do.ReleaseBrake(scope="fleet", why="w"), "fleet", "", "", ""),
    (do.NarrowBrake(scope="fleet", nodes=("n1", "n2"), why="w"), "fleet", "", "", ""),
]


def judged(level: Level, evidence: Evidence | None = None) -> ev.NodeJudged:
    verdict = Verdict(level, "the rule", evidence or Evidence(), NOW)
    return ev.NodeJudged(at=NOW, node="n1", verdict=verdict, heard_at=NOW)


def ended(how: ev.Ended, why: str) -> ev.ReplicaEnded:
    return ev.ReplicaEnded(at=NOW, replica="web/0.1", node="n1", how=how, why=why)


# Every event and its line: kind, subject, text, node, workload. None: nobody would want to read it.
EVENTS: list[tuple[ev.Event, tuple[str, str, str, str, str] | None]] = [
    (judged(Level.ALIVE), ("verdict", "n1", "alive: the rule", "n1", "")),
    (
        judged(Level.DEAD, Evidence(link=Link.CLOSED)),
        ("verdict", "n1", "dead: the rule (link closed)", "n1", ""),
    ),
    (ev.NodeJoined(at=NOW, node="n1"), ("event", "n1", "joined", "n1", "")),
    (
        ev.NodeJoined(at=NOW, node="n1", running=("web/0.1",)),
        ("event", "n1", "joined with 1 replica", "n1", ""),
    ),
    (
        ev.LeaderChanged(at=NOW, leader="cp-2", generation=2),
        ("leader", "cp-2", "leads, generation 2", "", ""),
    ),
    (
        ev.ReplicaStarted(at=NOW, replica="web/0.1", node="n1"),
        ("event", "web/0.1", "started on n1", "n1", "web"),
    ),
    (
        ev.ReplicaStarted(at=NOW, replica="web/0.1", node="n1", port=8080),
        ("event", "web/0.1", "started on n1, port 8080", "n1", "web"),
    ),
    (ev.ReplicaReady(at=NOW, replica="web/0.1", node="n1"), ("event", "web/0.1", "ready on n1", "n1", "web")),
    (
        ev.ReplicaEnded(at=NOW, replica="web/0.1", node="n1", how=ev.Ended.FAILED, why="exit code 1"),
        ("event", "web/0.1", "failed on n1: exit code 1", "n1", "web"),
    ),
    (
        ended(ev.Ended.STOPPED, "asked to stop: killed by signal 15"),
        ("event", "web/0.1", "stopped on n1 (SIGTERM)", "n1", "web"),
    ),
    (
        ended(ev.Ended.STOPPED, "asked to stop: exit code 0"),
        ("event", "web/0.1", "stopped on n1 (exit code 0)", "n1", "web"),
    ),
    (
        ended(ev.Ended.STOPPED, "the machine was restarted"),
        ("event", "web/0.1", "stopped on n1: the machine was restarted", "n1", "web"),
    ),
    (
        ended(ev.Ended.FAILED, "killed by signal 9: out of memory"),
        ("event", "web/0.1", "failed on n1: killed by SIGKILL: out of memory", "n1", "web"),
    ),
    (
        ended(ev.Ended.FAILED, "killed by signal 42"),
        ("event", "web/0.1", "failed on n1: killed by signal 42", "n1", "web"),
    ),
    (
        ev.ReplicaEnded(at=NOW, replica="web/0.1", node="n1", how=ev.Ended.DONE),
        ("event", "web/0.1", "done on n1", "n1", "web"),
    ),
    (
        ev.NodeTerminated(at=NOW, node="n1"),
        ("event", "n1", "its provider confirms that it is gone", "n1", ""),
    ),
    (
        ev.ActionFailed(at=NOW, action="p1.0", node="n1", error="Denied", why="no quota"),
        ("event", "n1", "Denied: no quota", "n1", ""),
    ),
    (ev.SpotNoticed(at=NOW, node="n1", deadline=NOW), ("event", "n1", "spot notice", "n1", "")),
    (ev.LinkClosed(at=NOW, node="n1"), ("event", "n1", "its link closed", "n1", "")),
    (ev.NodeSaidGoodbye(at=NOW, node="n1"), ("event", "n1", "said goodbye", "n1", "")),
    (
        ev.JournalBehind(at=NOW, why="it has taken set 9", node="n1"),
        ("event", "n1", "the journal is older than what was done: it has taken set 9", "n1", ""),
    ),
    (
        ev.FindingRaised(at=NOW, finding=FINDING),
        ("finding", "n1", "gpu fell off the bus: xid 79", "n1", ""),
    ),
    (
        ev.FindingCleared(at=NOW, node="n1", name="flapping"),
        ("finding", "n1", "flapping: cleared", "n1", ""),
    ),
    (
        ev.WorkloadApplied(at=NOW, workload=Workload("web", Service(1), version=3, paused=True)),
        ("user", "web", "paused, version 3", "", "web"),
    ),
    (
        ev.WorkloadApplied(at=NOW, workload=Workload("web", Service(1), version=3)),
        ("user", "web", "applied, version 3", "", "web"),
    ),
    (
        ev.PoolDeleted(at=NOW, pool="std"),
        ("user", "std", "pool deleted: its nodes are emptied and let go", "", ""),
    ),
    (
        ev.WorkloadRetried(at=NOW, workload="web"),
        ("user", "web", "retried: what failed starts again", "", "web"),
    ),
    (ev.WorkloadRestarted(at=NOW, workload="web"), ("user", "web", "restarted", "", "web")),
    (
        ev.TokenMade(at=NOW, token="1a", what="role join, 20 uses"),
        ("user", "token:1a", "made: role join, 20 uses", "", ""),
    ),
    (ev.TokenRevoked(at=NOW, token="1a"), ("user", "token:1a", "revoked", "", "")),
    (ev.WorkloadDeleted(at=NOW, workload="web"), ("user", "web", "deleted", "", "web")),
    (
        ev.PoolApplied(at=NOW, pool=msgspec.structs.replace(pool(), name="std", min=1, max=3)),
        ("user", "std", "pool applied, 1 to 3 nodes", "", ""),
    ),
    (ev.PolicyApplied(at=NOW, policy=Policy()), ("user", "policy", "applied", "", "")),
    (
        ev.ProjectApplied(at=NOW, project=Project("vision", nodes=4), changes=("nodes none -> 4",)),
        ("user", "vision", "quota of the project applied: nodes none -> 4", "", ""),
    ),
    (
        ev.OperatorOrdered(at=NOW, order=ev.Order.DRAIN, node="n1"),
        ("user", "n1", "drain: by hand", "n1", ""),
    ),
    (
        ev.OperatorOrdered(at=NOW, order=ev.Order.RELEASE_BRAKE),
        ("user", "", "release brake: by hand", "", ""),
    ),
    (ev.NodeReset(at=NOW, node="n1"), ("event", "n1", "was reset", "n1", "")),
    (
        ev.ProviderAnswered(at=NOW, node="n1", word=Word.STOPPED),
        ("event", "n1", "its provider says: stopped", "n1", ""),
    ),
    (
        ev.PeerAnswered(at=NOW, node="n1", peer="n2", answer=Answer.TIMEOUT),
        ("event", "n1", "n2 probed it: timeout", "n1", ""),
    ),
    (ev.NodeLaunched(at=NOW, node="n1"), ("event", "n1", "launched: its provider has it", "n1", "")),
    (ev.PoolListed(at=NOW, pool="p", nodes=(), asked_at=NOW), None),
    (ev.OffersListed(at=NOW, pool="p"), None),
    (
        ev.DemandJudged(at=NOW, workload="web", wanted=3, why="it is noon"),
        ("event", "web", "wants 3 replicas: it is noon", "", "web"),
    ),
    (ev.CheckpointSaved(at=NOW, replica="web/0.1", progress_ms=1), None),
    (ev.KeyPut(at=NOW, key=KEY), ("user", "key:k1", "good for ann, team search", "", "")),
    (
        ev.KeyPut(at=NOW, key=Key("k2", b"hash", limits=Limits(tokens_per_min=100, concurrent=1))),
        ("user", "key:k2", "good, at most 100 tokens a minute, 1 request at a time", "", ""),
    ),
    (
        ev.KeyPut(at=NOW, key=msgspec.structs.replace(KEY, suspended="it leaked")),
        ("user", "key:k1", "suspended: it leaked", "", ""),
    ),
    (
        ev.KeyPut(at=NOW, key=msgspec.structs.replace(KEY, replaced_at=NOW)),
        ("user", "key:k1", "replaced by another key", "", ""),
    ),
    (ev.KeyDeleted(at=NOW, key="k1"), ("user", "key:k1", "deleted", "", "")),
    (
        ev.LimitsSet(at=NOW, scope="team:search", limits=Limits(requests_per_min=60, tokens_total=5_000)),
        ("user", "team:search", "at most 60 requests each minute, 5,000 tokens in all", "", ""),
    ),
    (
        ev.LimitsSet(at=NOW, scope="team:search", limits=Limits()),
        ("user", "team:search", "not limited any more", "", ""),
    ),
    (ev.BudgetDrawn(at=NOW, drawn={"key:k1": 1_000}), None),
]


def test_every_action_and_every_event_is_here() -> None:
    assert {type(action) for action, *_ in ACTIONS} == set(get_args(do.Action))
    assert {type(event) for event, _ in EVENTS} == set(get_args(ev.Event))


@pytest.mark.parametrize(
    ("action", "subject", "text", "node", "workload"),
    ACTIONS,
    ids=[type(action).__name__ for action, *_ in ACTIONS],
)
def test_an_action_is_told_with_its_reason_and_filed_under_its_node_and_workload(
    action: do.Action, subject: str, text: str, node: str, workload: str
) -> None:
    words = f"{type(action).__name__}{text}: w"
    line = Told(7, NOW, "action", subject, words, node=node, workload=workload)
    assert tell_action(action) == (subject, text)
    assert lines(7, Plan(1, NOW, (action,))) == (() if isinstance(action, BOOKKEEPING) else (line,))


@pytest.mark.parametrize(("event", "line"), EVENTS, ids=[type(event).__name__ for event, _ in EVENTS])
def test_an_event_is_told_in_one_line_or_not_at_all(
    event: ev.Event, line: tuple[str, str, str, str, str] | None
) -> None:
    assert lines(7, event) == ((Told(7, NOW, *line),) if line else ())


def test_a_plan_has_a_line_for_each_action_and_each_that_was_held() -> None:
    held = Held(do.TerminateNode(node="n1", why="it is dead"), "brake on fleet")
    told = lines(3, Plan(1, NOW, (PLACE, ADD, LAUNCH), (held,)))
    assert [(line.kind, line.subject) for line in told] == [
        ("action", "web/0.2"),
        ("action", "n9"),
        ("held", "n1"),
    ]
    assert told[-1] == Told(3, NOW, "held", "n1", "TerminateNode: brake on fleet", node="n1")


def test_an_empty_plan_has_no_lines() -> None:
    assert lines(1, Plan(1, NOW)) == ()


def test_nobody_to_ask_is_said() -> None:
    assert tell_action(do.AskPeers(node="n1", peers=(), why="w")) == ("n1", " nobody")


def test_a_start_from_the_beginning_does_not_say_from_where() -> None:
    assert tell_action(msgspec.structs.replace(PLACE, resume_ms=0)) == ("web/0.2", " on n1")


@pytest.mark.parametrize("seat", ["web/0", "web/s0", "web/0.3", "web/s1.12"])
def test_a_slot_and_a_replica_say_whose_they_are(seat: str) -> None:
    assert workload_of(seat) == "web"


def test_the_hash_of_a_key_is_never_told() -> None:
    secretive = msgspec.structs.replace(KEY, hash=b"HIDDEN", note="HIDDEN too", suspended="")
    told = [
        lines(1, ev.KeyPut(at=NOW, key=key))
        for key in (secretive, msgspec.structs.replace(secretive, suspended="x"))
    ]
    assert all(found for found in told)
    assert "HIDDEN" not in str(told)


WEB = Workload("web", Service(4), version=2)


@pytest.mark.parametrize(
    ("workload", "changes", "text"),
    [
        (WEB, (), "applied, version 2"),
        (WEB, ("replicas 3 -> 4", "command changed"), "applied, version 2: replicas 3 -> 4, command changed"),
        (WEB, ("resumed",), "resumed, version 2"),
        (msgspec.structs.replace(WEB, paused=True), ("paused",), "paused, version 2"),
        (
            msgspec.structs.replace(WEB, paused=True),
            ("replicas 3 -> 4", "paused"),
            "paused, version 2: replicas 3 -> 4",
        ),
        (
            WEB,
            tuple(f"label l{n}=x added" for n in range(9)),
            "applied, version 2: "
            + ", ".join(f"label l{n}=x added" for n in range(8))
            + ", and 1 more change",
        ),
        (WEB, ("label a=" + "x" * 500,), "applied, version 2: label a=" + "x" * 109 + "..."),
    ],
)
def test_what_was_changed_is_in_the_line(workload: Workload, changes: tuple[str, ...], text: str) -> None:
    event = ev.WorkloadApplied(at=NOW, workload=workload, actor="alice", changes=changes)
    (line,) = lines(7, event)
    assert (line.text, line.actor) == (text, "alice")


def test_an_order_of_somebody_known_is_not_by_any_hand() -> None:
    order = ev.OperatorOrdered(at=NOW, order=ev.Order.CORDON, node="n1")
    assert lines(1, order)[0].text == "cordon: by hand"
    (line,) = lines(1, msgspec.structs.replace(order, actor="bob"))
    assert (line.text, line.actor) == ("cordon", "bob")


@pytest.mark.parametrize(
    "body",
    [
        b'{"type":"WorkloadDeleted","at":5,"workload":"web"}',
        b'{"type":"OperatorOrdered","at":5,"order":"cordon","node":"n1","deadline":0,"why":"by hand"}',
        b'{"type":"LimitsSet","at":5,"scope":"global","limits":{}}',
    ],
)
def test_what_was_journalled_before_anybody_was_named_is_read(body: bytes) -> None:
    event = msgspec.json.decode(body, type=ev.Event)
    assert [line.actor for line in lines(1, event)] == [""]
