"""Orders to the fleet: to nodes (drain, cordon, uncordon, forget), to workloads (scale, signal, pause,
resume, delete), to pools (delete), release-brake and chaos."""

import enum
from typing import TYPE_CHECKING, Annotated
from urllib.parse import quote

import typer

from holdfast.cli import completion, output
from holdfast.cli.client.with_client import talks
from holdfast.cli.options import Json, Timeout, Wait

if TYPE_CHECKING:
    from holdfast.cli.client.http import Client

NodeName = Annotated[str, typer.Argument(metavar="NODE", help="Which node.", autocompletion=completion.nodes)]
WorkloadName = Annotated[
    str, typer.Argument(metavar="WORKLOAD", help="Which workload.", autocompletion=completion.workloads)
]


POOLS = "holdfast delete pool NAME; holdfast pools lists them"
SIGNAL_MAX = 1e12  # the API takes no larger one


class Deed(enum.StrEnum):
    """What can be done on purpose: to a node, or to the market of a pool."""

    KILL = "kill"
    HANG = "hang"
    RESUME = "resume"
    PARTITION = "partition"
    NOTICE = "notice"
    SELL_OUT = "sell-out"


@talks
def drain(
    api: "Client",
    node: NodeName,
    deadline: Annotated[
        str,
        typer.Option(
            "--deadline",
            metavar="TIME",
            show_default="the policy's, 5m",
            help="By then all is stopped, with a successor or without.",
        ),
    ] = "",
    wait: Wait = False,
    timeout: Timeout = "10m",
    json: Json = False,
) -> None:
    """Move everything off a node. A copy that may run twice is replaced first, and stopped when its successor
    is ready; an exclusive job is stopped as soon as there is room for it elsewhere, saves, and starts there.
    The node takes nothing new until `holdfast uncordon`."""
    body = {"deadline_ms": output.duration(deadline, "--deadline") if deadline else None}
    patience_ms = output.duration(timeout, "--timeout")
    answer = api.post(_node(node, "drain"), body)
    _done(answer, _until_empty(api, node, patience_ms) if wait else f"{node} is draining", json=json)


def _until_empty(api: "Client", node: str, timeout_ms: int) -> str:
    from holdfast.cli.client import goals, waiting

    why = f"holdfast explain node {node}"
    return waiting.until(goals.node_empty(api, node), timeout_ms, f"{node} is not empty", why)


@talks
def cordon(api: "Client", node: NodeName, json: Json = False) -> None:
    """Place nothing new on a node; what runs there stays."""
    _done(api.post(_node(node, "cordon")), f"{node} is cordoned", json=json)


@talks
def uncordon(api: "Client", node: NodeName, json: Json = False) -> None:
    """Take a node back into use. What was found of it is cleared: only what comes after this counts."""
    _done(api.post(_node(node, "uncordon")), f"{node} is open again", json=json)


@talks
def forget(api: "Client", node: NodeName, json: Json = False) -> None:
    """Strike off a dead node that will not come back. Its name is free again: a machine that takes it joins
    with a new token."""
    _done(api.post(_node(node, "forget")), f"{node} is forgotten", json=json)


@talks
def scale(
    api: "Client",
    workload: WorkloadName,
    count: Annotated[int, typer.Argument(metavar="N", min=0, max=100_000, help="How many.")],
    json: Json = False,
) -> None:
    """Change how many there are. Replicas of a service, members of a training, tasks at a time of a sweep."""
    _done(
        api.post(_workload(workload, "scale"), {"count": count}), f"{workload} is to have {count}", json=json
    )


