"""Builds what is released: `python tools/dist.py PYTHON`, which `make dist` calls.

In `dist/`: the wheel, the source archive, `holdfast-VERSION.cdx.json` (CycloneDX: what running needs, with
versions and hashes of the lock file) and `SHA256SUMS` of all of them. PYTHON is that of an environment with
`build` and `cyclonedx-bom`; nothing of it gets into what is released.

The same commit gives the same bytes: times are those of the commit (SOURCE_DATE_EPOCH), the SBOM has no
serial number and no time, and wheel and source archive are built twice and compared. Then the wheel is put
into a fresh environment, with every file held to its hash (`pip --require-hashes`), and run: `holdfast
--version`, one scenario of the simulator, and `holdfast up` until its node is ready. `--no-run` leaves that
out, for where no packages can be had.
"""

import argparse
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
SCENARIO = ROOT / "scenarios" / "one-node-dies.toml"
UP_WITHIN_S = 120
SUMS = "SHA256SUMS"


class NotGood(Exception):
    """It must not be released."""


def run(*words: object, **more: object) -> str:
    done = subprocess.run(list(map(str, words)), capture_output=True, text=True, check=False, **more)  # type: ignore[call-overload]
    if done.returncode:
        raise NotGood(f"{' '.join(map(str, words[:4]))} ... failed:\n{done.stdout}{done.stderr}")
    out: str = done.stdout
    return out


def epoch() -> str:
    """Of the commit; elsewhere than in a clone, what the caller says."""
    said = os.environ.get("SOURCE_DATE_EPOCH", "")
    return said or run("git", "log", "-1", "--format=%ct", cwd=ROOT).strip()


def build(python: str, out: Path) -> None:
    environment = {**os.environ, "SOURCE_DATE_EPOCH": epoch()}
    run(python, "-m", "build", "--outdir", out, ROOT, env=environment)


def check_same(first: Path, second: Path) -> None:
    """Two builds of one commit."""
    names = sorted(path.name for path in first.iterdir())
    if names != sorted(path.name for path in second.iterdir()):
        raise NotGood("two builds made different files")
    for name in names:
        if (first / name).read_bytes() != (second / name).read_bytes():
            raise NotGood(f"two builds of {name} are not the same")


def sbom(python: str, version: str, out: Path) -> Path:
    """Of what is in the lock file: what it is made of, not what happened to be installed."""
    path = out / f"holdfast-{version}.cdx.json"
    options = ["--output-reproducible", "--validate", "--of", "JSON", "--sv", "1.6"]
    options += ["--pyproject", str(ROOT / "pyproject.toml"), "--mc-type", "application", "-o", str(path)]
    run(python, "-m", "cyclonedx_py", "requirements", *options, ROOT / "requirements.lock", cwd=ROOT)
    found = json.loads(path.read_text())
    found["metadata"]["component"]["version"] = version  # pyproject.toml does not name it
    check_sbom(found, (ROOT / "requirements.lock").read_text())
    path.write_text(json.dumps(found, indent=2, sort_keys=True) + "\n")
    return path


def check_sbom(found: dict[str, Any], lock: str) -> None:
    names = {one["name"] for one in found.get("components", ())}
    wanted = {row.split("==")[0] for row in lock.splitlines() if "==" in row}
    if wanted - names:
        raise NotGood(f"the SBOM lacks {', '.join(sorted(wanted - names))}")


def write_sums(out: Path) -> None:
    files = sorted(path for path in out.iterdir() if path.name != SUMS)
    rows = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in files]
    (out / SUMS).write_text("".join(rows))


def try_it(wheel: Path) -> None:
    """As somebody who installs it by the book."""
    with tempfile.TemporaryDirectory(prefix="holdfast-dist-") as folder:
        venv, away = Path(folder) / "venv", Path(folder) / "away"
        away.mkdir()
        run(sys.executable, "-m", "venv", venv)
        pip = [venv / "bin" / "python", "-m", "pip", "install", "--quiet"]
        run(*pip, "--require-hashes", "-r", ROOT / "requirements.lock")
        run(*pip, "--no-deps", wheel)
        holdfast = venv / "bin" / "holdfast"
        if wheel.name.split("-")[1] not in run(holdfast, "--version", cwd=away):
            raise NotGood("`holdfast --version` says another version than the wheel")
        run(holdfast, "sim", "run", "--quiet", SCENARIO, cwd=away)
        _up(holdfast, away)


def _up(holdfast: Path, folder: Path) -> None:
    words = [holdfast, "up", "--nodes", "1", "--port", "0", "--json", "--dir", folder / "state"]
    with subprocess.Popen(list(map(str, words)), stdout=subprocess.PIPE, cwd=folder, text=True) as up:
        watchdog = threading.Timer(UP_WITHIN_S, up.kill)
        watchdog.start()
        try:
            assert up.stdout is not None
            ready = up.stdout.readline()
            up.send_signal(signal.SIGINT)
            up.wait(UP_WITHIN_S)
        finally:
            watchdog.cancel()
            up.kill()
    if not ready.startswith("{") or up.returncode:
        raise NotGood(f"`holdfast up` did not run: exit status {up.returncode}, said {ready!r}")


def main(words: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else "")
    parser.add_argument("python")
    parser.add_argument("--out", type=Path, default=ROOT / "dist")
    parser.add_argument("--no-run", action="store_true")
    asked = parser.parse_args(words)
    try:
        shutil.rmtree(asked.out, ignore_errors=True)
        asked.out.mkdir(parents=True)
        build(asked.python, asked.out)
        with tempfile.TemporaryDirectory(prefix="holdfast-dist-") as again:
            build(asked.python, Path(again))
            check_same(asked.out, Path(again))
        (wheel,) = asked.out.glob("*.whl")
        sbom(asked.python, wheel.name.split("-")[1], asked.out)
        write_sums(asked.out)
        if not asked.no_run:
            try_it(wheel)
    except NotGood as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print((asked.out / SUMS).read_text(), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
