"""The seats of one workload, counted in one pass: how many are as wanted, and what keeps the others.

A few words for a list of many workloads; `core.explain.explain` looks more closely at one.
"""

from holdfast.core.agent.desired_set import is_ready
from holdfast.core.explain import pending
from holdfast.core.workloads import dependencies
from holdfast.core.workloads.slots import by_load, may_start, settled
from holdfast.model.replica import LIVE, Phase, Replica, Role, Slot, State
from holdfast.model.units import Instant
from holdfast.model.workload import Service, Spread, Sweep, Training, Workload, wanted
from holdfast.model.world import World

FOREMOST = (State.READY, State.STARTING, State.PLACED, State.STOPPING, State.LOST)


class Tally:
    def __init__(self, world: World, of: Workload, now: Instant) -> None:
        self.world, self.workload, self.now = world, of, now
        self.slots = [world.slots[slot] for slot in world.of_workload.get(of.name, ())]
        self.filling: dict[str, Replica] = {}  # slot -> what is in it
        self.ready = self.done = self.failed = self.standby = self.starting = self.resting = self.seats = 0
        self.why_failed = self.why_rests = self.why_waits = ""
        self.outdated = 0
        for slot in self.slots:
            self._count(slot)
        promised = of.name in world.promised and self.seats  # then redundancy chose how many
        self.wanted = self.seats if promised else _wanted(world, of)
        self.gang = 0  # the generation of a training that is ready
        self.apart = 0  # members that are ready, while others of their gang are not
        if isinstance(of.shape, Training):
            self._count_gang()

    def _count(self, slot: Slot) -> None:
        filling = _filling(self.world, slot.id)
        state = None
        if filling is not None:
            self.filling[slot.id], state = filling, filling.state
            self.outdated += filling.id in self.world.outdated
        if slot.role is Role.STANDBY:
            self.standby += state is State.READY
        elif slot.phase is not Phase.CLOSED:
            self.seats += 1
            self._count_active(slot, state)

    def _count_gang(self) -> None:
        """Its members are ready together or not at all. When it is done, it was as many as ran to their
        end."""
        if is_ready(self.world, self.workload.name):
            self.gang = self.world.gangs[self.workload.name].generation
        else:
            self.apart, self.ready = self.ready, 0
        if self.done and self.done == self.seats:
            self.wanted = self.done

    def _count_active(self, slot: Slot, state: State | None) -> None:
        if slot.phase is Phase.DONE:
            self.done += 1
        elif slot.phase is Phase.FAILED:
            self.failed += 1
            self.why_failed = self.why_failed or slot.why
        elif state is State.READY:
            self.ready += 1
        elif state in LIVE:
            self.starting += 1
        elif slot.failures and self.now < slot.retry_at:
            self.resting += 1
            self.why_rests = self.why_rests or slot.why
        else:
            self.why_waits = self.why_waits or slot.why

    def shown(self, most: int) -> list[Slot]:
        """In order; if there are more than that, those that somebody should look at first."""
        return self.slots if len(self.slots) <= most else sorted(self.slots, key=self._rank)[:most]

    def behind(self, slot: str) -> list[Slot]:
        """In order. Behind one that is gone: those of its role with a higher index, and what follows."""
        line, _, number = slot.rpartition("/")
        warm, digits = number.startswith("s"), number.removeprefix("s")
        if not digits.isdecimal() or line != self.workload.name:
            return self.slots
        last = warm, int(digits[:9])
        behind = [each for each in self.slots if (each.role is Role.STANDBY, each.index) > last]
        return sorted(behind, key=lambda each: (each.role is Role.STANDBY, each.index))

    def _rank(self, slot: Slot) -> int:
        if slot.phase is Phase.FAILED:
            return 0
        if slot.phase is not Phase.OPEN:
            return 3
        filling = self.filling.get(slot.id)
        return 2 if filling is not None and filling.state is State.READY else 1

    def why(self) -> str:
        """What keeps it from being as wanted; empty: nothing."""
        of = self.workload
        if of.paused:
            return "paused"
        if not self.slots and not may_start(self.world, of):
            others = [name for name in of.after if not settled(self.world, name)]
            return f"waits for {', '.join(self._dependency(name) for name in others)}"
        parts = []
        if self._is_late():
            parts.append("its deadline has passed")
        if self.failed:
            parts.append(f"{self.failed} gave up{_because(self.why_failed)}")
        if self.apart:
            parts.append(f"{self.apart} waiting for the other members of the gang")
        if self.starting:
            parts.append(f"{self.starting} starting")
        if self.resting:
            parts.append(f"{self.resting} failed and will be tried again{_because(self.why_rests)}")
        waiting = self._waiting()
        if waiting > 0:
            parts.append(self._shortfall(waiting))
        if self.outdated:
            parts.append(self._rollout())
        if not parts and (node := self._only_node()):
            parts.append(f"all {self.ready} copies are on {node}")
        return ", ".join(parts)

    def _shortfall(self, waiting: int) -> str:
        """Members that a gang could have beside those it needs keep nobody waiting."""
        shape, because = self.workload.shape, _because(self.why_waits)
        if isinstance(shape, Training) and self.gang and self.ready >= shape.nodes_min:
            return f"runs with {self.ready}, may grow to {self.wanted}{because}"
        return f"{waiting} waiting for a node{because}"

    def _dependency(self, name: str) -> str:
        trouble = dependencies.trouble(self.world, name)
        return f"{name}, which {trouble}" if trouble else name

    def _is_late(self) -> bool:
        course = self.world.courses.get(self.workload.name)
        return course is not None and course.missed > 0 and not self.done

    def _only_node(self) -> str:
        """On which all copies stand, though they are to be spread and others are open; empty: none."""
        if not isinstance(self.workload.shape, Service) or self.workload.needs.spread is Spread.NONE:
            return ""
        homes = [one.node for one in self.filling.values() if one.state is State.READY]
        if len(homes) < 2 or len(set(homes)) > 1 or self.world.joined < 2:
            return ""
        return homes[0]

    def _rollout(self) -> str:
        still = f"{self.outdated} still of an older version than {self.workload.version}"
        stuck = pending.rollout(self.world, self.workload, self.now)
        why = [text for text in stuck[0].because if not text.startswith(pending.AGAIN)] if stuck else []
        return still + _because("; ".join(why))

    def _waiting(self) -> int:
        shape, going = self.workload.shape, self.ready + self.apart + self.starting + self.resting
        waiting = self.wanted - going - self.done - self.failed
        if isinstance(shape, Sweep) and shape.parallel:
            return min(waiting, shape.parallel - going)  # the turn of the others comes later
        return waiting


def _wanted(world: World, of: Workload) -> int:
    """As many as its load asks for, where that decides."""
    shape = of.shape
    if isinstance(shape, Service) and shape.scale is not None:
        return by_load(world, of.name, shape, shape.scale)[0]
    return wanted(of)


def _filling(world: World, slot: str) -> Replica | None:
    """Of several in one seat (a new one, and one that stops) the one that matters most."""
    names = world.of_slot.get(slot)
    if not names:
        return None
    if len(names) == 1:
        return world.replicas[next(iter(names))]
    return min((world.replicas[name] for name in names), key=lambda each: FOREMOST.index(each.state))


def _because(why: str) -> str:
    return f" ({why})" if why else ""
