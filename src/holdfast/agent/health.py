"""Is it ready, is it alive: probes of a replica, asked by the agent.

Readiness is asked soon and then ever more slowly, because the time to ready is time without service, and
most programs need either a moment or a minute. It is asked until the first yes. Liveness begins after that;
so many failures in a row and the replica is killed. A failure counts only if the agent itself was in time:
one that was stopped, or starved of CPU, has learnt nothing about the program.

A command as a probe gets a session of its own and is killed with all that it started when its time is up.
"""

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import time
from collections.abc import Awaitable, Callable
from typing import Protocol

import msgspec

from holdfast.agent import procfs
from holdfast.agent.environment import PROBE_MARK
from holdfast.model.program import Probe

SOON_S = 0.02
SLOWER = 1.5
STATUS_LINE_BYTES = 1024
KILLED_S = 1  # a killed process is gone at once, unless the kernel holds it: then we do not wait
LATE = 2.0  # an answer that took this many time-outs was held up on our side

Ask = Callable[[], Awaitable[str]]


class Patient(msgspec.Struct, frozen=True):
    """Whom to ask."""

    port: int
    env: dict[str, str]
    workdir: str
    mark: str  # begins the mark of every probe that this agent runs
    become: Callable[[], None] | None = None  # what a child does to be as it is; none: nothing


async def ask(probe: Probe, patient: Patient) -> str:
    """Once. Empty if it is well, else what is wrong."""
    try:
        async with asyncio.timeout(probe.timeout_ms / 1000):
            if probe.exec:
                return await _run(probe.exec, patient)
            if probe.http:
                return await _get(probe.http, patient.port)
            return await _connect(patient.port)
    except TimeoutError:
        return f"no answer within {probe.timeout_ms} ms"
    except OSError as error:
        return error.strerror or str(error)


class Noted(Protocol):
    answer: str  # of the last probe, while that is not well


async def noted(kind: str, probe: Probe, patient: Patient, at: Noted) -> str:
    """Once, and written down with what was asked; a command names itself."""
    wrong = await ask(probe, patient)
    asked = f" from {probe.http}" if probe.http else " on its port" if probe.tcp else ""
    at.answer = f"{kind} probe: {wrong}{asked}" if wrong else ""
    return wrong


async def until_ready(probe: Probe, question: Ask) -> None:
    pause = SOON_S
    while await question():
        await asyncio.sleep(pause)
        pause = min(pause * SLOWER, max(SOON_S, probe.every_ms / 1000))


async def while_alive(probe: Probe, question: Ask) -> str:
    """Returns what was wrong, when it has been wrong too often."""
    failures = 0
    while True:
        await asyncio.sleep(probe.every_ms / 1000)
        asked_at = time.monotonic()
        wrong = await question()
        if not wrong:
            failures = 0
        elif time.monotonic() - asked_at < LATE * probe.timeout_ms / 1000:
            failures += 1
        if failures >= max(1, probe.failures):
            return wrong


async def _connect(port: int) -> str:
    with contextlib.closing(_socket()) as connection:
        await asyncio.get_running_loop().sock_connect(connection, ("127.0.0.1", port))
    return ""


async def _get(path: str, port: int) -> str:
    loop = asyncio.get_running_loop()
    path = path if path.startswith("/") else f"/{path}"
    request = f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nConnection: close\r\n\r\n"
    answer = b""
    with contextlib.closing(_socket()) as connection:
        await loop.sock_connect(connection, ("127.0.0.1", port))
        await loop.sock_sendall(connection, request.encode())
        while b"\n" not in answer and len(answer) < STATUS_LINE_BYTES:
            part = await loop.sock_recv(connection, STATUS_LINE_BYTES)
            if not part:
                break
            answer += part
    return _judge(answer)


def _judge(answer: bytes) -> str:
    words = answer.split(b"\n", 1)[0].split()
    if len(words) < 2 or not words[0].startswith(b"HTTP/") or not words[1].isdigit():
        return "the answer is not HTTP"
    status = int(words[1])
    return "" if status < 400 else f"HTTP status {status}"


def _socket() -> socket.socket:
    connection = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    connection.setblocking(False)
    return connection


async def _run(command: tuple[str, ...], patient: Patient) -> str:
    mark = f"{patient.mark}{os.urandom(6).hex()}"
    try:
        process = subprocess.Popen(
            command,
            env=patient.env | {PROBE_MARK: mark},
            cwd=patient.workdir,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            preexec_fn=patient.become,  # a few system calls, and no lock of ours
        )
    except subprocess.SubprocessError:  # of what was to happen in the child nothing more is known
        return f"{command[0]}: it cannot be run as the program's user"
    except (OSError, ValueError) as error:
        return f"{command[0]}: {getattr(error, 'strerror', None) or error}"
    in_time = False
    try:
        await gone(process.pid)
        in_time = True
    finally:
        _clear_away(process, "" if in_time else mark)
    return "" if process.returncode == 0 else f"{command[0]}: exit code {process.returncode}"


def _clear_away(process: subprocess.Popen[bytes], mark: str) -> None:
    """Its group, while the number is surely still its own; and if it had to be cut short, also what left the
    group."""
    with contextlib.suppress(ProcessLookupError, PermissionError):  # the latter: it took other rights
        os.killpg(process.pid, signal.SIGKILL)
    if mark:
        procfs.kill(procfs.marked(f"{PROBE_MARK}={mark}"), signal.SIGKILL)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(KILLED_S)


def _settle(ended: asyncio.Future[None]) -> None:
    if not ended.done():
        ended.set_result(None)


async def gone(pid: int) -> None:
    """Waits until our child has ended, and leaves it to be reaped."""
    loop = asyncio.get_running_loop()
    handle = os.pidfd_open(pid)
    ended: asyncio.Future[None] = loop.create_future()
    loop.add_reader(handle, _settle, ended)
    try:
        await ended
    finally:
        loop.remove_reader(handle)
        os.close(handle)
