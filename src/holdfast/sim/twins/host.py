"""A simulated machine: its agent (the real state machine), its shims, its processes, and what is wrong with
it."""

from holdfast.core.agent.machine import NodeMachine
from holdfast.model.action import LaunchNode
from holdfast.model.node import Answer, Fencing
from holdfast.model.units import Instant
from holdfast.sim.twins.programs import Process


class Host:
    def __init__(self, request: LaunchNode, machine: NodeMachine, row: int, now: Instant) -> None:
        self.id, self.request, self.machine, self.row = request.node, request, machine, row
        self.since = self.well_since = now  # since when nothing keeps it from being heard
        self.powered = True
        self.agent_up = True
        self.frozen = False
        self.gray = False
        self.gray_at: Instant | None = None  # when it was gray last
        self.slow = False
        self.fencing = Fencing.KERNEL  # as its agent says
        self.contains = True  # and as it is: what runs dies with its shims
        self.shims = True
        self.connected = False
        self.follows = ""  # the control plane it is connected to
        self.session = 0
        self.processes: dict[str, Process] = {}
        self.sending = False
        self.reporting = False  # a report is on its way, or will be tried again
        self.reporting_since = now

    @property
    def speaks(self) -> bool:
        """Can its agent send and receive?"""
        return self.powered and self.agent_up and not self.frozen

    @property
    def healthy(self) -> bool:
        return self.speaks and not self.gray

    def answers_probe(self) -> Answer:
        if not self.powered or self.frozen:
            return Answer.TIMEOUT
        if self.agent_up or (self.processes and self.shims):  # a shim answers for an agent that is away
            return Answer.REACHED
        return Answer.REFUSED
