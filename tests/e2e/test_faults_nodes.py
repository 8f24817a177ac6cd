"""Nodes, agents, shims and replicas are killed, hung and cut off, each as a real process; what must stay up
stays up, and what must not run twice never does."""

import shutil
import signal
import time

from tests.e2e.live import (
    LEASE_MS,
    SHORT_LEASES,
    WEB,
    Ground,
    Started,
    alone,
    boot_ms,
    is_alive,
    kill,
    lives,
    processes,
    refusal,
    replicas,
    until,
)


def node_of(up: Started, workload: str) -> str:
    return next(iter(up.until_ready(workload).values()))


def test_a_node_that_is_killed_with_everything_on_it_is_replaced_and_so_is_what_it_ran(
    ground: Ground,
) -> None:
    up = ground.up()
    up.apply(WEB)
    before = up.until_ready("web", 3)
    assert len(set(before.values())) == 3, "kept apart"
    victim = before["web/0.1"]
    began = time.monotonic()
    kill(*processes(up.folder / "nodes" / victim))
    until(lambda: "web/0.2" in up.ready("web"), "the seat of the lost copy is filled")
    print(f"ready again after {time.monotonic() - began:.1f} s")
    up.until_alive(3)
    after = up.until_ready("web", 3)
    assert victim not in after.values()
    assert {name: after[name] for name in ("web/1.1", "web/2.1")} == {
        name: before[name] for name in ("web/1.1", "web/2.1")
    }, "the others stay where they are"


def agents_of(up: Started, node: str) -> list[int]:
    found = processes(up.folder / "nodes" / node).items()
    return [pid for pid, words in found if "-m holdfast.agent" in words]


def test_an_agent_that_is_killed_comes_back_to_the_same_processes(ground: Ground) -> None:
    up = ground.up()
    up.apply(WEB, alone(up.folder))
    placed = up.until_ready("web", 3)
    node = node_of(up, "job")
    before, (agent,), lease = (
        replicas(up.folder),
        agents_of(up, node),
        up.folder / "nodes" / node / "agent/lease",
    )
    kill(agent)
    until(lambda: agents_of(up, node) not in ([], [agent]), "another agent is started")
    up.until_alive(3)
    last = lease.read_bytes()
    until(lambda: lease.read_bytes() != last, "its lease is renewed")
    assert replicas(up.folder) == before
    assert up.until_ready("web", 3) == placed
    assert len(lives(up.folder)) == 1


def test_an_agent_that_is_stopped_and_started_anew_finds_what_it_ran(ground: Ground) -> None:
    """An upgrade, for one."""
    plane = ground.serve()
    ground.fleet(plane, "n1")
    plane.apply(WEB, alone(ground.folder))
    plane.until_ready("web", 3)
    plane.until_ready("job")
    before = replicas(ground.folder)
    ground.agents["n1"].terminate()
    assert ground.agents["n1"].wait(60) == 0
    assert replicas(ground.folder) == before
    ground.agent("n1", plane.url, "")  # its key is enough
    plane.until_alive(1)
    plane.post("/v1/workloads/web/scale", {"count": 4})
    plane.until_ready("web", 4)
    assert before.items() <= replicas(ground.folder).items()
    assert len(lives(ground.folder)) == 1


def test_a_node_that_says_goodbye_is_not_waited_for(ground: Ground) -> None:
    plane = ground.serve()  # leases of 30 s
    ground.fleet(plane, "n1", "n2", words=("--stop-all-on-exit",))
    plane.apply(alone(ground.folder))
    node = node_of(plane, "job")
    ground.agents[node].terminate()
    assert ground.agents[node].wait(60) == 0
    until(lambda: len(lives(ground.folder)) == 2, "the job runs on the other node")
    first, second = lives(ground.folder)
    assert second.start - first.last < 15_000
    assert not processes(ground.folder / node)
    ground.agent(node, plane.url, "")
    plane.until_alive(2)
    assert len(lives(ground.folder)) == 2


def test_a_shim_that_is_killed_takes_its_program_along_and_is_replaced(ground: Ground) -> None:
    up = ground.up(lease_ms=LEASE_MS)
    up.apply(alone(up.folder))
    up.until_ready("job")
    first = replicas(up.folder)["job/0.1"]
    kill(first.shim)
    until(lambda: len(lives(up.folder)) == 2, "it runs again")
    assert not is_alive(first.program)
    up.until_ready("job")


def test_a_replica_that_is_killed_runs_again(ground: Ground) -> None:
    up = ground.up()
    up.apply(WEB, alone(up.folder))
    before = up.until_ready("web", 3)
    up.until_ready("job")
    pids = replicas(up.folder)
    kill(pids["job/0.1"].program, pids["web/1.1"].program)
    until(lambda: len(lives(up.folder)) == 2, "the job runs again")
    until(lambda: "web/1.2" in up.ready("web"), "the copy runs again")
    after = up.until_ready("web", 3)
    assert after.keys() - before.keys() == {"web/1.2"}
    up.until_alive(3)


def test_a_job_whose_node_is_killed_goes_on_elsewhere_and_never_twice(ground: Ground) -> None:
    up = ground.up(lease_ms=LEASE_MS)
    up.apply(alone(up.folder))
    for count in (2, 3):
        kill(*processes(up.folder / "nodes" / node_of(up, "job")))
        until(lambda count=count: len(lives(up.folder)) == count, f"copy {count} runs")  # type: ignore[misc]
        up.until_alive(3)
    assert [life.epoch for life in lives(up.folder)] == [1, 2, 3]


