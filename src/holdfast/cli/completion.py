"""Tab completion: names of files, and names that the control plane knows.

It is asked with little patience and its silence is accepted: a slow or missing answer must not hold up a
prompt.
"""

import os
from pathlib import Path
from typing import Any

import typer

FOLDERS = ("scenarios", "examples")
NOT_ONE = "pyproject.toml"
PATIENCE_S = 0.5


def scenario_files(incomplete: str) -> list[str]:
    """Scenario files below the usual folders and wherever the half-written path points."""
    return _files(incomplete, ("*.toml",), FOLDERS)


def workload_files(incomplete: str) -> list[str]:
    return _files(incomplete, ("*.yaml", "*.yml"), ("examples",))


def _files(incomplete: str, patterns: tuple[str, ...], folders: tuple[str, ...]) -> list[str]:
    start = Path(incomplete).parent if "/" in incomplete else Path()
    found = dict.fromkeys(
        str(file)
        for place in (start, *(Path(folder) for folder in folders))
        for pattern in patterns
        for file in sorted(place.glob(pattern))
        if file.name != NOT_ONE
    )
    inside = (child for child in sorted(start.glob("*/")) if any(any(child.glob(p)) for p in patterns))
    return [name for name in (*found, *(f"{child}/" for child in inside)) if name.startswith(incomplete)]


def variables(incomplete: str) -> list[str]:
    """Of the environment, as far as they may be passed on."""
    from holdfast.adapters.providers.inherited import may_be_inherited

    return sorted(name for name in os.environ if name.startswith(incomplete) and may_be_inherited(name))


def nodes(context: typer.Context, incomplete: str) -> list[str]:
    return _known(context, "/v1/nodes", "name", incomplete)


def workloads(context: typer.Context, incomplete: str) -> list[str]:
    return _known(context, "/v1/workloads", "name", incomplete)


def pools(context: typer.Context, incomplete: str) -> list[str]:
    return _known(context, "/v1/pools", "name", incomplete)


def deleted(context: typer.Context, incomplete: str) -> list[str]:
    """Workloads; pools, if that was the first word."""
    typed = [str(name) for name in context.params.get("names") or ()]
    if typed and typed[0] == "pool":
        return pools(context, incomplete)
    word = ["pool"] if not typed and "pool".startswith(incomplete) else []
    return [*word, *workloads(context, incomplete)]


def versions(context: typer.Context, incomplete: str) -> list[str]:
    """Earlier ones of the workload that has been typed before."""
    from urllib.parse import quote

    name = quote(str(context.params.get("workload") or ""), safe="")
    found = [str(one.get("version")) for one in _answer(context, f"/v1/workloads/{name}/versions")][:-1]
    return [number for number in found if number.startswith(incomplete)]


def waited(context: typer.Context, incomplete: str) -> list[str]:
    """Workloads; nodes and pools after their kind."""
    kind, slash, name = incomplete.partition("/")
    ask = {"workload": workloads, "node": nodes, "pool": pools}
    if slash:
        return [f"{kind}/{one}" for one in ask[kind](context, name)] if kind in ask else []
    return [*workloads(context, incomplete), *(f"{word}/" for word in ask if word.startswith(incomplete))]


def harmed(context: typer.Context, incomplete: str) -> list[str]:
    """What the deed that has been typed before is done to."""
    return (pools if context.params.get("deed") == "sell-out" else nodes)(context, incomplete)


def offers(context: typer.Context, incomplete: str) -> list[str]:
    """Of any pool."""
    return sorted(set(_known(context, "/v1/offers", "name", incomplete)))


def keys(context: typer.Context, incomplete: str) -> list[str]:
    """Offers with their pools."""
    return _known(context, "/v1/offers", "key", incomplete)


def scaling(context: typer.Context, incomplete: str) -> list[str]:
    """Workloads whose size follows their load."""
    found = [one for one in _answer(context, "/v1/workloads") if one.get("scale")]
    return [name for one in found if (name := str(one.get("name", ""))).startswith(incomplete)]


