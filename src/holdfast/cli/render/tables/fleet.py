"""Nodes, workloads, replicas and pools as tables: one row each, trouble in words at the end."""

import time
from collections.abc import Sequence

from rich.text import Text

from holdfast.api.shapes import Budget, Node, Pool, Project, Replica, Seat, TokenShown, Workload
from holdfast.cli.render import theme
from holdfast.cli.render.rows import Rows, facts
from holdfast.model.project import HOURS_OF_A_MONTH
from holdfast.model.units import many, seconds, usd

SEATS_SHOWN = 24
SILENT_MS = 3_000  # a silence worth a word
COMING = {"launching", "booting"}
UNKNOWN = "unknown"  # a verdict: it has never joined
OUT = ("cordoned", "draining", "resetting", "quarantined")  # alive, and taking no new work
DEAD = "dead"  # a verdict; the state of such a node is the last one that it had
GONE = {"pending", "lost"}  # a seat in which nothing runs: as it should be, while its workload is paused


def nodes(found: Sequence[Node], *, bars: bool) -> Rows:
    gpus = any(node.capacity.gpu_milli for node in found)
    columns = ["NODE", "VERDICT", "STATE", "POOL", "ZONE", "CPU", "MEMORY", *(["GPU"] if gpus else [])]
    made = Rows(*columns, "RUNS", spare=("POOL", "ZONE", "RUNS"))
    for node in found:
        made.add(
            Text(node.name, "bold"),
            Text("-", "dim") if node.verdict == UNKNOWN else theme.verdict(node.verdict),
            Text("lost", "red") if node.verdict == DEAD else theme.state(node.lifecycle),
            node.pool,
            node.place.zone,
            _cpu(node, bars=bars),
            _memory(node, bars=bars),
            *([_gpu(node, bars=bars)] if gpus else []),
            _runs(node),
            remark=Text(
                remark(node),
                "dim" if node.verdict in ("alive", UNKNOWN) and not node.findings else theme.UNUSUAL,
            ),
        )
    return made


def _runs(node: Node) -> str:
    """What is on a dead node still counts until it is proven gone, but nobody would say that it runs."""
    count = len(node.replicas)
    return f"{count} lost" if count and node.verdict == DEAD else str(count)


def _usage(used: float | None, free: float, all_of_it: float, words: str, *, bars: bool) -> Text:
    if not bars or not all_of_it:
        return Text(words)
    promised = 1 - free / all_of_it
    return Text.assemble(theme.bar((used or 0) / all_of_it, promised), " ", words)


def _cpu(node: Node, *, bars: bool) -> Text:
    have, free = node.capacity.cpu_milli, node.free.cpu_milli
    used = node.used.cpu_milli if node.used else None
    return _usage(used, free, have, f"{(have - free) / 1000:g}/{have / 1000:g}", bars=bars)


def _memory(node: Node, *, bars: bool) -> Text:
    have, free = node.capacity.memory_mib, node.free.memory_mib
    used = node.used.memory_mib if node.used else None
    words = f"{_short(have - free)}/{_short(have)}"
    return _usage(used, free, have, words, bars=bars)


def _gpu(node: Node, *, bars: bool) -> Text:
    have, free = node.capacity.gpu_milli, node.free.gpu_milli
    if not have:
        return Text("-", "dim")
    words = f"{(have - free) / 1000:g}/{have / 1000:g} {node.capacity.gpu_kind}".rstrip()
    return _usage(None, free, have, words, bars=bars)


def _short(mib: int) -> str:
    """`64M`, `1.5G`, `4G`."""
    return f"{mib / 1024:.3g}G" if mib >= 1024 else f"{mib}M" if mib else "0"


def remark(node: Node) -> str:
    """What is not as usual."""
    now = int(time.time() * 1000)
    words = []
    if node.verdict not in ("alive", UNKNOWN):
        words.append(node.rule or node.evidence)
    elif node.silent_ms is not None and node.silent_ms > SILENT_MS:
        words.append(f"silent {seconds(node.silent_ms)}")
    if node.deadline_ms:
        words.append(f"until {theme.clock(node.deadline_ms, now)}")
    if node.standby:
        words.append("standby")
    if node.spot:
        words.append("spot")
    return "; ".join([*words, *node.findings])


def workloads(found: Sequence[Workload]) -> Rows:
    several = len({workload.project for workload in found}) > 1
    project = ("PROJECT",) if several else ()
    made = Rows("WORKLOAD", *project, "KIND", "READY", "SEATS", "NEEDS", spare=("NEEDS",))
    for workload in found:
        made.add(
            Text(workload.name, "bold"),
            *((workload.project,) if several else ()),
            workload.kind,
            progress(workload),
            seats(workload),
            theme.amount(workload.needs),
            remark=Text("paused" if workload.paused else workload.why, theme.UNUSUAL),
        )
    return made


