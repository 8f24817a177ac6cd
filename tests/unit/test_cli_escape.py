"""What programs write cannot take hold of the terminal of whoever looks."""

import contextlib
import io
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
import typer
from rich.console import Group
from rich.table import Table
from rich.text import Text

from holdfast.cli import output
from holdfast.cli.client.log_streams import Reading
from holdfast.cli.render import theme
from holdfast.cli.render.escape import CONTROL, for_output, shown

EVIL = "\x1b]0;PWNED\x07 \x9b31m \x1b[2J a\rb \u202efdp.exe \x7f"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@contextlib.contextmanager
def a_terminal() -> Iterator[Terminal]:
    made = Terminal()
    with contextlib.redirect_stdout(made), contextlib.redirect_stderr(made):
        yield made


@pytest.fixture(autouse=True)
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.delenv("NO_COLOR", raising=False)


def obeyed(text: str) -> list[str]:
    return CONTROL.findall(text)


def test_control_characters_are_shown_and_line_ends_and_tabs_stay() -> None:
    assert shown("a\tb\nc\r\nd") == "a\tb\nc\nd"
    assert shown("\x1b[31mred\x1b[0m") == r"\x1b[31mred\x1b[0m"
    assert not obeyed(shown(EVIL))


def test_a_table_of_what_programs_wrote_is_not_obeyed_by_the_terminal() -> None:
    table = Table("NAME", "WHY")
    table.add_row(Text(EVIL), f"{EVIL}\nnext line")
    with a_terminal() as terminal:
        theme.show(Group(Text(EVIL, "bold"), table, EVIL))
    assert not obeyed(terminal.getvalue())
    assert terminal.getvalue().count("PWNED") == 4


def test_colours_of_our_own_still_reach_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    with a_terminal() as terminal:
        theme.show(Text(EVIL, "bold red"))
    assert terminal.getvalue().startswith("\x1b[1;31m\\x1b]0;")


def test_a_pipe_gets_what_was_written(capsys: pytest.CaptureFixture[str]) -> None:
    output.out(EVIL)
    assert capsys.readouterr().out == f"{EVIL}\n"
    assert for_output(EVIL, io.StringIO()) == EVIL


def test_json_and_errors_are_not_obeyed_by_the_terminal() -> None:
    with a_terminal() as terminal:
        output.as_json({"why": EVIL})
        output.raw(f'{{"why": "{EVIL}"}}'.encode())
        with pytest.raises(typer.Exit):
            output.fail([EVIL], EVIL)
    assert not obeyed(terminal.getvalue())
    assert terminal.getvalue().count("PWNED") == 4


def reading(name: str) -> Reading:
    return Reading(SimpleNamespace(), name, follow=True, tail=None, json=False)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["web/0", "web"])
def test_a_log_is_not_obeyed_by_the_terminal(name: str) -> None:
    with a_terminal() as terminal:
        reading(name)._print("web/0.1", f"{EVIL} ü\n".encode())
    assert not obeyed(terminal.getvalue())
    assert "PWNED" in terminal.getvalue()
    assert terminal.getvalue().endswith("ü\n")


def test_a_character_that_comes_in_two_parts_is_whole_on_the_terminal() -> None:
    made, raw = reading("web/0"), "ü \x9b1m\n".encode()
    with a_terminal() as terminal:
        for part in (raw[:1], raw[1:4], raw[4:]):
            made._print("web/0.1", part)
    assert terminal.getvalue() == "ü \\x9b1m\n"