def signals(context: typer.Context, incomplete: str) -> list[str]:
    """What the workload that has been typed before scales by; else every signal that there is. Those that
    have been typed already are left out."""
    from holdfast.model.scale import Signal

    if "=" in incomplete:
        return []
    given = {str(word).partition("=")[0] for word in context.params.get("said") or ()}
    wanted = context.params.get("workload")
    of = [one["scale"] for one in _answer(context, "/v1/workloads") if one.get("name") == wanted]
    names = of[0].get("signals", []) if of and of[0] else list(Signal)
    return [f"{name}=" for name in names if name not in given and name.startswith(incomplete)]


def key_ids(context: typer.Context, incomplete: str) -> list[str]:
    """Keys to a gateway."""
    return _known(context, "/v1/keys", "id", incomplete)


def teams(context: typer.Context, incomplete: str) -> list[str]:
    """Those that have limits or keys."""
    found = _asked(context, "/v1/limits")
    scopes = (scope.partition("/")[0] for scope in (found if isinstance(found, dict) else ()))
    names = [scope.removeprefix("team:") for scope in scopes if scope.startswith("team:")]
    names += [str(key.get("team") or "") for key in _answer(context, "/v1/keys")]
    return [name for name in dict.fromkeys(names) if name and name.startswith(incomplete)]


def models(context: typer.Context, incomplete: str) -> list[str]:
    """Those that keys and limits name."""
    found = _asked(context, "/v1/limits")
    names = [scope.partition("model:")[2] for scope in (found if isinstance(found, dict) else ())]
    names += [str(model) for key in _answer(context, "/v1/keys") for model in key.get("models") or ()]
    return [name for name in dict.fromkeys(names) if name and name.startswith(incomplete)]


def scopes(context: typer.Context, incomplete: str) -> list[str]:
    """What has limits, and what could have."""
    found = _asked(context, "/v1/limits")
    names = [*(found if isinstance(found, dict) else ()), "global", "model:", "team:"]
    return [name for name in dict.fromkeys(names) if name.startswith(incomplete)]


def replicas(context: typer.Context, incomplete: str) -> list[str]:
    return _known(context, "/v1/replicas", "id", incomplete)


def zones(context: typer.Context, incomplete: str) -> list[str]:
    """The last part of the path is enough, where no two zones share it."""
    places = _answer(context, "/v1/nodes")
    paths = dict.fromkeys("/".join((p["provider"], p["region"], p["zone"])) for p in _places(places))
    names = [*dict.fromkeys(path.rpartition("/")[2] for path in paths), *paths]
    return [name for name in names if name.startswith(incomplete)]


def logged(context: typer.Context, incomplete: str) -> list[str]:
    """Workloads and replicas."""
    return [*workloads(context, incomplete), *replicas(context, incomplete)]


def explained(context: typer.Context, incomplete: str) -> list[str]:
    """Names of the kind that has been typed before."""
    kind = str(context.params.get("kind") or "")
    ask = {"node": nodes, "workload": workloads, "pool": pools, "replica": replicas, "offer": keys}.get(kind)
    return ask(context, incomplete) if ask else []


def _known(context: typer.Context, path: str, field: str, incomplete: str) -> list[str]:
    names = [str(one[field]) for one in _answer(context, path) if field in one]
    return [name for name in names if name.startswith(incomplete)]


def _places(nodes: list[dict[str, Any]]) -> list[dict[str, str]]:
    return [
        place for node in nodes if {"provider", "region", "zone"} <= (place := node.get("place") or {}).keys()
    ]


def _answer(context: typer.Context, path: str) -> list[dict[str, Any]]:
    """A list of things, or nothing."""
    found = _asked(context, path)
    return [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []


def _asked(context: typer.Context, path: str) -> object:
    import msgspec

    from holdfast.cli.client import address, http

    given: dict[str, Any] = context.params
    to = (_text(given, "url"), _text(given, "token"), _text(given, "ca"))
    try:
        if "gateway" in given:
            server = address.keeper_of_keys(_text(given, "gateway"), *to)
        else:
            server = address.server(*to)
        api = http.Client(server, connect_s=PATIENCE_S, answer_s=PATIENCE_S)
        try:
            return msgspec.json.decode(api.get(path))
        finally:
            api.close()
    except (http.Unanswered, address.BadAddress, msgspec.MsgspecError):
        return None


def _text(given: dict[str, Any], name: str) -> str:
    return str(given.get(name) or "")
