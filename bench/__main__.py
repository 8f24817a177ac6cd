"""python -m bench NAME [--data DIR] [--json] [its own options]

A benchmark is a module in this folder, not named with an underscore, with `run(args) -> dict[str, object]`
and, if it has options of its own, `arguments(parser)`. What it returns is printed as a table; with --json
as one JSON object, and the table goes to stderr.
"""

import argparse
import importlib
import json
import os
import pkgutil
import sys
from pathlib import Path
from types import ModuleType

import bench

CHECKOUT = Path(__file__).resolve().parents[1]


def names() -> list[str]:
    return sorted(m.name for m in pkgutil.iter_modules(bench.__path__) if not m.name.startswith("_"))


def data_folder() -> Path:
    """Where the public traces are: they are not part of the checkout."""
    return Path(os.environ.get("HOLDFAST_DATA") or CHECKOUT.parent / "shared" / "data")


def parse(name: str, module: ModuleType, words: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog=f"python -m bench {name}", description=module.__doc__)
    parser.add_argument("--data", type=Path, default=data_folder(), help="folder of the public traces")
    parser.add_argument("--json", action="store_true", help="print one line of JSON, and the table on stderr")
    if hasattr(module, "arguments"):
        module.arguments(parser)
    return parser.parse_args(words)


def table(measured: dict[str, object]) -> str:
    rows = [(key, _cell(value)) for key, value in measured.items()]
    width = max((len(key) for key, _ in rows), default=0)
    return "\n".join(f"  {key:<{width}}  {value}" for key, value in rows)


def _cell(value: object) -> str:
    match value:
        case bool() | str():
            return str(value)
        case int():
            return f"{value:,}"
        case float():
            return f"{value:,.4g}" if abs(value) < 1000 else f"{value:,.0f}"
        case dict():
            return "  ".join(f"{key} {_cell(inner)}" for key, inner in value.items())
        case list():
            return ", ".join(_cell(inner) for inner in value)
        case _:
            return str(value)


def main(words: list[str]) -> int:
    known = names()
    if not words or words[0] not in known:
        wrong = f"no benchmark is called {words[0]!r}; " if words and not words[0].startswith("-") else ""
        print(f"{wrong}python -m bench NAME, where NAME is one of: {', '.join(known)}", file=sys.stderr)
        return 0 if words and words[0] in ("-h", "--help") else 2
    module = importlib.import_module(f"bench.{words[0]}")
    args = parse(words[0], module, words[1:])
    measured: dict[str, object] = module.run(args)
    print(table(measured), file=sys.stderr if args.json else sys.stdout)
    if args.json:
        print(json.dumps(measured))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
