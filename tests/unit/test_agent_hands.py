"""What the agent's hands keep, that its judgement rests on."""

import asyncio
import stat
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from holdfast.agent.conversation import REPORTS_AT_ONCE
from holdfast.agent.hands import Hands
from holdfast.agent.home import Home, Unusable
from holdfast.agent.kernel import boot_ms
from holdfast.agent.say import Log
from holdfast.core.agent.desired_set import events_of
from holdfast.core.agent.machine import Brief, Peer, Wanted
from holdfast.model.event import CheckpointSaved, Ended
from holdfast.model.program import Program
from holdfast.ports.errors import CapacityShort
from holdfast.ports.runtime import Exit, Task
from holdfast.wire.frame import FROM_AGENT_MAX, pack
from holdfast.wire.messages import Reports
from tests.hub_twin import desired, lived, until, wanted
from tests.runtime_twin import Disk, RuntimeTwin

BRIEF = Brief(Program(("sleep", "60")), 1_000)


class Group:
    def __init__(self) -> None:
        self.tasks: list[asyncio.Task[None]] = []

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        self.tasks.append(asyncio.get_running_loop().create_task(work))


def task(replica: str, *, exclusive: bool = False) -> Task:
    return Task(wanted(replica, exclusive=exclusive), replica.split("/")[0], BRIEF, 20_000)


@lived
async def test_a_lease_that_ran_out_has_ended_what_it_covered_before_it_is_renewed() -> None:
    """An agent that was stopped wakes up, and the first it sees is the answer to its next beat."""
    disk = Disk(running={"job/0.1": task("job/0.1", exclusive=True)}, lease_until=boot_ms() + 30)
    runtime = RuntimeTwin(disk)
    hands = Hands(runtime, Group().spawn, Log())
    assert await hands.adopt() == 1
    hands.machine.lease_ms = 10_000
    await asyncio.sleep(0.05)
    hands.renew(boot_ms())
    assert runtime.did == [("kill", "job/0.1")]
    await until(lambda: hands.machine.reports[-1].what == "ended")
    assert hands.machine.reports[-1].how is Ended.FENCED


@lived
async def test_an_agent_that_starts_after_the_lease_ran_out_kills_what_it_finds() -> None:
    disk = Disk(running={"job/0.1": task("job/0.1", exclusive=True), "web/0.1": task("web/0.1")})
    runtime = RuntimeTwin(disk)
    await Hands(runtime, Group().spawn, Log()).adopt()
    assert runtime.did == [("kill", "job/0.1")]


@lived
async def test_what_is_adopted_is_told_from_its_beginning_to_its_end() -> None:
    disk = Disk(
        running={"web/0.1": task("web/0.1"), "web/1.1": task("web/1.1")},
        ready={"web/0.1"},
        exits={"job/0.1": (task("job/0.1"), Exit("job/0.1", Ended.DONE, "exit code 0", 70))},
    )
    hands = Hands(RuntimeTwin(disk), Group().spawn, Log())
    assert await hands.adopt() == 2
    told = [(report.replica, report.what, report.port, report.how) for report in hands.machine.reports]
    assert told == [
        ("web/0.1", "started", 20_000, None),
        ("web/1.1", "started", 20_000, None),
        ("job/0.1", "started", 20_000, None),
        ("web/0.1", "ready", 0, None),
        ("job/0.1", "ended", 0, Ended.DONE),
    ]
    assert set(hands.running()) == {"web/0.1", "web/1.1", "job/0.1"}


@lived
async def test_a_note_of_reports_that_were_never_made_forgets_only_what_there_is() -> None:
    hands = Hands(RuntimeTwin(), Group().spawn, Log())
    hands.noted(-5)
    hands.noted(1 << 40)
    assert hands.machine.first_report == 0
    message = desired(1, wanted("web/0.1"))
    message.desired.briefs.clear()
    hands.wants(message.desired)
    assert [report.what for report in hands.machine.reports] == ["started", "ended"]
    hands.noted(1 << 40)
    assert (hands.machine.reports, hands.machine.first_report) == ([], 2)


