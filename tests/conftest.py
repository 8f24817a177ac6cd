"""Tests may be coroutines: each runs in a loop of its own. Signals are as a person at a terminal has them."""

import asyncio
import gc
import inspect
import os
import signal
import sys
from collections.abc import Generator, Iterator
from typing import Any

import pytest
from _pytest.unraisableexception import collect_unraisable
from hypothesis import settings

# What CI tries is the same each time: a new example that fails should be met by whoever looks for it. By hand
# every run tries others. How long an example takes says more of the machine than of the code.
settings.register_profile("by hand", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "by hand")

_FAILED = pytest.StashKey[bool]()


def pytest_configure() -> None:
    """Who runs the tests in the background may have had Ctrl-C ignored, or hang-ups (`nohup`), and what we
    start would ignore them too. A handler is not inherited by a new program; this one ignores it for us."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        signal.signal(signal.SIGHUP, lambda *_: None)
    gc.disable()  # until all tests are found: what is found stays


def pytest_collection_finish() -> None:
    """Thousands of tests and all they import are no garbage: the collector need not walk through them."""
    gc.freeze()
    gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = pyfuncitem._fixtureinfo.argnames
    given: dict[str, Any] = {name: pyfuncitem.funcargs[name] for name in names}
    with asyncio.Runner() as runner:
        runner.run(pyfuncitem.obj(**given))
    return True


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.failed:
        item.stash[_FAILED] = True
    return report


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, None, None]:
    """What a failed test left open is told with it. Its frames would live on until the next test begins, and
    what they hold would be found, and counted, there."""
    yield
    if item.stash.get(_FAILED, False):
        for name in ("last_exc", "last_type", "last_value", "last_traceback"):
            if hasattr(sys, name):
                delattr(sys, name)
        gc.collect()
        collect_unraisable(item.config)


@pytest.fixture(autouse=True)
def broken_pipes_are_errors() -> Iterator[None]:
    """The command line lets the first broken pipe end it, as other tools do. A test that calls it in this
    process must not leave that behind: the next test that loses a connection would take the worker along."""
    yield
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
