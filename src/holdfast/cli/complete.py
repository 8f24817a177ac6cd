"""Tab completion of the names of files."""

from pathlib import Path

FOLDERS = ("scenarios", "examples")
NOT_ONE = "pyproject.toml"


def scenario_files(incomplete: str) -> list[str]:
    """Scenario files below the usual folders and wherever the half-written path points."""
    start = Path(incomplete).parent if "/" in incomplete else Path()
    places = [start, *(Path(folder) for folder in FOLDERS)]
    found = dict.fromkeys(
        str(file) for place in places for file in sorted(place.glob("*.toml")) if file.name != NOT_ONE
    )
    folders = [f"{child}/" for child in sorted(start.glob("*/")) if any(child.glob("*.toml"))]
    return [name for name in (*found, *folders) if name.startswith(incomplete)]
