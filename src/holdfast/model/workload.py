"""What the user wants up."""

import enum

import msgspec

from holdfast.model.place import Level
from holdfast.model.program import Program
from holdfast.model.resources import Resources
from holdfast.model.scale import Scale
from holdfast.model.units import MINUTE, SECOND, Instant, Millis

DEFAULT_PROJECT = "default"  # of workloads that name none


class Mix(msgspec.Struct, frozen=True):
    """A service on spot, with on demand where spot cannot be had."""

    on_demand: int = 0  # so many are on demand, always
    spares: int = 0  # and so many more than are wanted on spot


class Serves(msgspec.Struct, frozen=True):
    """What a service answers for at the gateways."""

    models: tuple[str, ...] = ()  # "llama-*": all that begin so; none: its name
    hosts: tuple[str, ...] = ()  # any path of these hosts leads to it
    prefixes: tuple[str, ...] = ()  # and these paths of any host
    probe: str = ""  # a path that answers 200 while a replica is well
    concurrent: int = 0  # requests at a time for one replica; 0: no limit


class Service(msgspec.Struct, frozen=True, tag="service"):
    """Stays up: `replicas` interchangeable copies, replaced at once when lost."""

    replicas: int = 1
    standby: int = 0  # warm replicas that only need promotion
    availability: float = 0.0  # a target such as 0.999; redundancy then chooses how many there are
    scale: Scale | None = None  # grows and shrinks with its load
    mix: Mix | None = None  # on spot and on demand
    serves: Serves | None = None  # gateways lead to it


class Job(msgspec.Struct, frozen=True, tag="job"):
    """Runs to its end, exactly one copy at a time."""

    standby: int = 0
    deadline_ms: Millis = 0  # after it was first applied it is done; 0: whenever
    work_ms: Millis = 0  # how long it takes without interruption: known of what has a deadline


class Training(msgspec.Struct, frozen=True, tag="training"):
    """A gang: at least `nodes_min` members start together or not at all, up to `nodes_max` when there is
    room."""

    nodes_min: int
    nodes_max: int
    standby: int = 0


class Sweep(msgspec.Struct, frozen=True, tag="sweep"):
    """An array of independent tasks, at most `parallel` at a time, each retried by itself."""

    tasks: int
    parallel: int = 0  # 0: as many as fit


Shape = Service | Job | Training | Sweep


class Spread(enum.StrEnum):
    """How strongly the copies must be apart."""

    NONE = "none"
    PREFER = "prefer"
    REQUIRE = "require"


class Needs(msgspec.Struct, frozen=True):
    """What one replica needs of its node."""

    resources: Resources = Resources(cpu_milli=1000, memory_mib=512)
    labels: dict[str, str] = {}
    tolerates: tuple[str, ...] = ()
    spot: bool = True  # may run on spot nodes
    spread: Spread = Spread.PREFER
    spread_over: Level = Level.ZONE


class Restart(msgspec.Struct, frozen=True):
    """For programs that fail by themselves. Losing a node is never counted here."""

    backoff_ms: Millis = 1 * SECOND
    backoff_max_ms: Millis = 5 * MINUTE
    limit: int = (
        10  # failures in a row before we give up; a run longer than `steady_ms` starts the count anew
    )
    steady_ms: Millis = 10 * MINUTE


class Workload(msgspec.Struct, frozen=True):
    name: str
    shape: Shape
    needs: Needs = Needs()
    priority: int = 0
    restart: Restart = Restart()
    checkpoint_ms: Millis = 0  # period of its checkpoints; 0: it starts from the beginning
    move_cost_ms: Millis = 30 * SECOND  # what one restart costs it, in work lost
    stop_grace_ms: Millis = 10 * SECOND
    after: tuple[str, ...] = ()  # starts when these are done (or, for services, ready)
    paused: bool = False
    program: Program | None = None  # none: only in a simulation, where programs are pretended
    version: int = 1  # rises with every change of what the program is; a service rolls to it
    project: str = DEFAULT_PROJECT  # whose it is, for life

    @property
    def exclusive(self) -> bool:
        """Would two copies at once do harm? Then a copy is replaced only when the old one is provably
        gone."""
        return not isinstance(self.shape, Service)

    @property
    def runs(self) -> tuple[object, ...]:
        """What a running copy would have to be started anew for."""
        needs = self.needs
        return self.program, needs.resources, needs.labels, set(needs.tolerates), needs.spot

    @property
    def regroups_by_restart(self) -> bool:
        """Are the members of its gang started anew when the membership changes? Programs that ask for a
        signal keep running and read the new membership from their state file."""
        return isinstance(self.shape, Training) and not (self.program and self.program.tell)


class Version(msgspec.Struct, frozen=True):
    """What ran under an earlier version of a workload."""

    number: int
    until: Instant  # then it was superseded
    needs: Needs
    program: Program | None = None


def wanted(workload: Workload) -> int:
    """How many active slots the workload has."""
    match workload.shape:
        case Service(replicas=n):
            return n
        case Job():
            return 1
        case Training(nodes_max=n):
            return n
        case Sweep(tasks=n):
            return n


def standbys(workload: Workload) -> int:
    match workload.shape:
        case Service(standby=n) | Job(standby=n) | Training(standby=n):
            return n
        case Sweep():
            return 0
