"""Hosts over ssh: installing an agent there, outliving the connection, and saying clearly what is wrong."""

import asyncio
import csv
import io
import json
import os
import signal
import socket
import stat
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from holdfast.adapters.providers.local import tree
from holdfast.adapters.providers.ssh import BadHosts, SshHost, SshProvider, line, provider, remote
from holdfast.adapters.providers.ssh.line import Line
from holdfast.adapters.providers.ssh.package import PINNED, wheel
from holdfast.model.action import LaunchNode
from holdfast.model.place import Place
from holdfast.model.resources import Resources
from holdfast.model.verdict import Word
from holdfast.ports.errors import CapacityShort, Denied, NotFound, OutcomeUnknown, Unreachable
from holdfast.ports.provider import Credentials, Join
from tests.hub_twin import HubTwin, desired, until, wanted
from tests.sshd import Sshd
from tests.stand_in import StandIn, join


def wish(node: str = "n1", host: str = "h1") -> LaunchNode:
    return LaunchNode(
        node=node,
        pool="pool",
        offer=host,
        place=Place("machines", "here", "a", "a1"),
        capacity=Resources(2000, 2048),
        price_micro_usd=1,
        spot=False,
        why="w",
    )


class Bench:
    def __init__(self, folder: Path, server: Sshd) -> None:
        self.folder, self.server = folder, server
        self.agent = StandIn(folder)
        self.agent.gate.touch()
        self.providers: list[SshProvider] = []

    def host(self, name: str = "h1", **more: str) -> SshHost:
        return self.server.host(name, self.folder / name, **{"python": sys.executable, **more})

    def provider(
        self, *hosts: SshHost, credentials: Credentials = join, installs: bool = False
    ) -> SshProvider:
        command = () if installs else self.agent.command
        made = SshProvider(hosts or (self.host(),), credentials, agent_command=command)
        self.providers.append(made)
        return made

    def script(self, name: str, text: str) -> str:
        path = self.folder / name
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)
        return str(path)

    def home(self, host: str = "h1") -> Path:
        return self.folder / host / "node"

    def pids(self) -> list[int]:
        return [process.pid for process in tree.members(str(self.home()))]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sshd]:
    made = Sshd(tmp_path_factory.mktemp("sshd"))
    yield made
    made.stop()


@pytest.fixture
def bench(tmp_path: Path, server: Sshd) -> Iterator[Bench]:
    made = Bench(tmp_path, server)
    yield made
    server.start()
    made.agent.leave_nothing()


async def close(*providers: SshProvider) -> None:
    for each in providers:
        await each.close()


def is_gone(pid: int) -> bool:
    return tree.look(pid) is None


# the life of a node


async def test_a_node_outlives_the_connection_the_control_plane_and_the_server(bench: Bench) -> None:
    first = bench.provider()
    await first.launch(wish())
    await first.close()
    bench.agent.wait()
    bench.server.stop()
    everyone = bench.pids()
    assert everyone
    assert not any(map(is_gone, everyone))
    bench.server.start()
    heir = bench.provider()
    assert await heir.state("n1") is Word.RUNNING
    await heir.terminate("n1")
    assert all(map(is_gone, everyone))
    assert not bench.home().exists()
    await heir.close()


async def test_a_broken_connection_is_made_anew(bench: Bench) -> None:
    provider = bench.provider()
    await provider.launch(wish())
    bench.server.stop()
    assert await provider.state("n1") is Word.UNKNOWN, "not the same as off"
    bench.server.start()
    assert await provider.state("n1") is Word.RUNNING
    bench.server.stop()
    bench.server.start()
    assert await provider.state("n1") is Word.RUNNING, "and nobody noticed that one"
    await provider.close()


