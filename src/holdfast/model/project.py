"""Whose workloads are, and how much of the fleet they may take."""

import msgspec

from holdfast.model.units import MicroUsd

HOURS_OF_A_MONTH = 730  # a twelfth of a year


class Project(msgspec.Struct, frozen=True):
    """The quota of a project: what its replicas may take together. None: as much as there is."""

    name: str
    nodes: int | None = None  # on which they stand
    cpu_milli: int | None = None
    memory_mib: int | None = None
    gpu_milli: int | None = None
    month_micro_usd: MicroUsd | None = None  # at what they cost an hour, for HOURS_OF_A_MONTH
    priority: int | None = None  # the highest of its workloads: the higher push out those of others
    # these two are of what is wanted, whether it runs or waits; None: as `core.workloads.ceilings` says
    replicas: int | None = None  # slots of all its workloads, at the most that they may come to
    workloads: int | None = None

    @property
    def limited(self) -> bool:
        return self != Project(self.name)

    @property
    def by_node(self) -> bool:
        """Does it depend on where a replica goes how much it takes?"""
        return self.nodes is not None or self.month_micro_usd is not None

    @property
    def hour_micro_usd(self) -> MicroUsd | None:
        return None if self.month_micro_usd is None else self.month_micro_usd // HOURS_OF_A_MONTH
