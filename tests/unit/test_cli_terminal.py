"""What a person at a terminal sees: `up`, `demo`, and a page that is watched."""

import os
import pty
import subprocess
import sys
import time
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from holdfast.api import shapes
from holdfast.cli.commands import demo, up
from holdfast.model import told as model_told
from tests.cli_rig import NOW, Answer, Holdfast, fleet, gives, line, listening, node, workload

# ---- up and demo


def test_who_cannot_be_told_keeps_nobody_from_ending_what_was_launched(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("stdout", "stderr"):
        with monkeypatch.context() as patch, open("/dev/full", "w") as full:
            patch.setattr(sys, name, full)
            up._say("ending 2 nodes of gpu: gpu-1, gpu-2", err=name == "stderr")
            up._say("gpu-1 is gone", err=name == "stderr")


def test_lines_that_nobody_can_keep_end_no_server() -> None:
    script = """
import structlog
from holdfast.cli import log_lines
log_lines.set_up()
for _ in range(1_000):
    structlog.get_logger("holdfast").warning("the control plane is away", why="connection refused")
print("serves on")
"""
    with open("/dev/full", "w") as full:
        done = subprocess.run([sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=full, timeout=60)
    assert (done.returncode, done.stdout) == (0, b"serves on\n")


def test_the_demo_counts_from_the_fault_in_its_lines_and_in_its_figures() -> None:
    lines = [
        shapes.Line(6, NOW + 60, "event", "a", "its link closed", "a", ""),
        shapes.Line(7, NOW + 90, "verdict", "a", "dead: gone", "a", ""),
        shapes.Line(8, NOW + 1_500, "event", "web/0.2", "ready on b", "b", "web"),
    ]
    answers = {"/v1/status": {"journal": 5}, "/v1/chaos/kill": {"done": "kill a"}, "/v1/events": lines}
    paper = StringIO()
    with listening(lambda method, path: gives(answers[path.partition("?")[0]])) as server:
        story = demo.Story(server.url, "token", Console(file=paper, width=200))
        begun = time.time()
        assert story.chaos("kill", "a") == 5
        assert begun <= story.struck_at <= time.time()
        story.struck_at = NOW / 1000
        story.tell(5)
        assert story.times(5, "a") == pytest.approx((0.09, 1.5))
        story.client.close()
    assert [text.split()[0] for text in paper.getvalue().splitlines()] == ["0.06", "0.09", "1.50"]


def test_up_says_how_to_come_by_the_command_where_it_is_not_at_hand(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    script = tmp_path / ".venv" / "bin" / "activate"
    script.parent.mkdir(parents=True)
    script.touch()
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.setattr(sys, "executable", str(script.parent / "python"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert up.way_in() == [". .venv/bin/activate"]
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert up.way_in() == [f". {script}"]
    script.unlink()
    assert up.way_in() == []


def test_a_line_of_up_fits_the_terminal() -> None:
    told = model_told.Told(1, NOW, "verdict", "local-1", "dead: " + "silent and nobody reached it, " * 4)
    assert max(len(text) for text in up.line(told, 80).splitlines()) <= 80
    assert len(up.line(told, 1000).splitlines()) == 1


# ---- on a terminal


def on_terminal(words: list[str], keys: bytes, folder: Path, until: bytes = b"") -> tuple[int, bytes]:
    """Runs a command on a terminal of its own; presses keys when `until` is on the screen."""
    pid, screen = pty.fork()
    if pid == 0:
        os.chdir(folder)
        os.environ.update(TERM="xterm-256color", COLUMNS="100", LINES="30")
        os.execv(sys.executable, [sys.executable, "-m", "holdfast.cli.main", *words])
    seen, pressed, ends = b"", False, time.monotonic() + 60
    try:
        while time.monotonic() < ends:
            try:
                part = os.read(screen, 65536)
            except OSError:
                break
            seen += part
            if not part:
                break
            if not pressed and until and until in seen:
                os.write(screen, keys)
                pressed = True
    finally:
        os.close(screen)
        _, status = os.waitpid(pid, 0)
    return os.waitstatus_to_exitcode(status), seen


@pytest.mark.parametrize(("keys", "code"), [(b"q", 0), (b"\x03", 130)])
def test_watching_ends_with_q_and_with_ctrl_c_and_leaves_the_terminal_as_it_was(
    keys: bytes, code: int, tmp_path: Path
) -> None:
    state = fleet([node("std-a")], [workload(ready=1)])

    def answer(method: str, path: str) -> Answer:
        return gives([line(1)] if "events" in path else state)

    with listening(answer) as server:
        ended, seen = on_terminal(["status", "-w", "--url", server.url], keys, tmp_path, b"std-a")
    assert ended == code
    assert b"Traceback" not in seen
    assert b"\x1b[?1049h" in seen  # another screen, so that the shell's own is kept
    assert b"\x1b[?1049l" in seen
    assert b"\x1b[?25h" in seen  # and the cursor


def test_a_terminal_gets_colours_and_bars(tmp_path: Path) -> None:
    state = fleet([node("std-a")], [workload(ready=1)])

    def answer(method: str, path: str) -> Answer:
        return gives([line(1)] if "events" in path else state)

    with listening(answer) as server:
        code, seen = on_terminal(["status", "--url", server.url], b"", tmp_path)
    assert code == 0
    assert b"\x1b[32m" in seen
    assert "█▓▓▓".encode() in seen or "█".encode() in seen


def test_watching_without_a_terminal_is_refused(holdfast: Holdfast) -> None:
    with listening(lambda method, path: gives([])) as server:
        told = holdfast("status", "-w", "--url", server.url)
    assert told.code == 2
    assert "needs a terminal" in told.err


def test_help_of_every_command_loads_nothing_heavy() -> None:
    heavy = "{'numpy', 'pydantic', 'msgspec', 'httpx', 'rich', 'yaml', 'structlog', 'asyncio'}"
    code = f"import sys, holdfast.cli.main; print({heavy} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"
