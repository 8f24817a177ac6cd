"""How much room there is on every node, as columns.

Placement asks one question of ten thousand nodes at a time ("which of you could take this?"), so what it asks
about lies in numpy columns, one row a node. The columns are an index of the world: fold keeps them, a plan in
the making works on a copy. What never changes while a node lives (place, price, kind) is shared between the
copies.
"""

from typing import Self

import numpy as np
from numpy.typing import NDArray

from holdfast.model.node import Node
from holdfast.model.place import LEVELS, Level
from holdfast.model.resources import GPU, Resources

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

FIRST_ROWS = 64
SLACK_BITS = PRICE_BITS = 12
FILL_ORDER_BITS = 1 + 15 + 1 + SLACK_BITS + PRICE_BITS


def price_level(price: int) -> int:
    """A price as a small number that rises with it: the length in bits, and the six bits after the first."""
    length = min(price.bit_length(), (1 << PRICE_BITS - 6) - 1)
    return length << 6 | ((price << 6 >> length - 1) & 0x3F if length else 0)


class Interned:
    """Small numbers for names: labels, taints and domains repeat over thousands of nodes."""

    def __init__(self) -> None:
        self.number: dict[str, int] = {}
        self.value: list[tuple[str, ...]] = []

    def of(self, key: str, value: tuple[str, ...] = ()) -> int:
        if key not in self.number:
            self.number[key] = len(self.value)
            self.value.append(value or (key,))
        return self.number[key]


