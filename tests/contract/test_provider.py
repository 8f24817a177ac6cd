"""What every provider must do. To hold a new adapter to it, add a rig for it to `PROVIDERS`."""

import asyncio
import os
import sys
from collections.abc import Callable, Coroutine, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from holdfast.adapters.providers.local.provider import LocalProvider, LocalTraits
from holdfast.adapters.providers.ssh.provider import SshProvider
from holdfast.model.action import LaunchNode
from holdfast.model.place import Place
from holdfast.model.units import HOUR
from holdfast.model.verdict import Word
from holdfast.ports.errors import CapacityShort, NotFound, OutcomeUnknown, PortError, Unreachable
from holdfast.ports.provider import Provider
from holdfast.sim.kernel import Kernel
from holdfast.sim.provider import ProviderTraits, SimProvider
from tests.contract.conftest import Run
from tests.play import BIG
from tests.sshd import Sshd
from tests.stand_in import StandIn, join

Call = Coroutine[Any, Any, None]


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

    @property
    def made(self) -> list[str]:
        return self.came_up()


def simulated(folder: Path, run: Run, sshd: Callable[[], Sshd]) -> Rig:
    kernel = Kernel()
    provider = SimProvider("twin", ProviderTraits(), kernel, "1")
    made: list[str] = []
    provider.booted = lambda request: made.append(request.node)

    def recover() -> None:
        provider.outage_until = provider.short_until = provider.errors_until = 0

    return Rig(
        provider,
        lambda: made,
        wait=lambda: kernel.run_until(kernel.now + HOUR),
        cut=lambda: setattr(provider, "outage_until", 10 * HOUR),
        sell_out=lambda: setattr(provider, "short_until", 10 * HOUR),
        answer_with_errors=lambda: setattr(provider, "errors_until", 10 * HOUR),
        recover=recover,
        again=lambda: provider,
    )


class Interrupted(LocalProvider):
    """Nothing between us and our own machine loses an answer, so this loses them by itself."""

    loses_answers = False

    async def launch(self, request: LaunchNode) -> None:
        await self._lose_answer(super().launch(request))

    async def terminate(self, node: str) -> None:
        await self._lose_answer(super().terminate(node))

    async def reset(self, node: str) -> None:
        await self._lose_answer(super().reset(node))

    async def _lose_answer(self, call: Call) -> None:
        await call
        if self.loses_answers:
            raise OutcomeUnknown("interrupted")


def local(folder: Path, run: Run, sshd: Callable[[], Sshd]) -> Rig:
    agent = StandIn(folder)
    root = folder / "local"
    fresh = lambda: Interrupted(root, join, agent_command=agent.command)  # noqa: E731
    provider = fresh()
    away = folder / "unmounted"

    def recover() -> None:
        provider.traits, provider.loses_answers = LocalTraits(), False
        if away.exists():
            away.rename(root)

    def close() -> None:
        recover()
        run(provider.stop_all(0))
        run(provider.close())
        agent.leave_nothing()

    return Rig(
        provider,
        agent.made,
        wait=agent.wait,
        cut=lambda: os.rename(root, away),
        sell_out=lambda: setattr(provider, "traits", LocalTraits(capacity=0)),
        answer_with_errors=lambda: setattr(provider, "loses_answers", True),
        recover=recover,
        again=fresh,
        close=close,
    )


# A host's Python, whose answer gets lost when there is a file `lose-answers`.
LOSING = """\
#!/bin/sh
said=$({python} "$@")
[ -e {folder}/lose-answers ] && kill -9 $PPID
echo "$said"
"""


def ssh(folder: Path, run: Run, sshd: Callable[[], Sshd]) -> Rig:
    agent, server, python, lose = StandIn(folder), sshd(), folder / "python", folder / "lose-answers"
    python.write_text(LOSING.format(python=sys.executable, folder=folder))
    python.chmod(0o755)
    names = ("std-n1", "std-n2", "std-n3")
    hosts = [server.host(name, folder / name, python=str(python)) for name in names]
    made: list[SshProvider] = []
    taken: list[str] = []

    def fresh() -> SshProvider:
        made.append(SshProvider(hosts, join, agent_command=agent.command))
        return made[-1]

    provider, others = fresh(), fresh()

    async def take(name: str) -> None:
        with suppress(CapacityShort):
            await others.launch(replace(wish(f"other-{name}", "elsewhere"), offer=name))
            taken.append(f"other-{name}")

    async def take_all() -> None:
        await asyncio.gather(*map(take, names))

    def recover() -> None:
        lose.unlink(missing_ok=True)
        server.start()
        while taken:
            run(others.terminate(taken.pop()))

    def close() -> None:
        for provider in made:
            run(provider.close())
        server.start()
        agent.leave_nothing()

    return Rig(
        provider,
        agent.made,
        wait=agent.wait,
        cut=server.stop,
        sell_out=lambda: run(take_all()),
        answer_with_errors=lose.touch,
        recover=recover,
        again=fresh,
        close=close,
    )


PROVIDERS: dict[str, Callable[[Path, Run, Callable[[], Sshd]], Rig]] = {
    "simulated": simulated,
    "local": local,
    "ssh": ssh,
}


@pytest.fixture(scope="module")
def sshd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[], Sshd]]:
    """One server for all tests, started when the first asks for it."""
    made: list[Sshd] = []

    def only() -> Sshd:
        if not made:
            made.append(Sshd(tmp_path_factory.mktemp("sshd")))
        return made[0]

    yield only
    for server in made:
        server.stop()


@pytest.fixture(params=PROVIDERS)
def rig(request: pytest.FixtureRequest, tmp_path: Path, run: Run, sshd: Callable[[], Sshd]) -> Iterator[Rig]:
    made = PROVIDERS[request.param](tmp_path, run, sshd)
    yield made
    made.close()


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
        capacity=BIG,
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
    run(rig.provider.reset("n1"))
    rig.wait()
    assert rig.made == ["n1", "n1"]
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
    assert error is None or type(error) in (CapacityShort, NotFound, OutcomeUnknown, Unreachable)
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
