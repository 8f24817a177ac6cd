"""A Slurm of our own for tests: munged, slurmctld and three slurmd in a temporary folder, on free loopback
ports, and no service of the machine touched.

The programs come from Debian's packages and are installed where they are missing. Nodes and their sizes are
pretended (`config_overrides`), jobs are real processes. Partitions:

    main            all three nodes
    low, high       the same two nodes; a job in `high` takes one from a job in `low`, with a grace of 30 s
    small           one node, jobs of at most one minute
    shut            takes no job
    down            takes jobs, and starts none

The scheduler is told to be quick; everything else is as an operator would have it.
"""

import contextlib
import getpass
import os
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path

from tests.packages import need, which
from tests.ports import free_ports
from tests.servers import Shared

START_S = 60.0
STOP_S = 30.0
NODES = ("n1", "n2", "n3")
GRACE_S = 30  # long enough that a busy machine hears of it in time

CONF = """\
ClusterName=holdfast
SlurmctldHost=localhost(127.0.0.1)
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.sock
CredType=cred/munge
SlurmctldPort={port}
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmdSpoolDir={folder}/d-%n
StateSaveLocation={folder}/ctl
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
SlurmctldDebug=verbose
SlurmdDebug=verbose
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
GresTypes=gpu
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU_Memory
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
ReturnToService=2
JobRequeue=1
MessageTimeout=3
KillWait=5
SchedulerType=sched/backfill
SchedulerParameters=batch_sched_delay=0,sched_interval=1,bf_interval=1
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
{nodes}
PartitionName=main Nodes=n[1-3] Default=YES MaxTime=INFINITE State=UP PriorityTier=5 PreemptMode=OFF
PartitionName=low Nodes=n[1-2] MaxTime=INFINITE State=UP PriorityTier=1 GraceTime={grace} PreemptMode=REQUEUE
PartitionName=high Nodes=n[1-2] MaxTime=INFINITE State=UP PriorityTier=9 PreemptMode=OFF
PartitionName=small Nodes=n3 MaxTime=1 State=UP PreemptMode=OFF
PartitionName=shut Nodes=n3 MaxTime=INFINITE State=DRAIN PreemptMode=OFF
PartitionName=down Nodes=n3 MaxTime=INFINITE State=DOWN PreemptMode=OFF
"""
NODE = (
    "NodeName={name} NodeHostname=localhost NodeAddr=127.0.0.1 Port={port} CPUs=8 RealMemory=64000 "
    "Gres=gpu:a100:2 State=UNKNOWN"
)
GRES = "Name=gpu Type=a100 File=/dev/null,/dev/zero\n"  # devices that every machine has


def programs() -> dict[str, str]:
    names = ("munged", "slurmctld", "slurmd", "sbatch", "squeue", "scancel", "scontrol", "sinfo")

    def find() -> dict[str, str] | None:
        found = {name: path for name in names if (path := which(name))}
        return found if len(found) == len(names) else None

    return need(find, "slurm-wlm", "munge")


