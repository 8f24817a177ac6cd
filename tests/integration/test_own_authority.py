"""TLS by an authority of the fleet's own: who is let in, and who is found out."""

import asyncio
import contextlib
import json
import os
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from holdfast.control.authority import Authority, made
from holdfast.wire import pin
from holdfast.wire.server import HANDSHAKE_S
from tests import certificates
from tests.cli_rig import Holdfast
from tests.live_fleet import PATIENCE_S, PATIENT, joined, running

POOL = "{kind: pool, name: metal, provider: join}"


def until(look: Callable[[], object]) -> None:
    ends = time.monotonic() + PATIENCE_S
    while not look():
        assert time.monotonic() < ends, "it did not come true"
        time.sleep(0.05)


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, str]]:
    folder = tmp_path_factory.mktemp("own") / "state"
    with running(folder, "serve", "--own-ca", *PATIENT) as said:
        assert said["url"].startswith("https://127.0.0.1:")
        yield folder, said["url"]


def join_token(holdfast: Holdfast, folder: Path) -> str:
    pool = folder.parent / "pool.yaml"
    pool.write_text(POOL)
    assert holdfast(folder, "apply", pool).code == 0
    made = holdfast(folder, "token", "create", "--role", "join", "--pool", "metal")
    assert made.code == 0, made.err
    return made.out.strip()


def is_alive(holdfast: Holdfast, folder: Path, node: str) -> bool:
    found = {each["name"]: each["verdict"] for each in holdfast(folder, "nodes", "--json").json}
    return found.get(node) == "alive"


def test_a_node_joins_with_one_string_and_comes_back_without_it(
    holdfast: Holdfast, fleet: tuple[Path, str], tmp_path: Path
) -> None:
    folder, url = fleet
    token = join_token(holdfast, folder)
    assert pin.split(token)[1] == pin.pin_of((folder / "ca" / "ca.pem").read_text())
    with joined(tmp_path / "n1", url, token):
        until(lambda: is_alive(holdfast, folder, "n1"))
    until(lambda: not is_alive(holdfast, folder, "n1"))
    with joined(tmp_path / "n1", url, ""):
        until(lambda: is_alive(holdfast, folder, "n1"))


def test_an_agent_that_was_told_no_pin_does_not_trust_an_authority_of_nobody_it_knows(
    holdfast: Holdfast, fleet: tuple[Path, str], tmp_path: Path
) -> None:
    secret, _ = pin.split(join_token(holdfast, fleet[0]))
    with joined(tmp_path / "n2", fleet[1], secret) as process:
        _, told = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 2
    assert "its certificate is not trusted" in told


class Impostor:
    """Whoever answers in place of the control plane: it has an authority of its own, and remembers what it is
    sent. With `to`, it passes everything on to the real one and back."""

    def __init__(self, folder: Path, to: str = "") -> None:
        self.heard, self.to = bytearray(), urlsplit(to)
        self.authority = Authority(made())
        chain, key = self.authority.certificate(("127.0.0.1",))
        (folder / "impostor.pem").write_bytes(chain + key)
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.load_cert_chain(folder / "impostor.pem")
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"https://127.0.0.1:{self.listener.getsockname()[1]}"

    def __enter__(self) -> "Impostor":
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_until_complete, args=(self._run(),))
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._ending.set)
        self._thread.join()
        self._loop.close()

    async def _run(self) -> None:
        self._ending = asyncio.Event()
        async with await asyncio.start_server(self._serve, sock=self.listener, ssl=self.context):
            await self._ending.wait()
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()
        await asyncio.sleep(0)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, ssl.SSLError, asyncio.CancelledError):
            if self.to.hostname:
                await self._relay(reader, writer)
            else:
                while part := await reader.read(4_096):
                    self.heard += part
                    body = self.authority.pem.encode()
                    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
        writer.transport.abort()

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection(self.to.hostname, self.to.port, ssl=unverified())

        async def forth() -> None:
            while part := await reader.read(65_536):
                self.heard += part
                back.write(part)
            back.transport.abort()

        forwarding = asyncio.ensure_future(forth())
        try:
            while part := await there.read(65_536):
                writer.write(part)
            await writer.drain()
        finally:
            forwarding.cancel()
            back.transport.abort()


def unverified() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


