"""`holdfast apply` and `holdfast plan`: ask for what workload files say, or hear what would come of it."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from holdfast.cli import completion, output
from holdfast.cli.client.with_client import talks
from holdfast.cli.options import Json, WaitForWork, WorkTimeout
from holdfast.model.units import MINUTE

if TYPE_CHECKING:
    from holdfast.api.shapes import Applied, Preview
    from holdfast.cli.client.http import Client

STDIN = "-"
SERVICE_WITHIN_MS = 10 * MINUTE
PATTERNS = ("*.yaml", "*.yml")
Files = Annotated[
    list[Path],
    typer.Argument(
        metavar="FILE", help="Workload files (YAML); -: stdin.", autocompletion=completion.workload_files
    ),
]


@talks
def apply(
    api: "Client", files: Files, wait: WaitForWork = False, timeout: WorkTimeout = "", json: Json = False
) -> None:
    """Ask for what workload files say. All of it or, if something is wrong with it, nothing. With --wait a
    job, a training or a sweep is waited for to its end, as `holdfast wait` does: exit code 1 if it failed, 3
    if the time is over. To come back when it runs: `holdfast wait NAME --for ready`."""
    from holdfast.api.shapes import Applied
    from holdfast.cli.client import http

    patience_ms = output.duration(timeout, "--timeout") if timeout else None
    body = api.send("/v1/apply", read_all(files, json_too=json))
    applied = http.read(body, list[Applied])
    if not json:
        _tell(applied)
    if wait:
        for one in applied:
            if one.kind not in ("pool", "policy"):
                print(wait_for(api, one.name, one.kind, patience_ms), file=sys.stderr)
    if json:
        output.raw(body)


@talks
def plan(api: "Client", files: Files, json: Json = False) -> None:
    """Say what applying files would do. Nothing is changed."""
    from holdfast.api.shapes import Preview
    from holdfast.cli.client import http

    body = api.send("/v1/plan", read_all(files, json_too=json))
    if json:
        output.raw(body)
    else:
        _tell_plan(http.read(body, Preview))


def read_all(files: list[Path], *, json_too: bool) -> str:
    """The documents of all files as one text. They are checked here too: a mistake has a file and a line."""
    from holdfast.files import read_text
    from holdfast.files.problem import FileProblem
    from holdfast.files.workload import workload_file

    texts, problems = [], []
    for file in files:
        try:
            name = "stdin" if str(file) == STDIN else str(file)
            found = sys.stdin.buffer.read(read_text.BYTES_MAX + 1) if str(file) == STDIN else None
            text = (
                read_text.decoded(found, name)
                if found is not None
                else read_text.text(file, "YAML", PATTERNS)
            )
            workload_file.documents(text, name)
            texts.append(text)
        except FileProblem as problem:
            problems.append(problem)
    if problems:
        output.refuse(problems, "every field is in docs/reference/workload-file.md", json_too)
    return joined(texts)


def joined(texts: list[str]) -> str:
    """One text of several documents; each may begin with a directive or with `---` of its own."""
    whole = texts[0]
    for text in texts[1:]:
        begins = text.lstrip("\ufeff").lstrip()
        whole += "\n...\n" + ("" if begins.startswith(("---", "%")) else "---\n") + text
    return whole


def _tell(applied: "list[Applied]") -> None:
    from rich.text import Text

    from holdfast.cli.render import theme
    from holdfast.cli.render.rows import Rows

    rows = Rows("", "", "")
    for one in applied:
        outcome = Text(one.outcome, theme.OUTCOMES.get(one.outcome, ""))
        rows.add(Text(one.name or one.kind, "bold"), one.kind, outcome, remark=", ".join(one.changes))
    theme.show(rows)


def _tell_plan(preview: "Preview") -> None:
    from rich.console import Group
    from rich.text import Text

    from holdfast.cli.render import theme
    from holdfast.cli.render.rows import Rows

    steps = Rows("", "")
    for step in preview.steps:
        why = step.why if step.why not in step.text else ""
        text = Text.assemble(step.text, (f" ({why})" if step.text and why else why, "dim"))
        steps.add(Text(step.action, "cyan"), Text(step.subject, "bold"), remark=text)
    if not preview.steps:
        steps.add(Text("nothing to do", "dim"), "")
    waits = [Text(f"would wait: {text}", "yellow") for text in preview.pending]
    cautions = [Text(f"note: {text}", "yellow") for text in preview.cautions]
    changes = [Text(change) for change in preview.changes]  # brackets in it are no markup
    theme.show(Group(*changes, "", steps, *waits, *cautions))


def wait_for(api: "Client", name: str, kind: str, timeout_ms: int | None) -> str:
    """Until the workload is as wanted, in its latest version, or done (or paused) if it has an end, as
    `holdfast wait` does; how far it is then."""
    from holdfast.cli.client import goals, waiting

    why = f"holdfast explain workload {name}"
    if kind in goals.ENDS:
        patience_ms = waiting.FOR_EVER_MS if timeout_ms is None else timeout_ms
        return waiting.until(goals.done(api, name, or_paused=True), patience_ms, f"{name} is not done", why)
    patience_ms = SERVICE_WITHIN_MS if timeout_ms is None else timeout_ms
    return waiting.until(goals.ready(api, name), patience_ms, f"{name} is not ready", why)