@talks
def signal(
    api: "Client",
    workload: Annotated[
        str, typer.Argument(metavar="WORKLOAD", help="Which one.", autocompletion=completion.scaling)
    ],
    said: Annotated[
        list[str],
        typer.Argument(
            metavar="NAME=VALUE", help="How it goes: in_flight=12.", autocompletion=completion.signals
        ),
    ],
    source: Annotated[
        str,
        typer.Option(
            "--source",
            metavar="NAME",
            help="Who says so. What several sources say of one signal is taken together.",
        ),
    ] = "",
    json: Json = False,
) -> None:
    """Tell how a service goes, so that it grows and shrinks. What is told counts for a minute (`stale` in its
    file), so it has to be told again and again. A signal that is missing never makes it shrink."""
    import msgspec

    from holdfast.api.shapes import Done
    from holdfast.cli.client import http

    body = {"source": source, "signals": dict(_signal(word) for word in said)}
    answer = api.post(_workload(workload, "signals"), body)
    if json:
        output.raw(answer)
        return
    try:
        print(http.read(answer, Done).done)
    except msgspec.DecodeError:
        print(f"{workload} was told")


def _signal(word: str) -> tuple[str, float]:
    from holdfast.core.spelling import did_you_mean
    from holdfast.model.scale import Signal

    name, equals, text = word.partition("=")
    if not equals:
        output.fail(
            [f"expected NAME=VALUE, got {word}"], f"{name if name in list(Signal) else 'in_flight'}=12"
        )
    if name not in list(Signal):
        output.fail([f"there is no signal called {name}"], did_you_mean(name, Signal))
    try:
        value = float(text)
    except ValueError:
        output.fail([f"{name}: expected a number, got {text or 'nothing'}"], f"{name}=12")
    if not 0 <= value <= SIGNAL_MAX:
        output.fail([f"{name}: expected a number from 0 to {SIGNAL_MAX:g}, got {text}"], f"{name}=12")
    return name, value


@talks
def pause(api: "Client", workload: WorkloadName, json: Json = False) -> None:
    """Stop a workload, and keep it in mind."""
    _done(api.post(_workload(workload, "pause")), f"{workload} is paused", json=json)


@talks
def resume(api: "Client", workload: WorkloadName, json: Json = False) -> None:
    """Start a paused workload again."""
    _done(api.post(_workload(workload, "resume")), f"{workload} goes on", json=json)


@talks
def delete(
    api: "Client",
    names: Annotated[
        list[str],
        typer.Argument(
            metavar="WORKLOAD|pool POOL",
            help="Which workloads; or the word pool, and which pools.",
            autocompletion=completion.deleted,
        ),
    ],
    wait: Wait = False,
    timeout: Timeout = "2m",
    json: Json = False,
) -> None:
    """Stop workloads, and forget them. If one is not known nothing is deleted. Checkpoints are kept where
    they are, and epochs are not used again: a workload of the same name finds the checkpoints and goes on
    counting. A pool's nodes are emptied as `holdfast drain` does it, and let go; then it is forgotten."""
    import msgspec

    from holdfast.cli.client.http import Unanswered

    patience_ms = output.duration(timeout, "--timeout")
    pools = len(names) > 1 and names[0] == "pool"
    path, gone = (_pool, _until_forgotten) if pools else (_workload, _until_gone)
    words = "is being deleted: its nodes are emptied and let go" if pools and not wait else "is deleted"
    names = list(dict.fromkeys(names[pools:]))
    if len(names) > 1:
        _check_known(api, names, pools=pools)
    answers: list[bytes] = []
    try:
        for name in names:
            answers.append(api.delete(path(name)))  # one that fails after others: what was done is told
    except Unanswered as error:
        if error.status == 404 and names == ["pool"]:
            output.fail(
                ["expected the name of a pool after pool, got nothing; and no workload is called pool"], POOLS
            )
        if answers:
            error.errors.append(f"deleted before that: {', '.join(names[: len(answers)])}")
        raise
    for name in names if wait else ():
        gone(api, name, patience_ms)
    if json:
        output.as_json([msgspec.Raw(answer) for answer in answers])
    else:
        print("\n".join(f"{name} {words}" for name in names))


def _check_known(api: "Client", names: list[str], *, pools: bool) -> None:
    """Before anything is deleted."""
    from holdfast.api.shapes import Pool, Workload
    from holdfast.cli.client import http
    from holdfast.core.spelling import did_you_mean

    if pools:
        known = {pool.name for pool in http.read(api.get("/v1/pools"), list[Pool])}
    else:
        known = {workload.name for workload in http.read(api.get("/v1/workloads"), list[Workload])}
    unknown = [name for name in names if name not in known]
    if unknown:
        what = "pool" if pools else "workload"
        errors = [f"there is no {what} called {name}" for name in unknown]
        output.fail([*errors, "nothing was deleted"], did_you_mean(unknown[0], sorted(known)))


