"""Nodes as processes of this machine: who belongs to a node, who dies with it, and who is started again."""

import asyncio
import os
import resource
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.adapters.providers.local import tree
from holdfast.adapters.providers.local.market import LocalTraits
from holdfast.adapters.providers.local.provider import AGENT, LocalProvider
from holdfast.model.action import LaunchNode
from holdfast.model.place import Place
from holdfast.model.resources import Resources
from holdfast.model.verdict import Word
from holdfast.ports.errors import CapacityShort, Denied, NotFound, PortError, Unreachable
from holdfast.ports.provider import Credentials, Join
from tests.hub_twin import HubTwin, desired, wanted
from tests.local_nodes import end, soon, supervised
from tests.stand_in import StandIn, command_of, join, until

TIMEOUT_S = 30.0

# An agent with one "shim" in a session of its own, under which a program runs.
WITH_REPLICA = """\
#!/bin/sh
all="$*"
while [ $# -gt 0 ]; do [ "$1" = --root ] && root=$2; shift; done
echo "$$ $all" >> "$root/starts"
if [ ! -e "$root/shim.pid" ]; then
  setsid {shim} "$root" < /dev/null &
  until [ -s "$root/shim.pid" ]; do sleep 0.01; done
fi
while :; do sleep 1000; done
"""

SHIM = """\
import os, signal, subprocess, sys
root = sys.argv[1]
def end(*_):
    program.terminate()
    open(root + "/ended-well", "w").close()
    sys.exit(0)
program = subprocess.Popen(["sleep", "1000"])
signal.signal(signal.SIGTERM, end)
with open(root + "/shim.new", "w") as file:
    file.write(str(os.getpid()))
os.rename(root + "/shim.new", root + "/shim.pid")
program.wait()
"""


def wish(node: str = "n1") -> LaunchNode:
    return LaunchNode(
        node=node,
        pool="pool",
        offer="std",
        place=Place("local", "here", "a", "a1"),
        capacity=Resources(1500, 2048, 2000, "h100"),
        price_micro_usd=1,
        spot=False,
        why="w",
    )


class Bench:
    """A place for nodes, and agents of several kinds."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.root = folder, folder / "local"
        self.quiet = StandIn(folder)
        self.quiet.gate.touch()
        (folder / "agent").mkdir()
        shim = folder / "agent" / "shim.py"
        shim.write_text(SHIM)
        self.busy = self.script("busy", WITH_REPLICA.format(shim=f"{sys.executable} -S {shim}"))
        self.providers: list[LocalProvider] = []

    def script(self, name: str, text: str) -> tuple[str, ...]:
        path = self.folder / name
        path.write_text(text)
        path.chmod(0o755)
        return (str(path),)

    def provider(
        self,
        command: tuple[str, ...] = (),
        credentials: Credentials = join,
        boot_ms: int = 0,
        capacity: int = 1_000,
        inherit_env: tuple[str, ...] = (),
        may_start: bool = True,
    ) -> LocalProvider:
        made = LocalProvider(
            self.root,
            credentials,
            agent_command=command or self.quiet.command,
            traits=LocalTraits(boot_ms=boot_ms, capacity=capacity),
            inherit_env=inherit_env,
            may_start=may_start,
        )
        self.providers.append(made)
        return made

    def node(self, name: str = "n1") -> Path:
        return self.root / "nodes" / name

    def agent_root(self, name: str = "n1") -> Path:
        return self.node(name) / "agent"

    def shim_pid(self, name: str = "n1") -> int:
        path = self.agent_root(name) / "shim.pid"
        until("the replica runs", path.exists)
        return int(path.read_text())

    def starts(self, name: str = "n1") -> list[str]:
        path = self.agent_root(name) / "starts"
        return path.read_text().splitlines() if path.exists() else []

    def agent_pid(self, name: str = "n1") -> int:
        until("the agent runs", lambda: bool(self.starts(name)))
        return int(self.starts(name)[-1].split()[0])

    def pids(self, name: str = "n1") -> list[int]:
        return [process.pid for process in tree.members(str(self.node(name)))]


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path)
    yield made
    end(made.provider(), made.providers)
    assert made.quiet.roots() == []


def is_gone(pid: int) -> bool:
    return tree.look(pid) is None


# what an agent is told


def test_an_agent_is_told_what_node_it_is_and_its_token_stays_secret(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_JOIN_TOKEN", "ours")
    asyncio.run(bench.provider(bench.busy).launch(wish()))
    pid = bench.agent_pid()
    said = bench.starts()[0]
    for words in (
        "--join http://127.0.0.1:1",
        "--name n1",
        "--pool pool --offer std",
        "--place local/here/a/a1",
        "--cpus 1.5 --memory 2048 --gpus 2 --gpu-kind h100",
        "--address 127.0.0.1 --allow-chaos",
        f"--checkpoints {bench.root}/checkpoints",
    ):
        assert words in said
    assert "token-of-n1" not in said
    token = bench.node() / "token"
    assert (token.read_text(), stat.S_IMODE(token.stat().st_mode)) == ("token-of-n1", 0o600)
    environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    ours = [entry for entry in environment if entry.startswith(b"HOLDFAST_")]
    assert ours == [f"HOLDFAST_NODE_ROOT={bench.node()}".encode()]


def test_an_agent_finds_no_credentials_of_the_control_plane_in_its_environment(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What runs there inherits it: a job read the keys of the cloud."""
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret-of-the-cloud")
    monkeypatch.setenv("HTTPS_PROXY", "http://me:secret@proxy")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2")
    monkeypatch.setenv("LICENSE_SERVER", "there")
    asyncio.run(bench.provider(bench.busy, inherit_env=("LICENSE_SERVER",)).launch(wish()))
    environment = Path(f"/proc/{bench.agent_pid()}/environ").read_text().split("\0")
    assert not [entry for entry in environment if "secret" in entry]
    assert {"CUDA_VISIBLE_DEVICES=2", "LICENSE_SERVER=there"} <= set(environment)


