"""A table without lines, for people who read trouble first.

Every row may end in a remark. It stands beside the row if there is room, and else in lines of its own below
it, as wide as the terminal: a reason that is folded into a narrow column is not read. Where a row itself is
too wide, columns that can be spared are left out, one after the other.
"""

from collections.abc import Sequence

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

GAP = 2
INDENT = 4


class Rows:
    def __init__(self, *columns: str, spare: Sequence[str] = ()) -> None:
        self.columns, self.spare = columns, spare  # no names at all: no header
        self.rows: list[tuple[list[Text], Text]] = []

    def add(self, *cells: Text | str, remark: Text | str = "") -> None:
        made = [cell if isinstance(cell, Text) else Text(cell) for cell in cells]
        self.rows.append((made, remark if isinstance(remark, Text) else Text(remark)))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        shown = self._fitting(options.max_width)
        widths = [self._width(column) for column in shown]
        if any(self.columns):
            yield _cut(Text(_joined([self.columns[column] for column in shown], widths).plain, "dim"))
        taken = sum(widths) + GAP * len(widths)
        for cells, remark in self.rows:
            line = _joined([cells[column] for column in shown], widths)
            left = options.max_width - taken
            if remark and remark.cell_len <= left:
                yield _cut(Text.assemble(line, " " * (taken - line.cell_len), remark))
                continue
            yield _cut(line)
            if remark:
                wrapped = remark.wrap(console, max(10, options.max_width - INDENT))
                yield from (Text(" " * INDENT) + part for part in wrapped)

    def _width(self, column: int) -> int:
        name = len(self.columns[column])
        return max(name, max((cells[column].cell_len for cells, _ in self.rows), default=0))

    def _fitting(self, width: int) -> list[int]:
        shown = list(range(len(self.columns)))
        for name in self.spare:
            if sum(self._width(column) + GAP for column in shown) - GAP <= width:
                break
            shown.remove(self.columns.index(name))
        return shown


def _joined(cells: Sequence[Text | str], widths: Sequence[int]) -> Text:
    line = Text()
    for number, (cell, width) in enumerate(zip(cells, widths, strict=True)):
        text = cell if isinstance(cell, Text) else Text(cell)
        line.append_text(text)
        if number < len(widths) - 1:
            line.append(" " * (width - text.cell_len + GAP))
    return line


def _cut(line: Text) -> Text:
    line.no_wrap, line.overflow = True, "ellipsis"
    return line


def facts(*pairs: tuple[str, str]) -> Rows:
    """Names and what they are; what is empty is left out."""
    made = Rows("")
    for name, value in pairs:
        if value:
            made.add(Text(name, "dim"), remark=value)
    return made
