"""What a gateway says when it cannot start."""

import asyncio
import contextlib
import json
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
from structlog.testing import capture_logs

from holdfast import wiring
from holdfast.gateway import keeper, native, settings
from holdfast.gateway.behind import Behind
from holdfast.gateway.serve import gateway
from holdfast.gateway.watch import Stopped
from holdfast.model.gateway import Limits
from tests.gateways import CHAT, chat, engine, key, served, service
from tests.planes import PATIENCE_S
from tests.ports import free_ports


async def test_workers_that_do_not_come_up_are_told_and_leave_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keeper, "READY_WITHIN_S", 1.0)
    monkeypatch.setattr(keeper, "CLOSE_WITHIN_S", 1.0)
    monkeypatch.setattr(sys, "executable", shutil.which("false"))  # of which workers are made
    wanted = settings.Gateway(state=tmp_path, port=0, admin_port=0)
    with pytest.raises(keeper.CannotStart, match="did not come up within 1 s"):
        async with gateway(wanted):
            pass
    assert not list(tmp_path.glob("*.sock"))


async def test_one_whose_workers_must_be_compiled_says_at_once_that_they_are_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Workers ended with it one after the other, until nobody waited for them any more."""
    monkeypatch.setenv(native.SWITCH, "1")
    monkeypatch.setattr(native, "KEPT", tmp_path / "none")
    with pytest.raises(keeper.CannotListen, match="nothing is compiled") as caught:
        async with gateway(settings.Gateway(state=tmp_path, port=0, admin_port=0)):
            pass
    assert native.SWITCH in caught.value.hint


async def test_one_that_follows_a_killed_one_says_why_it_lends_nothing_yet(tmp_path: Path) -> None:
    """It refused for some seconds, and more with small limits, and said nothing."""
    wanted = settings.Gateway(state=tmp_path, port=0, admin_port=0, open=True)
    for left, warned in ((b"{}", 0), (b'{"running":true}', 1)):
        (tmp_path / "budgets.json").write_bytes(left)
        with capture_logs() as lines:
            async with gateway(wanted):
                pass
        assert len([line for line in lines if "did not end by itself" in line["event"]]) == warned


async def test_who_asks_one_that_follows_a_killed_one_is_told_the_truth_and_how_long_to_wait(
    tmp_path: Path,
) -> None:
    """They were told that they had used up their tokens, and to come back before there could be any."""
    (tmp_path / "budgets.json").write_bytes(b'{"running":true}')
    limits = Limits(tokens_per_min=1_200)
    async with (
        engine() as toy,
        served(tmp_path, service(toy.url, hold=None), keys=(key(limits=limits),)) as (_, client),
    ):
        refused = await client.post(CHAT, json=chat(max_tokens=64))
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "quota_recovering")
        await asyncio.sleep(int(refused.headers["retry-after-ms"]) / 1_000)
        assert (await client.post(CHAT, json=chat(max_tokens=64))).status_code == 200


async def test_a_second_gateway_in_the_same_folder_is_refused(tmp_path: Path) -> None:
    """Both served: each had the whole budget, and who wrote last decided which keys there are."""
    file = tmp_path / "gateway.yaml"
    file.write_text("services: []\nopen: true\n")
    command = [sys.executable, "-m", "holdfast.cli.main", "gateway", "-c", str(file)]
    command += ["--dir", str(tmp_path / "state"), "--port", "0", "--admin-port", "0"]
    with wiring.only_one(tmp_path / "state", "gateway"):
        second = await asyncio.create_subprocess_exec(*command, stderr=asyncio.subprocess.PIPE)
        try:
            async with asyncio.timeout(60):
                _, said = await second.communicate()
        finally:
            if second.returncode is None:
                second.kill()
                await second.wait()
    assert second.returncode
    assert b"another `holdfast gateway` uses" in said
    assert b"--dir" in said


async def test_whoever_asks_how_it_is_before_it_serves_is_refused_and_does_not_wait(tmp_path: Path) -> None:
    """The second listener took connections that nobody answered, for as long as no control plane came."""
    stop = asyncio.Event()
    port, nowhere = free_ports(2)
    wanted = settings.Gateway(state=tmp_path, port=0, admin_port=port)
    behind = Behind((f"http://127.0.0.1:{nowhere}",), "", "", "")

    async def serve() -> None:
        with contextlib.suppress(Stopped):
            async with gateway(wanted, behind, stop):
                pass

    serving = asyncio.create_task(serve())
    try:
        await asyncio.sleep(0.5)
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", port)
    finally:
        stop.set()
        async with asyncio.timeout(30):
            await serving


async def test_one_that_finds_its_address_taken_leaves_no_trace(tmp_path: Path) -> None:
    """The next one took it for one that was killed, and lent nothing for some seconds."""
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        wanted = settings.Gateway(state=tmp_path, port=other.getsockname()[1], admin_port=0)
        with pytest.raises(keeper.CannotListen):
            async with gateway(wanted):
                pass
    assert not keeper.Keeper(wanted).budgets.crashed
    assert not list(tmp_path.glob("*.sock"))


async def test_what_a_killed_keeper_left_goes_when_the_next_one_starts(tmp_path: Path) -> None:
    """Each that was killed left a socket, for ever."""
    file = tmp_path / "gateway.yaml"
    file.write_text("services: []\nopen: true\n")
    state = tmp_path / "state"
    command = [sys.executable, "-m", "holdfast.cli.main", "gateway", "-c", str(file), "--json"]
    command += ["--dir", str(state), "--port", "0", "--admin-port", "0", "--workers", "1"]
    killed = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    assert killed.stdout is not None
    async with asyncio.timeout(PATIENCE_S):
        await killed.stdout.readline()
        killed.kill()
        await killed.wait()
    (left,) = state.glob("*.sock")
    async with gateway(settings.Gateway(state=state, port=0, admin_port=0)):
        assert not left.exists()
    assert not list(state.glob("*.sock"))


async def test_a_folder_with_a_long_name_is_as_good_as_another(tmp_path: Path) -> None:
    """The name of a socket has at most 107 bytes: it could not be used, and it did not say why."""
    state = tmp_path / ("long" * 25)
    async with gateway(settings.Gateway(state=state, port=0, admin_port=0, workers=1)) as serving:
        assert serving.keeper.seats[0].ready
    assert not list(state.glob("*.sock"))


async def test_a_second_ctrl_c_waits_for_no_request(tmp_path: Path) -> None:
    """It did nothing for as long as a stream went on, and nothing was said of that."""
    file = tmp_path / "gateway.yaml"
    command = [sys.executable, "-m", "holdfast.cli.main", "gateway", "-c", str(file), "--dir", str(tmp_path)]
    async with engine("--gap-ms", "1000", "--tokens", "300") as toy:
        services = f"services: [{{ name: toy, upstreams: ['{toy.url}'] }}]"
        file.write_text(f"listen: ':0'\nadmin: ':0'\nopen: true\n{services}\n")
        process = await asyncio.create_subprocess_exec(
            *command, "--json", stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
        )
        assert process.stdout is not None
        assert process.stderr is not None
        async with asyncio.timeout(PATIENCE_S):
            url = json.loads(await process.stdout.readline())["url"]
            async with (
                httpx.AsyncClient(base_url=url, timeout=60) as client,
                client.stream("POST", CHAT, json=chat(stream=True, max_tokens=300)) as answer,
            ):
                lines = answer.aiter_lines()
                await anext(lines)
                await asyncio.sleep(1.5)  # until workers have told that it runs
                process.send_signal(signal.SIGINT)
                while b"ending: 1 request" not in await process.stderr.readline():
                    pass
                await asyncio.sleep(1.0)  # signals that come together are one
                process.send_signal(signal.SIGINT)
                with pytest.raises(httpx.HTTPError):
                    [line async for line in lines]
            assert await process.wait() == 0
            await process.stderr.read()


def test_a_file_by_which_keys_would_cross_a_network_in_plain_text_is_not_good(tmp_path: Path) -> None:
    file = tmp_path / "gateway.yaml"
    toy = 'services: [{name: toy, upstreams: ["http://127.0.0.1:1"]}]\n'
    file.write_text(f'listen: "0.0.0.0:8080"\nadmin: "10.0.0.9:8081"\n{toy}')

    def checked(*words: str) -> "subprocess.CompletedProcess[str]":
        command = [sys.executable, "-m", "holdfast.cli.main", "gateway", "-c", str(file), "--check", *words]
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)

    refused = checked()
    assert refused.returncode == 2
    assert "listen: keys would come over plain http to 0.0.0.0" in refused.stderr
    assert "admin: the admin token would come over plain http to 10.0.0.9" in refused.stderr
    assert "insecure: true" in refused.stderr
    assert checked("--insecure").returncode == 0
    file.write_text(f"{file.read_text()}insecure: true\n")
    assert checked().returncode == 0
