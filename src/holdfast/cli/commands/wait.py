"""`holdfast wait`: come back when workloads, nodes or pools are as they should be. Exit codes are for CI."""

import enum
import time
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from holdfast.cli import completion, output
from holdfast.cli.client.with_client import talks
from holdfast.cli.options import Json

if TYPE_CHECKING:
    from holdfast.cli.client.http import Client
    from holdfast.cli.client.waiting import Look, Seen

KINDS = ("workload", "node", "pool")


class State(enum.StrEnum):
    READY = "ready"
    DONE = "done"
    EMPTY = "empty"
    GONE = "gone"


TAKES: dict[str, tuple[State, ...]] = {
    "workload": (State.READY, State.DONE, State.GONE),
    "node": (State.READY, State.EMPTY, State.GONE),
    "pool": (State.READY, State.GONE),
}


class Goal(NamedTuple):
    kind: str
    name: str
    state: State
    look: "Look"


@talks
def wait(
    api: "Client",
    names: Annotated[
        list[str],
        typer.Argument(
            metavar="[KIND/]NAME",
            help="A workload, or node/NAME, pool/NAME, workload/NAME; several.",
            autocompletion=completion.waited,
        ),
    ],
    state: Annotated[
        State | None,
        typer.Option(
            "--for",
            metavar="|".join(State),
            help="What to wait for: done is for jobs, trainings and sweeps, empty for nodes.",
            show_default="done for what has an end, ready for the rest",
        ),
    ] = None,
    timeout: Annotated[
        str, typer.Option("--timeout", metavar="TIME", help="Give up after.", show_default="never")
    ] = "",
    exit_code: Annotated[
        bool, typer.Option("--exit-code", help="If a program failed, exit with its exit code.")
    ] = False,
    json: Json = False,
) -> None:
    """Come back when it is so. Exit codes: 0 it is so, 1 it cannot become so (a job failed too often, or was
    deleted), 2 there is no such name, 3 the time is over. The first that cannot become so ends the wait. A
    program that ended by signal N has the exit code 128 + N."""
    from holdfast.cli.client import waiting
    from holdfast.cli.client.changes import Changes

    timeout_ms = output.duration(timeout, "--timeout") if timeout else waiting.FOR_EVER_MS
    goals = [_goal(api, name, state) for name in dict.fromkeys(names)]
    began, all_of_them = time.monotonic(), Together(goals)
    what = f"{', '.join(goal.name for goal in goals)}: not {goals[0].state if len(goals) == 1 else 'so'}"
    about = {goals[0].kind: goals[0].name} if len(goals) == 1 and goals[0].kind != "pool" else {}
    try:
        with Changes(api, about) as changes:
            waiting.until(all_of_them.look, timeout_ms, what, all_of_them.hint(), pause=changes.wait)
    except waiting.Missed as missed:
        if not exit_code or missed.program is None:
            raise
        output.fail(missed.errors, missed.hint, missed.program)
    if json:
        took_ms = round((time.monotonic() - began) * 1000)
        output.as_json(
            [{"kind": g.kind, "name": g.name, "state": g.state, "took_ms": took_ms} for g in goals]
        )
    else:
        print("\n".join(f"{goal.name} is {goal.state}" for goal in goals))


class Together:
    """Several goals as one. What has come true once counts: a job that is done may be deleted meanwhile."""

    def __init__(self, goals: list[Goal]) -> None:
        self._left = list(goals)

    def hint(self) -> str:
        first = self._left[0]
        return f"holdfast explain {first.kind} {first.name}"

    def look(self) -> "Seen":
        from holdfast.cli.client.http import Unanswered
        from holdfast.cli.client.waiting import Missed, Seen

        seen: list[Seen] = []
        for goal in list(self._left):
            try:
                found = goal.look()
            except Unanswered as error:
                if error.status == 404:
                    raise Missed(f"{goal.name} was deleted before it was {goal.state}") from None
                raise
            seen.append(found)
            if found.done:
                self._left.remove(goal)
        waits = [each for each in seen if not each.done] or seen
        far = "; ".join(each.how_far for each in waits)
        return Seen(not self._left, far, settling=all(each.settling for each in waits))


def _goal(api: "Client", word: str, state: State | None) -> Goal:
    from holdfast.cli.client import goals

    kind, name = _named(word)
    wanted = state
    if state is not State.GONE:  # there must be one; what never was is gone
        there = _kind_of(api, kind, name)
        wanted = state or (State.DONE if there in ("job", "training", "sweep") else State.READY)
        if wanted is State.DONE and there == "service":
            output.fail([f"{name} is a service: it is never done"], f"holdfast wait {name} --for ready")
    if wanted is None or wanted not in TAKES[kind]:
        output.fail([f"a {kind} is never {wanted}"], f"--for {'|'.join(TAKES[kind])}")
    look = {
        ("workload", State.READY): goals.ready,
        ("workload", State.DONE): goals.done,
        ("workload", State.GONE): goals.gone,
        ("node", State.READY): goals.node_ready,
        ("node", State.EMPTY): goals.node_empty,
        ("node", State.GONE): goals.node_gone,
        ("pool", State.READY): goals.pool_ready,
        ("pool", State.GONE): goals.pool_gone,
    }[kind, wanted]
    return Goal(kind, name, wanted, look(api, name))


def _named(word: str) -> tuple[str, str]:
    kind, slash, name = word.partition("/")
    if not slash:
        return "workload", word
    if kind not in KINDS:
        output.fail(
            [f"expected {', '.join(KINDS)} before the /, got {kind}"],
            f"holdfast wait workload/{name or 'NAME'}",
        )
    return kind, name


def _kind_of(api: "Client", kind: str, name: str) -> str:
    """Of a workload, what it is. An unknown name is refused here, with the nearest that there is."""
    from holdfast.api.shapes import Workload
    from holdfast.cli.client import goals, http

    if kind == "workload":
        return http.read(api.get(goals.path("workload", name)), Workload).kind
    api.get(f"/v1/explain/{kind}", name=name) if kind == "pool" else api.get(goals.path(kind, name))
    return kind