class Room:
    def __init__(self, rows: int = FIRST_ROWS) -> None:
        self.row: dict[str, int] = {}
        self.ids: list[str] = [""] * rows
        self.unused: list[int] = list(range(rows - 1, -1, -1))
        self.kinds, self.label_sets, self.taint_sets = Interned(), Interned(), Interned()
        self.domains: dict[Level, Interned] = {level: Interned() for level in LEVELS}
        # what placing and stopping changes
        self.cpu = np.zeros(rows, np.int64)
        self.memory = np.zeros(rows, np.int64)
        self.devices = np.zeros((rows, 8), np.int64)  # free thousandths of each GPU
        self.gpu_whole = np.zeros(rows, np.int64)  # GPUs nobody uses
        self.gpu_part = np.zeros(rows, np.int64)  # the largest free share of one GPU
        self.gpu_broken = np.zeros(rows, np.int64)  # the same, of a GPU that somebody uses already
        self.gpu_free = np.zeros(rows, np.int64)  # the sum over its GPUs
        self.gpu_named = np.zeros(rows, np.int64)  # in use by replicas that name the kinds of GPU they take
        self.fill_order = np.zeros(
            rows, np.int64
        )  # placement fills the smallest first, other things being equal
        self.open = np.zeros(rows, np.bool_)  # takes new replicas
        self.replicas = np.zeros(rows, np.int64)
        # the sums of two columns by kind of GPU, in the order of `kinds`
        self.kind_free: list[int] = []
        self.kind_named: list[int] = []
        # what a node is born with
        self.cpu_all = np.zeros(rows, np.int64)
        self.memory_all = np.zeros(rows, np.int64)
        self.gpu_all = np.zeros(rows, np.int64)
        self.kind = np.zeros(rows, np.int64)
        self.labels = np.zeros(rows, np.int64)
        self.taints = np.zeros(rows, np.int64)
        self.price = np.zeros(rows, np.int64)
        self.spot = np.zeros(rows, np.bool_)
        self.standby = np.zeros(rows, np.bool_)
        self.domain: dict[Level, Ints] = {level: np.zeros(rows, np.int64) for level in LEVELS}
        # what others worked out from the fixed columns; forgotten when a node comes or goes
        self.memo: dict[tuple[object, ...], object] = {}

    CHANGING = (
        "cpu",
        "memory",
        "devices",
        "gpu_whole",
        "gpu_part",
        "gpu_broken",
        "gpu_free",
        "gpu_named",
        "fill_order",
        "open",
        "replicas",
    )
    SUMS = ("kind_free", "kind_named")
    FIXED = ("cpu_all", "memory_all", "gpu_all", "kind", "labels", "taints", "price", "spot", "standby")

    def copy(self) -> Self:
        """To plan on: the changing columns are its own, the rest is shared. No rows are added to a copy."""
        twin = object.__new__(type(self))
        twin.__dict__.update(self.__dict__)
        for name in (*self.CHANGING, *self.SUMS):
            setattr(twin, name, getattr(self, name).copy())
        return twin

    def add(self, node: Node, *, open_: bool) -> int:
        if not self.unused:
            self._grow()
        self.memo = {}
        row = self.unused.pop()
        self.row[node.id], self.ids[row] = row, node.id
        gpus = node.capacity.gpu_milli // GPU
        if gpus > self.devices.shape[1]:
            self.devices = np.pad(self.devices, ((0, 0), (0, gpus - self.devices.shape[1])))
        self.cpu[row] = self.cpu_all[row] = node.capacity.cpu_milli
        self.memory[row] = self.memory_all[row] = node.capacity.memory_mib
        self.devices[row] = 0
        self.devices[row, :gpus] = GPU
        self.gpu_whole[row] = self.gpu_all[row] = gpus
        self.gpu_part[row] = GPU if gpus else 0
        self.gpu_broken[row] = 0
        self.gpu_free[row] = gpus * GPU
        self.kind[row] = kind = self.kinds.of(node.capacity.gpu_kind)
        missing = [0] * (kind + 1 - len(self.kind_free))
        self.kind_free += missing
        self.kind_named += missing
        self.kind_free[kind] += gpus * GPU
        pairs = tuple(f"{key}={value}" for key, value in sorted(node.labels.items()))
        self.labels[row] = self.label_sets.of(",".join(pairs), pairs)
        self.taints[row] = self.taint_sets.of(",".join(sorted(node.taints)), tuple(sorted(node.taints)))
        self.price[row], self.spot[row], self.standby[row] = node.price_micro_usd, node.spot, node.standby
        for level in LEVELS:
            self.domain[level][row] = self.domains[level].of(node.place.domain(level))
        self.replicas[row] = 0
        self.open[row] = open_
        self._rank(row)
        return row

    def remove(self, node_id: str) -> None:
        self.memo = {}
        row = self.row.pop(node_id)
        self.ids[row] = ""
        self.open[row] = False
        self.kind_free[self.kind[row]] -= int(self.gpu_free[row])
        self.kind_named[self.kind[row]] -= int(self.gpu_named[row])
        self.gpu_named[row] = 0
        self.cpu[row] = self.memory[row] = self.replicas[row] = 0
        self.devices[row] = self.gpu_whole[row] = self.gpu_part[row] = 0
        self.gpu_broken[row] = self.gpu_free[row] = 0
        self.cpu_all[row] = self.memory_all[row] = self.gpu_all[row] = 0
        self.unused.append(row)

    def pick_devices(self, row: int, gpu_milli: int) -> tuple[int, ...]:
        """Which GPUs to use: whole ones in order; for a share, the fullest one that still has room."""
        if not gpu_milli:
            return ()
        free: list[int] = self.devices[row].tolist()  # eight numbers: a list is quicker than numpy
        if gpu_milli >= GPU:
            return tuple([device for device, share in enumerate(free) if share == GPU][: gpu_milli // GPU])
        fits = [(share, device) for device, share in enumerate(free) if share >= gpu_milli]
        return (min(fits)[1],) if fits else ()

    def take(self, row: int, needs: Resources, devices: tuple[int, ...]) -> None:
        self._move(row, needs, devices, -1)

    def give(self, row: int, needs: Resources, devices: tuple[int, ...]) -> None:
        self._move(row, needs, devices, +1)

    def _move(self, row: int, needs: Resources, devices: tuple[int, ...], sign: int) -> None:
        self.cpu[row] += sign * needs.cpu_milli
        self.memory[row] += sign * needs.memory_mib
        self.replicas[row] -= sign
        if devices:
            share = sign * (needs.gpu_milli // len(devices))
            for device in devices:
                self.devices[row, device] += share
            free: list[int] = self.devices[row].tolist()
            self.gpu_whole[row] = free.count(GPU)
            self.gpu_part[row] = max(free)
            self.gpu_broken[row] = max([left for left in free if left < GPU], default=0)
            self.gpu_free[row] = sum(free)
            kind, milli = self.kind[row], sign * needs.gpu_milli
            self.kind_free[kind] += milli
            if needs.gpu_kind:
                self.gpu_named[row] -= milli
                self.kind_named[kind] -= milli
        self._rank(row)

    def _rank(self, row: int) -> None:
        """Has it GPUs, how much GPU is free, is it in use; then how much CPU and memory is free, and what it
        costs (of what is not in use, the other way round): as one number. Kept, because every ask sorts by
        it."""
        # a CPU or its 4 GiB: finer is noise
        slack = min((int(self.cpu[row]) >> 10) + (int(self.memory[row]) >> 12), (1 << SLACK_BITS) - 1)
        price = price_level(int(self.price[row]))
        unused = self.replicas[row] == 0
        key = int(self.gpu_all[row] > 0)
        key = key << 15 | min(int(self.gpu_free[row]), 0x7FFF)
        key = key << 1 | int(unused)
        first, second = (price, slack) if unused else (slack, price)
        self.fill_order[row] = (key << SLACK_BITS | first) << PRICE_BITS | second

    def _grow(self) -> None:
        rows = len(self.ids)
        for name in (*self.CHANGING, *self.FIXED):
            column = getattr(self, name)
            setattr(self, name, np.concatenate([column, np.zeros_like(column)]))
        for level in LEVELS:
            self.domain[level] = np.concatenate([self.domain[level], np.zeros(rows, np.int64)])
        self.ids.extend([""] * rows)
        self.unused = list(range(2 * rows - 1, rows - 1, -1))