async def test_a_host_is_one_node_and_can_be_another_afterwards(bench: Bench) -> None:
    provider = bench.provider(bench.host("h1"), bench.host("h2"))
    await provider.launch(wish("n1"))
    with pytest.raises(CapacityShort, match="it is n1 already"):
        await provider.launch(wish("n2"))
    await provider.launch(wish("n2", "h2"))
    await provider.terminate("n1")
    await provider.launch(wish("n3"))
    assert sorted(await provider.list("pool")) == ["n2", "n3"]
    await provider.close()


async def test_a_host_that_does_not_answer_does_not_hide_the_others(bench: Bench) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        dead = SshHost("h2", "127.0.0.1", free.getsockname()[1], known_hosts=bench.host().known_hosts)
    provider = bench.provider(bench.host("h1"), dead)
    await provider.launch(wish())
    assert await provider.list("pool") == ("n1",)
    assert await provider.state("n1") is Word.RUNNING
    assert await provider.state("somebody") is Word.UNKNOWN, "it may be the one that does not answer"
    with pytest.raises(Unreachable):
        await provider.terminate("somebody")
    with pytest.raises(Unreachable, match="h2"):
        await provider.launch(wish("n2", "h2"))
    await provider.close()


async def test_a_node_of_which_nothing_lives_is_off(bench: Bench) -> None:
    provider = bench.provider()
    await provider.launch(wish())
    tree.kill(str(bench.home()))
    assert await provider.state("n1") is Word.STOPPED
    assert await provider.list("pool") == ("n1",)
    await provider.terminate("n1")
    with pytest.raises(NotFound):
        await provider.terminate("n1")
    await provider.close()


async def test_an_agent_that_ends_before_its_node_is_started_again(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(provider, "LOOK_S", 0.1)
    ours = bench.provider()
    await ours.launch(wish())
    bench.agent.wait()
    home = bench.home()
    environment = {**os.environ, tree.MARK: str(home)}
    replica = subprocess.Popen(["sleep", "1000"], env=environment, start_new_session=True)
    agent = tree.agent_of(str(home), str(home / "agent"))
    assert agent is not None
    for pid in set(bench.pids()) - {replica.pid}:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    async with asyncio.TaskGroup() as group:
        supervising = group.create_task(ours.supervise())
        await until(lambda: bench.agent.made() == ["n1", "n1"], "a second start")
        supervising.cancel()
    assert replica.poll() is None
    await ours.terminate("n1")
    assert replica.wait(timeout=30) == -signal.SIGKILL
    await ours.close()


async def test_the_token_is_in_no_list_of_processes_and_only_its_owner_may_read_it(bench: Bench) -> None:
    async def with_ca(node: str) -> Join:
        return Join(("https://127.0.0.1:1",), "very-secret", "PEM")

    ours = bench.provider(credentials=with_ca)
    await ours.launch(wish())
    bench.agent.wait()
    agent = tree.agent_of(str(bench.home()), str(bench.home() / "agent"))
    assert agent is not None
    said = Path(f"/proc/{agent.pid}/cmdline").read_text().replace("\0", " ")
    assert f"--ca {bench.home()}/ca.pem" in said
    assert f"--token-file {bench.home()}/token" in said
    assert "very-secret" not in said
    token = bench.home() / "token"
    assert (token.read_text(), stat.S_IMODE(token.stat().st_mode)) == ("very-secret", 0o600)
    await ours.close()


def test_a_folder_below_the_users_home_is_found_there(bench: Bench) -> None:
    """The script alone, as the server would run it: in the user's home."""
    request = {
        "do": "launch",
        "root": "some/where",
        "node": "n1",
        "launch": "{}",
        "version": "",
        "command": bench.agent.command,
        "arguments": ["--name", "n1", "--root", "@root@/node/agent"],
        "token": "t",
        "ca.pem": "",
    }
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", line.BEGIN],
        input=line.script(request),
        cwd=bench.folder,
        capture_output=True,
        check=True,
    )
    assert done.stdout == b"holdfast-answer {}\n"
    assert bench.agent.roots() == [str(bench.folder / "some" / "where" / "node")]


