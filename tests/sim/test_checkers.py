"""What the simulator must see: every bug planted here is told, and what is no bug is not."""

from collections.abc import Callable

import msgspec
import pytest

from holdfast.core import check
from holdfast.core import decide as deciding
from holdfast.core.disruption import migrate
from holdfast.core.health import brake, repair
from holdfast.core.plan.draft import Draft
from holdfast.core.workloads import schedule
from holdfast.core.workloads import slots as workload_slots
from holdfast.model import action as do
from holdfast.model.node import NodeState
from holdfast.model.place import Place
from holdfast.model.pool import Offer, Pool
from holdfast.model.resources import Resources
from holdfast.model.units import MINUTE, SECOND
from holdfast.model.workload import Job, Needs, Service, Spread, Training, Workload
from holdfast.sim.checks.liveness import unmet_goals
from holdfast.sim.random.sweep import attempt
from holdfast.sim.run import Simulation
from holdfast.sim.scenario.scenario import (
    Change,
    Fault,
    PoolSetup,
    Program,
    Scenario,
    Trouble,
    WorkloadSetup,
)
from holdfast.sim.twins.fleet import Fleet
from holdfast.sim.twins.host import Host

WHOLE_NODE = Needs(Resources(8_000, 512))
WEB = WorkloadSetup(Workload("web", Service(1), WHOLE_NODE))
GANG = WorkloadSetup(
    Workload("gang", Training(3, 3), WHOLE_NODE, checkpoint_ms=10 * SECOND), Program(run_ms=5 * MINUTE)
)


def story(
    *setups: WorkloadSetup,
    nodes: int = 6,
    troubles: tuple[Trouble, ...] = (),
    changes: tuple[Change, ...] = (),
    minutes: int = 20,
    pool: Pool | None = None,
) -> Scenario:
    offers = tuple(Offer(z, Place("east", "r1", z, f"{z}1"), Resources(8_000, 32_768)) for z in "abc")
    fixed = Pool("pool", "east", offers, max=nodes, can_launch=False, can_terminate=False)
    return Scenario(
        "checkers",
        lasts_ms=minutes * MINUTE,
        settle_ms=MINUTE,
        pools=(PoolSetup(pool or fixed, nodes),),
        workloads=setups,
        troubles=troubles,
        changes=changes,
    )


def home_of(sim: Simulation, replica: str) -> Host:
    return next(host for host in sim.fleet.hosts.values() if replica in host.processes)


def never_again(work: Callable[[Draft, Workload], None], name: str) -> Callable[[Draft, Workload], None]:
    """The decision forgets one workload after the first minute."""
    return lambda draft, workload: (
        work(draft, workload) if workload.name != name or draft.now < MINUTE else None
    )


# gangs


def test_a_gang_works_on_when_only_its_standby_is_lost() -> None:
    warm = msgspec.structs.replace(GANG.workload, shape=Training(3, 3, standby=1))
    sim = Simulation(story(WorkloadSetup(warm, GANG.program), nodes=4), history=False)
    sim.kernel.at(MINUTE, lambda: sim.faults.crash(home_of(sim, "gang/s0.1"), 0, provider_knows=False))
    assert sim.run().workloads[0].slots_done == 3


def test_a_gang_works_on_when_a_stray_of_an_older_generation_ends() -> None:
    sim = Simulation(story(GANG, nodes=4), history=False)

    def hang() -> None:
        host = home_of(sim, "gang/0.1")
        sim.fleet.freeze(host)
        sim.kernel.after(90 * SECOND, sim.fleet.thaw, host)  # long after its lease: its seat is filled

    sim.kernel.at(MINUTE, hang)
    assert sim.run().workloads[0].slots_done == 3


def test_a_gang_stands_still_while_a_member_hangs_and_then_works_on() -> None:
    sim = Simulation(story(GANG), history=False)
    working: list[bool] = []

    def look() -> None:
        working.append(any(member.work_since for member in sim.fleet.members("gang")))

    def hang() -> None:
        host = home_of(sim, "gang/0.1")
        sim.fleet.freeze(host)
        sim.kernel.after(SECOND, look)
        sim.kernel.after(2 * SECOND, sim.fleet.thaw, host)
        sim.kernel.after(3 * SECOND, look)

    sim.kernel.at(MINUTE, hang)
    assert sim.run().workloads[0].slots_done == 3
    assert working == [False, True]


def test_a_gang_that_stands_still_though_all_are_ready_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Fleet, "_go_on", lambda fleet, process: None)
    result = attempt(story(GANG))
    assert result.unmet == ("gang stands still, though all its 3 members are ready",)


# work


def test_a_job_that_never_gets_ready_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(migrate, "_finish", lambda draft: None)
    setup = WorkloadSetup(Workload("job", Job(), WHOLE_NODE), Program(start_ms=10**9, run_ms=MINUTE))
    assert attempt(story(setup, minutes=120)).unmet


def test_work_that_comes_after_a_service_and_is_never_filled_again_is_seen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(schedule, "_fill", never_again(schedule._fill, "late"))
    late = WorkloadSetup(Workload("late", Service(1), WHOLE_NODE, after=("web",)))
    crash = Trouble(at=2 * MINUTE, fault=Fault.CRASH, nodes=("runs:late",))
    assert attempt(story(WEB, late, troubles=(crash,))).unmet


