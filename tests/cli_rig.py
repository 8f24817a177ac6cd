"""What the tests of the command line share: a command called in this process, a little HTTP server that
answers as it is told where a control plane would, and answers of a control plane to fill in."""

import json
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import msgspec
import pytest

from holdfast.api import shapes
from holdfast.cli.main import main

WEB = "kind: service\nname: web\ncommand: [serve]\n"
NOW = 1_750_000_000_000


class Told:
    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err

    def __repr__(self) -> str:
        return f"exit {self.code}, stdout {self.out[-500:]!r}, stderr {self.err[-500:]!r}"

    @property
    def json(self) -> Any:
        return json.loads(self.out.splitlines()[-1])


Holdfast = Callable[..., Told]


def called(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *words: object) -> Told:
    monkeypatch.setattr(sys, "argv", ["holdfast", *map(str, words)])
    with pytest.raises(SystemExit) as end:
        main()
    out, err = capsys.readouterr()
    assert "Traceback" not in out + err
    return Told(int(end.value.code or 0), out, err)


def without_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the environment may say of where a control plane or a gateway is."""
    for name in ("URL", "TOKEN", "CA", "DIR", "GATEWAY_DIR", "PROJECT"):
        monkeypatch.delenv(f"HOLDFAST_{name}", raising=False)
    monkeypatch.setenv("HOME", f"{tempfile.gettempdir()}/holdfast-nobody")  # one who never logged in


Answer = tuple[int, dict[str, str], bytes]


class Listening:
    """A server that answers as it is told, and remembers what it was asked."""

    def __init__(self, answer: Callable[[str, str], Answer]) -> None:
        self.asked: list[tuple[str, str, dict[str, str], bytes]] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def _any(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                outer.asked.append((self.command, self.path, dict(self.headers.items()), body))
                status, headers, content = answer(self.command, self.path)
                self.send_response(status)
                for name, value in {"Content-Length": str(len(content)), **headers}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(content)

            do_GET = do_POST = do_DELETE = _any  # noqa: N815

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"

    @property
    def authorized(self) -> list[str]:
        return [headers.get("Authorization", "") for _, _, headers, _ in self.asked]


@contextmanager
def listening(answer: Callable[[str, str], Answer]) -> Iterator[Listening]:
    made = Listening(answer)
    thread = threading.Thread(target=made.server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield made
    finally:
        made.server.shutdown()
        thread.join()
        made.server.server_close()


def gives(value: object, status: int = 200) -> Answer:
    return status, {"Content-Type": "application/json"}, msgspec.json.encode(value)


def problem(status: int, detail: str, hint: str = "", problems: list[str] | None = None) -> Answer:
    return gives(shapes.Problem("Title", status, detail, hint, problems or []), status)


def replica(state: str = "ready", version: int = 1) -> shapes.Replica:
    return shapes.Replica(
        "web/0.1", "web", "web/0", "a", 1, "active", state, NOW, version, "127.0.0.1:80", [], 0, None
    )


def workload(name: str = "web", kind: str = "service", ready: int = 0, wanted: int = 1, **other: Any) -> Any:
    needs = shapes.Resources(100, 64)
    facts = {"done": 0, "failed": 0, "paused": False, "version": 1, "why": "", "seats": [], **other}
    return shapes.Workload(
        name=name,
        kind=kind,
        priority=0,
        wanted=wanted,
        ready=ready,
        standby=0,
        needs=needs,
        command=["serve"],
        availability=None,
        **facts,
    )


def line(seq: int, text: str = "happened") -> shapes.Line:
    return shapes.Line(seq, NOW, "event", "web/0.1", text, "a", "web")


def node(name: str, verdict: str = "alive", state: str = "ready", **other: Any) -> shapes.Node:
    facts: dict[str, Any] = {
        "pool": "std",
        "offer": "a",
        "place": shapes.Place("local", "r", "a", "-"),
        "rule": "" if verdict == "alive" else "silent, and its provider says it stopped",
        "evidence": "silent 4.0 s",
        "verdict_since_ms": NOW,
        "state_since_ms": NOW,
        "silent_ms": 100,
        "capacity": shapes.Resources(4000, 4096),
        "free": shapes.Resources(1000, 4096),
        "used": shapes.Resources(500, 1024),
        "price_micro_usd": 0,
        "spot": False,
        "standby": False,
        "deadline_ms": None,
        "address": "127.0.0.1",
        "labels": {},
        "taints": [],
        "replicas": ["web/0.1"],
        "findings": [],
        **other,
    }
    if state in ("launching", "booting"):
        verdict = "unknown"
    return shapes.Node(name=name, verdict=verdict, state=state, **{"lifecycle": state, **facts})


def fleet(nodes: list[shapes.Node], workloads: list[shapes.Workload], **other: Any) -> shapes.Status:
    facts: dict[str, Any] = {"leader": "cp-1", "brakes": [], **other}
    return shapes.Status(
        leader_url="",
        generation=1,
        leading=True,
        now_ms=NOW,
        journal=1,
        nodes=nodes,
        workloads=workloads,
        **facts,
    )
