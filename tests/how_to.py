"""The provider that docs/how-to/add-a-provider.md shows, as somebody has it who followed the page."""

import re
import tomllib
from pathlib import Path
from typing import Any

PAGE = Path(__file__).resolve().parents[1] / "docs" / "how-to" / "add-a-provider.md"
METADATA = "Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"


def blocks() -> dict[str, str]:
    """The page's code by its language, of which there is one each."""
    found = re.findall(r"^```(\w+)\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.M | re.S)
    assert len(found) == len(dict(found))
    return dict(found)


def profiles() -> str:
    """What the page has its reader write into providers.yaml."""
    return blocks()["sh"].partition("echo '")[2].partition("'")[0]


def folder_provider() -> type[Any]:
    names: dict[str, Any] = {"__name__": "holdfast_folders"}
    exec(compile(blocks()["python"], str(PAGE), "exec"), names)
    made: type[Any] = names["FolderProvider"]
    return made


def install(folder: Path, pyproject: str, **modules: str) -> None:
    """What pip leaves of a project in a folder of the path, without asking any server for a build backend."""
    project = tomllib.loads(pyproject)["project"]
    info = folder / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(METADATA.format(**project))
    lines = []
    for group, points in project["entry-points"].items():
        lines += [f"[{group}]", *(f"{name} = {what}" for name, what in points.items())]
    (info / "entry_points.txt").write_text("\n".join(lines) + "\n")
    for name, text in modules.items():
        (folder / f"{name}.py").write_text(text)


def install_documented(folder: Path) -> None:
    found = blocks()
    install(folder, found["toml"], holdfast_folders=found["python"])
