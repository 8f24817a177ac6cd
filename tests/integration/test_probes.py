"""Probes that are commands: all that holds a program holds them too, and nothing that they or the program do
holds up the agent, the shim or a neighbour.

As root, with a user for each workload, unless it says otherwise. Programs are shell scripts: the Python that
runs the tests may be where only root can look."""

import asyncio
import contextlib
import ctypes
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from holdfast.agent import health, probes, procfs, users
from holdfast.agent.users import Users
from holdfast.core.agent.machine import Brief, Wanted
from holdfast.model.event import Ended
from holdfast.model.program import Probe, Program
from holdfast.ports.private_folder import PASSAGE
from holdfast.ports.runtime import Task
from tests.runtime_rig import PROGRAMS, Node, Rig, alive, boot_ms, rig_in, until, writable_group

LONG_MS = 600_000
LEASE_MS = 6_000
NUMBER = 1_000 + int.from_bytes(os.urandom(3), "big")  # nobody else on this machine runs as it
USER = users.FIRST + NUMBER
AS_NOBODY = (
    *("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"),
    *("--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search"),
)
PEOPLE = Users(users.FIRST, users.COUNT, own_tmp=True)
only_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give its rights away")
both = pytest.mark.parametrize("exclusive", [False, True], ids=["service", "job"])
SLOW_LOOP_S = 10.0

# Out of its group and its session, without its environment, and nobody's child.
ESCAPE = """
(setsid env -i PATH="$PATH" sh -c '(while :; do echo out >> "$0"; sleep 0.02; done) &' "$PWD/escaped" &)
while [ ! -s escaped ]; do sleep 0.01; done
"""
# The program writes its own probe, and only then is there one.
OWN_CHECK = 'printf %s "$CHECK" > new; chmod 755 new; mv new check; exec sleep 1000'


@pytest.fixture
def public() -> Iterator[Path]:
    """Where others can get, and not below /tmp, which each replica has of its own."""
    folder = Path(tempfile.mkdtemp(prefix="holdfast-", dir="/var/lib" if os.geteuid() == 0 else None))
    folder.chmod(PASSAGE)
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def rig(public: Path) -> Iterator[Rig]:
    with rig_in(public, writable_group()) as rig:
        yield rig


@contextlib.asynccontextmanager
async def node_of(rig: Rig, lease_ms: int = LONG_MS, **more: Any) -> AsyncIterator[Node]:
    async with rig.node(users=PEOPLE if os.geteuid() == 0 else None, **more) as node:
        node.runtime.renew(boot_ms() + lease_ms)
        yield node


def patient_probe(*command: str, **more: Any) -> Probe:
    given = {"every_ms": 30, "timeout_ms": LONG_MS, "failures": 1_000_000}
    return Probe(exec=command, **(given | more))


async def begin(
    node: Node, workload: str, script: str, *, exclusive: bool = False, number: int = 0, **more: Any
) -> str:
    wanted = Wanted(f"{workload}/0.1", f"{workload}/0", 1, exclusive=exclusive)
    program = Program(("sh", "-c", script), **more)
    await node.runtime.start(Task(wanted, workload, Brief(program, 10_000, number), 0))
    return wanted.replica


def said_to_run(rig: Rig, name: str) -> dict[str, int]:
    lines = (rig.folder(name) / "running").read_text().splitlines()
    return {what: int(pid) for what, pid in (line.split(" ", 1) for line in lines)}