def test_where_nothing_may_be_started_what_runs_is_known_and_ended_and_no_more(bench: Bench) -> None:
    asyncio.run(bench.provider(bench.busy).launch(wish()))
    bench.agent_pid()

    async def story() -> None:
        closed = bench.provider(bench.busy, may_start=False)
        for start in (closed.launch(wish("n2")), closed.reset("n1")):
            with pytest.raises(Denied, match="--allow-local"):
                await start
        await closed.supervise()
        assert await closed.list("pool") == ("n1",)
        assert await closed.state("n1") is Word.RUNNING
        await closed.terminate("n1")
        assert await closed.list("pool") == ()

    asyncio.run(story())
    assert len(bench.starts()) <= 1


def test_an_agent_is_in_a_session_of_its_own_and_hears_nothing_of_our_terminal(bench: Bench) -> None:
    asyncio.run(bench.provider(bench.busy).launch(wish()))
    pid = bench.agent_pid()
    assert os.getsid(pid) == pid != os.getsid(0)


def test_the_certificates_to_trust_are_handed_on(bench: Bench) -> None:
    async def with_ca(node: str) -> Join:
        return Join(("https://127.0.0.1:1", "https://127.0.0.1:2"), "t", "PEM")

    provider = bench.provider(bench.busy, with_ca)
    asyncio.run(provider.launch(wish()))
    bench.agent_pid()
    assert f"--ca {bench.node()}/ca.pem" in bench.starts()[0]
    assert "--join https://127.0.0.1:1,https://127.0.0.1:2" in bench.starts()[0]
    assert (bench.node() / "ca.pem").read_text() == "PEM"


def test_what_an_agent_says_is_in_its_log_and_a_long_log_is_put_aside(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tree, "LOG_BYTES_MAX", 3)
    command = bench.script("loud", "#!/bin/sh\necho $$ says something\nexec sleep 1000\n")

    async def story() -> None:
        provider = bench.provider(command)
        await provider.launch(wish())
        until("it says it", lambda: "says something" in (bench.node() / "agent.log").read_text())
        first = (bench.node() / "agent.log").read_text()
        await provider.reset("n1")
        assert (bench.node() / "agent.log.1").read_text() == first
        until("it says it", lambda: "says something" in (bench.node() / "agent.log").read_text())

    asyncio.run(story())


