"""What a node has and a replica needs. CPUs and GPUs in thousandths, memory in MiB.

One node has one kind of GPU (a machine with two kinds joins as two nodes, each a slice of it). A replica asks
for whole GPUs, or for less than one (a share of a single device). What it asks for may be of one kind
("h100"), of any of several ("h100|a100"), or of any kind at all ("").
"""

import msgspec

GPU = 1_000


class Resources(msgspec.Struct, frozen=True):
    cpu_milli: int = 0
    memory_mib: int = 0
    gpu_milli: int = 0
    gpu_kind: str = ""

    def __str__(self) -> str:
        parts = [f"{self.cpu_milli / 1000:g} cpu", f"{self.memory_mib} MiB"]
        if self.gpu_milli:
            parts.append(f"{self.gpu_milli / GPU:g} x {self.gpu_kind or 'any gpu'}")
        return ", ".join(parts)

    def takes_kind(self, kind: str) -> bool:
        """Would a GPU of this kind do? `gpu_kind` may name several: "h100|a100"."""
        return not self.gpu_kind or kind in self.gpu_kind.split("|")

    def bounded_by(self, most: "Resources") -> "Resources":
        """No more than `most` of each; what `most` leaves at 0 is not bounded."""
        return Resources(
            min(self.cpu_milli, most.cpu_milli or self.cpu_milli),
            min(self.memory_mib, most.memory_mib or self.memory_mib),
            min(self.gpu_milli, most.gpu_milli or self.gpu_milli),
            self.gpu_kind,
        )

    def within(self, other: "Resources") -> bool:
        """Could this ever fit on an empty node that has `other`?"""
        return (
            self.cpu_milli <= other.cpu_milli
            and self.memory_mib <= other.memory_mib
            and self.gpu_milli <= other.gpu_milli
            and (not self.gpu_milli or self.takes_kind(other.gpu_kind))
        )


NODE_MAX = Resources(cpu_milli=10_000_000, memory_mib=1 << 30, gpu_milli=1_024 * GPU)
"""Of one node. The world keeps a column for each GPU of the largest node, so this bounds its memory too."""
