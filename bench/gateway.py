"""What does a gateway cost, by request and by event of a stream, and does it ever let too much in?

The gateway has one processor, a bare engine and those who ask (wrk) share the other; what compares is
processor time a request, because a quick gateway waits for them. `whole`: 32 clients, answers of some 300
bytes. `paced`: 32 streams of 50 events, the first after 20 ms, then one every 10 ms; what is added to the
first is measured against the same streams asked of the engine directly. Keys, quotas of three scopes,
routing and metrics are on. Ours is compiled where a compiler is (`compiled`); HOLDFAST_NATIVE=0 measures it
interpreted.

Peers in the same run: HAProxy (`option http-no-delay`), an aiohttp proxy, LiteLLM; the last two in an
environment of their own, made at the first run. HAProxy and wrk are installed if that is possible, else they
are left out, and a client in Python asks. They check one key at most, count no tokens.

`over_admitted_tokens`: 1,000 clients race for one bucket over two workers; what was let in beyond capacity +
rate x time. Figures are the best of `--rounds`: others use the machine too.
"""

import argparse
import contextlib
import functools
import hashlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from bench._say import say
from holdfast.gateway import native
from holdfast.gateway.compile import CannotCompile, compile_all
from tests.packages import need

KEY = "sk-bench"
CLIENTS = 32
PEERS = Path("build") / "gateway-peers"
WANTED = ("litellm[proxy]", "aiohttp", "uvloop")
CHAT = "/v1/chat/completions"
PACED = "toy-t20-i10-n50"
BODY = {
    "model": "toy",
    "max_tokens": 64,
    "messages": [{"role": "user", "content": "Write one sentence about a river. " * 2}],
}
SCRIPT = """
wrk.method = "POST"
wrk.headers["authorization"] = "Bearer %s"
wrk.headers["content-type"] = "application/json"
wrk.body = [[%s]]
"""
UNITS_MS = {"us": 1e-3, "ms": 1.0, "s": 1e3}


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--no-peers", action="store_true", help="measure ours alone")
    parser.add_argument("--seconds", type=float, default=8.0, help="of each measurement")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--requests", type=int, default=0, help="and then so many, to see its memory")


def run(args: argparse.Namespace) -> dict[str, object]:
    for program in ("wrk", *(() if args.no_peers else ("haproxy",))):
        with contextlib.suppress(RuntimeError):
            need(functools.partial(shutil.which, program), program)
    say("compiling the hot path of holdfast's, if that was not done" if not native.is_there() else "compiled")
    with contextlib.suppress(CannotCompile):
        compile_all()
    with tempfile.TemporaryDirectory() as folder, _engine("bench._gateway_engine") as engine:
        here = Path(folder)
        direct = _measure(f"http://127.0.0.1:{engine}", 0, args)
        found: dict[str, object] = {"compiled": native.is_there()}
        found["asked_by"] = "wrk" if shutil.which("wrk") else "bench._gateway_client"
        with _engine("holdfast.sim.live.llm_engine", "--port") as twin:
            found["over_admitted_tokens"] = _race(here / "race", twin)
        for name, start in _gateways(args, here, engine):
            say(name)
            with start() as (url, pid):
                found[name] = _compared(_measure(url, pid, args), direct)
                if name == "holdfast" and args.requests:
                    found["memory"] = _memory(url, pid, args.requests)
        found["direct"] = {"first_ms_p50": direct["first_ms_p50"], "first_ms_p99": direct["first_ms_p99"]}
    return found


Started = contextlib.AbstractContextManager[tuple[str, int]]


def _gateways(
    args: argparse.Namespace, here: Path, engine: int
) -> Iterator[tuple[str, Callable[[], Started]]]:
    yield "holdfast", lambda: _holdfast(here / "ours", engine)
    if args.no_peers:
        return
    if shutil.which("haproxy"):
        yield "haproxy", lambda: _haproxy(here, engine)
    else:
        say("haproxy is not installed: left out (apt-get install haproxy)")
    python = _peers_python()
    if python is not None:
        yield "aiohttp", lambda: _aiohttp(python, engine)
        yield "litellm", lambda: _litellm(python, here, engine)