def test_an_impostor_gets_neither_the_token_nor_an_agent(
    holdfast: Holdfast, fleet: tuple[Path, str], tmp_path: Path
) -> None:
    token = join_token(holdfast, fleet[0])
    with Impostor(tmp_path) as impostor, joined(tmp_path / "n3", impostor.url, token) as process:
        _, told = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 2
        assert "another fleet, or somebody in between" in told, told
        assert b"GET /ca.pem" in impostor.heard
        assert pin.split(token)[0].encode() not in impostor.heard


def test_somebody_in_between_cannot_pass_a_hello_on_and_become_the_node(
    holdfast: Holdfast, fleet: tuple[Path, str], tmp_path: Path
) -> None:
    """The agent trusts any certificate; the control plane finds out that it was shown another than ours."""
    folder, url = fleet
    token = join_token(holdfast, folder)
    with (
        Impostor(tmp_path, url) as between,
        joined(tmp_path / "n4", between.url, token, "--insecure") as process,
    ):
        assert process.stderr is not None
        for line in process.stderr:
            if "another certificate than ours" in line:
                break
        assert b"n4" in between.heard, "the hello went through its hands"
    assert "n4" not in {each["name"] for each in holdfast(folder, "nodes", "--json").json}
    with joined(tmp_path / "n4", url, token, "--insecure"):
        until(lambda: is_alive(holdfast, folder, "n4"))


def test_nodes_that_kept_the_authority_stay_when_another_certificate_is_introduced_and_removed(
    holdfast: Holdfast, tmp_path: Path
) -> None:
    """They would be locked out, and a control plane without nodes starts nothing anywhere."""
    folder, files = tmp_path / "state", (tmp_path / "public.pem", tmp_path / "public.key")
    certificates.write(files, certificates.self_signed("public"))
    given = ("--tls-cert", str(files[0]), "--tls-key", str(files[1]))
    with contextlib.ExitStack() as stack:
        with running(folder, "serve", "--own-ca", *PATIENT) as said:
            url, token = said["url"], join_token(holdfast, folder)
            stack.enter_context(joined(tmp_path / "n1", url, token))
            until(lambda: is_alive(holdfast, folder, "n1"))
        with running(folder, "serve", *given, *PATIENT) as said:
            assert said["url"] == url
            until(lambda: is_alive(holdfast, folder, "n1"))
            read = holdfast(folder, "token", "create", "--role", "read").out.strip()
            assert pin.split(read)[1] == "", "people may come through a proxy that ends TLS"
            newcomer = join_token(holdfast, folder)
            assert pin.split(newcomer)[1] == pin.split(token)[1]
            stack.enter_context(joined(tmp_path / "n2", url, newcomer))
            until(lambda: is_alive(holdfast, folder, "n2"))
        with running(folder, "serve", "--own-ca", *PATIENT):
            until(lambda: is_alive(holdfast, folder, "n1") and is_alive(holdfast, folder, "n2"))


def test_a_launched_node_joins_by_the_pin_in_its_token(holdfast: Holdfast, tmp_path: Path) -> None:
    """It was given the leaf of the control plane, which is renewed: after 90 days it would trust nobody."""
    folder, pool = tmp_path / "state", tmp_path / "pool.yaml"
    pool.write_text("{kind: pool, name: here, provider: local, min: 1, max: 1, offers: [{name: a}]}")
    with running(folder, "serve", "--own-ca", "--allow-local", *PATIENT):
        told = holdfast(folder, "apply", pool)
        assert told.code == 0, told.err
        until(lambda: "alive" in {each["verdict"] for each in holdfast(folder, "nodes", "--json").json})
        (name,) = (each["name"] for each in holdfast(folder, "nodes", "--json").json)
        (token,) = folder.glob(f"nodes/{name}/**/token")
        assert pin.split(token.read_text())[1] == pin.pin_of((folder / "ca" / "ca.pem").read_text())
        assert holdfast(folder, "delete", "pool", "here", "--yes").code in (0, 2)


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("http://control-plane.invalid:7700", "no TLS: whoever is in between can give this machine orders"),
        ("https://control-plane.invalid:7700", "any certificate is trusted: whoever is in between"),
    ],
)
def test_an_agent_that_is_told_to_trust_anybody_says_what_that_means(
    tmp_path: Path, url: str, told: str
) -> None:
    with joined(tmp_path / "n5", url, "t", "--insecure") as process:
        assert process.stderr is not None
        assert any(told in line for line in process.stderr)