def _until_forgotten(api: "Client", name: str, timeout_ms: int) -> None:
    from holdfast.cli.client import goals, waiting

    why = f"holdfast explain pool {name}"
    waiting.until(goals.pool_gone(api, name), timeout_ms, f"{name} is not gone", why)


def _until_gone(api: "Client", name: str, timeout_ms: int) -> None:
    from holdfast.cli.client import goals, waiting

    waiting.until(goals.gone(api, name), timeout_ms, f"{name} is not gone")


@talks
def release_brake(api: "Client", json: Json = False) -> None:
    """Release the brake. Disruptive actions go on, although much has failed at once."""
    _done(api.post("/v1/brake/release"), "the brake is released", json=json)


@talks
def chaos(
    api: "Client",
    deed: Annotated[
        Deed,
        typer.Argument(
            metavar="|".join(Deed),
            help="Power off, freeze, unfreeze, cut off, take away after notice; or: nothing to be had.",
        ),
    ],
    node: Annotated[
        str,
        typer.Argument(
            metavar="NODE|POOL", help="Which; `sell-out` takes a pool.", autocompletion=completion.harmed
        ),
    ],
    offer: Annotated[
        str,
        typer.Argument(metavar="OFFER", help="sell-out: only this one.", autocompletion=completion.offers),
    ] = "",
    lasting: Annotated[
        str,
        typer.Option(
            "--for",
            metavar="TIME",
            show_default="30s; 1m",
            help="How long a partition, or a sell-out, lasts.",
        ),
    ] = "",
    left: Annotated[
        str,
        typer.Option(
            "--left", metavar="TIME", show_default="2m", help="notice: how long the node still has."
        ),
    ] = "",
    json: Json = False,
) -> None:
    """Harm a node or a market on purpose. To see that it does not matter; only where its provider can."""
    if offer and deed is not Deed.SELL_OUT:
        output.fail([f"{deed} takes a node and nothing else, got {offer}"], f"holdfast chaos {deed} {node}")
    takes = {Deed.NOTICE: "--left", Deed.PARTITION: "--for", Deed.SELL_OUT: "--for"}.get(deed, "")
    for option, value in (("--for", lasting), ("--left", left)):
        if value and option != takes:
            instead = f"{deed} takes {takes}, and no {option}" if takes else f"{deed} takes no {option}"
            output.fail([instead], f"holdfast chaos {deed} {node}{f' {takes} {value}' if takes else ''}")
    if deed is Deed.SELL_OUT:
        lasting = lasting or "1m"
        market = {"pool": node, "offer": offer, "for_ms": output.duration(lasting, "--for")}
        words = f"{offer or 'everything'} of {node} is sold out for {lasting}"
        _done(api.post("/v1/chaos/sell-out", market), words, json=json)
        return
    lasting = (left or "2m") if deed is Deed.NOTICE else lasting or "30s"
    body = {"node": node, "for_ms": output.duration(lasting, "--left" if deed is Deed.NOTICE else "--for")}
    told = {
        Deed.KILL: "is killed, and everything on it",
        Deed.HANG: "hangs, and everything on it",
        Deed.RESUME: "runs again",
        Deed.PARTITION: f"is cut off for {lasting}",
        Deed.NOTICE: f"will be taken away in {lasting}",
    }
    _done(api.post(f"/v1/chaos/{deed}", body), f"{node} {told[deed]}", json=json)


def _done(answer: bytes, words: str, *, json: bool) -> None:
    if json:
        output.raw(answer)
    else:
        print(words)


def _node(name: str, order: str = "") -> str:
    return f"/v1/nodes/{quote(name, safe='')}" + (f"/{order}" if order else "")


def _pool(name: str) -> str:
    return f"/v1/pools/{quote(name, safe='')}"


def _workload(name: str, order: str = "") -> str:
    return f"/v1/workloads/{quote(name, safe='')}" + (f"/{order}" if order else "")