# who belongs to a node


def test_terminating_ends_agent_shims_and_programs_and_leaves_no_folder(bench: Bench) -> None:
    async def story() -> None:
        provider = bench.provider(bench.busy)
        await provider.launch(wish())
        shim, agent = bench.shim_pid(), bench.agent_pid()
        everyone = bench.pids()
        assert {shim, agent} < set(everyone)
        await provider.terminate("n1")
        assert all(map(is_gone, everyone))
        assert not bench.node().exists()
        assert not Path(f"/proc/{agent}").exists(), "nor a zombie"

    asyncio.run(story())


ESCAPES = {
    "a program without our environment": "env -i sleep 1000",
    "a session of its own": "setsid sleep 1000",
    "a session of its own and no environment": "env -i setsid sleep 1000",
    "a pipeline in a session": "env -i setsid sh -c 'sleep 1000 | sleep 1000'",
}


@pytest.mark.parametrize("grouped", [True, False], ids=["with a control group", "without"])
@pytest.mark.parametrize("escape", ESCAPES)
def test_a_program_cannot_get_away(
    bench: Bench, escape: str, grouped: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not grouped:
        monkeypatch.setattr(tree, "make_cgroup", lambda root: "")
    command = bench.script("escaping", f"#!/bin/sh\n{ESCAPES[escape]} &\nwhile :; do sleep 1000; done\n")

    async def story() -> None:
        provider = bench.provider(command)
        await provider.launch(wish())
        until("all of it runs", lambda: len(sleepers(bench)) >= 2)
        everyone = bench.pids()
        await provider.terminate("n1")
        assert all(map(is_gone, everyone))

    asyncio.run(story())


def sleepers(bench: Bench) -> list[int]:
    return [pid for pid in bench.pids() if command_of(pid) == b"sleep\x001000\0"]


def test_a_daemon_that_forked_twice_and_has_no_environment_is_found_by_its_control_group(
    bench: Bench,
) -> None:
    note = bench.folder / "daemon"
    command = bench.script(
        "daemon-maker",
        f"#!/bin/sh\nenv -i setsid sh -c '(sleep 1000 & echo $! > {note}.new; mv {note}.new {note}) &'\n"
        "while :; do sleep 1000; done\n",
    )

    async def story() -> None:
        provider = bench.provider(command)
        await provider.launch(wish())
        if not tree.cgroup_of(str(bench.node())):
            pytest.fail("this machine offers no control group (version 2) that we may write to")
        until("the daemon runs", note.exists)
        daemon = int(note.read_text())
        assert daemon in bench.pids()
        await provider.terminate("n1")
        assert is_gone(daemon)

    asyncio.run(story())


def test_a_node_has_no_control_group_left_when_it_is_gone(bench: Bench) -> None:
    async def story() -> None:
        provider = bench.provider(bench.busy)
        await provider.launch(wish())
        path = tree.cgroup_of(str(bench.node()))
        bench.shim_pid()
        await provider.terminate("n1")
        assert not path or not Path(path).exists()

    asyncio.run(story())


def test_the_note_of_a_control_group_is_not_written_again(tmp_path: Path) -> None:
    """On a full disk it would be lost, and with it whatever lives in the group."""
    (tmp_path / "group" / "agent").mkdir(parents=True)
    (tmp_path / "group" / "cgroup.kill").touch()
    (tmp_path / "cgroup").write_text(str(tmp_path / "group"))
    os.utime(tmp_path / "cgroup", (1, 1))
    assert tree.make_cgroup(str(tmp_path)) == str(tmp_path / "group")
    assert (tmp_path / "cgroup").stat().st_mtime == 1


def test_other_nodes_and_strangers_are_left_alone(bench: Bench) -> None:
    stranger = subprocess.Popen(["sleep", "1000"])

    async def story() -> None:
        provider = bench.provider(bench.busy)
        for node in ("n1", "n10"):  # one name begins like the other
            await provider.launch(wish(node))
        others = [bench.agent_pid("n10"), bench.shim_pid("n10")]
        await provider.kill("n1")
        assert not any(map(is_gone, [*others, stranger.pid]))
        assert await provider.state("n10") is Word.RUNNING

    try:
        asyncio.run(story())
    finally:
        stranger.kill()
        stranger.wait()


def test_a_process_is_found_the_moment_it_was_started(tmp_path: Path) -> None:
    """In the middle of its `exec` it shows no environment, and was overlooked: an agent could live on."""
    for number in range(30):
        root = str(tmp_path / str(number))
        child = tree._spawn(["sleep", "1000"], tree.environment(root), 2)
        try:
            assert tree._root_of(child) == root
        finally:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)


