"""How a job with a deadline goes on: on spot, on demand, or waiting."""

import enum

import msgspec

from holdfast.model.units import Instant


class Way(enum.StrEnum):
    WAIT = "wait"
    SPOT = "spot"
    ON_DEMAND = "on demand"


class Course(msgspec.Struct, frozen=True):
    workload: str
    begun: Instant  # its deadline counts from here
    way: Way = Way.WAIT
    since: Instant = 0
    why: str = ""
    safe_until: Instant = 0  # until then any way keeps the promise
    ask_at: Instant = 0  # then it is chosen again, whatever happens
    missed: Instant = 0  # the deadline that passed while the job was not done; 0: none
