"""What a program finds when it starts, and where it reads later what has changed.

    PORT, HOLDFAST_PORT           the port it was given on its node
    HOLDFAST_NODE                 where it runs
    HOLDFAST_WORKLOAD, _SLOT      which seat of which workload it fills
    HOLDFAST_INDEX                the number of that seat
    HOLDFAST_REPLICA, _EPOCH      which filling of it: a higher epoch is its heir
    HOLDFAST_ROLE                 active or standby, when it started
    HOLDFAST_CHECKPOINT_DIR       kept from one filling of the seat (or of the gang) to the next
    HOLDFAST_RESUME_MS            the work that its last known checkpoint holds
    HOLDFAST_PROGRESS_FILE        where it may write that number when it has saved another
    HOLDFAST_STATE_FILE           JSON of what may change: role, epoch, slot, gang, rank, peers, master
    HOLDFAST_GATEWAY_SECRET       of a service with `serves`: what gateways send as a bearer token
    HOLDFAST_RANK, _WORLD_SIZE, _PEERS   in a gang, as it was at the start
    RANK, WORLD_SIZE, LOCAL_RANK  the same by the names that frameworks read
    MASTER_ADDR, MASTER_PORT      in a gang: the node of rank 0, and the port that was given to rank 0
    CUDA_VISIBLE_DEVICES          the GPUs it was given, if it asked for any, in the order of the PCI bus
    HOME, USER, LOGNAME           of a user of its own (`users.py`): its folder, and its workload's name

Everything else is the agent's own environment, without its secrets.
"""

import signal

import msgspec

from holdfast.core.agent.machine import Peer, Wanted
from holdfast.ports.runtime import Task

MARK = "HOLDFAST_SHIM"  # inherited by everything that the program starts
PROBE_MARK = "HOLDFAST_PROBE"  # of probes that agents of an older version ran
_SECRET = "HOLDFAST_TOKEN"
_OF_A_USER = ("XDG_", "TMPDIR", "TMP", "TEMP", "MAIL")  # begin what holds for the agent's user only


class Folders(msgspec.Struct, frozen=True):
    """Of one replica."""

    own: str
    log: str
    checkpoint: str

    @property
    def work(self) -> str:
        return f"{self.own}/work"

    @property
    def state(self) -> str:
        return f"{self.own}/state.json"

    @property
    def out(self) -> str:
        return f"{self.own}/out"

    @property
    def tmp(self) -> str:
        return f"{self.own}/tmp"

    @property
    def written(self) -> tuple[str, ...]:
        """Where its program may write, apart from its log."""
        return self.work, self.out, self.tmp, self.checkpoint

    @property
    def progress(self) -> str:
        return f"{self.out}/progress"


class State(msgspec.Struct, frozen=True):
    """What a program reads in HOLDFAST_STATE_FILE."""

    role: str
    epoch: int
    slot: str
    gang: int
    rank: int
    peers: tuple[str, ...]  # address:port, by rank
    checkpoint_dir: str = ""  # of its seat: a standby that is promoted goes on from there
    world_size: int = 0
    master_addr: str = ""  # of rank 0
    master_port: int = 0


def state_of(wanted: Wanted, checkpoint: str = "") -> State:
    peers = tuple(f"{peer.address}:{peer.port}" for peer in wanted.peers)
    names = [peer.replica for peer in wanted.peers]
    rank = names.index(wanted.replica) if wanted.replica in names else 0
    master = wanted.peers[0] if wanted.peers else Peer("", "", 0)
    return State(
        role=wanted.role.value,
        epoch=wanted.epoch,
        slot=wanted.slot,
        gang=wanted.gang,
        rank=rank,
        peers=peers,
        checkpoint_dir=checkpoint,
        world_size=len(peers),
        master_addr=master.address,
        master_port=master.port,
    )


def seat_of(slot: str) -> str:
    """`0` of `web/0`, `s0` of `web/s0`."""
    return slot.rpartition("/")[2]


def shims(env: dict[str, str]) -> dict[str, str]:
    """For the shim itself: what tells whose process it is, and nothing else."""
    return {name: value for name, value in env.items() if name.startswith("HOLDFAST_")}


def environ_of(
    task: Task, inherited: dict[str, str], folders: Folders, mark: str, user: int = 0
) -> dict[str, str]:
    """`user`: of its own; 0: it is the agent's."""
    wanted, state = task.wanted, state_of(task.wanted)
    env = {name: value for name, value in inherited.items() if not name.startswith(_SECRET)}
    if user:
        env = {name: value for name, value in env.items() if not name.startswith(_OF_A_USER)}
        env |= {"HOME": folders.work, "USER": task.workload, "LOGNAME": task.workload}
    env |= task.brief.program.env
    env |= {
        "PORT": str(task.port),
        "HOLDFAST_PORT": str(task.port),
        "HOLDFAST_WORKLOAD": task.workload,
        "HOLDFAST_REPLICA": wanted.replica,
        "HOLDFAST_SLOT": wanted.slot,
        "HOLDFAST_INDEX": seat_of(wanted.slot).removeprefix("s"),
        "HOLDFAST_EPOCH": str(wanted.epoch),
        "HOLDFAST_ROLE": state.role,
        "HOLDFAST_CHECKPOINT_DIR": folders.checkpoint,
        "HOLDFAST_STATE_FILE": folders.state,
        "HOLDFAST_PROGRESS_FILE": folders.progress,
        "HOLDFAST_RESUME_MS": str(wanted.resume_ms),
        MARK: mark,
    }
    if wanted.in_gang:
        env["HOLDFAST_RANK"] = env["RANK"] = str(state.rank)
        env["HOLDFAST_WORLD_SIZE"] = env["WORLD_SIZE"] = str(state.world_size)
        env["HOLDFAST_PEERS"] = ",".join(state.peers)
        env["LOCAL_RANK"] = "0"
        env["MASTER_ADDR"], env["MASTER_PORT"] = state.master_addr, str(state.master_port)
    if wanted.needs.gpu_milli:
        env["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"  # as the driver counts them, and not the fastest first
        env["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, wanted.devices))
    return env


def signal_number(name: str) -> int:
    """0: none is asked for. ValueError: there is no such signal."""
    if not name:
        return 0
    full = name.upper()
    full = full if full.startswith("SIG") else f"SIG{full}"
    if full not in signal.Signals.__members__:
        raise ValueError(f"no such signal: {name}")
    return signal.Signals[full].value