def test_a_process_without_an_environment_holds_up_nobody() -> None:
    child = os.posix_spawnp("sleep", ["sleep", "1000"], {})
    try:
        assert all(child not in pids for pids in tree.survey().values())
        assert tree._after_exec(child) == b""
    finally:
        os.kill(child, signal.SIGKILL)
        assert tree._after_exec(child) == b"", "it has ended, and nobody waited for it"
        os.waitpid(child, 0)
    assert tree._root_of(child) == ""


def test_a_process_whose_first_thread_has_ended_is_found_at_once_and_holds_up_nobody(tmp_path: Path) -> None:
    """It shows no environment under its own number, but its threads do."""
    root = str(tmp_path)
    text = (
        "import ctypes, threading, time; threading.Thread(target=time.sleep, args=(1000,)).start();"
        " ctypes.CDLL(None).pthread_exit(None)"
    )
    child = tree._spawn([sys.executable, "-c", text], tree.environment(root), 2)
    try:
        until("its first thread ends", lambda: (found := tree.look(child)) is not None and found.state == "Z")
        begun = time.monotonic()
        assert tree.survey().get(root) == [child]
        assert [process.pid for process in tree.members(root)] == [child]
        assert time.monotonic() - begun < tree.EXEC_S, "nobody waited for an environment that does not come"
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def test_a_list_of_the_kernel_is_read_to_its_end() -> None:
    """It comes in parts that are smaller than a page: such is the list of a control group's processes."""
    text = "import asyncio, time; print(flush=True); time.sleep(1000)"
    with subprocess.Popen([sys.executable, "-c", text], stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        path = f"/proc/{child.pid}/maps"
        read, whole = tree._read(path), Path(path).read_bytes()
        child.kill()
    assert len(whole) > 4_096
    assert read == whole


def test_a_signal_does_not_go_to_whoever_got_the_pid_later() -> None:
    with subprocess.Popen(["sleep", "1000"]) as child:
        found = tree.look(child.pid)
        assert found is not None
        assert not tree.send(found._replace(start=found.start - 1), signal.SIGKILL)
        assert child.poll() is None
        assert tree.send(found, signal.SIGKILL)
        assert tree.wait([found], TIMEOUT_S) == []


def test_an_ended_process_that_nobody_waited_for_does_not_count_as_alive() -> None:
    with subprocess.Popen(["true"]) as child:
        until("it ends", lambda: is_gone(child.pid))
        assert child.wait() == 0


# chaos


def test_a_killed_node_is_off_and_its_provider_says_so(bench: Bench) -> None:
    async def story() -> None:
        provider = bench.provider(bench.busy)
        await provider.launch(wish())
        bench.shim_pid()
        everyone = bench.pids()
        await provider.kill("n1")
        assert all(map(is_gone, everyone))
        assert await provider.state("n1") is Word.STOPPED
        assert await provider.list("pool") == ("n1",), "it still has to be terminated"
        await provider.terminate("n1")

    asyncio.run(story())


def test_a_hung_node_does_not_move_and_still_runs_for_its_provider(bench: Bench) -> None:
    async def story() -> None:
        provider = bench.provider(bench.busy)
        await provider.launch(wish())
        bench.shim_pid()
        await provider.hang("n1")
        assert {process.state for process in tree.members(str(bench.node()))} == {"T"}
        assert await provider.state("n1") is Word.RUNNING
        await provider.resume("n1")
        assert "T" not in {process.state for process in tree.members(str(bench.node()))}

    asyncio.run(story())


def test_a_hung_node_can_be_terminated(bench: Bench) -> None:
    async def story() -> None:
        provider = bench.provider(bench.busy)
        await provider.launch(wish())
        bench.shim_pid()
        await provider.hang("n1")
        everyone = bench.pids()
        await provider.terminate("n1")
        assert all(map(is_gone, everyone))

    asyncio.run(story())


@pytest.mark.parametrize("deed", ["kill", "hang", "resume"])
def test_chaos_for_nobody_is_not_found(bench: Bench, deed: str) -> None:
    with pytest.raises(NotFound):
        asyncio.run(getattr(bench.provider(), deed)("nobody"))


def test_a_node_that_is_killed_while_it_boots_stays_off(bench: Bench) -> None:
    async def story() -> None:
        provider = bench.provider(boot_ms=200)
        await provider.launch(wish())
        await provider.kill("n1")
        async with supervised(provider):
            await asyncio.sleep(0.5)
        assert await provider.state("n1") is Word.STOPPED
        await provider.close()

    asyncio.run(story())
    assert bench.quiet.made() == []


# supervision


def test_an_agent_that_crashes_is_started_again_while_its_replica_goes_on(bench: Bench) -> None:
    async def story() -> None:
        provider = bench.provider(bench.busy)
        await provider.launch(wish())
        shim, agent = bench.shim_pid(), bench.agent_pid()
        async with supervised(provider):
            os.kill(agent, signal.SIGKILL)
            assert await provider.state("n1") is Word.RUNNING
            until_two = lambda: _length(bench, 2)  # noqa: E731
            await soon("it is started again", until_two)
        assert bench.shim_pid() == shim
        assert not is_gone(shim)
        assert bench.agent_pid() != agent

    asyncio.run(story())


def test_an_agent_whose_control_plane_is_gone_is_called_over_to_one_at_another_address(bench: Bench) -> None:
    """`up` was killed, and started again on another port. What the node runs goes on."""

    async def elsewhere(node: str) -> Join:
        return Join(("http://127.0.0.1:2",), f"token-of-{node}")

    async def story() -> None:
        await bench.provider(bench.busy).launch(wish())
        shim, agent = bench.shim_pid(), bench.agent_pid()
        async with supervised(bench.provider(bench.busy, elsewhere)):
            await soon("it is started again", lambda: _length(bench, 2))
        assert is_gone(agent)
        assert bench.shim_pid() == shim
        assert not is_gone(shim)

    asyncio.run(story())


def test_an_agent_whose_control_plane_answers_is_left_alone(bench: Bench) -> None:
    async def story() -> None:
        server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]

        async def here(node: str) -> Join:
            return Join((f"http://127.0.0.1:{port}",), f"token-of-{node}")

        await bench.provider(bench.busy, here).launch(wish())
        bench.shim_pid()
        async with supervised(bench.provider(bench.busy)):
            await asyncio.sleep(1)
        assert len(bench.starts()) == 1
        server.close()

    asyncio.run(story())


