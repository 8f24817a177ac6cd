"""How far something is that takes long: a bar on a terminal, elsewhere a line now and then. Always on stderr,
so that what is piped stays what was asked for.

A thread looks, because whoever works has no time to: a single story may take minutes.
"""

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

LINE_EVERY_S = 10.0
BAR_EVERY_S = 0.2

HowFar = Callable[[], float]
Wait = Callable[[float], bool]  # so long; true: it is over


@contextmanager
def progress(how_far: HowFar, total: float, unit: str) -> Iterator[None]:
    over = threading.Event()
    tell = _bar if sys.stderr.isatty() else partial(lines, began=time.monotonic())
    thread = threading.Thread(target=tell, args=(how_far, total, unit, over.wait), daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def lines(how_far: HowFar, total: float, unit: str, wait: Wait, began: float) -> None:
    while not wait(LINE_EVERY_S):
        took = time.monotonic() - began
        print(f"{how_far():,.4g} of {total:,.4g} {unit} after {took:.0f} s", file=sys.stderr, flush=True)


def _bar(how_far: HowFar, total: float, unit: str, wait: Wait) -> None:
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(unit, total=total)
        while not wait(BAR_EVERY_S):
            bar.update(task, completed=how_far())