def test_a_seat_whose_back_off_is_over_and_that_is_never_tried_again_is_seen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = schedule._fill

    def forgetful(draft: Draft, workload: Workload) -> None:
        if not any(draft.world.slots[s].failures for s in draft.world.waiting.get(workload.name, ())):
            before(draft, workload)

    monkeypatch.setattr(schedule, "_fill", forgetful)
    program = Program(run_ms=60 * MINUTE, crash_every_ms=2 * MINUTE)
    assert attempt(story(WorkloadSetup(Workload("job", Job(), WHOLE_NODE), program), minutes=60)).unmet


def test_a_workload_that_never_gets_its_seats_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workload_slots, "_match", lambda draft, workload, because, share: None)
    assert attempt(story(WEB)).unmet == ("web has 0 seats of 1",)


def test_a_seat_that_waits_though_a_lower_priority_holds_its_room_is_seen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    low = WorkloadSetup(Workload("low", Service(1), WHOLE_NODE))
    high = WorkloadSetup(Workload("high", Service(1), WHOLE_NODE, priority=10), at=MINUTE)
    assert attempt(story(low, high, nodes=1)).unmet == ()
    monkeypatch.setattr(schedule, "_make_room", lambda draft, workload, slots: None)
    assert attempt(story(low, high, nodes=1)).unmet == ("high/0 is not running: no reason known",)


def test_copies_that_must_be_apart_and_cannot_be_are_excused() -> None:
    """Capacity may launch, but only where there is a copy already."""
    offer = Offer("a", Place("east", "r1", "a", "a1"), Resources(8_000, 32_768))
    apart = Needs(Resources(1_000, 512), spread=Spread.REQUIRE)
    web = WorkloadSetup(Workload("web", Service(2), apart))
    assert attempt(story(web, nodes=1, pool=Pool("pool", "east", (offer,), max=5))).unmet == ()


# what is left behind


def test_what_runs_and_nobody_knows_is_seen() -> None:
    sim = Simulation(story(WEB), history=False)
    assert sim.run().fine
    host = home_of(sim, "web/0.1")
    host.processes["web/9.1"] = host.processes["web/0.1"]
    assert unmet_goals(sim) == [f"web/9.1 runs on {host.id}, and nobody knows it"]


@pytest.mark.parametrize("what", ["delete", "pause"])
def test_what_is_kept_though_nobody_wants_it_is_seen(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workload_slots, "_empty", lambda draft, name, slots, leaves, share, why: None)
    monkeypatch.setattr(workload_slots, "_stop", lambda draft, slots, workload, why: None)
    (goal,) = attempt(story(WEB, changes=(Change(5 * MINUTE, what, workload="web"),))).unmet
    assert goal.startswith("web/0.1 is kept, though its workload is")


def test_a_brake_that_is_never_released_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    cut = Trouble(at=MINUTE, fault=Fault.PARTITION, nodes=("zone:a", "zone:b"), lasts_ms=MINUTE)
    assert attempt(story(WEB, nodes=12, troubles=(cut,))).unmet == ()
    monkeypatch.setattr(brake, "_release", lambda draft, doubted, size: None)
    unmet = attempt(story(WEB, nodes=12, troubles=(cut,))).unmet
    assert unmet
    assert all(goal.startswith("the brake on ") for goal in unmet)


def test_a_node_that_repair_never_gives_back_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    def cordon(draft: Draft) -> None:
        if draft.now > MINUTE and draft.world.nodes["pool-f"].state is NodeState.READY:
            draft.add(do.CordonNode(node="pool-f", why="planted"))

    monkeypatch.setattr(deciding, "STAGES", (*deciding.STAGES, cordon))
    monkeypatch.setattr(repair, "_recovering", lambda draft, node: None)
    restart = Trouble(at=2 * MINUTE, fault=Fault.AGENT_RESTART, nodes=("pool-a",), lasts_ms=SECOND)
    (goal,) = attempt(story(WEB, troubles=(restart,))).unmet
    assert goal == "pool-f is left cordoned, and no finding stands against it"


# the truth


def test_a_healthy_node_that_is_terminated_at_work_is_a_broken_promise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def cruel(draft: Draft) -> None:
        if 5 * MINUTE <= draft.now < 5 * MINUTE + 2 * SECOND:
            node = next(iter(name for name, there in draft.world.on_node.items() if there))
            draft.add(do.TerminateNode(node=node, why="cruel"))

    healthy = check.no_healthy_node_is_terminated_while_it_works
    monkeypatch.setattr(deciding, "STAGES", (*deciding.STAGES, cruel))
    monkeypatch.setattr(check, "INVARIANTS", tuple(i for i in check.INVARIANTS if i is not healthy))
    restart = Trouble(at=5 * MINUTE, fault=Fault.AGENT_RESTART, nodes=("pool-f",), lasts_ms=SECOND)
    violation = attempt(story(WEB, troubles=(restart,))).violations[0]
    assert violation.endswith("was terminated though it is well and runs web/0.1")


def test_an_agent_that_starts_again_after_all_was_killed_adopts_no_ghosts() -> None:
    troubles = (
        Trouble(at=MINUTE, fault=Fault.KILL, nodes=("runs:web",), lasts_ms=15 * MINUTE),
        Trouble(at=2 * MINUTE, fault=Fault.AGENT_RESTART, nodes=("*",), lasts_ms=5 * SECOND),
    )
    sim = Simulation(story(WEB, troubles=troubles, minutes=10), history=False)
    sim.run()
    for host in sim.fleet.hosts.values():
        assert set(host.machine.processes) == set(host.processes)