async def _length(bench: Bench, count: int) -> bool:
    return len(bench.starts()) >= count


def test_a_node_where_nothing_lives_is_dead_and_stays_dead(bench: Bench) -> None:
    async def story() -> None:
        provider = bench.provider()
        await provider.launch(wish())
        bench.quiet.wait()
        async with supervised(provider):
            for pid in bench.pids():
                os.kill(pid, signal.SIGKILL)
            await soon("it is off", lambda: _is(provider, Word.STOPPED))
            await asyncio.sleep(1)
        assert await provider.state("n1") is Word.STOPPED
        assert bench.quiet.made() == ["n1"]

    asyncio.run(story())


async def _is(provider: LocalProvider, word: Word) -> bool:
    return await provider.state("n1") is word


def test_an_agent_that_crashes_again_and_again_is_started_less_and_less_often(bench: Bench) -> None:
    command = bench.script(
        "crashing",
        '#!/bin/sh\nwhile [ $# -gt 0 ]; do [ "$1" = --root ] && root=$2; shift; done\n'
        'echo $$ $(date +%s%N) >> "$root/starts"\n'
        '[ -e "$root/replica" ] || { touch "$root/replica"; setsid sleep 1000 & }\nexit 1\n',
    )

    async def story() -> None:
        provider = bench.provider(command)
        await provider.launch(wish())
        async with supervised(provider):
            await soon("four starts", lambda: _length(bench, 4))
        assert await provider.state("n1") is Word.RUNNING

    asyncio.run(story())
    at = [int(line.split()[1]) for line in bench.starts()]
    assert at[3] - at[2] > 0.55e9, "the third wait is at least 0.6 s"