def test_plain_http_to_another_machine_takes_a_word(tmp_path: Path) -> None:
    with joined(tmp_path / "n6", "http://control-plane.invalid:7700", "t") as process:
        _, told = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 2
    assert "is plain http to another machine" in told


# gateways


def followed(holdfast: Holdfast, folder: Path, file: Path) -> str:
    """A token of a gateway, in a file that only its owner can read."""
    token = holdfast(folder, "token", "create", "--role", "gateway").out.strip()
    file.touch(0o600)
    file.write_text(token + "\n")
    return token


def test_a_gateway_follows_from_another_machine_with_one_string(
    holdfast: Holdfast, fleet: tuple[Path, str], tmp_path: Path
) -> None:
    folder, url = fleet
    file, state = tmp_path / "token", tmp_path / "gateway"
    token = followed(holdfast, folder, file)
    words = ("gateway", "--control", url, "--token-file", str(file), "--admin-port", "0", "--workers", "1")
    for _ in range(2):  # the second time by what it kept
        with running(state, *words) as said:
            assert said["url"].startswith("http://127.0.0.1:")
        assert pin.pin_of((state / "ca.pem").read_text()) == pin.split(token)[1]


def test_an_impostor_gets_no_token_of_a_gateway(
    holdfast: Holdfast, fleet: tuple[Path, str], tmp_path: Path
) -> None:
    token = followed(holdfast, fleet[0], tmp_path / "token")
    with Impostor(tmp_path) as impostor:
        done = said_by("gateway", "--control", impostor.url, "--token-file", str(tmp_path / "token"))(
            tmp_path
        )
        assert b"GET /ca.pem" in impostor.heard
        assert pin.split(token)[0].encode() not in impostor.heard
    assert done.returncode == 2
    assert "another fleet, or somebody in between" in done.stderr
    assert "hint: is this the control plane that the token is from?" in done.stderr


def test_a_token_file_that_others_could_read_is_refused_by_agents_and_gateways(
    holdfast: Holdfast, fleet: tuple[Path, str], tmp_path: Path
) -> None:
    file = tmp_path / "token"
    followed(holdfast, fleet[0], file)
    file.chmod(0o644)
    words = ("--token-file", str(file))
    joins = ("agent", "--join", fleet[1], "--root", str(tmp_path / "n"), "--pool", "metal", *words)
    for done in (said_by("gateway", "--control", fleet[1], *words)(tmp_path), said_by(*joins)(tmp_path)):
        assert done.returncode == 2
        assert "has the mode 0644: others on this machine could use it" in done.stderr
        assert f"hint: chmod 600 {file}" in done.stderr


def said_by(*words: str) -> Callable[[Path], "subprocess.CompletedProcess[str]"]:
    return lambda folder: logged_in(folder, "", *words)


# people


def logged_in(folder: Path, token: str, *words: str) -> "subprocess.CompletedProcess[str]":
    holdfast = str(Path(sys.executable).parent / "holdfast")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST")}
    return subprocess.run(
        [holdfast, *words], input=f"{token}\n", capture_output=True, text=True, cwd=folder, env=environment
    )


def test_an_admin_on_another_machine_logs_in_with_one_string(
    holdfast: Holdfast, fleet: tuple[Path, str], tmp_path: Path
) -> None:
    folder, url = fleet
    token = holdfast(folder, "token", "create", "--role", "admin", "--note", "ann").out.strip()
    done = logged_in(tmp_path, token, "login", url, "--dir", ".holdfast")
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / ".holdfast" / "token").stat().st_mode & 0o777 == 0o600
    assert logged_in(tmp_path, "", "nodes", "--json").returncode == 0
    again = logged_in(tmp_path, "", "token", "create", "--role", "read", "--json")
    assert json.loads(again.stdout)["ca_pin"] == pin.split(token)[1]


def test_ci_needs_two_variables_and_no_login(
    holdfast: Holdfast, fleet: tuple[Path, str], tmp_path: Path
) -> None:
    folder, url = fleet
    token = holdfast(folder, "token", "create", "--role", "read").out.strip()
    done = logged_in(tmp_path, "", "status", "--json", "--url", url, "--token", token)
    assert (done.returncode, done.stderr) == (0, "")
    with Impostor(tmp_path) as impostor:
        done = logged_in(tmp_path, "", "status", "--url", impostor.url, "--token", token)
        assert pin.split(token)[0].encode() not in impostor.heard
    assert "another fleet, or somebody in between" in done.stderr
    assert "hint: is this the control plane of that token?" in done.stderr


