"""What this machine has, as far as nobody said: processors, memory, GPUs, a name.

A container or a slice of a cluster has less than the machine around it, so the limits of control groups
count, of both versions. What cannot be found out is not there.
"""

import os
import re
import socket
import subprocess
from pathlib import Path

from holdfast.model.resources import GPU, Resources

MIB = 1024**2
NVIDIA_SMI_S = 10.0
DRIVER = Path("/proc/driver/nvidia/gpus")


def processors_milli(root: Path = Path("/")) -> int:
    """Of the processors that we may use, what the control groups let us have."""
    milli = 1000 * len(os.sched_getaffinity(0))
    for group in _groups(root, "cpu"):
        quota, period = _quota(group)
        if quota > 0 and period > 0:
            milli = min(milli, quota * 1000 // period)
    return max(1, milli)


def _quota(group: Path) -> tuple[int, int]:
    """Microseconds in each period; 0: no limit."""
    words = _text(group / "cpu.max").split()
    if len(words) != 2:
        words = [_text(group / "cpu.cfs_quota_us").strip(), _text(group / "cpu.cfs_period_us").strip()]
    return _number(words[0]), _number(words[1])


def memory_mib(root: Path = Path("/")) -> int:
    found = re.search(r"^MemTotal:\s+(\d+) kB", _text(root / "proc/meminfo"), re.MULTILINE)
    total = int(found[1]) * 1024 if found else 0
    for group in _groups(root, "memory"):
        for name in ("memory.max", "memory.limit_in_bytes"):
            limit = _number(_text(group / name).strip())
            if 0 < limit < total:
                total = limit
    return total // MIB


def _groups(root: Path, controller: str) -> list[Path]:
    """The control groups that we are in, ours first, then those around it."""
    found = []
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        if controllers and controller not in controllers.split(","):
            continue
        base = root / "sys/fs/cgroup" / (controller if controllers else "")
        inside = Path(path.strip("/"))
        found += [base / part for part in (inside, *inside.parents)]
    return found


def gpus() -> tuple[int, str]:
    """How many GPUs and of which kind. Of several kinds only the first ones that are alike count: one node
    has one kind."""
    models = _models()
    kinds = [kind_of(model) for model in models]
    alike = next((n for n, kind in enumerate(kinds) if kind != kinds[0]), len(kinds))
    return alike, kinds[0] if kinds else ""


def _models() -> list[str]:
    """nvidia-smi sees what we may use; /proc sees what the machine has."""
    command = ("nvidia-smi", "--query-gpu=name", "--format=csv,noheader")
    try:
        said = subprocess.run(command, capture_output=True, text=True, timeout=NVIDIA_SMI_S, check=True)
        return [line.strip() for line in said.stdout.splitlines() if line.strip()]
    except (OSError, subprocess.SubprocessError):
        pass
    files = sorted(DRIVER.glob("*/information"))
    return [found[1].strip() for file in files if (found := re.search(r"Model:\s*(.+)", _text(file)))]


def kind_of(model: str) -> str:
    """`NVIDIA A100-SXM4-80GB` is an "a100", `NVIDIA GeForce RTX 4090` an "rtx4090"."""
    words = re.split(r"[\s-]+", model.lower())
    for number, word in enumerate(words):
        if any(c.isdigit() for c in word):
            series = words[number - 1] if number else ""
            return series + word if word.isdigit() and series in ("rtx", "gtx", "quadro") else word
    return "-".join(word for word in words if word) or "gpu"


def resources(cpu_milli: int | None, memory: int | None, gpu_count: int | None, kind: str) -> Resources:
    """What was said, and the rest found out. Whoever says both processors and memory describes a slice: it
    has the GPUs it names."""
    if gpu_count is None:
        gpu_count, found = (0, "") if cpu_milli is not None and memory is not None else gpus()
        kind = kind or found
    return Resources(
        processors_milli() if cpu_milli is None else cpu_milli,
        memory_mib() if memory is None else memory,
        gpu_count * GPU,
        kind if gpu_count else "",
    )


def host_name() -> str:
    """The machine's own name, in letters that a node's name may have."""
    short = socket.gethostname().partition(".")[0]
    return re.sub(r"[^A-Za-z0-9_-]+", "-", short).strip("-_")[:63] or "node"


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _number(text: str) -> int:
    return int(text) if text.isdecimal() else 0
