"""Logs of replicas, read over the link."""

import asyncio
from pathlib import Path

import pytest

from holdfast.agent import log_ship
from holdfast.agent.log_ship import LogShipping
from holdfast.agent.tails import LAST_BYTES, LAST_BYTES_ALL, PART_BYTES, READERS_MAX, last_words
from holdfast.core.agent.machine import Report
from holdfast.model.event import Ended
from holdfast.wire.messages import Beat, LogEnds, LogPart, LogTaken, ReadLog, Reports, StopLog, Wrote
from tests.agent_rig import agent
from tests.hub_twin import HubTwin, Line, desired, lived, until, wanted
from tests.runtime_twin import RuntimeTwin


def parts(line: Line, request: int) -> list[LogPart]:
    return [part for part in line.all(LogPart) if part.request == request]


def read(line: Line, request: int) -> bytes:
    return b"".join(part.data for part in parts(line, request))


async def end(line: Line, request: int) -> str:
    await until(lambda: any(part.end for part in parts(line, request)), f"the end of {request}")
    assert [part.end for part in parts(line, request)].count(True) == 1
    return parts(line, request)[-1].why


@lived
async def test_a_log_is_sent_in_parts_from_where_it_was_asked_for(tmp_path: Path) -> None:
    log = bytes(range(256)) * 2_000
    async with HubTwin() as hub, agent(tmp_path, hub.url) as rig:
        line = await hub.welcomed()
        rig.runtime.disk.logs["web/0.1"] = log
        line.say(ReadLog(1, "web/0.1", 0))
        line.say(ReadLog(2, "web/0.1", 500_000))
        line.say(ReadLog(3, "web/0.1", -10))
        assert [await end(line, request) for request in (1, 2, 3)] == ["", "", ""]
    assert read(line, 1) == log
    assert read(line, 2) == log[500_000:]
    assert read(line, 3) == log[-10:]
    assert max(len(part.data) for part in line.all(LogPart)) <= PART_BYTES


@lived
async def test_a_log_is_followed_until_its_replica_ends(tmp_path: Path) -> None:
    async with HubTwin() as hub, agent(tmp_path, hub.url) as rig:
        line = await hub.welcomed()
        line.say(desired(1, wanted("web/0.1")))
        await line.report("web/0.1", "started")
        line.say(ReadLog(1, "web/0.1", 0, follow=True))
        written = b""
        for word in (b"one\n", b"two\n"):
            written += word
            rig.runtime.disk.logs["web/0.1"] = written
            await until(lambda: read(line, 1) == written)  # noqa: B023
        rig.runtime.disk.logs["web/0.1"] = written + b"last words\n"
        rig.runtime.end("web/0.1", Ended.DONE)
        assert await end(line, 1) == ""
    assert read(line, 1) == b"one\ntwo\nlast words\n"


@lived
async def test_a_reader_that_leaves_is_sent_no_more(tmp_path: Path) -> None:
    async with HubTwin() as hub, agent(tmp_path, hub.url) as rig:
        line = await hub.welcomed(beat_ms=50)
        line.say(desired(1, wanted("web/0.1")))
        await line.report("web/0.1", "started")
        rig.runtime.disk.logs["web/0.1"] = b"one\n"
        line.say(ReadLog(1, "web/0.1", 0, follow=True))
        await until(lambda: read(line, 1) == b"one\n")
        line.say(StopLog(1))
        line.say(StopLog(77))
        line.say(ReadLog(2, "web/0.1", 0))
        await end(line, 2)
        rig.runtime.disk.logs["web/0.1"] = b"one\ntwo\n"
        beats = len(line.all(Beat))
        await until(lambda: len(line.all(Beat)) >= beats + 10)
        assert read(line, 1) == b"one\n"


@lived
async def test_a_log_that_is_not_here_is_said_to_be_missing(tmp_path: Path) -> None:
    async with HubTwin() as hub, agent(tmp_path, hub.url):
        line = await hub.welcomed()
        line.say(ReadLog(1, "web/9.9", 0, follow=True))
        assert await end(line, 1) == "nothing of web/9.9 is here"


