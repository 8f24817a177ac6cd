"""The reference pages of files, made from the forms: `python -m holdfast.files.scenario.scenario_reference`
for scenarios.

`python -m holdfast.files.workload.workload_reference` makes the page of workload files with what is here.
"""

import ast
import inspect
import re
import textwrap
from collections.abc import Iterator
from typing import get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from holdfast.files.scenario.scenario_schema import ScenarioForm
from holdfast.files.struct_schema import Mirror, mirrored_by, plain
from holdfast.files.validation_errors import table_at, written
from holdfast.files.values import Leaf

HEAD = """# Scenario files

A scenario is a TOML file: a fleet, what must stay up on it, and what goes wrong. `holdfast sim run FILE`
tells the story, `holdfast sim what-if FILE` says what to expect of it. A field without a default says so.

- A **duration** is a text such as `"90s"`, `"5m"`, `"1h30m"` or `"30d"` (ms, s, m, h, d, w), at most 3650
  days, or a number of seconds.
- A **size** of memory is a text such as `"512MiB"` or `"32GiB"`.
- **Money** is dollars an hour: `1.2` or `"$1.20"`.
- A **share** is `"99.9%"` or `0.999`.
- **Nodes** in a fault are names (`"std-a"`; those launched later are `"std-1"`, `"std-2"`, ...), a failure
  domain (`"zone:a"`, `"rack:a-r1"`, `"region:r"`, `"provider:p"`, `"domain:p/r/a"`), what runs a workload
  (`"runs:web"`), or all of them (`"*"`).
- Words of two parts may be joined by a space, `-` or `_`: `"stock out"`, `"stock-out"`.

A policy file (`--policy FILE`) holds the tables below `[policy]` alone: `[detection]`, `[leases]`, and so on.

This page is made by `python -m holdfast.files.scenario.scenario_reference` and checked by a test.
"""
# Where each table stands in the file: its heading, and the way to its form.
TABLES: tuple[tuple[str, tuple[str | int, ...]], ...] = (
    ("The file itself", ()),
    ("[[pools]]", ("pools", 0)),
    ("[[pools.offers]]", ("pools", 0, "offers", 0)),
    ("[pools.market]", ("pools", 0, "market")),
    ("[[pools.market.steps]]", ("pools", 0, "market", "steps", 0)),
    ("[[workloads]]", ("workloads", 0)),
    ("[workloads.restart]", ("workloads", 0, "restart")),
    ("[workloads.program]", ("workloads", 0, "program")),
    ("[workloads.scale]", ("workloads", 0, "scale")),
    ("[workloads.load]", ("workloads", 0, "load")),
    ("[[workloads.load.steps]]", ("workloads", 0, "load", "steps", 0)),
    ("[[workloads.load.bursts]]", ("workloads", 0, "load", "bursts", 0)),
    ("[workloads.requests]", ("workloads", 0, "requests")),
    ("[gateways]", ("gateways",)),
    ("[limits.SCOPE]", ("limits", "SCOPE")),
    ("[[faults]]", ("faults", 0)),
    ("[[changes]]", ("changes", 0)),
    ("[providers.NAME]", ("providers", "NAME")),
    ("[network]", ("network",)),
    ("[policy]", ("policy",)),
)

# What the structs do not say beside the field itself.
NOTES: dict[str, dict[str, str]] = {
    "faults": {
        "at": "when it happens",
        "fault": "what happens",
        "nodes": "to whom; for faults of nodes and partitions",
        "every": "time between two of them, when `times` is above 1",
        "between": "partition: cut off from everybody, or from the control plane only",
        "direction": "partition: what does not arrive: anything, what is sent to them, what comes from them",
        "provider": "for faults of a provider or its market",
        "control": "for faults of a control plane: cp-1, cp-2, ...; empty: whoever leads",
        "step": "control crash: before this step of a turn; store crash: 0 before the append, 1 after it",
        "jump": "clock jump: so far, forward or back",
    },
    "changes": {
        "at": "when",
        "do": "what a person does",
        "workload": "to delete, pause, resume, scale or update",
        "node": "to cordon, uncordon or drain",
        "replicas": "scale: to so many",
        "deadline": "drain: everything has left by then",
    },
}


def page() -> str:
    sections = (_section(heading, loc) for heading, loc in TABLES)
    return "\n".join([HEAD, *(line for section in sections for line in section)])


def _section(heading: str, loc: tuple[str | int, ...]) -> Iterator[str]:
    form = table_at(ScenarioForm, loc)
    if loc == ("policy",):
        for name in form.model_fields:
            yield from _section(f"[policy.{name}]", (*loc, name))
        return
    yield from (f"## `{heading}`" if loc else f"## {heading}", "")
    yield from table(form, NOTES.get(str(loc[0]) if loc else "", {}))


def table(form: type[BaseModel], notes: dict[str, str] | None = None) -> Iterator[str]:
    """Its fields, one a row."""
    told = _notes(form) | (notes or {})
    yield from ("| field | default | is | for |", "|---|---|---|---|")
    for name, field in written(form).items():
        yield _row(name, field, field.description or told.get(name, ""))
    yield ""


def _row(name: str, field: FieldInfo, note: str) -> str:
    leaf = next((mark for mark in field.metadata if isinstance(mark, Leaf)), None)
    if field.is_required():
        default = "*required*"
    elif field.default is None or leaf is None:
        default = ""
    else:
        default = f"`{leaf.show(field.default)}`"
    kind = _brief(leaf.expected) if leaf else "a list of tables"
    if any(isinstance(mark, Mirror) for mark in field.metadata) or (
        not leaf and get_origin(field.annotation) is not list
    ):
        kind = "a table"
    cells = [f"`{name}`", default, kind, note]
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _brief(expected: str) -> str:
    """Without the examples and limits that stand at the top of the page."""
    return re.split(r",? such as|: a list| longer than| of letters|, at most| \(at most 100,000", expected)[0]


def _notes(form: type[BaseModel]) -> dict[str, str]:
    """The comments beside the fields of a mirrored struct, which is where they are explained."""
    struct = mirrored_by(form)
    if struct is None:
        return {}
    source = textwrap.dedent(inspect.getsource(struct))
    lines = source.splitlines()
    (tree,) = ast.parse(source).body
    assert isinstance(tree, ast.ClassDef)
    notes = {}
    for node in tree.body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            span = lines[node.lineno - 1 : node.end_lineno]
            comments = [line.partition("  # ")[2].strip() for line in span]
            notes[plain(node.target.id)] = re.sub(r"_ms\b", "", " ".join(filter(None, comments)))
    return notes


if __name__ == "__main__":
    print(page(), end="")
