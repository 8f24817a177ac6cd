"""What can be waited for: that a workload is ready, done or gone, a node ready, empty or gone, a pool filled
or gone. Each is a look that `waiting.until` repeats.

`Missed` where it cannot become true any more: the program failed too often, or somebody deleted it.
"""

import re
import time
from typing import TYPE_CHECKING
from urllib.parse import quote

from holdfast.api.shapes import Node, Pool, Replica, Seat, Workload
from holdfast.cli.client.http import Unanswered, read
from holdfast.cli.client.waiting import Look, Missed, Seen

if TYPE_CHECKING:
    from holdfast.cli.client.http import Client

STEADY_S, STEADY_AFTER_FAILURES_S = 1.0, 5.0  # ready for so long: then we say it
RUNS_S, RUNS_AFTER_FAILURES_S = 3.0, 30.0  # what ends has no probe: only time shows that it does not fail
NOT_FOUND = 404
ENDS = ("job", "training", "sweep")
ENDED = re.compile(r"exit code (\d+)|signal (\d+)")
BY_SIGNAL = 128  # a shell's way to make an exit code of a signal
SEATS_NAMED = 3


def path(kind: str, name: str) -> str:
    return f"/v1/{kind}s/{quote(name, safe='')}"


# workloads


def ready(api: "Client", name: str) -> Look:
    """As wanted, in its latest version; of a job and of the tasks of a sweep: they run, or have run."""
    steady = Steady()

    def look() -> Seen:
        workload = read(api.get(path("workload", name)), Workload)
        replicas = read(api.get("/v1/replicas", workload=name), list[Replica])
        actives = [each for each in replicas if each.state == "ready" and each.role == "active"]
        newest = sum(each.version == workload.version for each in actives)
        if workload.failed:
            raise failure(workload)
        well = is_well(workload, newest, len(actives))
        stays = steady.stays(tuple(each.id for each in actives), _patience(workload)) or not actives
        far = how_far(workload, newest, len(actives) - newest) + _failing(workload)
        if well and not stays:
            return Seen(False, f"{far}, watching that it stays so", settling=True)
        return Seen(well, far)

    return look


def _patience(workload: Workload) -> float:
    """For how long it must stay so. A service with a probe is known sooner than a job, whose program may do
    much before it fails; one that has failed before may do so again."""
    failed = any(seat.failures for seat in workload.seats)
    if workload.kind == "job" and not workload.done:
        return RUNS_AFTER_FAILURES_S if failed else RUNS_S
    return STEADY_AFTER_FAILURES_S if failed else STEADY_S


def _failing(workload: Workload) -> str:
    """What has failed so far, and is tried again."""
    open_ = [seat for seat in workload.seats if seat.failures and seat.phase == "open"]
    if workload.kind not in ENDS or not open_:
        return ""
    worst = max(open_, key=lambda seat: seat.failures)
    why = f": {worst.why}" if worst.why and worst.why not in workload.why else ""
    return f"; {worst.slot} has failed {worst.failures} times{why}"


def done(api: "Client", name: str, *, or_paused: bool = False) -> Look:
    """It has run to its end, or is not to run now."""

    def look() -> Seen:
        workload = read(api.get(path("workload", name)), Workload)
        if workload.failed and workload.failed + workload.done >= _ends(workload):
            raise failure(workload)
        far = how_far(workload, workload.ready, 0) + _failing(workload)
        ended = _is_done(workload) and not workload.failed
        return Seen(ended or (or_paused and workload.paused), far)

    return look


def _is_done(workload: Workload) -> bool:
    """A training may have ended with fewer members than it could have had: it is done when one member says
    so and none runs any more."""
    if workload.kind == "training":
        return workload.done > 0 and not any(seat.replica for seat in workload.seats)
    return workload.done >= workload.wanted > 0


def _ends(workload: Workload) -> int:
    """How many must have ended, one way or the other, for a failure to be its outcome: the other tasks of a
    sweep go on, and a job or a training does not."""
    return workload.wanted if workload.kind == "sweep" else 1


def gone(api: "Client", name: str) -> Look:
    """Deleted, and nothing of it runs any more."""

    def look() -> Seen:
        try:
            left = read(api.get("/v1/replicas", workload=name), list[Replica])
            known = bool(left) or _is_known(api, path("workload", name))
        except Unanswered as error:
            if error.status != NOT_FOUND:
                raise
            left, known = [], False
        if not left:
            return Seen(not known, f"{name} is {'not deleted' if known else 'gone'}")
        return Seen(False, f"{name}: {', '.join(replica.id for replica in left)} still there")

    return look


