"""The list of stages that people read is the one that runs."""

import re

from holdfast.core import decide


def test_the_stages_that_are_told_are_those_that_run_in_their_order() -> None:
    assert decide.__doc__ is not None
    told = re.findall(r"^ ?(\d+)\. (\w+)\.(\w+)", decide.__doc__, re.MULTILINE)
    run = [(stage.__module__.rpartition(".")[2], stage.__name__) for stage in decide.STAGES]
    assert [(module, name) for _, module, name in told] == run
    assert [int(number) for number, _, _ in told] == list(range(1, len(run) + 1))
