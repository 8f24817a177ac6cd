"""docs/how-to/tls-and-joining.md, followed from its first command to its last."""

import contextlib
import json
import os
import re
import signal
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests import certificates
from tests.ports import free_port

PAGE = Path(__file__).resolve().parents[2] / "docs" / "how-to" / "tls-and-joining.md"
PATIENCE_S = 120.0
STAYS = ("serve", "agent", "gateway")  # commands that run until they are ended


def blocks() -> list[str]:
    return re.findall(r"^```sh\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.M | re.S)


def until(look: Callable[[], object], what: str) -> None:
    ends = time.monotonic() + PATIENCE_S
    while not look():
        assert time.monotonic() < ends, what
        time.sleep(0.1)


class Reader:
    """Whoever follows the page: its machines are folders of one, its name is an address."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.port = folder, free_port()
        self.home = folder / "home"
        self.home.mkdir()
        for name in ("/var/lib", "/etc/holdfast"):
            (folder / name.lstrip("/")).mkdir(parents=True)
        programs = str(Path(sys.executable).parent)
        clean = {name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST")}
        self.environment = {
            **clean,
            "HOME": str(self.home),
            "PATH": f"{programs}:{os.environ['PATH']}",
        }
        self.running: dict[str, subprocess.Popen[bytes]] = {}

    def here(self, text: str) -> str:
        text = text.replace("cp1.example.org:7700", f"127.0.0.1:{self.port}").replace("\\\n", " ")
        text = text.replace("--host 0.0.0.0", f"--host 0.0.0.0 --port {self.port} --leader-timeout 60")
        text = text.replace("holdfast gateway ", "holdfast gateway --port 0 --admin-port 0 --workers 1 ")
        return re.sub(r"(?<![\w.])/(var/lib|etc/holdfast)", rf"{self.folder}/\1", text)

    def follow(self, block: str) -> None:
        text = self.here(block)
        stays = re.match(r"holdfast (\w+)", text)
        if stays is not None and stays[1] in STAYS:
            self.end(stays[1])
            log = (self.folder / f"{stays[1]}.log").open("ab")
            with log:
                self.running[stays[1]] = subprocess.Popen(
                    ["sh", "-c", f"exec {text}"], cwd=self.home, env=self.environment, stderr=log, stdout=log
                )
            if stays[1] == "serve":
                until(lambda: self.is_led() or self.running["serve"].poll() is not None, "it leads")
            assert self.running[stays[1]].poll() is None, self.said(stays[1])
            return
        done = subprocess.run(
            ["sh", "-ec", text],
            cwd=self.home,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
        )
        assert done.returncode == 0, f"{text}\n{done.stdout}{done.stderr}"

    def said(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text()

    def end(self, name: str) -> None:
        process = self.running.pop(name, None)
        if process is not None:
            process.send_signal(signal.SIGTERM)
            process.wait(PATIENCE_S)

    def asked(self, *words: str) -> "subprocess.CompletedProcess[str]":
        environment = {**self.environment, "HOLDFAST_DIR": self.here("/var/lib/holdfast")}
        return subprocess.run(
            ["holdfast", *words], cwd=self.home, env=environment, capture_output=True, text=True
        )

    def is_led(self) -> bool:
        done = self.asked("status", "--json")
        return done.returncode == 0 and bool(json.loads(done.stdout)["leading"])

    def has_a_node(self) -> bool:
        done = self.asked("nodes", "--json")
        return done.returncode == 0 and "alive" in {each["verdict"] for each in json.loads(done.stdout)}

    def shown(self) -> str:
        """What everybody is shown who has no pin."""
        return ssl.get_server_certificate(("127.0.0.1", self.port)).strip()

    def gets(self, name: str) -> str:
        """A certificate of their own, and its key, in this folder."""
        folder = self.home / name if name == "new" else self.folder / "etc/holdfast"
        folder.mkdir(exist_ok=True)
        certificates.write((folder / "cert.pem", folder / "key.pem"), certificates.self_signed(name))
        return (folder / "cert.pem").read_text().strip()


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[Reader]:
    found = Reader(tmp_path)
    try:
        yield found
    finally:
        for name in ("gateway", "agent", "serve"):
            with contextlib.suppress(subprocess.TimeoutExpired):
                found.end(name)
        for process in found.running.values():
            process.kill()
            process.wait()


def test_the_page_on_tls_can_be_followed_from_its_first_command_to_its_last(reader: Reader) -> None:
    serve, status, token, agent, ann, login, ci, for_gateway, gateway, given, renewal = blocks()
    for each in (serve, status, token, agent):
        reader.follow(each)
    until(reader.has_a_node, "the machine joined")
    for each in (ann, login, ci, for_gateway, gateway):
        reader.follow(each)
    kept = reader.folder / "var/lib/holdfast-gateway"
    until(lambda: "workers  1" in reader.said("gateway"), "the gateway follows")
    assert (kept / "ca.pem").read_text() == (reader.folder / "var/lib/holdfast/ca/ca.pem").read_text()
    certificate = reader.gets("public")
    reader.follow(given)
    assert reader.shown() == certificate
    until(reader.has_a_node, "the node stays with those that it knew")
    reader.follow(login)
    renewed = reader.gets("new")
    reader.follow(renewal)
    until(lambda: reader.shown() == renewed, "the renewed certificate is shown")
