"""Compile the hot path of a gateway's workers (see `native`):  python -m holdfast.gateway.compile

Needs mypyc (`pip install 'holdfast[native]'`), a C compiler and Python's headers. Made in a folder of its own
and put in its place whole: whoever looks finds all of it or nothing, and two who do it at once do no harm.
"""

import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path

from holdfast.gateway import native

WITHIN_S = 900.0
BUILD = """
import sys
from mypyc.build import mypycify
from setuptools import setup
options = "--config-file= --follow-imports=silent --explicit-package-bases --ignore-missing-imports"
made = mypycify(options.split() + sys.argv[2:], opt_level="1", debug_level="0", group_name=sys.argv[1])
setup(name=sys.argv[1], ext_modules=made, script_args=["build_ext", "--build-lib", "made"])
"""
TRY = """
import pathlib, sys
from holdfast.gateway import native
native.use(pathlib.Path(sys.argv[1]))
import holdfast.gateway.worker
"""


class CannotCompile(Exception):
    def __init__(self, why: str, hint: str = "") -> None:
        super().__init__(why)
        self.hint = hint


def missing() -> CannotCompile | None:
    """What this machine lacks, if anything."""
    if not (Path(sysconfig.get_paths()["include"]) / "Python.h").is_file():
        return CannotCompile("Python's headers are not installed", "apt-get install python3-dev")
    compiler = (os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc").split()[0]
    if shutil.which(compiler) is None:
        return CannotCompile(f"there is no C compiler: {compiler}", "apt-get install gcc")
    if find_spec("mypyc") is None or find_spec("setuptools") is None:
        return CannotCompile("mypyc is not installed", "pip install 'holdfast[native]'")
    return None


def compile_all() -> Path:
    """The folder with everything compiled; at once if it is there."""
    folder = native.folder()
    if folder.is_dir():
        return folder
    lacking = missing()
    if lacking is not None:
        raise lacking
    try:
        native.KEPT.mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".making-", dir=native.KEPT) as temporary:
            made = _make(Path(temporary))
            _check(made)
            _put(made, folder)
    except OSError as error:
        raise CannotCompile(f"{error.filename or native.KEPT}: {error.strerror}") from None
    return folder


def _make(here: Path) -> Path:
    """mypy reads the whole package to know the types; it finds it here and nowhere else."""
    ignored = shutil.ignore_patterns("__pycache__", native.KEPT.name)
    shutil.copytree(native.PACKAGE, here / "holdfast", ignore=ignored)
    files = [str(path.relative_to(native.PACKAGE.parent)) for path in native.sources()]
    run = [sys.executable, "-c", BUILD, native.GROUP, *files]
    try:
        done = subprocess.run(run, cwd=here, capture_output=True, text=True, timeout=WITHIN_S, check=False)
    except subprocess.TimeoutExpired:
        raise CannotCompile(f"it takes longer than {WITHIN_S:.0f} s") from None
    if done.returncode:
        last = "\n".join((done.stdout + done.stderr).strip().splitlines()[-12:])
        raise CannotCompile(f"mypyc or the compiler failed:\n{last}")
    return here / "made"


def _check(made: Path) -> None:
    """Does it load?"""
    run = [sys.executable, "-c", TRY, str(made)]
    environment = {**os.environ, native.SWITCH: "1"}
    done = subprocess.run(run, env=environment, capture_output=True, text=True, timeout=60, check=False)
    if done.returncode:
        raise CannotCompile(f"what was compiled does not load:\n{done.stderr[-1_000:]}")


def _put(made: Path, folder: Path) -> None:
    for old in native.KEPT.iterdir():
        making = old.name.startswith(".making-") and time.time() - old.stat().st_mtime < WITHIN_S
        if old != folder and not making and not native.is_of_another(old.name):
            shutil.rmtree(old, ignore_errors=True)  # of other sources, or left by one that was killed
    try:
        made.rename(folder)
    except OSError:
        if not folder.is_dir():  # else: somebody else was quicker
            raise


def main() -> int:
    if native.folder().is_dir():
        print("compiled already")
        return 0
    print("compiling the hot path of the gateway: about a minute ...", flush=True)
    try:
        compile_all()
    except CannotCompile as problem:
        print(f"error: {problem}", file=sys.stderr)
        if problem.hint:
            print(f"hint: {problem.hint}", file=sys.stderr)
        return 1
    print("done: gateways that are started from now on use it")
    return 0


if __name__ == "__main__":
    sys.exit(main())
