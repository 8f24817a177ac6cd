"""Waiting for something to become true, with a word on how far it is.

A control plane that changes hands is a reason to ask again, not to give up: only the time-out ends the wait.
"""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from holdfast.cli import say
from holdfast.cli.client import Unanswered

EVERY_S = 0.2

Look = Callable[[], tuple[bool, str]]  # is it so, and how far is it


def until(look: Look, timeout_ms: int, what: str, hint: str = "") -> str:
    """How far it is at last, for the command to say: said here as well, it would be read twice. Ends the
    command with exit code 1 when the time is over."""
    ends = time.monotonic() + timeout_ms / 1000
    with _progress() as tell:
        while True:
            try:
                done, how_far = look()
            except Unanswered as error:
                if not error.may_pass:
                    raise
                done, how_far = False, str(error)
            if done:
                break
            tell(how_far)
            if time.monotonic() >= ends:
                break
            time.sleep(EVERY_S)
    if not done:
        say.fail([f"{what} after {timeout_ms / 1000:g} s: {how_far}"], hint, say.FAILED)
    return how_far


@contextmanager
def _progress() -> Iterator[Callable[[str], None]]:
    """One line that changes on a terminal; elsewhere a line for each change."""
    if sys.stderr.isatty():
        from rich.console import Console

        with Console(stderr=True, highlight=False).status("") as line:
            yield lambda text: line.update(text)
        return
    told = [""]

    def tell(text: str) -> None:
        if text != told[0]:
            print(text, file=sys.stderr, flush=True)
            told[0] = text

    yield tell
