"""What every provider must do, as tests that anybody can run on theirs.

Import all of it into a test module, and give it the one fixture that is missing, `rig`:

    from holdfast.contract.provider import *

    @pytest.fixture
    def rig(tmp_path: Path, run: Run) -> Iterator[Rig]:
        ...

The tests ask for the nodes n1, n2 and n3 in the pools `pool`, `one` and `two`, of the offers std-n1 and so
on. A rig may stand between if its provider needs other names. Only this package needs pytest.
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import pytest

from holdfast.adapters.providers.settings import Settings
from holdfast.model.action import LaunchNode
from holdfast.model.place import Place
from holdfast.model.resources import Resources
from holdfast.model.verdict import Word
from holdfast.ports.errors import CapacityShort, Denied, NotFound, OutcomeUnknown, PortError, Unreachable
from holdfast.ports.provider import Provider, Queueing

T = TypeVar("T")
PLACES = ("/", "~", "http://", "https://")


class Run(Protocol):
    """Awaits one call of a port."""

    def __call__(self, call: Coroutine[Any, Any, T], /) -> T: ...


@pytest.fixture
def run() -> Iterator[Run]:
    """One event loop a test, so that an adapter may keep its connections."""
    with asyncio.Runner() as runner:
        yield runner.run


@dataclass
class Rig:
    """A fresh provider, the machines it really made, and the ways to make it fail."""

    provider: Provider
    came_up: Callable[[], list[str]]  # the id of each machine that came up, as often as one did
    wait: Callable[[], None]  # until everything asked for has come up
    cut: Callable[[], None]  # it cannot be reached any more
    sell_out: Callable[[], None]  # it has nothing left
    answer_with_errors: Callable[[], None]  # it does what it is asked and answers with an error
    recover: Callable[[], None]
    again: Callable[[], Provider]  # as a control plane that starts anew would make it
    close: Callable[[], None] = lambda: None
    can_reset: bool = True
    elsewhere: tuple[str, ...] = ()  # settings that name paths and URLs of other machines, not of this host

    @property
    def made(self) -> list[str]:
        return self.came_up()


@pytest.fixture
def provider(rig: Rig) -> Provider:
    return rig.provider


def wish(node: str = "n1", pool: str = "pool") -> LaunchNode:
    there = Place("prov", "here", "a", "a1")
    return LaunchNode(
        node=node,
        pool=pool,
        offer=f"std-{node}",  # static machines: one offer each
        place=there,
        capacity=Resources(cpu_milli=8_000, memory_mib=32_768),
        price_micro_usd=1,
        spot=False,
        why="w",
    )


# launching


def test_what_was_launched_is_listed_and_comes_up(rig: Rig, run: Run) -> None:
    run(rig.provider.launch(wish()))
    assert run(rig.provider.list("pool")) == ("n1",), "it costs money before it is up"
    rig.wait()
    assert rig.made == ["n1"]
    assert run(rig.provider.state("n1")) is Word.RUNNING


def test_asking_again_is_not_a_second_machine(rig: Rig, run: Run) -> None:
    for _ in range(3):
        run(rig.provider.launch(wish()))
    rig.wait()
    run(rig.provider.launch(wish()))
    rig.wait()
    assert rig.made == ["n1"]
    assert run(rig.provider.list("pool")) == ("n1",)


def test_asking_twice_at_the_same_time_is_one_machine(rig: Rig, run: Run) -> None:
    async def both() -> None:
        await asyncio.gather(rig.provider.launch(wish()), rig.provider.launch(wish()))

    run(both())
    rig.wait()
    assert rig.made == ["n1"]


def test_a_list_is_of_one_pool(provider: Provider, run: Run) -> None:
    for node, pool in (("n1", "one"), ("n2", "two"), ("n3", "one")):
        run(provider.launch(wish(node, pool)))
    assert sorted(run(provider.list("one"))) == ["n1", "n3"]
    assert run(provider.list("none")) == ()


def test_whoever_tells_of_a_queue_tells_of_nodes_that_it_lists(rig: Rig, run: Run) -> None:
    if not isinstance(rig.provider, Queueing):
        pytest.skip("it has no queue")
    run(rig.provider.launch(wish()))
    waiting = run(rig.provider.queued("pool"))
    assert set(waiting) <= {"n1"}
    assert all(left is None or left >= 0 for left in waiting.values())
    assert run(rig.provider.queued("none")) == {}
    rig.wait()
    assert run(rig.provider.queued("pool")) == {}, "its turn has come"


def test_a_provider_that_has_nothing_left_says_so_and_makes_nothing(rig: Rig, run: Run) -> None:
    rig.sell_out()
    with pytest.raises(CapacityShort):
        run(rig.provider.launch(wish()))
    assert run(rig.provider.list("pool")) == ()
    rig.recover()
    run(rig.provider.launch(wish()))
    assert run(rig.provider.list("pool")) == ("n1",)


def test_being_sold_out_does_not_deny_what_is_there_already(rig: Rig, run: Run) -> None:
    run(rig.provider.launch(wish()))
    rig.sell_out()
    run(rig.provider.launch(wish()))
    assert run(rig.provider.list("pool")) == ("n1",)


# ending


def test_what_was_terminated_is_gone_when_the_call_returns(rig: Rig, run: Run) -> None:
    run(rig.provider.launch(wish()))
    rig.wait()
    run(rig.provider.terminate("n1"))
    assert run(rig.provider.list("pool")) == ()
    assert run(rig.provider.state("n1")) is not Word.RUNNING


def test_terminating_again_finds_nothing(provider: Provider, run: Run) -> None:
    run(provider.launch(wish()))
    run(provider.terminate("n1"))
    with pytest.raises(NotFound):
        run(provider.terminate("n1"))


def test_a_machine_that_is_terminated_while_it_boots_never_comes_up(rig: Rig, run: Run) -> None:
    run(rig.provider.launch(wish()))
    run(rig.provider.terminate("n1"))
    rig.wait()
    assert rig.made == []


def test_a_late_launch_does_not_bring_back_what_was_terminated(rig: Rig, run: Run) -> None:
    """A repeated request that overtook nobody: the id is spent."""
    run(rig.provider.launch(wish()))
    run(rig.provider.terminate("n1"))
    run(rig.provider.launch(wish()))
    rig.wait()
    assert (rig.made, run(rig.provider.list("pool"))) == ([], ())


def test_terminating_one_leaves_the_others(provider: Provider, run: Run) -> None:
    for node in ("n1", "n2", "n3"):
        run(provider.launch(wish(node)))
    run(provider.terminate("n2"))
    assert sorted(run(provider.list("pool"))) == ["n1", "n3"]


# starting anew


def test_a_control_plane_that_starts_anew_finds_what_the_last_one_launched(rig: Rig, run: Run) -> None:
    for node in ("n1", "n2"):
        run(rig.provider.launch(wish(node)))
    run(rig.provider.terminate("n2"))
    heir = rig.again()
    assert run(heir.list("pool")) == ("n1",)
    assert run(heir.state("n1")) is Word.RUNNING
    run(heir.launch(wish("n1")))
    run(heir.launch(wish("n2")))
    rig.wait()
    assert rig.made == ["n1"], "neither a second machine nor one whose name is spent"
    run(heir.terminate("n1"))
    assert run(rig.provider.list("pool")) == ()


def test_two_control_planes_that_ask_at_the_same_time_get_one_machine(rig: Rig, run: Run) -> None:
    async def both() -> None:
        await asyncio.gather(*(provider.launch(wish()) for provider in (rig.provider, rig.again())))

    run(both())
    rig.wait()
    assert rig.made == ["n1"]


# what its settings name


def test_what_a_setting_names_of_the_host_comes_from_a_profile(rig: Rig) -> None:
    """A pool comes over the API: whoever may apply one would have this host run, read or contact what they
    like. A path or a URL is told by its example."""
    takes = getattr(rig.provider, "takes", None)
    assert isinstance(takes, Settings), "it declares what it takes, or all of it comes from a profile"
    places = {name for name, kind in takes.kinds.items() if kind.example.startswith(PLACES)}
    free = {name for name, kind in takes.kinds.items() if not kind.of_host}
    assert places & free <= set(rig.elsewhere), "mark them with of_host=True"


# what it does not know


@pytest.mark.parametrize("call", ["terminate", "reset"])
def test_an_unknown_node_is_not_found(provider: Provider, run: Run, call: str) -> None:
    with pytest.raises(NotFound):
        run(getattr(provider, call)("nobody"))


def test_an_unknown_node_does_not_run(provider: Provider, run: Run) -> None:
    assert run(provider.state("nobody")) in (Word.STOPPED, Word.UNKNOWN)


# resetting


def test_a_node_that_is_reset_is_the_same_machine_and_comes_up_again(rig: Rig, run: Run) -> None:
    run(rig.provider.launch(wish()))
    rig.wait()
    if rig.can_reset:
        run(rig.provider.reset("n1"))
        rig.wait()
    else:
        with pytest.raises(Denied):
            run(rig.provider.reset("n1"))
    assert rig.made == (["n1", "n1"] if rig.can_reset else ["n1"])
    assert run(rig.provider.list("pool")) == ("n1",)
    assert run(rig.provider.state("n1")) is Word.RUNNING


# failing


def attempts(provider: Provider, run: Run) -> dict[str, Callable[[], object]]:
    """Every call, on what is there and on what is not."""
    return {
        "launch": lambda: run(provider.launch(wish("n2"))),
        "launch again": lambda: run(provider.launch(wish())),
        "terminate": lambda: run(provider.terminate("n1")),
        "terminate nobody": lambda: run(provider.terminate("nobody")),
        "reset": lambda: run(provider.reset("n1")),
        "reset nobody": lambda: run(provider.reset("nobody")),
        "state": lambda: run(provider.state("n1")),
        "list": lambda: run(provider.list("pool")),
    }


CALLS = (
    "launch",
    "launch again",
    "terminate",
    "terminate nobody",
    "reset",
    "reset nobody",
    "state",
    "list",
)


def error_of(attempt: Callable[[], object]) -> PortError | None:
    try:
        attempt()
    except PortError as error:
        return error
    return None


@pytest.mark.parametrize("trouble", ["cut", "sell_out", "answer_with_errors"])
@pytest.mark.parametrize("call", CALLS)
def test_whatever_goes_wrong_the_error_is_named_for_the_next_move_and_says_why(
    rig: Rig, run: Run, call: str, trouble: str
) -> None:
    run(rig.provider.launch(wish()))
    getattr(rig, trouble)()
    error = error_of(attempts(rig.provider, run)[call])
    expected = [CapacityShort, NotFound, OutcomeUnknown, Unreachable]
    expected += [Denied] if call == "reset" and not rig.can_reset else []
    assert error is None or type(error) in expected
    assert error is None or str(error)


@pytest.mark.parametrize("call", CALLS)
def test_a_provider_that_cannot_be_reached_did_nothing(rig: Rig, run: Run, call: str) -> None:
    run(rig.provider.launch(wish()))
    rig.cut()
    try:
        said = attempts(rig.provider, run)[call]()
    except Unreachable:
        said = Word.UNKNOWN
    assert said is Word.UNKNOWN, "the only other thing to say, when asked for a state"
    rig.recover()
    assert run(rig.provider.list("pool")) == ("n1",)


def test_a_launch_that_was_answered_with_an_error_is_found_by_listing(rig: Rig, run: Run) -> None:
    rig.answer_with_errors()
    with pytest.raises(OutcomeUnknown):
        run(rig.provider.launch(wish()))
    rig.recover()
    assert run(rig.provider.list("pool")) == ("n1",)
    run(rig.provider.launch(wish()))
    rig.wait()
    assert rig.made == ["n1"], "and asking again made no second one"


def test_a_termination_that_was_answered_with_an_error_may_be_repeated(rig: Rig, run: Run) -> None:
    run(rig.provider.launch(wish()))
    rig.answer_with_errors()
    with pytest.raises(OutcomeUnknown):
        run(rig.provider.terminate("n1"))
    rig.recover()
    with pytest.raises(NotFound):
        run(rig.provider.terminate("n1"))
    assert run(rig.provider.list("pool")) == ()
