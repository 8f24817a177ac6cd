"""The agent's link, over real sockets: hello, beats, leases, losing the link and finding it again."""

import asyncio
import contextlib
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from holdfast.agent import control_planes, conversation
from holdfast.agent.agent import REPEAT_EVERY
from holdfast.agent.kernel import boot_ms
from holdfast.agent.link import Link, NoLink, connect
from holdfast.agent.settings import Url
from holdfast.model.event import Ended
from holdfast.model.place import Place
from holdfast.wire.frame import pack
from holdfast.wire.identity import Key
from holdfast.wire.messages import (
    FINAL,
    PROTOCOL,
    PROTOCOL_OLDEST,
    REFUSALS,
    Ack,
    AlsoRunning,
    Beat,
    Challenge,
    Confirmed,
    Hello,
    Moved,
    Noted,
    Refused,
    Reports,
    Silence,
    Welcome,
)
from tests.agent_rig import CAPACITY, Rig, agent, refused
from tests.hub_twin import SWITCHING, HubTwin, desired, lived, until, wanted
from tests.runtime_twin import RuntimeTwin


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waits between attempts, made short."""
    monkeypatch.setattr(control_planes, "SLOWEST_ROUND_S", 0.1)
    monkeypatch.setattr(control_planes, "REFUSED_S", 0.1)


# hello


@lived
async def test_a_hello_says_who_and_what_the_node_is(tmp_path: Path) -> None:
    words = ("--pool", "std", "--offer", "small", "--place", "lab/eu/a", "--address", "127.0.0.9")
    async with HubTwin() as hub, agent(tmp_path, hub.url, *words) as rig:
        line = await hub.line()
        hello = await line.challenge()
        assert hello.probe_port == rig.neighbours.port
    assert line.request.startswith(b"GET /v1/link HTTP/1.1\r\n")
    assert b"\r\nUpgrade: holdfast-link\r\n" in line.request
    assert b"\r\nConnection: Upgrade\r\n" in line.request
    assert f"\r\nHost: {hub.url.removeprefix('http://')}\r\n".encode() in line.request
    assert (hello.node, hello.token, hello.pool, hello.offer) == ("n1", "t0", "std", "small")
    assert (hello.place, hello.capacity) == (Place("lab", "eu", "a"), CAPACITY)
    assert hello.address == "127.0.0.9"
    assert hello.key == Key.at(tmp_path / "key").public
    assert hello.running == ()
    assert not hello.chaos


@lived
async def test_a_host_name_of_a_node_is_resolved_by_its_agent(tmp_path: Path) -> None:
    async with HubTwin() as hub, agent(tmp_path, hub.url, "--address", "localhost"):
        assert (await (await hub.line()).challenge()).address == "127.0.0.1"


@lived
async def test_a_node_whose_host_name_cannot_be_resolved_is_where_its_link_comes_from(tmp_path: Path) -> None:
    async with HubTwin() as hub, agent(tmp_path, hub.url, "--address", "no-such-host.invalid"):
        assert (await (await hub.line()).challenge()).address == "127.0.0.1"


@lived
async def test_a_node_brings_the_proof_of_who_welcomed_it_also_after_its_agent_was_started_anew(
    tmp_path: Path,
) -> None:
    async with HubTwin() as hub:
        async with agent(tmp_path, hub.url):
            line = await hub.line()
            assert (await line.challenge()).proof == b""
            line.say(Welcome(7, 10_000, 100, proof=b"that 7 led"))
            await line.next(Beat)
            line.cut()
            hello = await (await hub.line()).challenge()
            assert (hello.led, hello.proof) == (7, b"that 7 led")
        async with agent(tmp_path, hub.url):
            hello = await (await hub.line()).challenge()
            assert (hello.led, hello.proof) == (7, b"that 7 led")


@lived
async def test_a_hello_that_would_be_too_large_comes_in_several_messages(tmp_path: Path) -> None:
    async with HubTwin() as hub, agent(tmp_path, hub.url):
        line = await hub.welcomed()
        line.say(desired(1, *(wanted(f"web/{n}.1") for n in range(1_500))))
        await line.next(Confirmed)
        line.cut()
        line = await hub.line()
        line.upgrade()
        line.say(Challenge(line.nonce, PROTOCOL, PROTOCOL_OLDEST, 20 << 10))
        hello = await line.next(Hello)
        parts = [hello.running, *[(await line.next(AlsoRunning)).running for _ in range(hello.more)]]
        assert hello.more >= 4
        assert sorted(name for part in parts for name in part) == sorted(f"web/{n}.1" for n in range(1_500))
        assert max(len(pack(AlsoRunning(part))) for part in parts) < 20 << 10
        line.cut()
        old = await (await hub.line()).challenge()  # of a control plane that knows of no limit
        assert (len(old.running), old.more) == (1_500, 0)


@lived
async def test_a_node_is_where_its_link_comes_from_if_nobody_said(tmp_path: Path) -> None:
    async with HubTwin() as hub, agent(tmp_path, hub.url, "--allow-chaos"):
        hello = await (await hub.line()).challenge()
    assert hello.address == "127.0.0.1"
    assert hello.chaos


@lived
async def test_the_join_token_is_said_until_the_node_has_joined_and_when_it_is_asked_for(
    tmp_path: Path,
) -> None:
    async with HubTwin() as hub:
        async with agent(tmp_path, hub.url):
            hellos = [await (await hub.line()).welcome()]
        async with agent(tmp_path, hub.url):
            line = await hub.line()
            hellos.append(await line.welcome())
            line.cut()
            line = await hub.line()
            hellos.append(await line.challenge())
            line.say(Refused("token", "we do not know you"))
            line.cut()
            hellos.append(await (await hub.line()).challenge())
    assert [hello.token for hello in hellos] == ["t0", "", "", "t0"]
    assert len({hello.key for hello in hellos}) == 1
    first, second, *again = (hello.instance for hello in hellos)
    assert first != second
    assert again == [second, second]


@lived
async def test_a_token_file_that_has_gone_since_is_no_token(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.touch(0o600)
    file.write_text("t1")
    words = ("--token", "", "--token-file", str(file))
    async with HubTwin() as hub, agent(tmp_path / "n1", hub.url, *words):
        line = await hub.line()
        assert (await line.welcome()).token == "t1"
        line.cut()
        file.unlink()
        line = await hub.line()
        assert (await line.challenge()).token == ""
        line.say(Refused("token", "we do not know you"))
        line.cut()
        assert (await (await hub.line()).challenge()).token == ""


@pytest.mark.parametrize("code", sorted(FINAL))
@lived
async def test_a_newcomer_that_is_refused_for_good_ends_and_says_why(tmp_path: Path, code: str) -> None:
    async with HubTwin() as hub, refused(tmp_path, hub.url) as problem:
        line = await hub.line()
        await line.challenge()
        line.say(Refused(code, REFUSALS[code], "do something else"))
    assert REFUSALS[code] in str(problem[0])
    assert hub.url in str(problem[0])
    assert problem[0].hint == "do something else"


@pytest.mark.parametrize("code", sorted(set(REFUSALS) - FINAL))
@lived
async def test_a_refusal_that_may_pass_is_tried_again(tmp_path: Path, code: str) -> None:
    async with HubTwin() as hub, agent(tmp_path, hub.url):
        line = await hub.line()
        await line.challenge()
        line.say(Refused(code, REFUSALS[code]))
        await (await hub.welcomed()).next(Beat)


@pytest.mark.parametrize("code", sorted(FINAL))
@lived
async def test_a_node_that_has_been_welcomed_outlives_every_refusal(tmp_path: Path, code: str) -> None:
    async with HubTwin() as hub, agent(tmp_path, hub.url):
        (await hub.welcomed()).cut()
        for _ in range(2):
            line = await hub.line()
            await line.challenge()
            line.say(Refused(code, REFUSALS[code]))
        await (await hub.welcomed()).next(Beat)


@pytest.mark.parametrize(
    ("newest", "oldest", "who"), [(9, 5, "upgrade the agent"), (0, 0, "upgrade the control plane")]
)
@lived
async def test_two_that_speak_different_protocols_say_who_must_be_upgraded(
    tmp_path: Path, newest: int, oldest: int, who: str
) -> None:
    async with HubTwin() as hub, refused(tmp_path, hub.url) as problem:
        line = await hub.line()
        line.upgrade()
        line.say(Challenge(line.nonce, newest, oldest))
    assert problem[0].hint == who
    assert not line.all(Hello)


@lived
async def test_a_newer_control_plane_that_still_speaks_our_protocol_will_do(tmp_path: Path) -> None:
    async with HubTwin() as hub, agent(tmp_path, hub.url):
        hello = await (await hub.line()).challenge(protocol=7, oldest=1)
    assert hello.protocol == PROTOCOL


# beats and the lease


@lived
async def test_what_probes_answer_goes_with_a_beat_only_when_it_changes(tmp_path: Path) -> None:
    runtime = RuntimeTwin()
    async with HubTwin() as hub, agent(tmp_path, hub.url, runtime=runtime):
        line = await hub.welcomed()
        line.say(desired(1, wanted("web/0.1")))
        await until(lambda: "web/0.1" in runtime.disk.running)

        def answers() -> list[dict[str, str]]:
            return [beat.answers for beat in line.all(Beat) if beat.answers is not None]

        async def more_than(count: int, of: Callable[[], list[Any]]) -> None:
            await until(lambda: len(of()) > count)

        for answer in ("HTTP status 503", "x" * 10_000, ""):
            told = len(answers())
            runtime.probes = {"web/0.1": answer} if answer else {}
            await more_than(told, answers)
            await more_than(len(line.all(Beat)) + 2, lambda: line.all(Beat))
            assert len(answers()) == told + 1, "the same answer is told once"
    assert answers() == [{"web/0.1": "HTTP status 503"}, {"web/0.1": "x" * 200}, {"web/0.1": ""}]


@lived
async def test_beats_are_numbered_and_say_what_was_heard(tmp_path: Path) -> None:
    async with HubTwin() as hub, agent(tmp_path, hub.url):
        line = await hub.welcomed(beat_ms=20)
        line.say(desired(1, wanted("web/0.1")))
        await until(lambda: len(line.all(Beat)) >= 11)
    beats = line.all(Beat)
    assert [beat.number for beat in beats] == list(range(1, len(beats) + 1))
    assert all(beat.heard < beat.number for beat in beats)
    assert beats[-1].heard > 0
    assert [beat.number for beat in beats if beat.used is not None] == [5, 10, 15, 20, 25][: len(beats) // 5]
    used = beats[9].used
    assert used is not None
    assert (used.cpu_milli, used.memory_mib, used.replicas) == (250, 10, {"web/0.1": (250, 10)})
    assert used.gpu_milli == {}, "nobody can say"


@lived
async def test_the_lease_counts_from_the_sending_of_what_was_answered(tmp_path: Path) -> None:
    async with HubTwin() as hub, agent(tmp_path, hub.url) as rig:
        line = await hub.line()
        line.acknowledges = False
        began = boot_ms()
        await line.challenge()
        hello_came = boot_ms()
        await asyncio.sleep(0.2)
        line.say(Welcome(1, 60_000, 50))
        await until(lambda: rig.runtime.disk.lease_until > 0)
        assert began <= rig.runtime.disk.lease_until - 60_000 <= hello_came

        beat = await line.next(Beat)
        beat_came = boot_ms()
        await asyncio.sleep(0.2)
        line.say(Ack(beat.number))
        await until(lambda: rig.runtime.disk.lease_until > hello_came + 60_000)
        assert rig.runtime.disk.lease_until - 60_000 <= beat_came


@lived
async def test_a_lease_of_another_length_counts_from_the_next_answer_on(tmp_path: Path) -> None:
    async with HubTwin() as hub, agent(tmp_path, hub.url) as rig:
        line = await hub.welcomed()
        await until(lambda: rig.runtime.disk.lease_until > 0)
        line.say(Welcome(1, 500_000, 50))
        await until(lambda: rig.runtime.disk.lease_until > boot_ms() + 400_000)
        assert not line.over.is_set()


@lived
async def test_an_answer_to_a_beat_that_was_never_sent_renews_nothing(tmp_path: Path) -> None:
    async with HubTwin() as hub, agent(tmp_path, hub.url) as rig:
        line = await hub.welcomed(lease_ms=60_000, beat_ms=50)
        line.acknowledges = False
        await until(lambda: rig.runtime.disk.lease_until > 0)
        before = rig.runtime.disk.lease_until
        for number in (0, -1, 10_000, 1 << 60):
            line.say(Ack(number))
        line.say(desired(1, wanted("web/0.1")))
        await line.report("web/0.1", "started")
        assert rig.runtime.disk.lease_until == before


@lived
async def test_a_link_on_which_nothing_is_answered_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conversation, "PATIENCE_MS_MIN", 1_000)
    async with HubTwin() as hub, agent(tmp_path, hub.url):
        line = await hub.welcomed(beat_ms=20)
        await until(lambda: len(line.all(Beat)) >= 3)
        line.acknowledges = False
        again = await hub.welcomed()
        await again.next(Beat)
    assert line.over.is_set()


@lived
async def test_when_the_lease_runs_out_the_exclusive_replicas_are_killed_and_the_others_go_on(
    tmp_path: Path,
) -> None:
    async with HubTwin() as hub, agent(tmp_path, hub.url) as rig:
        line = await hub.welcomed(lease_ms=400, beat_ms=20)
        line.say(desired(1, wanted("job/0.1", exclusive=True), wanted("web/0.1")))
        await line.report("job/0.1", "started")
        await line.report("web/0.1", "started")
        line.acknowledges = False
        gone = await line.report("job/0.1", "ended")
        assert gone.how is Ended.FENCED
        assert ("kill", "job/0.1") in rig.runtime.did
        assert list(rig.runtime.disk.running) == ["web/0.1"]


@lived
async def test_an_exclusive_replica_waits_for_a_lease_and_starts_with_it(tmp_path: Path) -> None:
    async with HubTwin() as hub, agent(tmp_path, hub.url) as rig:
        line = await hub.line()
        line.acknowledges = False
        await line.challenge()
        await asyncio.sleep(0.4)
        line.say(Welcome(1, 300, 50))  # the hello was sent longer ago than that
        line.say(desired(1, wanted("job/0.1", exclusive=True), wanted("web/0.1")))
        await line.report("web/0.1", "started")
        assert ("start", "job/0.1") not in rig.runtime.did
        line.acknowledges = True
        await line.report("job/0.1", "started")


@lived
async def test_what_waited_for_a_lease_is_asked_for_again_on_the_next_link(tmp_path: Path) -> None:
    """It was told so before there was no lease: it may run elsewhere by now."""
    async with HubTwin() as hub, agent(tmp_path, hub.url) as rig:
        line = await hub.line()
        line.acknowledges = False
        await line.challenge()
        await asyncio.sleep(0.4)
        line.say(Welcome(1, 300, 50))
        line.say(desired(1, wanted("job/0.1", exclusive=True), wanted("web/0.1")))
        await line.report("web/0.1", "started")
        line.cut()
        line = await hub.welcomed()
        rig.runtime.end("web/0.1", Ended.FAILED)
        await line.report("web/0.1", "ended")
        await line.next(Beat)
        assert ("start", "job/0.1") not in rig.runtime.did
        line.say(desired(1, wanted("job/0.1", exclusive=True), wanted("web/0.1")))
        await line.report("job/0.1", "started")


# sets and reports


@lived
async def test_a_set_is_carried_out_then_confirmed_and_every_step_is_reported(tmp_path: Path) -> None:
    async with HubTwin() as hub, agent(tmp_path, hub.url) as rig:
        line = await hub.welcomed()
        rig.runtime.gate.clear()
        line.say(desired(4, wanted("web/0.1"), wanted("web/1.1")))
        started = await line.report("web/1.1", "started")
        assert started.port > 0
        assert not line.all(Confirmed)
        rig.runtime.gate.set()
        assert (await line.next(Confirmed)).generation == 4
        assert list(rig.runtime.disk.running) == ["web/0.1", "web/1.1"]
        rig.runtime.become_ready("web/0.1")
        await line.report("web/0.1", "ready")
        rig.runtime.end("web/1.1", Ended.FAILED, "exit code 3")
        ended = await line.report("web/1.1", "ended")
        assert (ended.how, ended.why) == (Ended.FAILED, "exit code 3")
        await until(lambda: ("forget", "web/1.1") in rig.runtime.did)


@lived
async def test_what_is_asked_of_a_replica_that_is_being_started_is_done_afterwards(tmp_path: Path) -> None:
    async with HubTwin() as hub, agent(tmp_path, hub.url) as rig:
        line = await hub.welcomed()
        rig.runtime.gate.clear()
        line.say(desired(1, wanted("web/0.1")))
        await line.report("web/0.1", "started")
        line.say(desired(2))
        line.say(desired(3, wanted("web/1.1")))
        await line.report("web/1.1", "started")
        rig.runtime.gate.set()
        await line.report("web/0.1", "ended")
        about = [did for did, replica in rig.runtime.did if replica == "web/0.1"]
        assert about[:2] == ["start", "stop"]
        assert (await line.next(Confirmed)).generation == 3


@lived
async def test_a_set_that_is_sent_again_is_confirmed_again_and_starts_nothing_twice(tmp_path: Path) -> None:
    async with HubTwin() as hub, agent(tmp_path, hub.url) as rig:
        line = await hub.welcomed()
        for _ in range(3):
            line.say(desired(5, wanted("web/0.1")))
            assert (await line.next(Confirmed)).generation == 5
        assert rig.runtime.did == [("start", "web/0.1")]


@lived
async def test_an_older_set_is_neither_carried_out_nor_confirmed(tmp_path: Path) -> None:
    async with HubTwin() as hub, agent(tmp_path, hub.url) as rig:
        line = await hub.welcomed()
        line.say(desired(5, wanted("web/0.1"), leader=2))
        await line.next(Confirmed)
        line.say(desired(9, leader=1))
        line.say(desired(4, leader=2))
        line.say(desired(6, wanted("web/0.1"), leader=2))
        assert (await line.next(Confirmed)).generation == 6
        assert rig.runtime.did == [("start", "web/0.1")]


@lived
async def test_a_replica_without_a_program_fails_and_so_does_one_that_cannot_be_started(
    tmp_path: Path,
) -> None:
    async with HubTwin() as hub, agent(tmp_path, hub.url) as rig:
        line = await hub.welcomed()
        rig.runtime.breaks = "out of processes"
        message = desired(1, wanted("web/0.1"), wanted("bare/0.1"))
        del message.desired.briefs["bare"]
        line.say(message)
        bare, web = await line.report("bare/0.1", "ended"), await line.report("web/0.1", "ended")
        assert bare.how is web.how is Ended.FAILED
        assert "no program" in bare.why
        assert "out of processes" in web.why
        assert (await line.next(Confirmed)).generation == 1


# the link is lost


@lived
async def test_whatever_nobody_noted_is_said_again_on_the_next_link(tmp_path: Path) -> None:
    async with HubTwin() as hub, agent(tmp_path, hub.url) as rig:
        line = await hub.welcomed()
        line.notes = False
        line.say(desired(1, wanted("job/0.1"), wanted("web/0.1")))
        await line.report("web/0.1", "started")
        line.say(Noted(1))
        await asyncio.sleep(0.05)
        line.cut()
        rig.runtime.end("job/0.1", Ended.DONE, "exit code 0")
        line = await hub.line()
        hello = await line.challenge()
        assert set(hello.running) == {"web/0.1", "job/0.1"}, "an end that nobody knows of is no loss"
        line.say(Welcome(1, 10_000, 100))
        assert (await line.report("job/0.1", "ended")).how is Ended.DONE
        await line.report("web/0.1", "started")
        first = line.all(Reports)[0]
        assert (first.first, first.reports[0].replica) == (1, "web/0.1")
        await until(lambda: ("forget", "job/0.1") in rig.runtime.did)
        line.cut()
        assert (await (await hub.line()).challenge()).running == ("web/0.1",)


@lived
async def test_many_reports_go_out_in_several_messages(tmp_path: Path) -> None:
    async with HubTwin() as hub, agent(tmp_path, hub.url):
        line = await hub.welcomed()
        line.say(desired(1, *(wanted(f"web/{n}.1") for n in range(600))))
        await until(lambda: len(line.reports()) == 600)
        assert (await line.next(Confirmed)).generation == 1
        sizes = [len(each.reports) for each in line.all(Reports)]
    assert max(sizes) <= 256
    assert sum(sizes) == 600


@lived
async def test_a_control_plane_that_comes_back_is_found(tmp_path: Path) -> None:
    async with HubTwin() as hub, agent(tmp_path, hub.url) as rig:
        line = await hub.welcomed()
        line.say(desired(1, wanted("web/0.1")))
        await line.next(Confirmed)
        await hub.close()
        await asyncio.sleep(0.5)
        await hub.listen()
        line = await hub.line()
        assert (await line.welcome()).running == ("web/0.1",)
        await line.next(Beat)
        assert rig.runtime.did == [("start", "web/0.1")]


@lived
async def test_an_agent_goes_where_the_leader_is_and_remembers_it(tmp_path: Path) -> None:
    async with HubTwin() as old, HubTwin() as new:
        async with agent(tmp_path, old.url):
            line = await old.line()
            await line.challenge()
            line.say(Moved("", ()))  # nobody leads at the moment
            line = await old.line()
            await line.challenge()
            line.say(Moved(new.url, (old.url, new.url)))
            await (await new.welcomed()).next(Beat)
        assert new.url in (tmp_path / "control_planes").read_text()
        await old.close()
        async with agent(tmp_path, old.url):
            await (await new.welcomed()).next(Beat)


@lived
async def test_a_leader_that_steps_down_sends_its_nodes_on(tmp_path: Path) -> None:
    async with HubTwin() as one, HubTwin() as two, agent(tmp_path, f"{one.url},{two.url}"):
        for there, here in ((two, one), (one, two), (two, one)):
            line = await here.welcomed()
            line.say(Moved(there.url))
        await (await two.welcomed()).next(Beat)


# what a control plane should not say


@pytest.mark.parametrize(
    "garbage",
    [
        b"\xff" * 64,
        b"\x00\x00\x00\x00",
        b"\x00\x00\x00\x05hello",
        b"\x7f\xff\xff\xff",
        b"\x00\x00\x00\x0a\x92\xa7Unknown\x01",
    ],
)
@lived
async def test_garbage_ends_the_link_and_not_the_agent(tmp_path: Path, garbage: bytes) -> None:
    async with HubTwin() as hub, agent(tmp_path, hub.url):
        line = await hub.line()
        line.upgrade()
        line.raw(garbage)
        await until(line.over.is_set)
        line = await hub.welcomed()
        line.raw(garbage)
        await until(line.over.is_set)
        await (await hub.welcomed()).next(Beat)


@lived
async def test_messages_at_the_wrong_time_end_the_link_and_not_the_agent(tmp_path: Path) -> None:
    async with HubTwin() as hub, agent(tmp_path, hub.url) as rig:
        for message in (desired(1, wanted("web/0.1")), Welcome(1, 1, 1), Silence(1), Ack(1)):
            line = await hub.line()
            line.upgrade()
            line.say(message)
            await until(line.over.is_set)
        line = await hub.welcomed()
        line.say(Challenge(line.nonce, 1, 1))
        await until(line.over.is_set)
        await (await hub.welcomed()).next(Beat)
        assert rig.runtime.did == []


@lived
async def test_messages_that_come_in_pieces_are_put_together(tmp_path: Path) -> None:
    async with HubTwin() as hub, agent(tmp_path, hub.url):
        line = await hub.line()
        for at in range(len(SWITCHING)):
            line.raw(SWITCHING[at : at + 1])
            await asyncio.sleep(0)
        line.say(Challenge(line.nonce, 1, 1))
        await line.next(Hello)


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 404 Not Found\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n\r\n",
        b"SSH-2.0-OpenSSH_9.6\r\n\r\n",
        b"x" * 10_000,
    ],
)
@lived
async def test_an_address_where_no_control_plane_is_ends_a_newcomer(tmp_path: Path, answer: bytes) -> None:
    async with HubTwin() as hub, refused(tmp_path, hub.url) as problem:
        (await hub.line()).raw(answer)
    assert problem[0].hint == "is this the address of a control plane?"


@lived
async def test_an_address_that_is_none_ends_a_newcomer(tmp_path: Path) -> None:
    async with refused(tmp_path, "http://a..b:1", "--insecure") as problem:
        pass
    assert "'a..b' is no name of a host" in str(problem[0])


@lived
async def test_a_connection_that_met_itself_is_nobody_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel may draw the very port that we ask for, and then we would hear ourselves."""
    loop = asyncio.get_running_loop()
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = Url("http", "127.0.0.1", server.getsockname()[1])
    usual = loop.create_connection

    def from_there(*given: Any, **more: Any) -> Any:
        return usual(*given, **more, local_addr=(url.host, url.port))

    monkeypatch.setattr(loop, "create_connection", from_there)
    with pytest.raises(NoLink) as problem:
        await connect(url, None, Mute())
    assert (str(problem.value), problem.value.hint) == ("nobody listens there", "")