def as_wanted(workload: Workload) -> bool:
    """A sweep is, as long as it gets on: only some of its tasks are to run at a time. A service is not while
    copies of an older version serve."""
    if workload.paused or workload.failed:
        return workload.paused
    if workload.kind == "sweep" and workload.ready:
        return True
    if workload.kind == "training" and workload.gang:
        return True  # with as many members as there is room for
    lacks = workload.kind == "service" and workload.why
    return not lacks and workload.ready + workload.done >= workload.wanted


def progress(workload: Workload) -> Text:
    words = f"{workload.ready}/{workload.wanted}"
    if workload.scale is not None:
        words += f" ({workload.scale.min}-{workload.scale.max})"
    if workload.kind in ("job", "sweep") or workload.done:
        left = workload.wanted - workload.done
        words = f"{workload.ready}/{left}" if left else ""
        words = ", ".join(filter(None, [words, f"{workload.done} done" if workload.done else ""]))
    if workload.failed:
        words += f", {workload.failed} failed"
    if workload.standby:
        words += f" +{workload.standby}"
    colour = "dim" if workload.paused else "green" if as_wanted(workload) else theme.UNUSUAL
    return Text(words, "red" if workload.failed else colour)


def seat_word(workload: Workload, seat: Seat) -> str:
    word = seat.state if seat.phase == "open" else seat.phase
    return "paused" if workload.paused and word in GONE else word


def seats(workload: Workload) -> Text:
    """One mark a seat."""
    marks = [theme.seat(seat_word(workload, seat)) for seat in workload.seats]
    shown = Text.assemble(*marks[:SEATS_SHOWN])
    return shown + Text(f" +{len(marks) - SEATS_SHOWN}", "dim") if len(marks) > SEATS_SHOWN else shown


def seat_rows(workload: Workload) -> Rows:
    made = Rows("SLOT", "STATE", "REPLICA", "NODE", "ROLE", "FAILURES", "DOWN", spare=("ROLE", "FAILURES"))
    for seat in workload.seats:
        word = seat_word(workload, seat)
        made.add(
            seat.slot,
            theme.marked(theme.seat(word), word),
            seat.replica or "-",
            seat.node or "-",
            seat.role,
            str(seat.failures),
            "-" if seat.down_ms is None else seconds(seat.down_ms),
            remark=Text("" if word == "paused" else seat.why, theme.UNUSUAL),
        )
    return made


def replicas(found: Sequence[Replica]) -> Rows:
    made = Rows("REPLICA", "STATE", "NODE", "ADDRESS", "ROLE", "SINCE", "USES", spare=("ROLE", "USES"))
    now = int(time.time() * 1000)
    for replica in found:
        made.add(
            Text(replica.id, "bold"),
            theme.marked(theme.seat(replica.state), replica.state),
            replica.node,
            replica.address or "-",
            replica.role,
            theme.ago(now - replica.since_ms),
            theme.amount(replica.used) if replica.used else "-",
        )
    return made


def pools(found: Sequence[Pool]) -> Rows:
    costs = any(pool.hour_micro_usd or budget(pool.budget) for pool in found)
    columns = ["POOL", "PROVIDER", "NODES", "MIN", "MAX", "STANDBY", "OFFERS"]
    columns += ["COSTS", "BUDGET"] if costs else []
    made = Rows(*columns, spare=("STANDBY", "PROVIDER", "OFFERS"))
    for pool in found:
        made.add(
            Text(pool.name, "bold"),
            pool.provider,
            Text(str(pool.nodes), "green" if pool.nodes >= pool.min else theme.UNUSUAL),
            str(pool.min),
            str(pool.max),
            str(pool.standby),
            many(len(pool.offers), "offer"),
            *([f"{usd(pool.hour_micro_usd)}/h", budget(pool.budget) or "-"] if costs else []),
            remark=Text(pool.why, theme.UNUSUAL),
        )
    return made


