"""Slots and replicas. A slot is a seat of a workload that wants to be filled; a replica is one filling of it,
on one node, under one epoch. Epochs of a slot only rise, so a replica that comes back from the dead can be
told from its heir.
"""

import enum

import msgspec

from holdfast.model.resources import Resources
from holdfast.model.units import Instant, Millis


class State(enum.StrEnum):
    PLACED = "placed"  # given to a node, not yet heard of
    STARTING = "starting"
    READY = "ready"
    STOPPING = "stopping"
    LOST = "lost"  # its node is dead to us: it may still run


LIVE = (State.PLACED, State.STARTING, State.READY)


class Role(enum.StrEnum):
    ACTIVE = "active"
    STANDBY = "standby"


class Phase(enum.StrEnum):
    OPEN = "open"  # wants a replica
    DONE = "done"
    CLOSED = "closed"  # not wanted any more: removed as soon as nothing can run in it
    FAILED = "failed"  # it failed too often by itself: a person must look


class Slot(msgspec.Struct, frozen=True):
    id: str  # "web/0"; warm standbys sit in "web/s0"
    workload: str
    index: int
    role: Role = Role.ACTIVE
    phase: Phase = Phase.OPEN
    epoch: int = 0  # the last one handed out
    failures: int = 0  # in a row, by the program itself
    retry_at: Instant = 0
    down_since: Instant = 0  # 0: not down
    struck: bool = False  # down though nobody stopped it; a seat that is new, or moves, is down by plan
    progress_ms: Millis = 0  # work that its last checkpoint holds
    last_node: str = ""
    why: str = ""
    last_replica: str = ""  # the last one that filled it


class Replica(msgspec.Struct, frozen=True):
    id: str  # "web/0.3": slot and epoch
    slot: str
    workload: str
    node: str
    epoch: int
    needs: Resources
    exclusive: bool
    role: Role
    state: State
    since: Instant
    placed_at: Instant
    devices: tuple[int, ...] = ()  # which GPUs of its node
    gang: int = 0  # generation of the gang it belongs to; 0: none
    version: int = 1
    ready_at: Instant = 0
    deadline: Instant = 0  # STOPPING: when the agent kills it
    progress_ms: Millis = 0  # where it resumes from
    port: int = 0  # on its node; 0: not known yet
    grace_ms: Millis = 0  # from being asked to stop to being killed, when its workload is deleted
    unproven: bool = False  # LOST by its own agent's word: its shim is gone, and it may still run
    incarnation: int = 0  # rises each time its program must be started anew where it is


def slot_id(workload: str, index: int, role: Role = Role.ACTIVE) -> str:
    return f"{line_of(workload, role)}{index}"


def line_of(workload: str, role: Role) -> str:
    """What the names of its slots of this role begin with."""
    return f"{workload}/s" if role is Role.STANDBY else f"{workload}/"


def replica_id(slot: str, epoch: int) -> str:
    return f"{slot}.{epoch}"


def last_of(slot: Slot) -> str:
    """The last replica that filled it; empty: none did. Slots journalled before this was
    noted do not name it."""
    return slot.last_replica or (replica_id(slot.id, slot.epoch) if slot.epoch else "")
