"""`holdfast sim list`: the scenarios there are."""

from pathlib import Path
from typing import Annotated

import typer

from holdfast.cli import output
from holdfast.cli.options import Json


def list_scenarios(
    folder: Annotated[Path, typer.Option("--dir", metavar="DIR", help="Where to look.")] = Path("scenarios"),
    json: Json = False,
) -> None:
    """List the scenarios in a folder, with their titles."""
    if not folder.is_dir():
        output.fail([f"{folder}: expected a folder with scenarios, got none"], "holdfast sim list --dir DIR")
    rows = [(str(file), title(file)) for file in sorted(folder.glob("*.toml"))]
    if json:
        output.as_json([{"file": file, "title": text} for file, text in rows])
        return
    width = max((len(file) for file, _ in rows), default=0)
    for file, text in rows:
        print(f"{file:<{width}}  {text}".rstrip())


def title(file: Path) -> str:
    """Of a file that may not be readable: the list is not the place to complain at length."""
    from holdfast.files import read_text
    from holdfast.files.problem import FileProblem

    try:
        return str(read_text.tables(file).get("title", ""))
    except FileProblem as problem:
        return f"(cannot be read: {problem.problems[0].expected})"