def test_what_a_control_plane_left_half_booted_is_booted_by_the_next_one(bench: Bench) -> None:
    async def first() -> None:
        provider = bench.provider(boot_ms=2_000)
        await provider.launch(wish())
        assert await provider.state("n1") is Word.RUNNING, "a machine that boots is not off"
        await provider.close()

    async def second() -> None:
        provider = bench.provider()
        async with supervised(provider):
            await soon("it boots", lambda: _made(bench, ["n1"]))

    asyncio.run(first())
    assert bench.quiet.made() == []
    asyncio.run(second())


async def _made(bench: Bench, names: list[str]) -> bool:
    return bench.quiet.made() == names


def test_an_agent_that_nobody_could_note_any_more_is_not_started_twice(bench: Bench) -> None:
    async def story() -> None:
        await bench.provider().launch(wish())
        (bench.node() / "started.json").unlink()  # the control plane ended between the two
        heir = bench.provider()
        await heir.launch(wish())
        bench.quiet.wait()
        assert bench.quiet.made() == ["n1"]
        assert (bench.node() / "started.json").exists()

    asyncio.run(story())


# many processes, one disk

RACER = """\
import asyncio, sys
from pathlib import Path
from holdfast.adapters.providers.local.provider import LocalProvider
from tests.integration.test_local_provider import wish
from tests.hub_twin import HubTwin, desired, wanted
from tests.stand_in import join
provider = LocalProvider(Path(sys.argv[1]), join, agent_command=sys.argv[2:])
sys.stdin.readline()
asyncio.run(provider.launch(wish()))
"""


def test_processes_that_race_for_one_name_make_one_machine(bench: Bench) -> None:
    here = Path(__file__).resolve().parents[2]
    racers = [
        subprocess.Popen(
            [sys.executable, "-c", RACER, str(bench.root), *bench.quiet.command],
            stdin=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=here,
        )
        for _ in range(3)
    ]
    for racer in racers:
        assert racer.stdin is not None
        racer.stdin.write(b"go\n")
        racer.stdin.flush()
    for racer in racers:
        _, errors = racer.communicate(timeout=60)
        assert (racer.returncode, errors) == (0, b"")
    bench.quiet.wait()
    assert bench.quiet.made() == ["n1"], "and it outlives who launched it"
    assert asyncio.run(bench.provider().state("n1")) is Word.RUNNING


def test_a_termination_that_was_broken_off_is_finished_by_the_next_control_plane(bench: Bench) -> None:
    async def story() -> None:
        provider = bench.provider(bench.busy)
        await provider.launch(wish())
        bench.shim_pid()
        everyone = bench.pids()
        (bench.node() / "ending").touch()  # as far as the first one came
        heir = bench.provider(bench.busy)
        assert await heir.list("pool") == ("n1",), "it exists, so somebody must end it"
        with pytest.raises(NotFound):
            await heir.reset("n1")
        await heir.launch(wish())
        assert len(bench.starts()) == 1
        await heir.terminate("n1")
        assert all(map(is_gone, everyone))

    asyncio.run(story())


@pytest.mark.parametrize("name", [".", "..", "../x", "a/b", ".new-x", "a b", "ü"])
def test_no_name_reaches_outside_its_folder(bench: Bench, name: str) -> None:
    async def story() -> None:
        provider = bench.provider()
        await provider.launch(wish(name))
        assert await provider.list("pool") == (name,)
        assert [path.parent.parent for path in bench.folder.rglob("launch.json")] == [bench.root / "nodes"]
        await provider.terminate(name)
        assert await provider.list("pool") == ()
        await provider.launch(wish(name))
        assert await provider.list("pool") == (), "spent"

    asyncio.run(story())


