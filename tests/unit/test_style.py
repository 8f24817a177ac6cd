"""The rules of the code that a tool does not already hold, held by a test.

A rule is a function from a module to its complaints. The last test here gives every rule an offender, so a
rule that has gone blind is noticed.
"""

import ast
import functools
import re
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
MADE = ROOT / "src" / "holdfast" / "native"
PACKAGE = ROOT / "src" / "holdfast"
PURE = ("model", "core", "reliability")
WITH_THEORY = ("core", "reliability")

MODULE_LINES_MAX = 600
FUNCTION_LINES_MAX = 70
FOLDER_MODULES_MAX = 20
# Folders that are still to be parted, with how many modules they have.
CROWDED = {
    "agent": 38,
    "api": 31,
    "control": 28,
    "gateway": 45,
    "model": 28,
}
THEORY_LINES_MIN = 3
EMPTY_NAMES = {"utils", "helpers", "common", "misc", "manager", "base"}
CLOCK_CALL = re.compile(r"time\..+|(.+\.)?datetime\.(now|utcnow|today)|(.+\.)?date\.today")
# Not preceded by a word, a dot or a tilde: a relative path or a URL with such a folder is nobody's machine.
MACHINE_PATH = re.compile(rb"(?<![\w.~])/(work|root)/")

INDEX = "holdfast.core.state.index"  # all of it writes the world

# Paths below the repository's root that may catch everything: the loop's supervisor, the request boundary,
# what is handed from a thread to whoever waits for it, and where providers, which may be anybody's code, are
# made and called.
MAY_CATCH_EVERYTHING = {
    "src/holdfast/adapters/providers/found.py",
    "src/holdfast/api/edge.py",
    "src/holdfast/api/gate.py",
    "src/holdfast/api/token_limits.py",
    "src/holdfast/control/perform.py",
    "src/holdfast/control/plane.py",
    "src/holdfast/control/term.py",
    "src/holdfast/sim/run.py",
}


@dataclass(frozen=True)
class Module:
    path: str
    source: str

    @functools.cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.source, filename=self.path)


Rule = Callable[[Module], Iterator[str]]


def modules(*folders: Path) -> list[Module]:
    return [module for folder in folders for module in _below(folder)]


@functools.cache
def _below(folder: Path) -> list[Module]:
    """Read and parsed once, for all that is asked of them."""
    return [
        Module(path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8"))
        for path in sorted(folder.rglob("*.py"))
        if MADE not in path.parents  # by a compiler, which may be at work
    ]


def complaints(rule: Rule, found: list[Module]) -> list[str]:
    return [f"{module.path}: {complaint}" for module in found for complaint in rule(module)]


def too_long(module: Module) -> Iterator[str]:
    lines = len(module.source.splitlines())
    if lines > MODULE_LINES_MAX:
        yield f"{lines} lines, at most {MODULE_LINES_MAX}"


def long_functions(module: Module) -> Iterator[str]:
    for node in ast.walk(module.tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            if lines > FUNCTION_LINES_MAX:
                yield f"{node.name} has {lines} lines, at most {FUNCTION_LINES_MAX}"


def empty_names(module: Module) -> Iterator[str]:
    for part in Path(module.path).with_suffix("").parts:
        if part in EMPTY_NAMES:
            yield f"the name {part!r} says nothing of what is inside"


def missing_theory(module: Module) -> Iterator[str]:
    if Path(module.path).name == "__init__.py":
        return
    lines = [line for line in (ast.get_docstring(module.tree) or "").splitlines() if line.strip()]
    if len(lines) < THEORY_LINES_MIN:
        yield f"opens with {len(lines)} lines of theory, at least {THEORY_LINES_MIN}"


def clock_reads(module: Module) -> Iterator[str]:
    for node in ast.walk(module.tree):
        match node:
            case ast.Call(func=ast.Attribute() as called) if CLOCK_CALL.fullmatch(ast.unparse(called)):
                yield f"line {node.lineno} calls {ast.unparse(called)}; time is an argument"
            case ast.ImportFrom(module="time"):
                yield f"line {node.lineno} imports from time; time is an argument"


def broad_catches(module: Module) -> Iterator[str]:
    for node in ast.walk(module.tree):
        if not isinstance(node, ast.ExceptHandler):
            continue
        caught = node.type.elts if isinstance(node.type, ast.Tuple) else [node.type]
        if any(kind is None or ast.unparse(kind) in {"Exception", "BaseException"} for kind in caught):
            yield f"line {node.lineno} catches everything"


def index_writes(module: Module) -> Iterator[str]:
    """Only `fold` writes the world, and `snapshot` makes one."""
    path = Path(module.path)
    if path.parent.name == "state" and path.name.startswith(("fold", "index.py", "snapshot.py")):
        return
    aliases = set()
    for node in ast.walk(module.tree):
        match node:
            case ast.ImportFrom(module="holdfast.core.state", names=names):
                aliases |= {name.asname or name.name for name in names if name.name == "index"}
            case ast.Import(names=names):
                aliases |= {name.asname or name.name for name in names if name.name == INDEX}
            case ast.ImportFrom(module="holdfast.core.state.index", names=names):
                taken = {name.name for name in names}
                yield from (f"line {node.lineno} takes index.{name}: only fold may" for name in sorted(taken))
    for node in ast.walk(module.tree) if aliases else ():
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) in aliases:
            yield f"line {node.lineno} uses index.{node.attr}: only fold may"


def test_no_module_is_too_long_to_read_in_one_sitting() -> None:
    assert complaints(too_long, modules(ROOT / "src", ROOT / "bench")) == []


def test_no_function_is_longer_than_a_screen() -> None:
    assert complaints(long_functions, modules(ROOT / "src", ROOT / "bench")) == []


def test_every_module_has_a_name_that_says_what_is_inside() -> None:
    assert complaints(empty_names, modules(ROOT / "src", ROOT / "bench")) == []


def test_every_module_that_decides_opens_with_its_theory() -> None:
    assert complaints(missing_theory, modules(*(PACKAGE / name for name in WITH_THEORY))) == []


def test_the_pure_packages_never_read_a_clock() -> None:
    assert complaints(clock_reads, modules(*(PACKAGE / name for name in PURE))) == []


def test_only_the_allowed_modules_catch_everything() -> None:
    catching = {module.path for module in modules(ROOT / "src") if list(broad_catches(module))}
    assert catching == MAY_CATCH_EVERYTHING, "an offender, or an allowance that nobody needs any more"


def test_no_folder_holds_more_modules_than_one_finds_ones_way_in() -> None:
    folders = [path for path in sorted(PACKAGE.rglob("*")) if path.is_dir() and path != MADE]
    counts = {
        folder.relative_to(PACKAGE).as_posix(): len(
            [path for path in folder.glob("*.py") if path.stem != "__init__"]
        )
        for folder in folders
    }
    crowded = {name: count for name, count in counts.items() if count > FOLDER_MODULES_MAX}
    assert crowded == CROWDED, "part a folder by subject; the numbers here only fall"


def test_only_fold_writes_the_indexes() -> None:
    assert complaints(index_writes, modules(ROOT / "src", ROOT / "bench")) == []


def test_all_that_the_indexes_offer_is_about_the_world() -> None:
    """What others may ask (until when is waited) is in `timeouts`, so here there is no exception."""
    (index,) = (module for module in modules(PACKAGE / "core") if module.path.endswith("/index.py"))
    functions = [node for node in index.tree.body if isinstance(node, ast.FunctionDef)]
    public = [node for node in functions if not node.name.startswith("_")]
    assert public
    assert [node.name for node in public if node.args.args[0].arg != "world"] == []


def test_no_file_names_a_path_of_somebodys_machine() -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout, so there is no list of what belongs to it")
    # Files not yet added count too: the time to hear of it is before the commit.
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    )
    files = [ROOT / name for name in listed.stdout.split("\0") if name]
    assert files
    assert [
        str(f.relative_to(ROOT)) for f in files if f.is_file() and MACHINE_PATH.search(f.read_bytes())
    ] == []


