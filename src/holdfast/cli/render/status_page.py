"""The fleet on one page: what is wrong first, then everything that fits."""

from collections import Counter
from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from holdfast.api.shapes import Brake, Line, Node, Status, Workload
from holdfast.cli.render import theme
from holdfast.cli.render.tables import fleet
from holdfast.model.units import many

ROOM = 40  # rows of nodes and of workloads where nobody says how many fit
NAMES = 5
RANK = {"dead": 0, "unreachable": 1, "suspect": 2}


def page(status: Status, events: Sequence[Line], *, bars: bool, rows: int | None = None) -> RenderableType:
    """`rows`: of the screen, if it must fit there."""
    parts: list[RenderableType] = [
        head(status),
        *(brake(one, status.now_ms) for one in status.brakes),
        *clock(status),
    ]
    taken = len(parts) + 10 + min(len(events), 8)
    room = ROOM if rows is None else max(4, rows - taken)
    workloads = sorted(status.workloads, key=lambda w: (fleet.as_wanted(w), theme.natural(w.name)))
    nodes = sorted(status.nodes, key=lambda node: (_rank(node), theme.natural(node.name)))
    for_workloads = min(len(workloads), max(2, room // 2, room - len(nodes)))
    for_nodes = max(2, room - for_workloads)
    parts += ["", *_workloads(workloads, for_workloads), "", *_nodes(nodes, for_nodes, bars=bars)]
    if events:
        parts += ["", Text("LATELY", "dim"), *(_short(theme.line(one), rows) for one in events)]
    return Group(*parts)


def head(status: Status) -> Text:
    joined = [node for node in status.nodes if node.verdict != fleet.UNKNOWN]
    alive = sum(node.verdict == "alive" for node in joined)
    fine = sum(fleet.as_wanted(workload) for workload in status.workloads)
    out = Counter(node.state for node in joined if node.verdict == "alive" and node.state in fleet.OUT)
    nodes = "red" if alive < len(joined) else "yellow" if out else "green"
    beside = "".join(f", {count} {state}" for state, count in out.items())
    works = "green" if fine == len(status.workloads) else "yellow"
    coming = len(status.nodes) - len(joined)
    leader = f"{status.leader} leads" if status.leader else "nobody leads"
    return Text.assemble(
        ("holdfast  ", "bold"),
        ("● ", nodes),
        f"{alive} of {many(len(joined), 'node')} alive{beside}" + (f", {coming} coming" if coming else ""),
        ("   ● ", works),
        f"{fine} of {many(len(status.workloads), 'workload')} as wanted",
        ("   ● " if status.leader else "   ✕ ", "green" if status.leader else "red"),
        leader,
    )


def clock(status: Status) -> list[Text]:
    if not status.clock_off_ms:
        return []
    by, how = theme.ago(abs(status.clock_off_ms)), "ahead of" if status.clock_off_ms > 0 else "behind"
    text = f"that of the control plane is {by} {how} the fleet's time: one of them is wrong"
    return [Text.assemble(("CLOCK  ", "bold red"), text)]


def brake(one: Brake, now_ms: int) -> Text:
    return Text.assemble(
        ("BRAKE  ", "bold red"),
        f"{one.scope} for {theme.ago(now_ms - one.since_ms)}: {one.why}",
        ("  (holdfast release-brake)", "dim"),
    )


def _rank(node: Node) -> int:
    if node.verdict in RANK:
        return RANK[node.verdict]
    return 4 if node.lifecycle == "ready" else 3


def _workloads(found: list[Workload], room: int) -> list[RenderableType]:
    if not found:
        return [Text("no workloads: holdfast apply examples/web.yaml", "dim")]
    return [fleet.workloads(found[:room]), *_more(len(found) - room, "workload")]


def _nodes(found: list[Node], room: int, *, bars: bool) -> list[RenderableType]:
    if not found:
        return [Text("no nodes", "dim")]
    return [fleet.nodes(found[:room], bars=bars), *_more(len(found) - room, "node"), *_not_kept(found)]


def _not_kept(found: list[Node]) -> list[RenderableType]:
    """What the kernel does not do on some nodes, and elsewhere would be expected of it."""
    joined = [node for node in found if node.state not in fleet.COMING]
    watched = sum(node.limits == "watchdog" for node in joined)
    unfenced = [node.name for node in joined if node.fencing == "none"]
    lines = []
    if watched:
        lines.append(f"limits: watchdog on {watched} of {many(len(joined), 'node')}: memory, not cpus")
    if unfenced:
        lines.append(f"fencing: none on {', '.join(unfenced[:NAMES])}{', ...' if unfenced[NAMES:] else ''}")
    return [Text(line, "dim") for line in lines]


def _more(left: int, noun: str) -> list[RenderableType]:
    return [Text(f"and {many(left, noun)} more", "dim")] if left > 0 else []


def _short(line: Text, rows: int | None) -> Text:
    if rows is not None:
        line.no_wrap, line.overflow = True, "ellipsis"
    return line
