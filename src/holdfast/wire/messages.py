"""Everything that is said between an agent and a control plane, over one connection that the agent opened.

    control plane                       agent
      Challenge  ----------------------->
                 <-----------------------  Hello (signed; a join token the first time)
      Welcome (after it is journalled) ->         or Refused, or Moved, and the connection ends
      DesiredSet ----------------------->
                 <-----------------------  Confirmed
                 <-----------------------  Beat, every `beat_ms`
      Ack        ----------------------->  renews the lease, counted from when that beat was sent
                 <-----------------------  Reports
      Noted (after they are journalled)->

Messages are msgpack arrays; a field added at the end with a default can be read by older and newer peers
alike. What they cannot both read is a new PROTOCOL number.
"""

import msgspec

from holdfast.core.agent.machine import DesiredSet, Report
from holdfast.model.finding import Finding
from holdfast.model.node import Answer
from holdfast.model.place import Place
from holdfast.model.resources import Resources
from holdfast.model.units import Millis

PROTOCOL = 2
PROTOCOL_OLDEST = 1  # that we still speak
BOUND = 2  # from this one on a hello is bound to its channel
UPGRADE = "holdfast-link"  # in the Upgrade header
PATH = "/v1/link"


class Message(msgspec.Struct, frozen=True, tag=True, array_like=True):
    pass


# from the agent


class Hello(Message, frozen=True):
    protocol: int
    node: str
    key: bytes  # Ed25519 public key
    signature: bytes  # of `identity.to_sign`
    instance: str  # another for each start of an agent
    token: str = ""  # join token: the first time
    running: tuple[str, ...] = ()  # every replica that lives here
    pool: str = ""
    offer: str = ""
    place: Place | None = None
    capacity: Resources | None = None
    address: str = ""
    probe_port: int = 0
    version: str = ""
    chaos: bool = False  # may be told to pretend a partition
    fencing: str = ""  # a `Fencing`; an older agent does not say, and cannot end what its shims no longer can
    boot: str = ""  # of the machine; another one after each restart
    limits: str = ""  # a `LimitedBy`; an older agent does not say
    obeyed: int = 0  # the highest generation of a leader whose set it took; 0: none yet
    told: int = 0  # the number of that set
    epoch: int = 0  # the highest of any replica that it was ever told to run
    more: int = 0  # so many `AlsoRunning` follow at once
    led: int = 0  # the generation of the leader that welcomed it last
    proof: bytes = b""  # of that, as it stood in the welcome
    isolation: str = ""  # an `Isolation`; an older agent does not say
    channel: bytes = b""  # hash of the certificate that it was shown; empty: no TLS, or an older agent


class AlsoRunning(Message, frozen=True):
    """The rest of `running` of a hello that would be larger than a control plane takes from a stranger."""

    running: tuple[str, ...]


class Used(msgspec.Struct, frozen=True, array_like=True):
    """What a node uses of what it has, and how much of it each replica."""

    cpu_milli: int
    memory_mib: int
    replicas: dict[str, tuple[int, int]] = {}  # cpu_milli, memory_mib
    gpu_milli: dict[str, int] = {}  # of the replicas whose GPUs can be read; an older one does not say


class Beat(Message, frozen=True):
    number: int
    heard: int  # the last Ack that arrived: a node that does not hear us does not count
    used: Used | None = None  # now and then
    answers: dict[str, str] | None = None  # of probes, by replica, where they changed; empty: it is well


class Wrote(msgspec.Struct, frozen=True, array_like=True):
    """The end of a replica's log."""

    data: bytes
    written: int  # bytes, in all


class Reports(Message, frozen=True):
    first: int  # number of the first of them
    reports: tuple[Report, ...]
    tails: dict[str, Wrote] = {}  # of replicas that ended; an older agent says nothing of them


class LogEnds(Message, frozen=True):
    """The end of what running replicas wrote. Only to a control plane that allows it in its welcome."""

    tails: dict[str, Wrote]