# --- measuring


def _measure(url: str, pid: int, args: argparse.Namespace) -> dict[str, float]:
    """The best of several rounds of both kinds."""
    rounds = []
    for number in range(args.rounds):
        say(f"  round {number + 1} of {args.rounds}")
        before = _cpu_s(pid)
        whole = _whole(url, args.seconds)
        between = _cpu_s(pid)
        paced = _ask(url, PACED, "stream", args.seconds)
        after = _cpu_s(pid)
        rounds.append(
            {
                "requests_per_s": whole["per_s"],
                "cpu_us_per_request": 1e6 * (between - before) / max(1, whole["done"]),
                "cpu_us_per_chunk": 1e6 * (after - between) / max(1, paced["chunks"]),
                "took_ms_p50": whole["took_ms_p50"],
                "took_ms_p99": whole["took_ms_p99"],
                "first_ms_p50": paced["first_ms_p50"],
                "first_ms_p99": paced["first_ms_p99"],
                "failed": whole["failed"] + paced["failed"],
            }
        )
    best = {name: min(each[name] for each in rounds) for name in rounds[0]}
    best["requests_per_s"] = max(each["requests_per_s"] for each in rounds)
    best["failed"] = max(each["failed"] for each in rounds)
    return best


def _compared(found: dict[str, float], direct: dict[str, float]) -> dict[str, object]:
    added = {f"ttft_added_ms_{p}": found[f"first_ms_{p}"] - direct[f"first_ms_{p}"] for p in ("p50", "p99")}
    kept = (
        "requests_per_s",
        "cpu_us_per_request",
        "cpu_us_per_chunk",
        "took_ms_p50",
        "took_ms_p99",
        "failed",
    )
    return {**{name: round(found[name], 2) for name in kept}, **{k: round(v, 2) for k, v in added.items()}}


def _whole(url: str, seconds: float) -> dict[str, float]:
    """By wrk where that is installed: it takes a tenth of the processor time of a client in Python, and what
    it leaves is the engine's."""
    if shutil.which("wrk") is None:
        return _ask(url, "toy", "whole", seconds)
    with tempfile.NamedTemporaryFile("w", suffix=".lua") as script:
        script.write(SCRIPT % (KEY, json.dumps(BODY)))
        script.flush()
        command = [
            "wrk",
            "-t1",
            f"-c{CLIENTS}",
            f"-d{max(1, round(seconds))}s",
            "--latency",
            "-s",
            script.name,
        ]
        done = subprocess.run(
            _pinned([*command, url + CHAT], 1),
            capture_output=True,
            text=True,
            check=True,
            timeout=seconds + 60,
        )

    def said(pattern: str) -> float:
        found = re.search(pattern, done.stdout)
        return float(found[1]) if found else 0.0

    def ms(share: str) -> float:
        found = re.search(rf"{share}%\s+([\d.]+)(us|ms|s)", done.stdout)
        return float(found[1]) * UNITS_MS[found[2]] if found else 0.0

    errors = [int(each) for each in re.findall(r"(?:connect|read|write|timeout) (\d+)", done.stdout)]
    return {
        "per_s": said(r"Requests/sec:\s+([\d.]+)"),
        "done": said(r"(\d+) requests in"),
        "failed": said(r"Non-2xx or 3xx responses: (\d+)") + sum(errors),
        "took_ms_p50": ms("50"),
        "took_ms_p99": ms("99"),
    }


