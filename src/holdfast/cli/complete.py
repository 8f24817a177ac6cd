"""Tab completion: names of files, and names that the control plane knows.

It is asked with little patience and its silence is accepted: a slow or missing answer must not hold up a
prompt.
"""

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


def nodes(context: typer.Context, incomplete: str) -> list[str]:
    return _known(context, "/v1/nodes", "name", incomplete)


def workloads(context: typer.Context, incomplete: str) -> list[str]:
    return _known(context, "/v1/workloads", "name", incomplete)


def pools(context: typer.Context, incomplete: str) -> list[str]:
    return _known(context, "/v1/pools", "name", incomplete)


def replicas(context: typer.Context, incomplete: str) -> list[str]:
    return _known(context, "/v1/replicas", "id", incomplete)


def logged(context: typer.Context, incomplete: str) -> list[str]:
    """Workloads and replicas."""
    return [*workloads(context, incomplete), *replicas(context, incomplete)]


def explained(context: typer.Context, incomplete: str) -> list[str]:
    """Names of the kind that has been typed before."""
    kind = str(context.params.get("kind") or "")
    ask = {"node": nodes, "workload": workloads, "pool": pools, "replica": replicas}.get(kind)
    return ask(context, incomplete) if ask else []


def _known(context: typer.Context, path: str, field: str, incomplete: str) -> list[str]:
    import msgspec

    from holdfast.cli import client, where

    given: dict[str, Any] = context.params
    try:
        api = client.Client(
            where.server(_text(given, "url"), _text(given, "token"), _text(given, "ca")),
            connect_s=PATIENCE_S,
            answer_s=PATIENCE_S,
        )
        try:
            names = [str(one[field]) for one in msgspec.json.decode(api.get(path))]
        finally:
            api.close()
    except (client.Unanswered, where.BadAddress, msgspec.MsgspecError, KeyError, TypeError):
        return []
    return [name for name in names if name.startswith(incomplete)]


def _text(given: dict[str, Any], name: str) -> str:
    return str(given.get(name) or "")
