"""Is it ready, is it alive: probes of a replica, asked by the agent.

Readiness is asked soon and then ever more slowly, because the time to ready is time without service, and
most programs need either a moment or a minute. It is asked until the first yes. Liveness begins after that;
so many failures in a row and the replica is killed. A failure counts only if the agent itself was in time:
one that was stopped, or starved of CPU, has learnt nothing about the program.

A command is run by the shim (`probes.py`) and never by the agent: it is the program's code, and may be made
to hold up whoever starts it.
"""

import asyncio
import contextlib
import os
import socket
import time
from collections.abc import Awaitable, Callable
from typing import Protocol

import msgspec

from holdfast.agent import probes
from holdfast.model.program import Probe

SOON_S = 0.02
SLOWER = 1.5
STATUS_LINE_BYTES = 1024
LATE = 2.0  # an answer that took this many time-outs was held up on our side

KINDS = {probes.READY: "readiness", probes.ALIVE: "liveness"}

Ask = Callable[[], Awaitable[str]]


class Patient(msgspec.Struct, frozen=True):
    """Whom to ask."""

    port: int
    folder: str  # of its shim


async def ask(kind: str, probe: Probe, patient: Patient) -> str:
    """Once. Empty if it is well, else what is wrong."""
    try:
        async with asyncio.timeout(probe.timeout_ms / 1000):
            if probe.exec:
                return await _ask_shim(kind, patient.folder)
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
    wrong = await ask(kind, probe, patient)
    asked = f" from {probe.http}" if probe.http else " on its port" if probe.tcp else ""
    at.answer = f"{KINDS[kind]} probe: {wrong}{asked}" if wrong else ""
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


async def _ask_shim(kind: str, folder: str) -> str:
    """It ends the probe too when its time is up, and when we close the connection."""
    loop = asyncio.get_running_loop()
    with contextlib.closing(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)) as connection:
        connection.setblocking(False)
        handle = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            connection.connect(f"/proc/self/fd/{handle}/{probes.ASK}")  # longer paths do not fit
        except FileNotFoundError:
            return "its shim is of an older version, which runs no probes that are commands: start it anew"
        except OSError as error:
            return f"its shim cannot be asked: {error.strerror}"
        finally:
            os.close(handle)
        with contextlib.suppress(BrokenPipeError):  # it has answered already
            await loop.sock_sendall(connection, kind.encode())
        answer = await loop.sock_recv(connection, probes.ANSWER_BYTES)
    if not answer:
        return "its shim gave no answer"
    return answer.removeprefix(probes.UNWELL).decode("utf-8", "replace") if answer != probes.WELL else ""