class Slurm:
    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="holdfast-slurm-"))
        self.folder.chmod(0o755)  # munged insists that nobody else may write above its socket
        self.conf = self.folder / "slurm.conf"
        self.programs = programs()
        self.elsewhere = self.folder / "elsewhere.conf"  # of a cluster whose controller is never reached
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._write()

    def _write(self) -> None:
        ports = free_ports(len(NODES) + 1)
        nodes = "\n".join(NODE.format(name=n, port=p) for n, p in zip(NODES, ports[1:], strict=True))
        user = getpass.getuser()
        self.conf.write_text(
            CONF.format(folder=self.folder, port=ports[0], nodes=nodes, user=user, grace=GRACE_S)
        )
        lost = self.conf.read_text().replace(f"SlurmctldPort={ports[0]}", "SlurmctldPort=1")
        self.elsewhere.write_text(lost.replace("MessageTimeout=3", "MessageTimeout=1"))  # in seconds: refused
        (self.folder / "gres.conf").write_text(GRES)
        for name in ("ctl", *(f"d-{node}" for node in NODES)):
            (self.folder / name).mkdir()
        key = self.folder / "munge.key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o600)

    # the daemons

    def start(self) -> None:
        own = [f"--{name}-file={self.folder}/munge.{name}" for name in ("key", "pid", "log", "seed")]
        self._begin("munged", "--foreground", "--force", f"--socket={self.folder}/munge.sock", *own)
        self._until("munged listens", (self.folder / "munge.sock").exists)
        self.start_controller(clean=True)
        for node in NODES:
            self._begin(f"slurmd {node}", "-D", "-N", node, "-f", str(self.conf))
        self._until("all nodes are idle", lambda: self._states() == ["idle"] * len(NODES))

    def start_controller(self, *, clean: bool = False) -> None:
        if "slurmctld" not in self._running:
            self._begin("slurmctld", "-D", *(["-c"] if clean else []), "-f", str(self.conf))
        self._until("slurmctld answers", lambda: self.run("scontrol", "ping").returncode == 0)

    def stop_controller(self, number: signal.Signals = signal.SIGTERM) -> None:
        """One that is killed forgets the jobs of the last seconds."""
        self._end("slurmctld", number)

    def pause_controller(self) -> None:
        """It neither answers nor closes anything."""
        self._running["slurmctld"].send_signal(signal.SIGSTOP)

    def resume_controller(self) -> None:
        self._running["slurmctld"].send_signal(signal.SIGCONT)

    def remove(self) -> None:
        if "slurmctld" in self._running:
            self.resume_controller()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.run("scancel", f"--user={getpass.getuser()}")
        for name in reversed(list(self._running)):
            self._end(name, signal.SIGTERM)
        shutil.rmtree(self.folder, ignore_errors=True)

    def _begin(self, name: str, *words: str) -> None:
        with (self.folder / "out.log").open("ab") as out:
            self._running[name] = subprocess.Popen(
                [self.programs[name.split()[0]], *words],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
                env=self.environment,
            )

    def _end(self, name: str, number: signal.Signals) -> None:
        process = self._running.pop(name)
        process.send_signal(number)
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(STOP_S)

    # its commands

    @property
    def environment(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("SLURM_")}
        return kept | {"SLURM_CONF": str(self.conf)}

    def run(self, name: str, *words: str, stdin: str = "") -> "subprocess.CompletedProcess[str]":
        command = [self.programs[name], *words]
        return subprocess.run(
            command, input=stdin, capture_output=True, text=True, timeout=STOP_S, env=self.environment
        )

    def ask(self, name: str, *words: str, stdin: str = "") -> str:
        done = self.run(name, *words, stdin=stdin)
        assert done.returncode == 0, f"{name} {words}: {done.stderr}"
        return done.stdout.strip()

    def jobs(self, *words: str) -> list[tuple[int, str, str]]:
        """Those that have not ended: number, name, state."""
        lines = self.ask("squeue", "-h", "-o", "%i %j %T", *words).splitlines()
        return [(int(number), name, state) for number, name, state in map(str.split, lines)]

    def end_all(self) -> None:
        """No job is left when it returns."""
        self.ask("scancel", f"--user={getpass.getuser()}")
        self._until("no job is left", lambda: not self.jobs())

    def _states(self) -> list[str]:
        return self.run("sinfo", "-h", "-N", "-p", "main", "-o", "%T").stdout.split()

    def _until(self, what: str, holds: "object") -> None:
        assert callable(holds)
        end = time.monotonic() + START_S
        while not holds():
            for name, process in self._running.items():
                assert process.poll() is None, f"{name} ended: {self._said()}"
            assert time.monotonic() < end, f"not within {START_S:g} s: {what}: {self._said()}"
            time.sleep(0.05)

    def _said(self) -> str:
        logs = sorted(self.folder.glob("*.log"))
        return "\n".join(f"{path.name}: {path.read_text(errors='replace')[-1500:]}" for path in logs)


shared = Shared(Slurm)
