"""The tables of `holdfast capacity`: what is free, how it lies, what would fit, what each loss would do."""

from collections.abc import Sequence

from rich.text import Text

from holdfast.api.shapes import Fits, Free, FreeGpus, Hit, Loss
from holdfast.cli.render import theme
from holdfast.cli.render.rows import Rows

MORE_MAX = 100  # the API counts no further
WORKLOADS_SHOWN = 20


def free(found: Sequence[Free]) -> Rows:
    gpus = any(row.gpu_kind for row in found)
    made = Rows(
        "POOL", "ZONE", "OPEN", "CPU", "MEMORY", *(["GPU", "SHARES"] if gpus else []), spare=("SHARES",)
    )
    for row in found:
        beside = ((row.standby, "standing by"), (row.coming, "coming"), (row.leaving, "leaving"))
        made.add(
            Text(row.pool, "bold"),
            row.zone,
            f"{row.open}/{row.nodes}",
            f"{row.cpu_milli / 1000:g}",
            theme.memory(row.memory_mib),
            *([_gpus(row), _part(row.shares_milli)] if gpus else []),
            remark=Text(", ".join(f"{count} {what}" for count, what in beside if count), theme.UNUSUAL),
        )
    return made


def _gpus(row: Free) -> str:
    return f"{row.gpus} {row.gpu_kind}" if row.gpu_kind else "-"


def _part(milli: int) -> str:
    return f"{milli / 1000:g}" if milli else "-"


def gpus(found: Sequence[FreeGpus]) -> Rows:
    """How many asks for so many GPUs at once would find a node."""
    sizes = sorted({int(size) for row in found for size in row.together})
    made = Rows("FREE", "GPU", "STRANDED", *(f"FIT x{size}" for size in sizes))
    for row in found:
        made.add(
            str(row.gpus),
            Text(row.kind or "any", "bold"),
            _part(row.stranded_milli),
            *(_number(row.together.get(str(size), 0)) for size in sizes),
        )
    return made


def _number(count: int) -> Text:
    return Text(str(count), theme.UNUSUAL if not count else "")


def fits(found: Sequence[Fits]) -> Rows:
    """Those that fit the least first."""
    made = Rows("WORKLOAD", "WOULD FIT")
    least = sorted(found, key=lambda row: (row.more, -row.waiting, theme.natural(row.workload)))
    for row in least[:WORKLOADS_SHOWN]:
        more = f"{row.more} more" if row.more < MORE_MAX else f"{MORE_MAX} more or above"
        waits = f"{row.waiting} waiting" if row.waiting else ""
        made.add(
            Text(row.workload, "bold"),
            Text(more, theme.UNUSUAL if not row.more else ""),
            remark=Text(waits, theme.UNUSUAL),
        )
    if len(least) > WORKLOADS_SHOWN:
        made.add(Text(f"and {len(least) - WORKLOADS_SHOWN} that fit as often or more", "dim"), "")
    return made


def losses(found: Sequence[Loss], level: str) -> Rows:
    made = Rows(f"IF {level.upper()} GOES", "NODES", "LOST", "NO ROOM", "PROMISES BROKEN")
    for loss in found:
        broken = sum(bool(hit.broken) for hit in loss.hits)
        made.add(
            Text(loss.domain, "bold"),
            str(loss.nodes),
            str(loss.lost),
            Text(str(loss.short), "red" if loss.short else ""),
            Text(str(broken), "red" if broken else ""),
        )
    return made


def hits(loss: Loss) -> Rows:
    """What one loss does to each workload, the worst first."""
    made = Rows("WORKLOAD", "LOST", "LEFT", "WARM", "PLACED", "PREEMPTING", "NO ROOM", spare=("WARM",))
    for hit in sorted(loss.hits, key=lambda hit: (not hit.broken, -hit.short, theme.natural(hit.workload))):
        made.add(
            Text(hit.workload, "bold"),
            str(hit.lost),
            str(hit.left),
            str(hit.promoted),
            str(hit.placed),
            str(hit.by_preemption),
            Text(str(hit.short), "red" if hit.short else ""),
            remark=Text(_promise(hit), "red"),
        )
    return made


def _promise(hit: Hit) -> str:
    return f"{hit.availability:.4%} broken {hit.broken}" if hit.availability and hit.broken else ""