def of_user(user: int = USER) -> list[int]:
    found = []
    for name in os.listdir("/proc"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            if name.isdigit() and os.stat(f"/proc/{name}").st_uid == user and alive(int(name)):
                found.append(int(name))
    return found


def answered(node: Node, name: str, text: str) -> Callable[[], bool]:
    return lambda: text in node.runtime.answers().get(name, "")


def written(path: Path) -> bool:
    return path.exists() and path.stat().st_size > 0


async def worst_pause(of: list[float]) -> None:
    """How long the loop did not turn, at most."""
    loop = asyncio.get_running_loop()
    before = loop.time()
    while True:
        await asyncio.sleep(0.01)
        of.append(loop.time() - before)
        before = loop.time()


# they end with their replica


@only_root
@pytest.mark.parametrize(
    ("exclusive", "ending"),
    [
        (False, "stop"),
        (False, "shim"),
        (True, "stop"),
        (True, "shim"),
        (True, "init"),
        (True, "lease"),
        (True, "lease without a namespace"),
    ],
)
async def test_what_a_probe_started_does_not_outlive_its_replica(
    rig: Rig, exclusive: bool, ending: str
) -> None:
    """The program rewrites its own check, and that hides from everybody."""
    fences, contain = ending.startswith("lease"), ending != "lease without a namespace"
    async with node_of(rig, LEASE_MS if fences else LONG_MS, contain=contain) as node:
        check = f"#!/bin/sh\n{ESCAPE}\nexec sleep 1000"
        name = await begin(
            node,
            "a",
            OWN_CHECK,
            exclusive=exclusive,
            number=NUMBER,
            env={"CHECK": check},
            alive=patient_probe("./check"),
        )
        await until(lambda: written(rig.folder(name) / "work" / "escaped"))
        if ending == "stop":
            node.runtime.stop(name, boot_ms())
        elif not fences:
            os.kill(said_to_run(rig, name)[ending], signal.SIGKILL)
        how = Ended.FENCED if fences else Ended.STOPPED if ending == "stop" else Ended.FAILED
        assert (await node.exit(name)).how is how
        if exclusive:
            assert of_user() == [], "its end was told before it was the end"
        await until(lambda: of_user() == [])


@only_root
@both
async def test_what_a_probe_leaves_behind_ends_with_the_probe(rig: Rig, exclusive: bool) -> None:
    async with node_of(rig) as node:
        more: dict[str, Any] = {
            "env": {"CHECK": f"#!/bin/sh\n{ESCAPE}"},
            "ready": patient_probe("./check"),
        }
        name = await begin(node, "a", OWN_CHECK, exclusive=exclusive, number=NUMBER, **more)
        await node.ready(name)
        assert written(rig.folder(name) / "work" / "escaped")
        await until(lambda: len(of_user()) == 1)  # the program
        assert name not in node.exits


async def test_a_probe_ends_when_its_agent_does(rig: Rig) -> None:
    async with node_of(rig) as node:
        script = "echo $$ > new; mv new probe; exec sleep 1000"
        name = await begin(node, "a", "exec sleep 1000", alive=patient_probe("sh", "-c", script))
        probe = rig.folder(name) / "work" / "probe"
        await until(probe.exists)
        pid = int(probe.read_text())
        assert alive(pid)
    await until(lambda: not alive(pid))


BELOW = """
import os, sys, time
from holdfast.agent import kernel, procfs
first = kernel.fork_into_namespaces(user=os.geteuid() != 0)
if first:
    os._exit(os.waitstatus_to_exitcode(os.waitpid(first, 0)[1]))
kernel.adopt_orphans()
if os.fork() == 0:
    if os.fork() == 0:
        os.setsid()
        time.sleep(1000)
    os._exit(0)
os.wait()
procfs.kill_below()
os._exit(os.WTERMSIG(os.wait()[1]))
"""


def test_what_hides_is_found_also_where_proc_counts_otherwise() -> None:
    """As where no /proc of its own can be mounted."""
    done = subprocess.run([sys.executable, "-c", BELOW], timeout=60)
    if done.returncode == 1:
        pytest.skip("no namespaces here")
    assert done.returncode == signal.SIGKILL


# they hold up nobody


@only_root
@both
async def test_a_program_that_stops_all_that_it_can_holds_up_only_itself(rig: Rig, exclusive: bool) -> None:
    """A probe of it is stopped before it has become the command, or after."""
    async with node_of(rig) as node:
        pauses: list[float] = []
        ticking = asyncio.create_task(worst_pause(pauses))
        stop = "while :; do kill -STOP -1; done"
        alive = patient_probe("true", timeout_ms=300)
        name = await begin(node, "stopper", stop, exclusive=exclusive, number=NUMBER, alive=alive)
        await until(answered(node, name, "no answer within 300 ms"))
        other = await begin(node, "b", "exec sleep 1000", ready=patient_probe("true"))
        await node.ready(other)
        node.runtime.stop(name, boot_ms())
        await node.exit(name)
        await until(lambda: of_user() == [])
        ticking.cancel()
        assert max(pauses) < SLOW_LOOP_S


LEASE = """
import fcntl, os, signal, sys, time
signal.signal(signal.SIGIO, signal.SIG_IGN)
handle = os.open(sys.argv[1], os.O_RDONLY)
while True:
    try:
        fcntl.fcntl(handle, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        break
    except OSError:
        time.sleep(0.01)
print("leased", flush=True)
time.sleep(1000)
"""


@only_root
@both
async def test_a_command_that_does_not_let_itself_be_run_holds_up_only_itself(
    rig: Rig, exclusive: bool
) -> None:
    """With a lease on the file: whoever executes it waits until the lease is given back."""
    async with node_of(rig) as node:
        pauses: list[float] = []
        ticking = asyncio.create_task(worst_pause(pauses))
        alive = patient_probe("./check", timeout_ms=300)
        env = {"CHECK": "#!/bin/sh\nexit 0"}
        script = OWN_CHECK.replace("mv new", "touch made; while [ ! -e leased ]; do sleep 0.01; done; mv new")
        name = await begin(node, "a", script, exclusive=exclusive, number=NUMBER, env=env, alive=alive)
        work = rig.folder(name) / "work"
        await until((work / "made").exists)
        hold = [sys.executable, "-c", LEASE, str(work / "new")]
        with subprocess.Popen(hold, stdout=subprocess.PIPE) as holder:
            try:
                assert holder.stdout
                assert holder.stdout.readline() == b"leased\n"
                (work / "leased").touch()
                await until(answered(node, name, "no answer within 300 ms"))
                other = await begin(node, "b", "exec sleep 1000", ready=patient_probe("true"))
                await node.ready(other)
                node.runtime.stop(name, boot_ms())
                assert (await node.exit(name)).how is Ended.STOPPED
            finally:
                holder.kill()
        ticking.cancel()
        assert max(pauses) < SLOW_LOOP_S


@both
async def test_an_ask_that_nobody_answers_is_a_failed_probe_and_no_more(rig: Rig, exclusive: bool) -> None:
    async with node_of(rig) as node:
        alive = patient_probe("true", timeout_ms=300)
        name = await begin(node, "a", "exec sleep 1000", exclusive=exclusive, alive=alive)
        await node.ready(name)
        who = said_to_run(rig, name)["init" if exclusive else "shim"]
        os.kill(who, signal.SIGSTOP)
        await until(answered(node, name, "no answer within 300 ms"))
        os.kill(who, signal.SIGCONT)
        await until(lambda: name not in node.runtime.answers())
        assert name not in node.exits


async def test_only_so_many_probes_of_a_replica_run_at_a_time(rig: Rig) -> None:
    async with node_of(rig) as node:
        probe = patient_probe("sh", "-c", "echo >> begun; exec sleep 1000", every_ms=LONG_MS)
        name = await begin(node, "a", "exec sleep 1000", alive=probe)
        await node.ready(name)
        patient = health.Patient(0, str(rig.folder(name)))
        begun = rig.folder(name) / "work" / "begun"
        asks = []
        for _ in range(probes.PLACES):
            asks.append(asyncio.create_task(health.ask(probes.ALIVE, probe, patient)))
            await until(lambda: begun.exists() and begun.stat().st_size == len(asks))
        assert await health.ask(probes.ALIVE, probe, patient) == "earlier ones have not ended yet"
        for each in asks:
            each.cancel()
        late = msgspec.structs.replace(probe, timeout_ms=50)
        await until(lambda: len(below(rig, name)) == 1)
        assert await health.ask(probes.ALIVE, late, patient) == "no answer within 50 ms"


def below(rig: Rig, name: str) -> list[int]:
    seen = procfs.scan()
    return procfs.descendants(rig.shim(name), seen, procfs.families(seen))


# they see what their program sees

SECRET = "swordfish"


@only_root
@both
async def test_a_workdir_that_becomes_a_link_leads_a_probe_nowhere(
    rig: Rig, public: Path, exclusive: bool
) -> None:
    """Folders of another workload that are open below one that is closed; and one of root."""
    async with node_of(rig) as node:
        save = f"umask 022; mkdir step; echo {SECRET} > step/model; touch done; exec sleep 1000"
        await begin(node, "victim", f"cd $HOLDFAST_CHECKPOINT_DIR; {save}")
        victim = rig.checkpoints / "victim" / "0"
        await until((victim / "done").exists)
        closed = public / "closed"
        (closed / "step").mkdir(parents=True)
        (closed / "step" / "model").write_text(SECRET)
        closed.chmod(0o700)
        room = public / "room"
        room.mkdir()
        room.chmod(0o777)
        for number, target in enumerate((victim / "step", closed / "step")):
            door = room / f"door{number}"
            door.mkdir()
            said = room / f"said{number}"
            turn = f"rmdir {door}; ln -s {target} {door}; exec sleep 1000"
            probe = patient_probe("sh", "-c", f"(pwd -P; ls; cat model) >> {said} 2>&1; false")
            name = await begin(
                node, f"thief{number}", turn, exclusive=exclusive, workdir=str(door), alive=probe
            )
            await until(answered(node, name, "cannot enter the folder"))
            assert not said.exists() or SECRET not in said.read_text()


@only_root
@both
async def test_what_a_program_mounts_for_itself_no_probe_sees(
    rig: Rig, public: Path, exclusive: bool
) -> None:
    tool = shutil.which("env") or ""
    room = public / "room"
    room.mkdir()
    room.chmod(0o777)
    fake = f"#!/bin/sh\necho faked >> {room}/faked"
    async with node_of(rig) as node:
        script = (
            f'printf %s "$FAKE" > fake; chmod 755 fake; exec unshare -rm sh -c "mount --bind fake {tool}'
            f' && mount -t tmpfs none {room} && echo mounted && exec sleep 1000"'
        )
        ready = patient_probe("sh", "-c", f"test -e {room}/go && {tool} > /dev/null && echo > {room}/asked")
        name = await begin(node, "a", script, exclusive=exclusive, env={"FAKE": fake}, ready=ready)
        await until(lambda: "mounted" in node.log(name) or name in node.exits)
        if name in node.exits:
            pytest.skip(f"users cannot mount here: {node.log(name)}")
        (room / "go").touch()
        await node.ready(name)
        assert (room / "asked").exists()
        assert not (room / "faked").exists()


SAYS = """
grep -E '^(Uid|Gid|Groups|Cap|NoNewPrivs)' /proc/self/status
grep -E 'processes|files' /proc/self/limits
cat /proc/self/cgroup /proc/self/oom_score_adj
readlink /proc/self/ns/pid /proc/self/ns/user
pwd; umask; nice; env | grep -v ^_= | sort; ls -a /tmp
"""


@both
async def test_a_probe_is_held_by_all_that_holds_its_program(rig: Rig, exclusive: bool) -> None:
    async with node_of(rig) as node:
        ready = patient_probe("sh", "-c", f"test -e program && ({SAYS}) > probe 2>&1")
        script = f"touch /tmp/holdfast-{os.getpid()}; ({SAYS}) > new 2>&1; mv new program; exec sleep 1000"
        name = await begin(node, "a", script, exclusive=exclusive, ready=ready)
        await node.ready(name)
        program, probe = ((rig.folder(name) / "work" / each).read_text() for each in ("program", "probe"))
        assert program == probe
        assert "NoNewPrivs" in program
        if os.geteuid() == 0:
            assert "CapBnd:\t0000000000000000" in program
    Path(f"/tmp/holdfast-{os.getpid()}").unlink(missing_ok=True)


@both
async def test_what_attends_a_probe_is_not_counted_as_its_program(rig: Rig, exclusive: bool) -> None:
    async with node_of(rig, cgroup_root=None) as node:
        probe = patient_probe("sh", "-c", ": > asked; exec sleep 1000")
        name = await begin(node, "a", "exec sleep 1000", exclusive=exclusive, alive=probe)
        await until((rig.folder(name) / "work" / "asked").exists)
        await until(lambda: len(below(rig, name)) == (4 if exclusive else 3))
        await until(lambda: name in node.runtime.usage())
        assert node.runtime.usage()[name].memory_mib <= 6


KEYS = Path("/proc/keys")


@only_root
@pytest.mark.skipif(not KEYS.exists(), reason="this kernel keeps no keys, or does not show them")
@both
async def test_a_key_of_the_agents_session_is_not_its_replicas(rig: Rig, exclusive: bool) -> None:
    key = f"holdfast-{os.getpid()}-{os.urandom(4).hex()}"
    add_key({"x86_64": (250, 248)}.get(os.uname().machine, (219, 217)), key)
    assert key in KEYS.read_text()
    async with node_of(rig) as node:
        # No proof without the word: what cannot be read has no such line either.
        look = f"cat /proc/keys > keys && grep -c {key} keys"
        ready = patient_probe("sh", "-c", f"cat /proc/keys > probe && ! grep {key} probe")
        name = await begin(
            node, "a", f"{look}; echo looked; exec sleep 1000", exclusive=exclusive, ready=ready
        )
        assert (await node.said("looked", name)).splitlines()[0] == "0"
        await node.ready(name)


def add_key(numbers: tuple[int, int], name: str) -> None:
    """To a new session keyring of ours: as others may be in the one we had."""
    keyctl, add = numbers
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.syscall(ctypes.c_long(keyctl), ctypes.c_long(1), None) < 0:
        pytest.skip("keys may not be used here")
    session = ctypes.c_long(-3)
    got = libc.syscall(ctypes.c_long(add), b"user", name.encode(), b"x", ctypes.c_long(1), session)
    assert got > 0, os.strerror(ctypes.get_errno())


# who asks, and who answers

ASK = """
import os, socket, sys
user = int(sys.argv[2])
os.setgroups([]); os.setresgid(user, user, user); os.setresuid(user, user, user)
asking = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
try:
    asking.connect(sys.argv[1])
    asking.send(b"alive")
    print("answer:", asking.recv(100))
except OSError as error:
    print(error.strerror)
"""


@only_root
@both
async def test_a_shim_is_asked_by_its_agent_and_by_nobody_else(rig: Rig, exclusive: bool) -> None:
    async with node_of(rig) as node:
        probe = patient_probe("sh", "-c", "echo >> asked", every_ms=LONG_MS)
        name = await begin(node, "a", "exec sleep 1000", exclusive=exclusive, number=NUMBER, alive=probe)
        await node.ready(name)
        ask = [sys.executable, "-c", ASK, str(rig.folder(name) / "ask"), str(USER)]
        assert subprocess.run(ask, capture_output=True, text=True).stdout == "Permission denied\n"
        (rig.folder(name) / "ask").chmod(0o777)
        said = subprocess.run(ask, capture_output=True, text=True).stdout
        assert said in ("answer: b''\n", "Connection reset by peer\n", "Broken pipe\n")
        assert not (rig.folder(name) / "work" / "asked").exists()
        patient = health.Patient(0, str(rig.folder(name)))
        assert await health.ask(probes.ALIVE, probe, patient) == ""
        assert await health.ask(probes.READY, probe, patient) == "there is no such probe"


@both
async def test_commands_are_asked_for_after_another_agent_took_over(rig: Rig, exclusive: bool) -> None:
    ready = patient_probe("test", "-e", "open")
    async with node_of(rig) as node:
        name = await begin(node, "a", "exec sleep 1000", exclusive=exclusive, ready=ready)
        await until(lambda: node.runtime.answers().get(name))
        assert node.runtime.answers()[name] == "readiness probe: test: exit code 1"
    async with node_of(rig) as node:
        assert [found.ready for found in node.adopted] == [False]
        (rig.folder(name) / "work" / "open").touch()
        await node.ready(name)


async def test_a_shim_of_an_older_version_is_said_to_run_no_commands(rig: Rig) -> None:
    """It has no such socket."""
    async with node_of(rig) as node:
        name = await begin(
            node, "a", "exec sleep 1000", alive=patient_probe("touch", "asked", every_ms=LONG_MS)
        )
        await node.ready(name)
        (rig.folder(name) / "ask").unlink()
        patient = health.Patient(0, str(rig.folder(name)))
        said = await health.ask(probes.ALIVE, patient_probe("touch", "asked"), patient)
        assert said.startswith("its shim is of an older version")
        assert not (rig.folder(name) / "work" / "asked").exists()


@both
async def test_the_answer_says_what_happened(rig: Rig, exclusive: bool) -> None:
    why = {
        ("true",): "",
        ("sh", "-c", "exit 3"): "sh: exit code 3",
        ("sh", "-c", "kill -SEGV $$"): "sh: killed by signal 11",
        ("no-such-probe",): "no such command: no-such-probe",
        ("./nothing",): "no such command: ./nothing",
        ("x" * 2_000,): "cannot run " + "x" * 889,
    }
    async with node_of(rig) as node:
        for number, (command, said) in enumerate(why.items()):
            probe = patient_probe(*command, every_ms=LONG_MS)
            name = await begin(node, f"a{number}", "exec sleep 1000", exclusive=exclusive, alive=probe)
            await node.ready(name)
            asked = health.ask(probes.ALIVE, probe, health.Patient(0, str(rig.folder(name))))
            assert await asked == said


# as a plain user


def said_as_nobody(folder: Path, probing: dict[str, Any], *, exclusive: bool) -> list[str]:
    """By a node of a plain user that runs one replica with these probes until it ends."""
    command = [*AS_NOBODY, sys.executable, str(PROGRAMS / "node.py"), str(folder / "node"), str(LONG_MS)]
    program = Program(("sleep", "1000"), **probing)
    task = Task(Wanted("a/0.1", "a/0", 1, exclusive=exclusive), "a", Brief(program, 1_000), 0)
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as node:
        assert node.stdin
        assert node.stdout
        node.stdin.write(msgspec.json.encode(task).decode() + "\n")
        node.stdin.flush()
        try:
            return [node.stdout.readline().strip() for _ in range(2)]
        finally:
            node.kill()


@pytest.fixture
def nobodys() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="holdfast-"))
    os.chown(folder, 65534, 65534)
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@only_root
@both
def test_commands_are_run_for_a_plain_user_too(nobodys: Path, exclusive: bool) -> None:
    probing = {
        "ready": patient_probe("sh", "-c", "test $(id -u) = 65534 && touch asked"),
        "alive": patient_probe("test", "!", "-e", "asked", failures=1),
    }
    said = said_as_nobody(nobodys, probing, exclusive=exclusive)
    assert said == ["ready a/0.1", "ended a/0.1 failed proven"]


@only_root
def test_a_probe_that_took_other_rights_is_judged_by_its_exit_code(nobodys: Path) -> None:
    """It cannot be signalled by whoever attends it."""
    tool = nobodys / "sh"
    shutil.copy(shutil.which("dash") or "/bin/sh", tool)
    os.chown(tool, 0, 0)
    tool.chmod(0o4755)
    probing = {
        "ready": patient_probe(str(tool), "-p", "-c", "exit 0"),
        "alive": patient_probe(str(tool), "-p", "-c", "exit 3", failures=1),
    }
    said = said_as_nobody(nobodys, probing, exclusive=False)
    assert said == ["ready a/0.1", "ended a/0.1 failed proven"]