def projects(found: Sequence[Project]) -> Rows:
    made = Rows("PROJECT", "WORKLOADS", "SLOTS", "NODES", "CPUS", "MEMORY", "GPUS", "A MONTH")
    for one in found:
        month = one.hour_micro_usd * HOURS_OF_A_MONTH
        most = one.month_micro_usd_max
        made.add(
            Text(one.name, "bold"),
            _of(f"{one.workloads:,}", f"{one.workloads_max:,}"),
            _of(f"{one.replicas:,}", f"{one.replicas_max:,}"),
            _of(str(one.nodes), None if one.nodes_max is None else str(one.nodes_max)),
            _of(f"{one.cpu_milli / 1000:g}", _thousandth(one.cpu_milli_max)),
            _of(
                theme.memory(one.memory_mib),
                None if one.memory_mib_max is None else theme.memory(one.memory_mib_max),
            ),
            _of(f"{one.gpu_milli / 1000:g}", _thousandth(one.gpu_milli_max)),
            _of(usd(month), None if most is None else usd(most)),
        )
    return made


def _of(used: str, most: str | None) -> str:
    return used if most is None else f"{used} of {most}"


def _thousandth(most: int | None) -> str | None:
    return None if most is None else f"{most / 1000:g}"


def budget(of: Budget) -> str:
    """`$5.00/h, $900.00 a month`; empty: there is none."""
    hour = f"{usd(of.hour_micro_usd)}/h" if of.hour_micro_usd is not None else ""
    month = f"{usd(of.month_micro_usd)} a month" if of.month_micro_usd is not None else ""
    return ", ".join(filter(None, (hour, month)))


def tokens(found: Sequence[TokenShown]) -> Rows:
    made = Rows(
        "TOKEN", "ROLE", "PROJECT", "POOL", "NODE", "MADE", "EXPIRES", "USES LEFT", "FIRST USED", "BY"
    )
    now = int(time.time() * 1000)
    for token in found:
        made.add(
            Text(token.id, "bold"),
            token.role,
            token.project or "all",
            token.pool or "-",
            token.node or "-",
            theme.clock(token.created_ms),
            _expiry(token.expires_ms, now),
            f"{token.uses - token.used} of {token.uses}" if token.role == "join" else "-",
            theme.clock(token.first_used_ms) if token.first_used_ms else "-",
            token.used_by or "-",
            remark=Text(token.note, "dim"),
        )
    return made


def _expiry(at_ms: int | None, now: int) -> Text:
    if at_ms is None:
        return Text("never")
    return Text(f"{theme.clock(at_ms)}, over", "yellow") if at_ms <= now else Text(theme.clock(at_ms))


def node_facts(node: Node) -> Rows:
    now = int(time.time() * 1000)
    price = f"{usd(node.price_micro_usd)} an hour{', spot' if node.spot else ''}"
    return facts(
        ("verdict", f"{node.verdict} for {theme.ago(now - node.verdict_since_ms)}: {node.rule}"),
        ("evidence", node.evidence),
        ("state", _state(node, now)),
        ("place", " / ".join((node.place.provider, node.place.region, node.place.zone, node.place.rack))),
        ("pool", f"{node.pool}, offer {node.offer}"),
        ("address", node.address),
        ("has", theme.amount(node.capacity)),
        ("free", theme.amount(node.free)),
        ("uses", theme.amount(node.used) if node.used else ""),
        ("price", price if node.price_micro_usd or node.spot else ""),
        ("until", theme.clock(node.deadline_ms) if node.deadline_ms else ""),
        ("labels", ", ".join(f"{key}={value}" for key, value in node.labels.items())),
        ("taints", ", ".join(node.taints)),
        ("findings", "; ".join(node.findings)),
        ("limits", node.limits),
        ("fencing", node.fencing),
        ("isolation", node.isolation),
        ("replicas", ", ".join(node.replicas)),
    )


def _state(node: Node, now: int) -> str:
    if node.verdict == DEAD:
        return f"lost, was {node.lifecycle}"
    return f"{node.lifecycle} for {theme.ago(now - node.state_since_ms)}"


def workload_facts(workload: Workload) -> Rows:
    target = f", {workload.availability:.4%} asked" if workload.availability else ""
    bounds = workload.scale
    scales = f"{bounds.min} to {bounds.max}, by {', '.join(bounds.signals)}" if bounds is not None else ""
    return facts(
        ("kind", f"{workload.kind}, version {workload.version}{', paused' if workload.paused else ''}"),
        ("ready", f"{workload.ready} of {workload.wanted}{target}"),
        ("scales", scales),
        ("done", str(workload.done) if workload.done else ""),
        ("failed", str(workload.failed) if workload.failed else ""),
        ("standby", str(workload.standby) if workload.standby else ""),
        ("needs", theme.amount(workload.needs)),
        ("priority", str(workload.priority) if workload.priority else ""),
        ("command", " ".join(workload.command)),
        ("why", workload.why),
    )