# failing


def test_what_cannot_be_looked_at_does_not_count_as_gone(bench: Bench) -> None:
    """Out of files, a machine seems to have no processes. Saying so would let a job run twice."""

    async def story() -> None:
        provider = bench.provider(bench.busy)
        await provider.launch(wish())
        everyone = [bench.agent_pid(), bench.shim_pid()]
        limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        await asyncio.to_thread(lambda: None)  # the thread is there before the files run out
        resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")), limits[1]))
        try:
            with pytest.raises(PortError):
                await provider.terminate("n1")
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        assert not any(map(is_gone, everyone))
        assert await provider.list("pool") == ("n1",)
        await provider.terminate("n1")
        assert all(map(is_gone, everyone))

    asyncio.run(story())


def test_a_file_among_the_nodes_is_none(bench: Bench) -> None:
    async def story() -> None:
        provider = bench.provider(bench.busy)
        await provider.launch(wish())
        (bench.root / "nodes" / "notes").write_text("not a node")
        assert await provider.list("pool") == ("n1",)
        bench.shim_pid()
        os.kill(bench.agent_pid(), signal.SIGKILL)
        async with supervised(provider):
            await soon("it is looked after", is_back)

    async def is_back() -> bool:
        return len(bench.starts()) == 2

    asyncio.run(story())


def test_the_same_folder_by_another_name_holds_the_same_nodes(bench: Bench) -> None:
    async def story() -> None:
        await bench.provider(bench.busy).launch(wish())
        bench.shim_pid()
        alias = bench.folder / "alias"
        alias.symlink_to(bench.root)
        heir = LocalProvider(alias, join, agent_command=bench.busy)
        everyone = bench.pids()
        await heir.terminate("n1")
        assert all(map(is_gone, everyone))

    asyncio.run(story())


def test_a_name_that_no_folder_can_have_is_told_to_a_person(bench: Bench) -> None:
    with pytest.raises(Denied, match="too long"):
        asyncio.run(bench.provider().launch(wish("n" * 300)))


def test_a_node_that_gets_no_credentials_is_not_launched(bench: Bench) -> None:
    async def refuse(node: str) -> Join:
        raise Unreachable("the store does not answer")

    provider = bench.provider(credentials=refuse)
    with pytest.raises(Unreachable, match="the store"):
        asyncio.run(provider.launch(wish()))
    assert asyncio.run(provider.list("pool")) == ()
    heir = bench.provider()
    asyncio.run(heir.launch(wish()))
    assert asyncio.run(heir.state("n1")) is Word.RUNNING, "its name was not spent"


def test_an_agent_that_cannot_be_started_is_told_to_a_person(bench: Bench) -> None:
    provider = bench.provider(("no-such-agent",))
    with pytest.raises(Denied, match="no-such-agent"):
        asyncio.run(provider.launch(wish()))
    assert asyncio.run(provider.list("pool")) == ()


def test_an_agent_that_ends_at_once_is_a_machine_that_is_off(bench: Bench) -> None:
    async def story() -> None:
        provider = bench.provider(("false",))
        await provider.launch(wish())
        await soon("it is off", lambda: _is(provider, Word.STOPPED))

    asyncio.run(story())


def test_a_full_machine_takes_no_more_until_one_leaves(bench: Bench) -> None:
    async def story() -> None:
        provider = bench.provider(capacity=1)
        await provider.launch(wish("n1"))
        with pytest.raises(CapacityShort, match="1 node"):
            await provider.launch(wish("n2"))
        await provider.terminate("n1")
        await provider.launch(wish("n2"))
        assert await provider.list("pool") == ("n2",)

    asyncio.run(story())


# the end