# what is wrong with a host


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"python": "no-such-python"}, "has no no-such-python; say in `python`"),
        ({"python": "/bin/false"}, "ended with 1"),
        ({"python": "OLD"}, "is older than 3.11"),
        ({"key_file": "missing"}, "a key cannot be read"),
        ({"key_file": "OTHER"}, "authorized_keys"),
        ({"known_hosts": "/dev/null"}, "ssh-keyscan"),
        ({"known_hosts": "WRONG"}, "not in known_hosts"),
        ({"root": "/dev/null/x"}, "Not a directory"),
    ],
)
async def test_what_a_person_must_mend_is_denied_and_said(
    bench: Bench, more: dict[str, str], why: str
) -> None:
    made = {
        # A Python that takes itself for an older one.
        "OLD": lambda: bench.script(
            "old", f'exec {sys.executable} -I -S -c "import sys;sys.version_info=(3,9,2);$4"'
        ),
        "OTHER": lambda: Sshd.new_key(bench.folder, "other_key"),
        "WRONG": lambda: wrong_known_hosts(bench),
    }
    facts = {name: made[value]() if value in made else value for name, value in more.items()}
    root = Path(facts.pop("root", str(bench.folder / "h1")))
    host = bench.server.host("h1", root, **{"python": sys.executable, **facts})
    ours = bench.provider(host)
    with pytest.raises(Denied, match=why):
        await ours.launch(wish())
    assert bench.agent.roots() == []
    await ours.close()