@lived
async def test_a_node_whose_ports_are_all_taken_says_so() -> None:
    class Crowded(RuntimeTwin):
        def allot_port(self) -> int:
            raise CapacityShort("every port that replicas may have is taken")

    hands = Hands(Crowded(), Group().spawn, Log())
    hands.wants(desired(1, wanted("web/0.1")).desired)
    assert hands.machine.reports[-1].how is Ended.FAILED
    assert "every port" in hands.machine.reports[-1].why
    assert hands.confirmed == 1


@lived
async def test_a_node_without_a_file_to_open_says_so_for_each_replica() -> None:
    class Exhausted(RuntimeTwin):
        def allot_port(self) -> int:
            raise OSError(24, "Too many open files")

    hands = Hands(Exhausted(), Group().spawn, Log())
    assert hands.wants(desired(1, wanted("web/0.1"), wanted("web/1.1")).desired)
    ends = [report.why for report in hands.machine.reports if report.what == "ended"]
    assert len(ends) == 2
    assert all("Too many open files" in why for why in ends)


def member(*ports: int) -> Wanted:
    peers = tuple(Peer(f"gang/{rank}.1", "10.0.0.1", port) for rank, port in enumerate(ports))
    return replace(wanted("gang/0.1"), gang=1, peers=peers)


@lived
async def test_a_member_of_a_gang_starts_on_the_port_that_its_peers_know() -> None:
    runtime, group = RuntimeTwin(), Group()
    hands = Hands(runtime, group.spawn, Log())
    hands.wants(desired(1, member()).desired)
    assert [(report.what, report.port) for report in hands.machine.reports] == [("started", 20_001)]
    assert runtime.did == []
    hands.wants(desired(2, member(20_001, 20_009)).desired)
    await until(lambda: ("start", "gang/0.1") in runtime.did)
    assert runtime.disk.running["gang/0.1"].port == 20_001


@lived
async def test_a_port_that_was_taken_before_the_start_ends_the_member_and_is_not_its_fault() -> None:
    runtime = RuntimeTwin()
    hands = Hands(runtime, Group().spawn, Log())
    hands.wants(desired(1, member()).desired)
    runtime.taken.add(20_001)
    hands.wants(desired(2, member(20_001)).desired)
    last = hands.machine.reports[-1]
    assert (last.how, last.why) == (Ended.STOPPED, "port 20001 was taken before it could start")
    assert runtime.did == [("release", "20001")]


@lived
async def test_the_port_of_a_member_that_is_not_wanted_any_more_is_given_back() -> None:
    runtime = RuntimeTwin()
    hands = Hands(runtime, Group().spawn, Log())
    hands.wants(desired(1, member()).desired)
    hands.wants(desired(2).desired)
    assert runtime.did == [("release", "20001")]
    assert hands.running() == ("gang/0.1",), "its end has not been acknowledged yet"


@lived
async def test_a_member_that_starts_anew_keeps_its_name_and_gets_another_port() -> None:
    runtime, group = RuntimeTwin(), Group()
    hands = Hands(runtime, group.spawn, Log())
    hands.wants(desired(1, member()).desired)
    hands.wants(desired(2, member(20_001)).desired)
    await until(lambda: "gang/0.1" in runtime.disk.running and not hands.busy)
    again = replace(member(), gang=2, incarnation=1)
    hands.wants(desired(3, again).desired)
    await until(lambda: hands.machine.reports[-1].port == 20_002)
    assert hands.machine.reports[-1].incarnation == 1
    hands.wants(desired(4, replace(again, peers=member(20_002).peers)).desired)
    await until(lambda: "gang/0.1" in runtime.disk.running and not hands.busy)
    assert runtime.did == [("start", "gang/0.1"), ("stop", "gang/0.1"), ("start", "gang/0.1")]


@lived
async def test_a_reason_can_be_told_whatever_it_says() -> None:
    """The name of a folder need not be text, and a report that cannot be told holds up all others."""
    disk = Disk(running={"web/0.1": task("web/0.1")})
    hands = Hands(RuntimeTwin(disk), Group().spawn, Log())
    await hands.adopt()
    hands._ended(Exit("web/0.1", Ended.FAILED, "no such folder: /\udcff" + "\U0001f6d1" * 5_000))
    told = pack(Reports(0, tuple(hands.machine.reports)))
    assert len(told) < FROM_AGENT_MAX / REPORTS_AT_ONCE