def test_stopping_all_lets_replicas_end_well_and_leaves_nothing(bench: Bench) -> None:
    async def story() -> None:
        provider = bench.provider(bench.busy)
        for node in ("n1", "n2", "n3"):
            await provider.launch(wish(node))
        everyone = [pid for node in ("n1", "n2", "n3") if bench.shim_pid(node) for pid in bench.pids(node)]
        notes = [bench.folder / f"{node}-agent" for node in ("n1", "n2", "n3")]
        for node, note in zip(("n1", "n2", "n3"), notes, strict=True):
            os.link(bench.agent_root(node) / "shim.pid", note)  # a way to look inside when it is gone
            (bench.agent_root(node) / "ended-well").symlink_to(note.with_suffix(".well"))
        await provider.hang("n3")
        async with supervised(provider):
            assert await provider.stop_all(20_000) == ("n1", "n2", "n3")
        assert all(note.with_suffix(".well").exists() for note in notes)
        assert all(map(is_gone, everyone))
        assert await provider.list("pool") == ()

    asyncio.run(story())


def test_stopping_all_does_not_wait_for_ever_for_a_replica_that_will_not_end(bench: Bench) -> None:
    (bench.folder / "agent" / "shim.py").write_text(
        SHIM.replace("signal.signal(signal.SIGTERM, end)", "signal.signal(signal.SIGTERM, signal.SIG_IGN)")
    )

    async def story() -> None:
        provider = bench.provider(bench.busy)
        await provider.launch(wish())
        shim = bench.shim_pid()
        assert await provider.stop_all(100) == ("n1",)
        assert is_gone(shim)
        await provider.launch(wish("n2"))
        bench.shim_pid("n2")
        hurry = asyncio.Event()
        async with asyncio.timeout(30), asyncio.TaskGroup() as group:
            stopping = group.create_task(provider.stop_all(3_600_000, hurry))
            await asyncio.sleep(0.3)
            assert not stopping.done()
            hurry.set()
        assert stopping.result() == ("n2",)

    asyncio.run(story())


# with the real agent


async def test_a_real_agent_joins_runs_a_replica_and_finds_it_again_after_a_crash(bench: Bench) -> None:
    async with HubTwin() as hub:
        provider = bench.provider(AGENT, joining(hub))
        await provider.launch(wish())
        line = await hub.welcomed()
        assert line.hello is not None
        assert (line.hello.node, line.hello.pool, line.hello.offer) == ("n1", "pool", "std")
        assert (line.hello.place, line.hello.capacity) == (wish().place, wish().capacity)
        assert (line.hello.token, line.hello.chaos) == ("token-of-n1", True)
        line.say(desired(1, wanted("web/0.1"), command=("sleep", "1000")))
        await line.report("web/0.1", "ready")
        agent = provider_agent(bench)
        async with supervised(provider):
            os.kill(agent, signal.SIGKILL)
            back = await hub.welcomed()
        assert back.hello is not None
        assert back.hello.running == ("web/0.1",), "the replica went on meanwhile"
        await provider.hang("n1")
        assert await provider.state("n1") is Word.RUNNING
        await provider.resume("n1")
        everyone = bench.pids()
        assert len(everyone) >= 3
        await provider.terminate("n1")
        assert all(map(is_gone, everyone))


async def test_real_replicas_end_well_when_all_is_stopped(bench: Bench) -> None:
    note = bench.folder / "ended-well"
    program = ("/bin/sh", "-c", f"trap 'touch {note}; exit 0' TERM; while :; do sleep 0.05; done")
    async with HubTwin() as hub:
        provider = bench.provider(AGENT, joining(hub))
        await provider.launch(wish())
        line = await hub.welcomed()
        line.say(desired(1, wanted("web/0.1"), command=program))
        await line.report("web/0.1", "ready")
        everyone = bench.pids()
        assert await provider.stop_all(20_000) == ("n1",)
        assert note.exists()
        assert all(map(is_gone, everyone))


def joining(hub: HubTwin) -> Credentials:
    async def credentials(node: str) -> Join:
        return Join((hub.url,), f"token-of-{node}")

    return credentials


def provider_agent(bench: Bench) -> int:
    found = tree.agent_of(str(bench.node()), str(bench.agent_root()))
    assert found is not None
    return found.pid