def test_the_constraints_are_public_names_and_versions_only() -> None:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    assert lines
    assert [line for line in lines if not re.fullmatch(r"[A-Za-z0-9._-]+==[0-9][A-Za-z0-9.]*", line)] == []


@pytest.mark.parametrize(
    ("rule", "path", "source"),
    [
        (too_long, "m.py", "x = 1\n" * (MODULE_LINES_MAX + 1)),
        (long_functions, "m.py", "def f():\n" + "    x = 1\n" * FUNCTION_LINES_MAX),
        (long_functions, "m.py", "class C:\n  async def f(self):\n" + "    x = 1\n" * FUNCTION_LINES_MAX),
        (empty_names, "src/holdfast/core/utils.py", ""),
        (empty_names, "src/holdfast/common/node.py", ""),
        (missing_theory, "m.py", ""),
        (missing_theory, "m.py", '"""One line.\n\nAnd one more."""'),
        (clock_reads, "m.py", "now = datetime.datetime.now()"),
        (clock_reads, "m.py", "now = datetime.now(UTC)"),
        (clock_reads, "m.py", "now = time.monotonic()"),
        (clock_reads, "m.py", "from time import monotonic"),
        (broad_catches, "m.py", "try: f()\nexcept Exception: pass"),
        (broad_catches, "m.py", "try: f()\nexcept (ValueError, BaseException): pass"),
        (broad_catches, "m.py", "try: f()\nexcept: pass"),
        (index_writes, "core/m.py", "from holdfast.core.state import index\nindex.put_node(world, node)"),
        (index_writes, "core/m.py", "from holdfast.core.state import index as i\nf = i.drop_slot"),
        (index_writes, "core/m.py", "from holdfast.core.state.index import put_slot"),
        (
            index_writes,
            "sim/fold.py",
            "import holdfast.core.state.index\nholdfast.core.state.index.put_node(w, n)",
        ),
    ],
)
def test_every_rule_catches_an_offender(rule: Rule, path: str, source: str) -> None:
    assert list(rule(Module(path, source)))


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("core/state/fold_events.py", "from holdfast.core.state import index\nindex.put_node(world, node)"),
        ("core/state/snapshot.py", "from holdfast.core.state import index\nindex.put_node(world, node)"),
        ("core/turn.py", "for index in x: index.put_node(y)"),
    ],
)
def test_fold_may_write_the_indexes(path: str, source: str) -> None:
    assert list(index_writes(Module(path, source))) == []


@pytest.mark.parametrize(
    ("text", "is_one"),
    [
        (b"see /%b/main", True),
        (b"file:///%b/x", True),
        (b"$HOME/%b/x", False),
        (b"./%b/x", False),
    ],
)
@pytest.mark.parametrize("folder", [b"work", b"root"])
def test_a_machine_path_is_told_from_a_relative_one(text: bytes, folder: bytes, is_one: bool) -> None:
    assert bool(MACHINE_PATH.search(text % folder)) is is_one