async def test_a_python_that_ended_before_it_was_asked_is_denied_as_well(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a busy machine it was gone before its text was sent: that was told as a launch of which nobody knows
    what came."""
    begin = Line._begin

    async def ended(line: Line) -> Any:
        process = await begin(line)
        await process.wait_closed()
        return process

    monkeypatch.setattr(Line, "_begin", ended)
    ours = bench.provider(bench.server.host("h1", bench.folder / "h1", python="no-such-python"))
    with pytest.raises(Denied, match="has no no-such-python"):
        await ours.launch(wish())
    await ours.close()


@pytest.mark.parametrize(("address", "port"), [("a..b", 22), ("127.0.0.1", 70_000), ("127.0.0.1", -1)])
async def test_an_address_that_is_none_is_denied_and_said(bench: Bench, address: str, port: int) -> None:
    ours = bench.provider(SshHost("h1", address, port))
    with pytest.raises(Denied, match="cannot be called"):
        await ours.launch(wish())
    assert await ours.state("n1") is Word.UNKNOWN
    with pytest.raises(Denied):
        await ours.list("pool")


def wrong_known_hosts(bench: Bench) -> str:
    Sshd.new_key(bench.folder, "stranger")
    public = (bench.folder / "stranger.pub").read_text()
    path = bench.folder / "known_hosts"
    path.write_text(f"[127.0.0.1]:{bench.server.port} {public}")
    return str(path)


async def test_a_shell_that_says_things_of_its_own_does_no_harm(bench: Bench) -> None:
    noisy = bench.script(
        "noisy", f'echo Welcome; printf "> "; echo Mind >&2; {sys.executable} "$@"; echo Bye'
    )
    ours = bench.provider(bench.host(python=noisy))
    await ours.launch(wish())
    assert await ours.state("n1") is Word.RUNNING
    await ours.close()


async def test_a_host_that_takes_the_call_and_says_nothing_is_unreachable(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(line, "CONNECT_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as mute:
        ours = bench.provider(SshHost("h1", "127.0.0.1", mute.getsockname()[1]))
        with pytest.raises(Unreachable, match="does not answer"):
            await ours.launch(wish())
        assert await ours.state("n1") is Word.UNKNOWN
        await ours.close()


async def test_an_answer_that_does_not_come_in_time_leaves_the_outcome_open(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = bench.script("slow", f'{sys.executable} "$@" > {bench.folder}/said; exec sleep 5')
    host = Line(bench.host(python=slow))
    with pytest.raises(OutcomeUnknown, match="no answer within 1 s"):
        await host.ask({"do": "terminate", "node": "n1"}, only_looks=False, within_s=1.0)
    with pytest.raises(Unreachable, match="no answer within 1 s"):
        await host.ask({"do": "look"}, only_looks=True, within_s=1.0)
    await host.close()


async def test_an_answer_that_is_cut_short_leaves_the_outcome_open(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Cut:
        exit_status = None

        async def communicate(self, body: bytes) -> tuple[bytes, bytes]:
            return remote.MARK.encode() + b'{"node": "n', b""

        async def wait_closed(self) -> None: ...

        def close(self) -> None: ...

    async def begin() -> Cut:
        return Cut()

    ours = Line(bench.host())
    monkeypatch.setattr(ours, "_begin", begin)
    with pytest.raises(OutcomeUnknown, match="broke off"):
        await ours.ask({"do": "terminate", "node": "n1"}, only_looks=False)
    with pytest.raises(Unreachable, match="broke off"):
        await ours.ask({"do": "look"}, only_looks=True)


async def test_a_node_that_gets_no_credentials_is_not_launched(bench: Bench) -> None:
    async def refuse(node: str) -> Join:
        raise Unreachable("the store does not answer")

    ours = bench.provider(credentials=refuse)
    with pytest.raises(Unreachable, match="the store"):
        await ours.launch(wish())
    assert await ours.list("pool") == ()
    await ours.close()


async def test_an_offer_that_is_no_host_is_told_to_a_person(bench: Bench) -> None:
    with pytest.raises(Denied, match="no host is called h9; there are h1"):
        await bench.provider().launch(wish("n1", "h9"))


async def test_without_the_library_it_says_what_to_install(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "asyncssh", None)
    with pytest.raises(Denied, match=r"holdfast\[ssh\]"):
        await bench.provider().launch(wish())


# settings


async def test_hosts_come_from_the_settings_of_a_pool(bench: Bench) -> None:
    host = bench.host()
    facts = {name: getattr(host, name) for name in host.__struct_fields__}
    ours = SshProvider.from_settings({"hosts": json.dumps([facts])}, join)
    assert await ours.list("pool") == ()
    assert await ours.state("n1") is Word.STOPPED
    await ours.close()


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({}, "need `hosts`"),
        ({"hosts": "[]"}, "one at least"),
        ({"hosts": "{"}, "is not right"),
        ({"hosts": '[{"name": "a"}]'}, "address"),
        ({"hosts": '[{"name": "a", "address": ""}]'}, "name and an address"),
        ({"hosts": '[{"name": "a", "address": "b", "prot": 3}]'}, "prot"),
        ({"hosts": '[{"name": "a", "address": "-oProxyCommand=x"}]'}, "a cannot be reached as"),
        ({"hosts": '[{"name": "a", "address": "b;x"}]'}, "a cannot be reached as"),
        ({"hosts": '[{"name": "a", "address": "b", "user": "-F/x"}]'}, "a cannot be reached as"),
        ({"hosts": '[{"name": "a", "address": "b", "port": "x"}]'}, "port"),
        (
            {"hosts": '[{"name": "a", "address": "b"}, {"name": "a", "address": "c"}]'},
            "two hosts have one name",
        ),
    ],
)
def test_settings_that_name_no_hosts_are_refused_with_the_reason(settings: dict[str, str], why: str) -> None:
    with pytest.raises(BadHosts, match=why):
        SshProvider.from_settings(settings, join)


# the agent that is installed


def test_the_same_files_make_the_same_wheel_and_it_needs_only_what_an_agent_needs() -> None:
    made = wheel()
    wheel.cache_clear()
    assert wheel() == made
    with zipfile.ZipFile(io.BytesIO(made.content)) as archive:
        names = archive.namelist()
        about = archive.read(f"holdfast-{made.version}.dist-info/METADATA").decode()
    assert {"holdfast/agent/shim.py", "holdfast/core/agent/machine.py"} <= set(names)
    assert not [name for name in names if "__pycache__" in name or name.startswith("holdfast/sim/")]
    assert [row for row in about.splitlines() if row.startswith("Requires-Dist")] == [
        "Requires-Dist: msgspec",
        "Requires-Dist: cryptography",
    ]


async def test_an_agent_is_installed_once_joins_and_dies_with_its_node(bench: Bench) -> None:
    python = offline_python(bench)
    async with HubTwin() as hub:

        async def credentials(node: str) -> Join:
            return Join((hub.url,), f"token-of-{node}")

        ours = bench.provider(bench.host(python=python), credentials=credentials, installs=True)
        await ours.launch(wish())
        agent = await hub.welcomed()
        assert agent.hello is not None
        assert (agent.hello.node, agent.hello.token) == ("n1", "token-of-n1")
        assert (agent.hello.place, agent.hello.capacity) == (wish().place, wish().capacity)
        agent.say(desired(1, wanted("web/0.1"), command=("sleep", "1000")))
        await agent.report("web/0.1", "ready")
        everyone = bench.pids()
        stamp = bench.folder / "h1" / "agents" / wheel().version / "installed"
        installed = stamp.stat().st_mtime_ns
        await ours.reset("n1")
        assert all(map(is_gone, everyone))
        again = await hub.welcomed()
        assert again.hello is not None
        assert again.hello.key == agent.hello.key, "the same machine"
        await again.report("web/0.1", "ended")
        everyone = bench.pids()
        await ours.terminate("n1")
        assert all(map(is_gone, everyone))
        await ours.launch(wish("n2"))
        other = await hub.welcomed()
        assert other.hello is not None
        assert other.hello.node == "n2"
        assert stamp.stat().st_mtime_ns == installed, "installed once"
        await ours.terminate("n2")
        await ours.close()


async def test_an_installation_that_fails_makes_no_node_and_says_why(bench: Bench) -> None:
    empty = bench.folder / "nothing"
    empty.mkdir()
    python = bench.script(
        "python",
        f'PIP_CONFIG_FILE=/dev/null PIP_NO_INDEX=1 PIP_FIND_LINKS={empty} exec {sys.executable} "$@"',
    )
    ours = bench.provider(bench.host(python=python), installs=True)
    with pytest.raises(Denied, match=r"pip install failed: .*msgspec"):
        await ours.launch(wish())
    assert await ours.list("pool") == ()
    await ours.close()


def offline_python(bench: Bench) -> str:
    """A Python whose pip finds what we have installed here, and asks no network."""
    shelf = bench.folder / "wheels"
    shelf.mkdir()
    for name in PINNED:
        with suppress(metadata.PackageNotFoundError):
            pack(metadata.distribution(name), shelf)
    return bench.script(
        "python",
        f'PIP_CONFIG_FILE=/dev/null PIP_NO_INDEX=1 PIP_FIND_LINKS={shelf} exec {sys.executable} "$@"',
    )


def pack(dist: metadata.Distribution, shelf: Path) -> None:
    """An installed distribution as the wheel that it came from."""
    kind = dist.read_text("WHEEL") or ""
    tags = [row.removeprefix("Tag: ") for row in kind.splitlines() if row.startswith("Tag: ")]
    kept = [row[0] for row in csv.reader((dist.read_text("RECORD") or "").splitlines())]
    kept = [path for path in kept if not path.startswith("..") and not path.endswith((".pyc", "/RECORD"))]
    folder = next(path.split("/")[0] for path in kept if ".dist-info/" in path)
    with zipfile.ZipFile(shelf / f"{folder.removesuffix('.dist-info')}-{tags[0]}.whl", "w") as archive:
        for path in kept:
            archive.write(str(dist.locate_file(path)), path)
        archive.writestr(f"{folder}/RECORD", "".join(f"{path},,\n" for path in kept))
