"""Control planes are killed, paused and set back in time; the fleet goes on, and nothing runs twice."""

import glob
import http.client
import itertools
import signal
import time
from email.utils import parsedate_to_datetime
from pathlib import Path
from urllib.parse import urlsplit

from holdfast.model.units import HOUR
from tests.e2e.live import (
    LEASE_MS,
    LONG_S,
    WEB,
    Ground,
    Started,
    alone,
    boot_ms,
    kill,
    lives,
    processes,
    replicas,
    until,
)
from tests.packages import need
from tests.postgres import Postgres

NODES = ("n1", "n2", "n3")


def three(ground: Ground, database: str) -> tuple[Started, list[Started]]:
    """Three control planes on one database, and nodes that know all of them. The leader, and the others."""
    planes = [
        ground.begin("serve", "--port", "0", "--database", database, "--name", name, name=name)
        for name in ("cp-1", "cp-2", "cp-3")
    ]
    for plane in planes:
        plane.wait()
    leader = leader_of(planes)
    ground.fleet(leader, *NODES, urls=",".join(plane.url for plane in planes))
    leader.apply(WEB, alone(ground.folder))
    leader.until_ready("web", 3)
    leader.until_ready("job")
    return leader, [plane for plane in planes if plane is not leader]


def leader_of(planes: list[Started]) -> Started:
    found = until(lambda: [plane for plane in planes if plane.get("/v1/status")["leading"]], "one leads")
    assert len(found) == 1
    return found[0]


def test_when_the_leader_is_killed_another_leads_and_nothing_is_started_or_stopped(
    ground: Ground, postgres: Postgres
) -> None:
    leader, others = three(ground, postgres.fresh())
    before, placed = replicas(ground.folder), leader.ready("web")
    killed = time.monotonic()
    leader.kill()
    heir = leader_of(others)
    took = time.monotonic() - killed
    print(f"another leads after {took:.1f} s")
    assert took < 15
    heir.until_alive(3)
    print(f"it hears all nodes after {time.monotonic() - killed:.1f} s")
    assert heir.until_ready("web", 3) == placed
    assert replicas(ground.folder) == before
    assert len(lives(ground.folder)) == 1
    heir.post("/v1/workloads/web/scale", {"count": 4})
    heir.until_ready("web", 4)
    assert before.items() <= replicas(ground.folder).items()
    follower = next(plane for plane in others if plane is not heir)
    until(lambda: len(follower.ready("web")) == 4, "the third reads along")


def test_a_leader_that_was_paused_wakes_up_as_a_follower_and_does_no_harm(
    ground: Ground, postgres: Postgres
) -> None:
    leader, others = three(ground, postgres.fresh())
    before = replicas(ground.folder)
    kill(leader.process.pid, number=signal.SIGSTOP)
    heir = leader_of(others)
    heir.until_alive(3)
    heir.post("/v1/workloads/web/scale", {"count": 4})
    heir.until_ready("web", 4)
    kill(leader.process.pid, number=signal.SIGCONT)
    until(lambda: not leader.get("/v1/status")["leading"] and len(leader.ready("web")) == 4, "it follows")
    heir.until_alive(3)
    assert before.items() <= replicas(ground.folder).items()
    assert len(replicas(ground.folder)) == 5
    assert len(lives(ground.folder)) == 1


def test_nodes_that_were_told_of_one_control_plane_find_the_others(
    ground: Ground, postgres: Postgres
) -> None:
    database = postgres.fresh()
    first = ground.serve("--database", database, "--name", "cp-1", name="cp-1")
    ground.fleet(first, "n1", "n2")
    first.apply(alone(ground.folder))
    first.until_ready("job")
    second = ground.serve("--database", database, "--name", "cp-2", name="cp-2")
    told = [ground.folder / node / "control_planes" for node in ("n1", "n2")]
    until(lambda: all(second.url in file.read_text() for file in told), "the nodes have heard of it")
    before = replicas(ground.folder)
    first.kill()
    heir = leader_of([second])
    heir.apply(WEB)
    heir.until_ready("web", 3)
    assert before.items() <= replicas(ground.folder).items()
    assert len(lives(ground.folder)) == 1


def test_without_any_control_plane_services_go_on_and_jobs_end_with_their_lease_and_not_before(
    ground: Ground,
) -> None:
    plane = ground.serve(lease_ms=LEASE_MS)
    ground.fleet(plane, *NODES)
    plane.apply(WEB, alone(ground.folder))
    plane.until_ready("web", 3)
    plane.until_ready("job")
    addresses = [each["address"] for each in plane.replicas("web").values()]
    web = {name: pids for name, pids in replicas(ground.folder).items() if name.startswith("web")}
    port = urlsplit(plane.url).port or 0
    killed = boot_ms()
    plane.kill()
    until(lambda: "job/0.1" not in replicas(ground.folder), "the job has ended by itself")
    (life,) = lives(ground.folder)
    print(f"the job ended {(life.last - killed) / 1000:.1f} s after the last control plane")
    assert LEASE_MS - 3_000 < life.last - killed < LEASE_MS + 3_000
    assert replicas(ground.folder) == web
    assert [answers(address) for address in addresses] == [200, 200, 200]
    again = ground.serve(port=port)
    until(lambda: len(lives(ground.folder)) == 2, "the job runs again")
    again.until_alive(3)
    assert [life.epoch for life in lives(ground.folder)] == [1, 2]
    assert web.items() <= replicas(ground.folder).items(), "services never stopped"


