"""Installs holdfast into a virtual environment, with progress: `python tools/install.py .venv [EXTRA,...]`.

Runs before anything is installed, so it imports the standard library only. On a terminal one line is
rewritten with what pip is working on; elsewhere (CI logs) there is a line at the start and one at the end.
If pip fails, all that it printed is shown and its exit status is ours.
"""

import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PYTHON_MIN = (3, 11)
STEPS = ("Collecting", "Downloading", "Using", "Building", "Installing", "Preparing")
WIDTH = 78


def main(venv: str, extras: str) -> int:
    if sys.version_info < PYTHON_MIN:
        print("holdfast needs Python 3.11 or newer; set PYTHON=", file=sys.stderr)
        return 1
    python = Path(venv) / "bin" / "python"
    started, what = time.monotonic(), f"holdfast[{extras}]" if extras else "holdfast"
    print(f"installing {what} into {venv} (once)", flush=True)
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", venv], check=True)
    target = f"{ROOT}[{extras}]" if extras else str(ROOT)
    pip = [str(python), "-m", "pip", "install", "--disable-pip-version-check", "--progress-bar", "off"]
    status, output = _run([*pip, "-c", str(ROOT / "constraints.txt"), "-e", target], started)
    if status:
        print(output, file=sys.stderr)
        return status
    print(f"installed {what} in {time.monotonic() - started:.0f} s", flush=True)
    return 0


def _run(command: list[str], started: float) -> tuple[int, str]:
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as pip:
        assert pip.stdout is not None
        lines = []
        for line in pip.stdout:
            lines.append(line)
            if sys.stdout.isatty() and line.split(" ", 1)[0].strip() in STEPS:
                text = f"  {time.monotonic() - started:3.0f} s  {line.strip()}"
                print(f"\r\033[K{text[:WIDTH]}", end="", flush=True)
        if sys.stdout.isatty():
            print("\r\033[K", end="", flush=True)
    return pip.returncode, "".join(lines)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else ""))