@pytest.mark.parametrize("how", ["wrong pin", "wrong token", "no pin", "nonsense", "cut"])
def test_a_login_that_is_not_right_leaves_nothing_behind(
    holdfast: Holdfast, fleet: tuple[Path, str], tmp_path: Path, how: str
) -> None:
    folder, url = fleet
    token = holdfast(folder, "token", "create", "--role", "read").out.strip()
    secret, good = pin.split(token)
    words, said = {
        "wrong pin": (("--ca-pin", "sha256:" + "0" * 64), "another fleet, or somebody in between"),
        "wrong token": (("--ca-pin", good), "not known"),
        "no pin": ((), "not signed by anybody we trust"),
        "nonsense": (("--ca-pin", "sha256:zz"), "expected sha256: and 64 hexadecimal digits"),
        "cut": ((), "the token is not whole"),
    }[how]
    given = {"wrong token": "hf_wrong", "cut": token[:-1]}.get(how, secret)
    done = logged_in(tmp_path, given, "login", url, "--dir", ".holdfast", *words)
    assert done.returncode == 2
    assert said in done.stderr
    assert "hint: " in done.stderr
    assert not (tmp_path / ".holdfast").exists()


# what else is there


def raw(url: str, head: str) -> bytes:
    place = urlsplit(url)
    with (
        socket.create_connection((place.hostname or "", place.port or 0), timeout=30) as plain,
        unverified().wrap_socket(plain) as line,
    ):
        line.sendall(head.encode())
        found = b""
        while part := line.recv(65_536):
            found += part
        return found


@pytest.mark.parametrize("path", ["/healthz", "/v1/status", "/nowhere", "/ca.pem"])
def test_every_answer_is_neither_guessed_at_nor_kept(fleet: tuple[Path, str], path: str) -> None:
    answer = raw(fleet[1], f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").lower()
    assert b"\r\nx-content-type-options: nosniff\r\n" in answer
    assert b"\r\ncache-control: no-store\r\n" in answer


def test_two_control_planes_of_a_database_have_one_authority(tmp_path: Path) -> None:
    database = ("--own-ca", "--database", f"sqlite:///{tmp_path / 'shared.db'}")
    with running(tmp_path / "a", "serve", *database), running(tmp_path / "b", "serve", *database):
        first, second = ((tmp_path / each / "ca" / "ca.pem").read_text() for each in "ab")
    assert first == second
    for each in "ab":
        modes = {file.name: file.stat().st_mode & 0o777 for file in (tmp_path / each / "ca").iterdir()}
        assert modes == dict.fromkeys(("ca.pem", "cert.pem", "key.pem"), 0o600)


def test_beyond_this_machine_it_is_so_by_itself(tmp_path: Path) -> None:
    words = ("serve", "--host", "0.0.0.0", "--url", "https://127.0.0.1:1")
    with running(tmp_path / "state", *words, reached=False) as said:
        assert said["url"] == "https://127.0.0.1:1"
        assert (tmp_path / "state" / "ca" / "ca.pem").exists()


def wrong(*words: str) -> Any:
    holdfast = str(Path(sys.executable).parent / "holdfast")
    return subprocess.run([holdfast, "serve", *words], capture_output=True, text=True, timeout=PATIENCE_S)


def test_two_ways_to_do_it_are_one_too_many(tmp_path: Path) -> None:
    done = wrong("--own-ca", "--insecure", "--dir", str(tmp_path / "state"))
    assert (done.returncode, "--own-ca and --insecure are two ways" in done.stderr) == (2, True)


def test_a_handshake_that_is_never_finished_ends_soon(tmp_path: Path) -> None:
    """It could hold a connection for a minute."""
    with running(tmp_path / "state", "serve", "--own-ca") as said:
        place = urlsplit(said["url"])
        with socket.create_connection((place.hostname or "", place.port or 0)) as silent:
            begun = time.monotonic()
            silent.settimeout(HANDSHAKE_S + 30)
            assert silent.recv(1) == b""
            assert time.monotonic() - begun >= HANDSHAKE_S - 1
