"""Every code, header, path and metric of a gateway has its line in docs/reference/gateway-http.md."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from prometheus_client.core import Metric

from holdfast.core.gateway.quota.limits import Refusal
from holdfast.gateway import settings
from holdfast.gateway.admin import Admin
from holdfast.gateway.ask import SHAPES
from holdfast.gateway.counts import Counted, ModelCounted, ServiceCounted
from holdfast.gateway.keeper import Keeper
from holdfast.gateway.metrics import Added
from holdfast.gateway.replies import refused

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "reference" / "gateway-http.md").read_text(encoding="utf-8")
SOURCES = sorted((ROOT / "src" / "holdfast" / "gateway").glob("*.py"))
KINDS = ("tokens", "requests", "concurrent", "total", "never", "unavailable", "recovering")


def answers() -> Iterator[tuple[int, str]]:
    """Status and code of every answer and malformed request in the code."""
    for file in SOURCES:
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Name)
                and node.func.id in ("Answer", "Malformed")
            ):
                match node.args[:2]:
                    case [ast.Constant(value=int(status)), ast.Constant(value=str(code))]:
                        yield status, code
                    case _:
                        assert ast.unparse(node).startswith("Answer(status, code"), (
                            f"{file}: {ast.unparse(node)}"
                        )


def rows() -> dict[str, str]:
    """The first cell's code, and the rest of the row."""
    found = re.findall(r"^\| `([a-z_]+)` \| (.*) \|$", PAGE, re.M)
    assert len(found) == len(dict(found)), "a line twice"
    return dict(found)


def test_every_code_has_its_line_with_its_status() -> None:
    found = set(answers())
    assert len({code for _, code in found}) > 15, "are they still found?"
    found |= {
        (it.status, it.code)
        for it in (refused(Refusal(kind, "global", 1.0, 1.0, 1.0), "m") for kind in KINDS)
    }
    table = rows()
    for status, code in found:
        assert str(status) in re.findall(r"\d{3}", table[code].split(" | ")[0]), f"{code} with {status}"
    told = {code for code in table if not code.startswith("holdfast_")}
    assert told == {code for _, code in found}, "a code that is no more, or one that is not told"


def test_every_header_that_we_say_or_read_has_its_line() -> None:
    said = set()
    for file in SOURCES:
        said |= set(
            re.findall(r"\b(x-[a-z-]+[a-z]|retry-after(?:-ms)?)(?=\"|: )", file.read_text(encoding="utf-8"))
        )
    assert len(said) > 8
    assert {name for name in said if f"`{name}" not in PAGE} == set()


def test_every_path_has_its_line() -> None:
    assert {path.decode() for path in SHAPES if f"`POST {path.decode()}`" not in PAGE} == set()


def test_every_path_of_the_second_listener_has_its_line(tmp_path: Path) -> None:
    app = Admin(Keeper(settings.Gateway(state=tmp_path)), "token").app()
    for route in app.routes:
        path = re.sub(r"\{(\w+)(:path)?\}", lambda found: found[1].upper(), getattr(route, "path", ""))
        method = next(iter(getattr(route, "methods", set()) - {"HEAD"}))
        assert f"| `{method} {path}` |" in PAGE


def metrics(tmp_path: Path) -> dict[str, Metric]:
    keeper = Keeper(settings.Gateway(state=tmp_path))
    model = ModelCounted("toy", {200: 1}, 0, 0, [0, 0], 0.0, [0, 0], 0.0)
    counted = ServiceCounted("toy", models=(model,))
    keeper.seats[0].counted = Counted(0, {401: 1}, (counted,))
    return {metric.name: metric for metric in Added(keeper).collect()}


def test_every_metric_has_its_line_with_its_labels_and_is_there(tmp_path: Path) -> None:
    found, table = metrics(tmp_path), rows()
    assert {name for name in table if name.startswith("holdfast_")} == set(found)
    for name, metric in found.items():
        labels = table[name].split(" | ")[0].split(", ")
        for sample in metric.samples:
            assert set(sample.labels) - {"le"} <= set(labels), name
