"""How a service grows and shrinks: between which bounds, and by which signals."""

import enum

import msgspec

from holdfast.model.units import HOUR, MINUTE, Millis


class Signal(enum.StrEnum):
    """What a workload, its gateway, its nodes or a query tell of its load."""

    IN_FLIGHT = "in_flight"  # requests being answered
    QUEUE = "queue"  # requests that wait
    OLDEST_WAIT = "oldest_wait_ms"
    REQUESTS = "requests_per_s"
    TOKENS = "tokens_per_s"
    LATENCY = "latency_ms"
    CPU = "cpu"  # share used of what its replicas asked for
    GPU = "gpu"
    VALUE = "value"  # whatever it counts


# Several who tell (gateways, replicas) are one number.
SUMMED = frozenset({Signal.IN_FLIGHT, Signal.QUEUE, Signal.REQUESTS, Signal.TOKENS, Signal.VALUE})
LARGEST = frozenset({Signal.OLDEST_WAIT, Signal.LATENCY})
AVERAGED = frozenset({Signal.CPU, Signal.GPU})


class ScalePolicy(enum.StrEnum):
    """By which rule a service is sized; `core.scaling.replica_count` has them."""

    FORECAST = "forecast"  # enough for what may come before more could be ready
    TARGET_TRACKING = "target tracking"  # as many as bring what is used to a share of them


class Window(msgspec.Struct, frozen=True):
    """At least so many replicas on these days between these minutes of the day."""

    replicas: int
    days: tuple[int, ...] = (0, 1, 2, 3, 4, 5, 6)  # on which it starts; 0: Monday
    start_minute: int = 0
    end_minute: int = 24 * 60  # up to the start: into the next day


class Scale(msgspec.Struct, frozen=True):
    """A service's `replicas` are then what it has before anything is known of its load."""

    min: int = 1
    max: int = 10
    per_replica: dict[Signal, float] = {}  # how much of each signal one replica takes
    policy: ScalePolicy = ScalePolicy.FORECAST
    target: float = 0.7  # target tracking: so much of what one replica takes shall be used
    confidence: float = 0.98  # of having enough over the lead time
    down_window_ms: Millis = 1 * HOUR  # shrinks to what so long may need
    up_per_minute: int = 0  # at most so many more; 0: no limit
    down_per_minute: int = 0
    idle_ms: Millis = 10 * MINUTE  # min 0: without any load for so long, it goes to zero
    stale_ms: Millis = 1 * MINUTE  # a signal older than this is missing
    fallback: int = 0  # at least so many while signals are missing; 0: as many as there are
    schedule: tuple[Window, ...] = ()
    utc_offset_minutes: int = 0  # of the schedule
    query: dict[Signal, str] = {}  # Prometheus queries that give the signals
    prometheus: str = ""  # where to ask them: http://host:9090