def _is_known(api: "Client", where: str) -> bool:
    try:
        api.get(where)
    except Unanswered as error:
        if error.status == NOT_FOUND:
            return False
        raise
    return True


def failure(workload: Workload) -> Missed:
    """With the end of the program that failed, where one did."""
    name = workload.name
    failed = [seat for seat in workload.seats if seat.phase == "failed"]
    which = _named(failed) if workload.kind == "sweep" else ""
    program = next((code for seat in failed if (code := exit_code(seat.why)) is not None), None)
    return Missed(f"{name} has failed: {workload.why}{which}", f"holdfast logs {name}", program)


def _named(failed: list[Seat]) -> str:
    more = f" and {len(failed) - SEATS_NAMED} more" if len(failed) > SEATS_NAMED else ""
    return f" ({', '.join(seat.slot for seat in failed[:SEATS_NAMED])}{more})" if failed else ""


def exit_code(why: str) -> int | None:
    """Of a program, from the words of its end; none: it did not end by itself."""
    found = ENDED.search(why)
    if found is None:
        return None
    return int(found[1]) if found[1] else BY_SIGNAL + int(found[2])


class Steady:
    """A program without a probe is ready as soon as it runs, and may fail a moment later: what is ready must
    stay so for a while before we say it."""

    def __init__(self) -> None:
        self.ready: tuple[str, ...] = ()
        self.since = 0.0

    def stays(self, ready: tuple[str, ...], seconds: float) -> bool:
        now = time.monotonic()
        if ready != self.ready:
            self.ready, self.since = ready, now
        return now - self.since >= seconds


def is_well(workload: Workload, newest: int, running: int) -> bool:
    """A job and the tasks of a sweep are well when they run, or have run."""
    if workload.paused:
        return True
    if workload.kind in ("job", "sweep"):
        return running + workload.done >= 1
    if workload.kind == "training" and workload.gang:
        return newest >= workload.ready
    return newest >= workload.wanted or workload.done >= workload.wanted > 0


def how_far(workload: Workload, newest: int, older: int) -> str:
    """While a new version comes the old copies serve: the new ones alone would look like an outage."""
    why = f": {workload.why}" if workload.why else ""
    if workload.kind in ("job", "sweep"):
        return f"{workload.name}: {workload.ready} running, {workload.done} of {workload.wanted} done{why}"
    if older and newest < workload.wanted:
        return f"{workload.name}: {newest + older} serving, {newest} of {workload.wanted} new{why}"
    return f"{workload.name}: {newest} of {workload.wanted} ready{why}"


# nodes


def node_ready(api: "Client", name: str) -> Look:
    def look() -> Seen:
        node = read(api.get(path("node", name)), Node)
        return Seen(
            node.state == "ready" and node.verdict == "alive", f"{name} is {node.state}, {node.verdict}"
        )

    return look


def node_empty(api: "Client", name: str) -> Look:
    def look() -> Seen:
        try:
            node = read(api.get(path("node", name)), Node)
        except Unanswered as error:
            if error.status == NOT_FOUND:
                return Seen(True, f"{name} has left")
            raise
        runs = ", ".join(node.replicas)
        return Seen(not runs, f"{name} still runs {runs}" if runs else f"{name} is empty")

    return look


def node_gone(api: "Client", name: str) -> Look:
    def look() -> Seen:
        known = _is_known(api, path("node", name))
        return Seen(not known, f"{name} is {'still there' if known else 'gone'}")

    return look


# pools


def pool_ready(api: "Client", name: str) -> Look:
    """As many of its nodes take work as it is to have at least."""

    def look() -> Seen:
        pool = pool_called(api, name)
        if pool is None:
            raise Unanswered([f"there is no pool called {name}"], status=NOT_FOUND)
        nodes = [node for node in read(api.get("/v1/nodes"), list[Node]) if node.pool == name]
        open_ = sum(node.state == "ready" and node.verdict == "alive" for node in nodes)
        why = f": {pool.why}" if pool.why else ""
        return Seen(open_ >= pool.min, f"{name}: {open_} of {pool.min} nodes ready{why}")

    return look


def pool_gone(api: "Client", name: str) -> Look:
    def look() -> Seen:
        pool = pool_called(api, name)
        return Seen(pool is None, f"{name} is gone" if pool is None else f"{name}: {pool.why}")

    return look


def pool_called(api: "Client", name: str) -> Pool | None:
    return next((pool for pool in read(api.get("/v1/pools"), list[Pool]) if pool.name == name), None)
