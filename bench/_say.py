"""How far a benchmark is. On stderr: stdout is for what it measured."""

import sys


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