def _ask(url: str, model: str, mode: str, seconds: float, **more: object) -> dict[str, float]:
    options = [word for name, value in more.items() for word in (f"--{name.replace('_', '-')}", str(value))]
    command = [sys.executable, "-m", "bench._gateway_client", url + CHAT, KEY, model, "--mode", mode]
    command += ["--seconds", str(seconds), *options]
    if "--clients" not in options:
        command += ["--clients", str(CLIENTS)]
    done = subprocess.run(
        _pinned(command, 1), capture_output=True, text=True, check=True, timeout=seconds + 900
    )
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def _race(state: Path, engine: int) -> int:
    """Tokens let in beyond capacity + rate x time."""
    capacity, rate = 6_000, 100.0
    limits = {"tokens_per_min": capacity}
    with _holdfast(state, engine, workers=2, limits=limits) as (url, _):
        began = time.monotonic()
        found = _ask(url, "toy-t5-i0-n64", "whole", 60, clients=1_000, requests=3_000)
        return max(0, round(found["tokens"] - capacity - rate * (time.monotonic() - began)))


def _memory(url: str, pid: int, requests: int) -> dict[str, float]:
    _ask(url, "toy", "whole", 900, requests=requests // 10)
    before = _rss_mb(pid)
    _ask(url, "toy", "whole", 1_800, requests=requests)
    return {"requests": requests, "rss_mb_before": before, "rss_mb_after": _rss_mb(pid)}


# --- processes


def _pinned(command: list[str], cpu: int) -> list[str]:
    if (os.cpu_count() or 1) < 2 or shutil.which("taskset") is None:
        return command
    return ["taskset", "-c", str(cpu), *command]


def _tree(pid: int) -> list[int]:
    found, todo = [], [pid]
    while todo:
        each = todo.pop()
        found.append(each)
        with contextlib.suppress(OSError):
            for task in Path(f"/proc/{each}/task").iterdir():
                todo += map(int, (task / "children").read_text().split())
    return found


def _cpu_s(pid: int) -> float:
    """Processor time of a process and all below it, to the nanosecond."""
    total = 0
    for each in _tree(pid) if pid else ():
        with contextlib.suppress(OSError):
            for task in Path(f"/proc/{each}/task").iterdir():
                total += int((task / "schedstat").read_text().split()[0])
    return total / 1e9


def _rss_mb(pid: int) -> float:
    pages = 0
    for each in _tree(pid):
        with contextlib.suppress(OSError):
            pages += int(Path(f"/proc/{each}/statm").read_text().split()[1])
    return round(pages * os.sysconf("SC_PAGESIZE") / 1e6, 1)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextlib.contextmanager
def _process(
    command: list[str], cpu: int, ready: Callable[[], bool], log: Path, within_s: float
) -> Iterator[int]:
    with log.open("wb") as out:
        process = subprocess.Popen(_pinned(command, cpu), stdout=out, stderr=out, stdin=subprocess.DEVNULL)
    try:
        ends = time.monotonic() + within_s
        while not ready():
            if process.poll() is not None or time.monotonic() > ends:
                raise SystemExit(f"{command[0]} did not start:\n{log.read_text()[-2000:]}")
            time.sleep(0.1)
        yield process.pid
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(15)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _answers(port: int) -> Callable[[], bool]:
    body = json.dumps({"model": "toy", "max_tokens": 1, "messages": [{"role": "user", "content": "hi"}]})
    headers = {"authorization": f"Bearer {KEY}", "content-type": "application/json"}

    def ready() -> bool:
        url = f"http://127.0.0.1:{port}{CHAT}"
        request = urllib.request.Request(url, body.encode(), headers)
        try:
            with urllib.request.urlopen(request, timeout=5) as found:
                return bool(found.status == 200)
        except OSError:
            return False

    return ready


@contextlib.contextmanager
def _engine(module: str, *option: str) -> Iterator[int]:
    port = _free_port()
    command = [sys.executable, "-m", module, *option, str(port)]
    folder = tempfile.TemporaryDirectory()
    with folder as here, _process(command, 1, _answers(port), Path(here) / "log", 30):
        yield port


@contextlib.contextmanager
def _holdfast(state: Path, engine: int, workers: int = 1, limits: Any = None) -> Iterator[tuple[str, int]]:
    port = _free_port()
    state.mkdir()
    file = state / "gateway.yaml"
    many = {"tokens_per_min": 10**12, "requests_per_min": 10**9}
    wanted = {
        "listen": f"127.0.0.1:{port}",
        "admin": f"127.0.0.1:{_free_port()}",
        "workers": workers,
        "services": [
            {"name": "toy", "models": ["toy", "toy-*"], "upstreams": [f"http://127.0.0.1:{engine}"]}
        ],
        "limits": {"global": many, "teams": {"red": many}},
        "keys": [
            {
                "id": "bench",
                "sha256": hashlib.sha256(KEY.encode()).hexdigest(),
                "team": "red",
                "limits": limits or many,
            }
        ],
    }
    file.write_text(json.dumps(wanted))
    command = [sys.executable, "-m", "holdfast.cli.main", "gateway", "-c", str(file), "--dir", str(state)]
    with _process(command, 0, _answers(port), state / "log", 60) as pid:
        yield f"http://127.0.0.1:{port}", pid


@contextlib.contextmanager
def _haproxy(here: Path, engine: int) -> Iterator[tuple[str, int]]:
    port = _free_port()
    file = here / "haproxy.cfg"
    file.write_text(
        "global\n  nbthread 1\ndefaults\n  mode http\n  option http-no-delay\n  timeout connect 5s\n"
        "  timeout client 60s\n  timeout server 60s\n"
        f"frontend f\n  bind 127.0.0.1:{port}\n  default_backend b\n"
        f"backend b\n  server s 127.0.0.1:{engine}\n"
    )
    with _process(["haproxy", "-db", "-f", str(file)], 0, _answers(port), here / "haproxy.log", 30) as pid:
        yield f"http://127.0.0.1:{port}", pid


@contextlib.contextmanager
def _aiohttp(python: str, engine: int) -> Iterator[tuple[str, int]]:
    port = _free_port()
    script = str(Path(__file__).with_name("_gateway_aiohttp.py"))
    command = [python, script, str(port), f"http://127.0.0.1:{engine}"]
    folder = tempfile.TemporaryDirectory()
    with folder as here, _process(command, 0, _answers(port), Path(here) / "log", 30) as pid:
        yield f"http://127.0.0.1:{port}", pid


@contextlib.contextmanager
def _litellm(python: str, here: Path, engine: int) -> Iterator[tuple[str, int]]:
    port = _free_port()
    file = here / "litellm.yaml"
    upstream = {"api_base": f"http://127.0.0.1:{engine}/v1", "api_key": "none"}
    models = [
        {"model_name": name, "litellm_params": {"model": f"openai/{name}", **upstream}}
        for name in ("toy", PACED)
    ]
    file.write_text(json.dumps({"model_list": models, "general_settings": {"master_key": KEY}}))
    program = str(Path(python).with_name("litellm"))
    command = [
        program,
        "--config",
        str(file),
        "--port",
        str(port),
        "--host",
        "127.0.0.1",
        "--num_workers",
        "1",
    ]
    with _process(command, 0, _answers(port), here / "litellm.log", 180) as pid:
        yield f"http://127.0.0.1:{port}", pid


def _peers_python() -> str | None:
    """An environment of their own: they want other versions than ours."""
    python = PEERS / "bin" / "python"
    if not (PEERS / ".done").exists():
        say("installing litellm and aiohttp for comparison (once)")
        try:
            subprocess.run([sys.executable, "-m", "venv", str(PEERS)], check=True)
            install = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *WANTED]
            subprocess.run(install, check=True)
        except (subprocess.CalledProcessError, OSError) as error:
            say(f"aiohttp and litellm cannot be installed: left out ({error})")
            return None
        (PEERS / ".done").touch()
    return str(python.absolute())