class Confirmed(Message, frozen=True):
    """The set of this number was carried out."""

    generation: int


class Probed(Message, frozen=True):
    question: int
    answer: Answer


class Goodbye(Message, frozen=True):
    """It ends, and nothing runs here any more."""


class Noticed(Message, frozen=True):
    """It will be gone soon: its provider takes it away, or its agent is being ended."""

    left_ms: Millis
    own: bool = False  # the latter


class Found(Message, frozen=True):
    """A finding about its own health; `at` is filled in by whoever receives it."""

    finding: Finding


class LogPart(Message, frozen=True):
    request: int
    data: bytes
    end: bool = False
    why: str = ""
    offset: int = -1  # of the data's first byte in all that was ever written; -1: an older agent, no windows


# from the control plane


class Challenge(Message, frozen=True):
    nonce: bytes
    protocol: int
    oldest: int
    hello_max: int = 0  # bytes of a frame until the welcome; 0: an older one, which takes its hello in one


class Welcome(Message, frozen=True):
    generation: int  # of the leader
    lease_ms: Millis
    beat_ms: Millis
    control_planes: tuple[str, ...] = ()  # URLs of all we know
    log_bytes_per_s: int = 0  # of LogEnds, at most; 0: an older one, which does not know them
    proof: bytes = b""  # that there was a leader of this generation: the node brings it with its next hello


class Refused(Message, frozen=True):
    code: str  # one of REFUSALS
    why: str
    hint: str = ""


class Moved(Message, frozen=True):
    """Somebody else leads."""

    leader: str  # URL; empty: nobody does at the moment
    control_planes: tuple[str, ...] = ()


class Ack(Message, frozen=True):
    number: int


class Desired(Message, frozen=True):
    desired: DesiredSet


class Noted(Message, frozen=True):
    """Reports numbered below `before` are in the journal."""

    before: int


class Ask(Message, frozen=True):
    """Please probe this peer, and say what you met."""

    question: int
    address: str
    port: int
    timeout_ms: Millis


class ReadLog(Message, frozen=True):
    request: int
    replica: str
    offset: int  # negative: so many bytes from the end
    follow: bool = False
    window: int = 0  # bytes that may be sent before the reader has taken them; 0: without limit


class LogTaken(Message, frozen=True):
    """The reader has taken so many bytes since it began: there may be `window` more. Only for agents that
    send offsets; an older one does not know it."""

    request: int
    taken: int


class StopLog(Message, frozen=True):
    request: int


class Silence(Message, frozen=True):
    """Chaos: neither send nor hear anything on this link for so long, as if the network had been cut."""

    for_ms: Millis


REFUSALS = {
    "protocol": "the two speak different versions",
    "name": "the name is not one that a node may have",
    "taken": "another agent has this name, with another key",
    "connected": "another agent with this name and key is connected",
    "token": "the join token is wrong, used up, expired, or for something else",
    "key": "the signature does not fit the key",
    "pool": "there is no such pool, or it takes no newcomers",
    "gone": "the node was terminated; its name is spent",
    "full": "too many connections wait to be welcomed",
    "barred": "the node reported what cannot be handled, and is not heard for a while",
    "often": "the node says hello too often",
    "channel": "the certificate that the agent was shown is not the control plane's: somebody is in between",
    "ahead": "the node has obeyed a later leader than this control plane knows of",
}
PASSING = {"connected", "full", "often", "barred", "ahead", "channel"}
FINAL = frozenset(REFUSALS) - PASSING  # trying again changes nothing

FromAgent = (
    Hello | AlsoRunning | Beat | Reports | Confirmed | Probed | Goodbye | Noticed | Found | LogPart | LogEnds
)
ToAgent = (
    Challenge
    | Welcome
    | Refused
    | Moved
    | Ack
    | Desired
    | Noted
    | Ask
    | ReadLog
    | LogTaken
    | StopLog
    | Silence
)