class Mute:
    def opened(self, link: Link) -> None: ...

    def receive(self, message: msgspec.Struct) -> None: ...

    def closed(self, why: str) -> None: ...


def test_troubles_that_take_turns_are_told_now_and_then(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with contextlib.closing(Rig(tmp_path, "https://a:1,https://b:1", (), RuntimeTwin())) as rig:
        for _ in range(REPEAT_EVERY):
            for url in "ab":
                rig.agent._tell("no link", by=url, why="Connection refused")
    assert len(capsys.readouterr().err.splitlines()) == 2


@lived
async def test_a_newcomer_tries_all_addresses_before_it_calls_them_wrong(tmp_path: Path) -> None:
    async with HubTwin() as other, HubTwin() as hub, agent(tmp_path, f"{other.url},{hub.url}"):
        (await other.line()).raw(b"HTTP/1.1 404 Not Found\r\n\r\n")
        await (await hub.welcomed()).next(Beat)


@pytest.mark.parametrize("status", ["503 Service Unavailable", "500 Oh", "429 Too Many Requests"])
@lived
async def test_a_control_plane_that_is_not_ready_is_tried_again(tmp_path: Path, status: str) -> None:
    async with HubTwin() as hub, agent(tmp_path, hub.url):
        line = await hub.line()
        line.raw(f"HTTP/1.1 {status}\r\n\r\n".encode())
        await (await hub.welcomed()).next(Beat)


@lived
async def test_a_control_plane_that_says_nothing_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.agent.link.UPGRADE_S", 0.05)
    monkeypatch.setattr(conversation, "WELCOME_S", 0.05)
    async with HubTwin() as hub, agent(tmp_path, hub.url):
        await hub.line()
        silent_after_upgrade = await hub.line()
        silent_after_upgrade.upgrade()
        await until(silent_after_upgrade.over.is_set)
        await (await hub.line()).challenge()
        monkeypatch.undo()
        while True:
            line = await hub.line()
            await line.welcome()
            if not line.over.is_set():
                break
        await line.next(Beat)


# chaos


@lived
async def test_a_silenced_agent_neither_speaks_nor_hears_for_as_long_as_it_was_told(tmp_path: Path) -> None:
    async with HubTwin() as hub, agent(tmp_path, hub.url, "--allow-chaos") as rig:
        line = await hub.welcomed(beat_ms=20)
        line.say(desired(1, wanted("web/0.1"), wanted("web/1.1")))
        await line.next(Confirmed)
        await until(lambda: len(line.all(Beat)) >= 2)
        began = boot_ms()
        line.say(Silence(1_000))
        await asyncio.sleep(0.3)
        heard = len(line.heard)
        line.say(desired(2, wanted("web/0.1")))
        rig.runtime.end("web/1.1", Ended.FAILED, "exit code 1")
        await asyncio.sleep(0.3)
        if boot_ms() - began < 900:  # else the machine was too slow to look in time
            assert len(line.heard) == heard
        assert (await line.report("web/1.1", "ended")).how is Ended.FAILED
        assert boot_ms() - began >= 1_000
        await line.next(Confirmed)
        await until(lambda: len(line.all(Beat)) >= heard)
    assert len(hub.lines) == 1, "it stayed on its link"


@lived
async def test_an_agent_that_allows_no_chaos_is_not_silenced(tmp_path: Path) -> None:
    async with HubTwin() as hub, agent(tmp_path, hub.url):
        line = await hub.welcomed(beat_ms=20)
        line.say(Silence(3_600_000))
        line.say(desired(1, wanted("web/0.1")))
        await line.next(Confirmed)
        await until(lambda: len(line.all(Beat)) >= 3)