@lived
async def test_who_leaves_stops_everything_with_its_own_grace_and_takes_no_more_orders() -> None:
    group, runtime = Group(), RuntimeTwin()
    hands = Hands(runtime, group.spawn, Log())
    hands.wants(desired(1, wanted("web/0.1"), wanted("web/1.1"), grace_ms=1_234).desired)
    await asyncio.gather(*group.tasks)
    assert hands.stop_all() == 1_234
    assert not hands.wants(desired(2, wanted("web/2.1")).desired)
    await until(lambda: not hands.machine.processes)
    assert [did for did in runtime.did if did[0] == "start"] == [("start", "web/0.1"), ("start", "web/1.1")]


# the folder


def test_two_agents_do_not_share_a_folder(tmp_path: Path) -> None:
    first, second = Home(tmp_path / "a"), Home(tmp_path / "a")
    first.enter()
    with pytest.raises(Unusable, match="another agent"):
        second.enter()
    first.leave()
    second.enter()
    second.leave()


@pytest.mark.parametrize("mode", [0o700, 0o711])
def test_an_agent_that_is_refused_changes_nothing_of_the_folder(tmp_path: Path, mode: int) -> None:
    """Replicas that are users of their own go through it to what is theirs."""
    first = Home(tmp_path / "a")
    first.enter()
    (tmp_path / "a").chmod(mode)
    with pytest.raises(Unusable, match="another agent"):
        Home(tmp_path / "a").enter()
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == mode
    first.leave()


def test_the_way_to_replicas_stays_open_when_their_agent_is_started_again(tmp_path: Path) -> None:
    home = Home(tmp_path / "a")
    home.enter()
    (tmp_path / "a").chmod(0o755)
    home.leave()
    home.enter()
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o711, "closed to all but those who go through"
    home.leave()


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(Unusable, match="cannot be used"):
        Home(tmp_path / "file" / "a").enter()


def test_a_damaged_key_is_not_replaced_by_another(tmp_path: Path) -> None:
    home = Home(tmp_path)
    (tmp_path / "key").write_bytes(b"short")
    with pytest.raises(Unusable, match="damaged"):
        home.key()
    assert (tmp_path / "key").read_bytes() == b"short"


def test_the_key_stays_the_same_and_only_its_owner_reads_it(tmp_path: Path) -> None:
    assert Home(tmp_path).key().public == Home(tmp_path).key().public
    assert (tmp_path / "key").stat().st_mode & 0o777 == 0o600


def test_a_disk_that_takes_nothing_is_no_reason_to_stop(tmp_path: Path) -> None:
    """Not even one that became read-only, where nothing can be removed either."""
    (tmp_path / "file").write_text("")
    home = Home(tmp_path / "file")  # as if: neither can anything be written there nor removed
    home.keep("joined", "http://a:1")
    home.drop("joined")
    assert home.read("joined") == ""


@lived
async def test_what_a_job_has_saved_is_told_once_and_what_a_service_says_is_not() -> None:
    disk = Disk(running={"job/0.1": task("job/0.1", exclusive=True), "web/0.1": task("web/0.1")})
    disk.lease_until = boot_ms() + 60_000
    hands = Hands(RuntimeTwin(disk), Group().spawn, Log())
    await hands.adopt()
    hands.machine.reports.clear()
    disk.progress |= {"job/0.1": 5_000, "web/0.1": 5_000}
    hands.look_at_progress()
    hands.look_at_progress()
    disk.progress["job/0.1"] = 4_000
    hands.look_at_progress()
    assert [(r.replica, r.what, r.progress_ms) for r in hands.machine.reports] == [
        ("job/0.1", "saved", 5_000)
    ]
    (event,) = events_of(hands.machine.reports, "n1", 7)
    assert event == CheckpointSaved(at=7, replica="job/0.1", progress_ms=5_000, node="n1")