@lived
async def test_too_many_readers_are_told_so(tmp_path: Path) -> None:
    async with HubTwin() as hub, agent(tmp_path, hub.url):
        line = await hub.welcomed()
        line.say(desired(1, wanted("web/0.1")))
        await line.report("web/0.1", "started")
        for request in range(READERS_MAX + 1):
            line.say(ReadLog(request, "web/0.1", 0, follow=True))
        assert await end(line, READERS_MAX) == "too many read logs here"


@lived
async def test_a_control_plane_that_does_not_read_holds_up_the_log_and_not_the_agent(tmp_path: Path) -> None:
    log = b"x" * (64 << 20)
    async with HubTwin() as hub, agent(tmp_path, hub.url) as rig:
        line = await hub.welcomed()
        rig.runtime.disk.logs["web/0.1"] = log
        line.deaf.set()
        line.say(ReadLog(1, "web/0.1", 0))
        line.say(desired(1, wanted("web/0.1")))
        await until(lambda: bool(rig.runtime.did))
        read_so_far = -1
        while rig.runtime.read_bytes > read_so_far:  # until no buffer on the way takes any more
            read_so_far = rig.runtime.read_bytes
            await asyncio.sleep(0.2)
        assert read_so_far < len(log)
        line.deaf.clear()
        assert await end(line, 1) == ""
    assert len(read(line, 1)) == len(log)


@lived
async def test_a_reader_is_sent_no_more_than_it_has_room_for_and_others_are_not_held_up(
    tmp_path: Path,
) -> None:
    log, window = bytes(range(256)) * 10_000, 100_000
    async with HubTwin() as hub, agent(tmp_path, hub.url) as rig:
        line = await hub.welcomed(beat_ms=50)
        rig.runtime.disk.logs["web/0.1"] = log
        line.say(ReadLog(1, "web/0.1", 0, window=window))
        await until(lambda: len(read(line, 1)) == window)
        line.say(ReadLog(2, "web/0.1", 0, window=window))
        line.say(ReadLog(3, "web/0.1", 0))
        assert await end(line, 3) == ""
        beats = len(line.all(Beat))
        await until(lambda: len(line.all(Beat)) >= beats + 10)
        assert [len(read(line, request)) for request in (1, 2, 3)] == [window, window, len(log)]
        taken = 0
        while taken < len(log):
            taken = len(read(line, 1))
            line.say(LogTaken(1, taken))
            await until(lambda: len(read(line, 1)) == min(taken + window, len(log)))  # noqa: B023
        assert await end(line, 1) == ""
        line.say(LogTaken(77, 5))
    assert read(line, 1) == log
    offsets = [part.offset for part in parts(line, 1) if part.data]
    assert offsets == [sum(len(part.data) for part in parts(line, 1)[:at]) for at in range(len(offsets))]


@lived
async def test_a_reader_that_rotation_has_overtaken_is_not_left_to_believe_that_it_has_all(
    tmp_path: Path,
) -> None:
    log = bytes(range(256)) * 1_000
    async with HubTwin() as hub, agent(tmp_path, hub.url) as rig:
        line = await hub.welcomed()
        rig.runtime.disk.logs["web/0.1"] = log
        line.say(ReadLog(1, "web/0.1", 0, window=1_000))
        await until(lambda: len(read(line, 1)) == 1_000)
        rig.runtime.disk.rotated["web/0.1"] = 200_000
        line.say(LogTaken(1, 1_000))
        gone = "bytes 1,000 to 200,000 of the log of web/0.1 are gone: it was written faster than it was read"
        assert await end(line, 1) == gone
        line.say(ReadLog(2, "web/0.1", 0))
        assert await end(line, 2) == ""
    assert (parts(line, 2)[0].offset, read(line, 2)) == (200_000, log[200_000:])


@lived
async def test_a_log_is_read_up_to_where_it_was_when_it_was_asked_for(tmp_path: Path) -> None:
    """Of a program that writes faster than it is read there would be no end."""
    async with HubTwin() as hub, agent(tmp_path, hub.url) as rig:
        line = await hub.welcomed()
        rig.runtime.disk.logs["web/0.1"] = b"x" * 5_000
        line.say(ReadLog(1, "web/0.1", 0, window=1_000))
        await until(lambda: len(read(line, 1)) == 1_000)
        rig.runtime.disk.logs["web/0.1"] += b"y" * 5_000
        line.say(LogTaken(1, 1_000))
        for taken in range(2_000, 7_000, 1_000):
            await until(lambda: len(read(line, 1)) >= taken - 1_000)  # noqa: B023
            line.say(LogTaken(1, taken))
        assert await end(line, 1) == ""
    assert read(line, 1) == b"x" * 5_000