def test_a_cut_that_is_shorter_than_the_lease_costs_nothing(ground: Ground) -> None:
    up = ground.up()
    up.apply(WEB, alone(up.folder))
    up.until_ready("web", 3)
    node = node_of(up, "job")
    before = replicas(up.folder)
    up.post("/v1/chaos/partition", {"node": node, "for_ms": 8_000})
    until(lambda: up.nodes()[node]["verdict"] == "unreachable", "we do not hear it, but its peers reach it")
    up.until_alive(3)
    assert replicas(up.folder) == before
    assert len(lives(up.folder)) == 1


def test_a_node_that_is_cut_off_for_long_ends_its_job_before_another_copy_starts(ground: Ground) -> None:
    """Its peers reach it, so it is not called dead, and its service is left alone."""
    plane = ground.serve(lease_ms=LEASE_MS)
    ground.fleet(plane, "n1", "n2", "n3")
    plane.apply(WEB, alone(ground.folder))
    plane.until_ready("web", 3)
    node = node_of(plane, "job")
    before = replicas(ground.folder)
    plane.post("/v1/chaos/partition", {"node": node, "for_ms": 14_000})
    cut = boot_ms()
    until(lambda: plane.nodes()[node]["verdict"] == "unreachable", "peers say that it lives")
    until(lambda: len(lives(ground.folder)) == 2, "the job runs elsewhere")
    first, second = lives(ground.folder)
    ended, began = first.last - cut, second.start - cut
    print(f"cut off at 0 s; the job ended at {ended / 1000:.1f} s, the next began at {began / 1000:.1f} s")
    assert ended > LEASE_MS - 3_000, "it ran on until its lease was over"
    assert began < 14_000, "while the other was cut off"
    assert node not in plane.until_ready("job").values()
    plane.until_alive(3)
    web = {name: pids for name, pids in before.items() if name.startswith("web")}
    assert web.items() <= replicas(ground.folder).items(), "its service was left alone"
    assert len(lives(ground.folder)) == 2


def test_a_node_that_hangs_is_replaced_and_what_it_ran_is_stopped_when_it_wakes_up(ground: Ground) -> None:
    up = ground.up()
    up.apply(WEB)
    before = up.until_ready("web", 3)
    victim = before["web/2.1"]
    old = replicas(up.folder)["web/2.1"]
    up.post("/v1/chaos/hang", {"node": victim})
    until(lambda: "web/2.2" in up.ready("web"), "another copy serves")
    up.post("/v1/chaos/resume", {"node": victim})
    until(lambda: not is_alive(old.program) and not is_alive(old.shim), "the old copy is stopped")
    assert set(up.until_ready("web", 3)) == {"web/0.1", "web/1.1", "web/2.2"}
    until(lambda: up.nodes()[victim]["verdict"] == "alive", "it said hello again")


def test_a_job_whose_node_wakes_up_within_its_lease_is_not_started_a_second_time(ground: Ground) -> None:
    """It was called dead meanwhile, so its beats must not renew what we count as running out."""
    plane = ground.serve(lease_ms=10_000)
    ground.fleet(plane, "n1", "n2", "n3")
    plane.apply(alone(ground.folder))
    node = node_of(plane, "job")
    asleep = processes(ground.folder / node)
    kill(*asleep, number=signal.SIGSTOP)
    until(lambda: plane.nodes()[node]["verdict"] == "dead", "nobody reaches it")
    kill(*asleep, number=signal.SIGCONT)
    woke = boot_ms()
    until(lambda: boot_ms() > woke + 12_000, "every lease of before is over")
    plane.until_ready("job")
    assert lives(ground.folder)[-1].last > woke


def test_a_lease_of_another_length_is_kept_by_both_sides(ground: Ground) -> None:
    """Nodes that joined before are told; else they would go on where we count them as stopped."""
    plane = ground.serve(lease_ms=10_000)
    ground.fleet(plane, "n1", "n2")
    plane.apply(alone(ground.folder))
    node = node_of(plane, "job")
    plane.apply(SHORT_LEASES)
    changed = boot_ms()
    until(lambda: boot_ms() > changed + 10_000, "nobody holds a lease of the old length")
    plane.post("/v1/chaos/partition", {"node": node, "for_ms": 14_000})
    cut = boot_ms()
    until(lambda: len(lives(ground.folder)) == 2, "the job runs elsewhere")
    first, second = lives(ground.folder)
    assert first.last < cut + LEASE_MS + 3_000, "the node had heard of it"
    assert second.start < cut + 13_500, "so had we"
    plane.until_alive(2)
    assert len(lives(ground.folder)) == 2


def test_a_machine_that_will_not_come_back_is_forgotten_when_its_lease_is_over(ground: Ground) -> None:
    """Then its name is free: another machine takes it with a token of its own."""
    plane = ground.serve(lease_ms=LEASE_MS)
    ground.fleet(plane, "n1", "n2", "n3")
    plane.apply(alone(ground.folder))
    node = node_of(plane, "job")
    kill(*processes(ground.folder / node))
    until(lambda: plane.nodes()[node]["verdict"] == "dead", "nobody reaches it")
    early = refusal(lambda: plane.post(f"/v1/nodes/{node}/forget"))
    assert early is not None
    assert early.status == 409, "its lease may not be over yet"
    until(lambda: plane.post(f"/v1/nodes/{node}/forget"), "its lease is over")
    assert node not in plane.nodes()
    shutil.rmtree(ground.folder / node)
    ground.agents[node].wait()
    ground.join(plane, node)
    plane.until_alive(3)
    plane.until_ready("job")
    assert len(lives(ground.folder)) == 2