def answers(address: str) -> int:
    connection = http.client.HTTPConnection(address, timeout=15)
    try:
        connection.request("GET", "/")
        return connection.getresponse().status
    finally:
        connection.close()


def test_a_clock_that_is_set_while_it_leads_changes_nothing(ground: Ground) -> None:
    """The wall clock of the control plane alone jumps, back and then ahead. Nobody is suspected, nothing
    moves, and a node that dies afterwards is noticed as ever. Beats are slow, and a leader has long until it
    is one no more: on a busy machine a beat of a second would be late by itself, and a leader of three
    seconds lose its leadership, with every link. That says nothing of clocks."""
    lease_ms, beat_ms = 3 * LEASE_MS, 3_000
    setting = ground.folder / "clock"
    setting.write_text("+0\n")
    own, ground.environment = ground.environment, {**ground.environment, **fake_clock(setting)}
    plane = ground.serve("--leader-timeout", "60", lease_ms=lease_ms, beat_ms=beat_ms)
    ground.environment = own
    ground.fleet(plane, "n1", "n2", "n3")
    plane.apply_when_led(WEB, alone(ground.folder))
    before, job = plane.until_ready("web", 3), plane.until_ready("job")
    for shift, ahead_s in (("-1h", -3_600), ("+1h", 3_600)):
        known = len(told(plane))
        setting.write_text(f"{shift}\n")
        later = boot_ms() + lease_ms + 2_000
        until(lambda later=later: boot_ms() > later, "a lease would be over")  # type: ignore[misc]
        assert abs(wall_ahead_s(plane.url) - ahead_s) < 60, "it believes the clock"
        led = until(lambda: (plane.ready("web"), plane.ready("job")), "somebody leads")
        assert led == (before, job)
        assert len(lives(ground.folder)) == 1
        assert not [line for line in told(plane)[known:] if " suspect" in line]
    assert terms_of(plane) == 1
    (node,) = job.values()
    kill(*processes(ground.folder / node))
    until(lambda: len(lives(ground.folder)) == 2, "the job goes on elsewhere", 2 * LONG_S)
    at = [line["at_ms"] for line in until(lambda: plane.get("/v1/events?limit=1000"), "somebody leads")]
    assert at == sorted(at), "the journal's time never goes back"


def told(plane: Started) -> list[str]:
    """Its history, when it knows it: one that has just lost its leadership says to ask again."""
    return until(plane.history, "somebody leads")


def terms_of(plane: Started) -> int:
    return sum(" leads, generation " in line for line in told(plane))


def wall_ahead_s(url: str) -> float:
    """By how much the clock of whoever answers there is ahead of ours."""
    where = urlsplit(url)
    connection = http.client.HTTPConnection(where.hostname or "", where.port, timeout=10)
    try:
        connection.request("GET", "/healthz")
        said = connection.getresponse().getheader("date") or ""
    finally:
        connection.close()
    return parsedate_to_datetime(said).timestamp() - time.time()


def fake_clock(setting: Path) -> dict[str, str]:
    """A library between a program and the kernel's wall clock, which it reads again every second."""
    library = need(lambda: next(iter(glob.glob("/usr/lib/*/faketime/libfaketime.so.1")), None), "faketime")
    return {
        "LD_PRELOAD": library,
        "FAKETIME_TIMESTAMP_FILE": str(setting),
        "FAKETIME_CACHE_DURATION": "1",  # seconds; without it the file is read at every look at the clock
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
    }


def test_a_clock_that_was_set_back_an_hour_before_it_started_changes_nothing(ground: Ground) -> None:
    """As if the control plane before this one had lived an hour later: the journal's time never goes back."""
    ground.have_leases(LEASE_MS, "up", ago_ms=-HOUR)
    up = ground.up()
    up.apply(WEB, alone(up.folder))
    up.until_ready("web", 3)
    node = next(iter(up.until_ready("job").values()))
    kill(*processes(up.folder / "nodes" / node))
    until(lambda: len(lives(up.folder)) == 2, "the job goes on elsewhere")
    up.until_alive(3)
    up.until_ready("web", 3)
    at = [line["at_ms"] for line in up.get("/v1/events?limit=1000")]
    assert all(after > before - 1_000 for before, after in itertools.pairwise(at))
    assert at[0] > time.time() * 1000 + HOUR / 2, "time goes on from where the journal was"