def told(line: Line) -> dict[str, Wrote]:
    return {name: wrote for reports in line.all(Reports) for name, wrote in reports.tails.items()}


@lived
async def test_the_end_of_a_log_comes_with_the_report_that_its_replica_ended(tmp_path: Path) -> None:
    long = bytes(range(256)) * 1_000
    async with HubTwin() as hub, agent(tmp_path, hub.url) as rig:
        line = await hub.welcomed()
        line.say(desired(1, wanted("web/0.1"), wanted("web/1.1"), wanted("web/2.1")))
        for name in ("web/0.1", "web/1.1", "web/2.1"):
            await line.report(name, "started")
        rig.runtime.disk.logs |= {"web/0.1": b"short\n", "web/1.1": long}
        for name in ("web/0.1", "web/1.1", "web/2.1"):
            rig.runtime.end(name, Ended.DONE)
            await line.report(name, "ended")
        assert told(line) == {
            "web/0.1": Wrote(b"short\n", 6),
            "web/1.1": Wrote(long[-LAST_BYTES:], len(long)),
        }


def test_many_that_end_together_share_what_fits_before_the_next_beat() -> None:
    runtime = RuntimeTwin()
    reports = [Report(f"web/{number}.1", "ended", Ended.STOPPED) for number in range(1_000)]
    runtime.disk.logs |= {report.replica: b"x" * LAST_BYTES for report in reports}
    words = last_words(runtime, reports)
    assert len(words) == len(reports)
    assert LAST_BYTES_ALL * 0.9 < sum(len(wrote.data) for wrote in words.values()) <= LAST_BYTES_ALL
    assert {wrote.written for wrote in words.values()} == {LAST_BYTES}


@lived
async def test_the_end_of_what_is_written_is_sent_as_it_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_ship, "EVERY_S", 0.05)
    async with HubTwin() as hub, agent(tmp_path, hub.url) as rig:
        line = await hub.welcomed(log_bytes_per_s=1 << 20)
        line.say(desired(1, wanted("web/0.1")))
        await line.report("web/0.1", "started")
        rig.runtime.disk.logs["web/0.1"] = b"one\n"
        await until(lambda: line.all(LogEnds) == [LogEnds({"web/0.1": Wrote(b"one\n", 4)})])
        beats = len(line.all(Beat))
        await until(lambda: len(line.all(Beat)) >= beats + 3)
        assert len(line.all(LogEnds)) == 1, "it is sent when it has grown"
        rig.runtime.disk.logs["web/0.1"] = b"one\ntwo\n"
        await until(lambda: line.all(LogEnds)[-1] == LogEnds({"web/0.1": Wrote(b"one\ntwo\n", 8)}))


@lived
async def test_an_older_control_plane_is_sent_no_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_ship, "EVERY_S", 0.02)
    async with HubTwin() as hub, agent(tmp_path, hub.url) as rig:
        line = await hub.welcomed(beat_ms=50)
        line.say(desired(1, wanted("web/0.1")))
        await line.report("web/0.1", "started")
        rig.runtime.disk.logs["web/0.1"] = b"one\n"
        beats = len(line.all(Beat))
        await until(lambda: len(line.all(Beat)) >= beats + 5)
        assert not line.all(LogEnds)


def test_logs_share_the_bytes_that_a_node_may_send_and_none_is_forgotten() -> None:
    runtime = RuntimeTwin()
    names = [f"web/{number}.1" for number in range(100)]
    shipping = LogShipping(runtime, lambda: names)
    runtime.disk.logs |= dict.fromkeys(names, b"x" * 100000)
    sent: dict[str, int] = {}
    for _ in range(10):
        ends = shipping.grown(12_000)
        assert 0 < sum(len(wrote.data) for wrote in ends.values()) <= 12_000
        for name in ends:
            sent[name] = sent.get(name, 0) + 1
        for name in names[:50]:  # these go on writing
            runtime.disk.logs[name] += b"x"
    assert set(sent) == set(names)
    names.clear()
    assert shipping.grown(12_000) == {}
