"""What every provider must do (`holdfast.contract.provider`), and all of ours. To hold a new adapter to it,
add a rig for it to `PROVIDERS`."""

import asyncio
import os
import sys
from collections.abc import Callable, Coroutine, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, Protocol

import pytest
from msgspec.structs import replace

from holdfast.adapters.providers.ec2.provider import Ec2Provider
from holdfast.adapters.providers.local.market import LocalTraits
from holdfast.adapters.providers.local.provider import LocalProvider
from holdfast.adapters.providers.slurm import SlurmProvider, read_settings
from holdfast.adapters.providers.ssh.provider import SshProvider
from holdfast.contract.provider import *  # noqa: F403
from holdfast.contract.provider import Rig, Run, wish
from holdfast.model.action import LaunchNode
from holdfast.model.units import HOUR, MINUTE
from holdfast.ports.errors import CapacityShort, OutcomeUnknown
from holdfast.ports.provider import Queueing
from holdfast.sim.event_queue import Kernel
from holdfast.sim.scenario.market import Step, market
from holdfast.sim.twins.provider import ProviderTraits, SimProvider
from tests.how_to import folder_provider
from tests.slurm import Slurm
from tests.slurm import shared as shared_slurm
from tests.sshd import Sshd
from tests.stand_in import StandIn, join, until

Call = Coroutine[Any, Any, None]


class Servers(Protocol):
    """Started when the first test asks for one, and kept for all others."""

    def sshd(self) -> Sshd: ...

    def slurm(self) -> Slurm: ...


def simulated(folder: Path, run: Run, servers: Servers) -> Rig:
    kernel = Kernel()
    provider = SimProvider("twin", ProviderTraits(queue_ms=MINUTE), kernel, "1")
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


def on_a_market(folder: Path, run: Run, servers: Servers) -> Rig:
    """The twin again, where a trace says what can be had."""
    rig = simulated(folder, run, servers)
    assert isinstance(rig.provider, SimProvider)
    provider, unlucky = rig.provider, [f"std-{node}" for node in ("n1", "n2", "n3")]
    plenty, nothing = (market(dict.fromkeys(unlucky, (Step(0, count),))) for count in (1, 0))
    recover = rig.recover

    def open_again() -> None:
        recover()
        provider.markets = dict.fromkeys(("pool", "one", "two", "none"), plenty)

    open_again()
    rig.recover = open_again
    rig.sell_out = lambda: provider.markets.update(dict.fromkeys(provider.markets, nothing))
    return rig


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


def local(folder: Path, run: Run, servers: Servers) -> Rig:
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


def ssh(folder: Path, run: Run, servers: Servers) -> Rig:
    agent, server, python, lose = StandIn(folder), servers.sshd(), folder / "python", folder / "lose-answers"
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


class InOneZone(Ec2Provider):
    """The suite's places and offers are nobody's; EC2's have names of its own."""

    async def launch(self, request: LaunchNode) -> None:
        place = replace(request.place, region="us-east-1", zone="us-east-1a")
        await super().launch(replace(request, offer="m5.large@us-east-1a", place=place))


def ec2(folder: Path, run: Run, servers: Servers) -> Rig:
    # Here, because it brings moto along, which the other providers do not need.
    from tests.ec2_front import DEEDS, Machines, Trouble, empty_front, settings

    front = empty_front()
    machines = Machines(front)
    made: list[Ec2Provider] = []

    def fresh() -> Ec2Provider:
        made.append(InOneZone.from_settings(settings(front), join))
        return made[-1]

    def close() -> None:
        for provider in made:
            run(provider.close())
        front.stop()

    short = Trouble(("RunInstances",), "InsufficientInstanceCapacity", status=500)
    return Rig(
        fresh(),
        lambda: machines.made,
        wait=machines.wait,
        cut=front.stop,
        sell_out=lambda: front.troubles.append(short),
        answer_with_errors=lambda: front.troubles.append(Trouble(DEEDS, lost=True, done=True)),
        recover=front.recover,
        again=fresh,
        close=close,
        elsewhere=("install",),
    )


# Slurm's commands, which lose what they have to say when there is a file `lose-answers`: a cancelled job is
# waited for first, and from the first deed on nothing is answered any more.
MUTE = """\
#!/bin/sh
[ -e {folder}/mute ] && kill -9 $$
{program} "$@" || exit
[ -e {folder}/lose-answers ] || exit 0
case {name} in
  scancel) while squeue --noheader --jobs="$1" 2>&1 | grep -q . ; do sleep 0.05; done;;
  sbatch) ;;
  *) exit 0;;
esac
touch {folder}/mute
kill -9 $$
"""


def slurm(folder: Path, run: Run, servers: Servers) -> Rig:
    agent, cluster = StandIn(folder), servers.slurm()
    lose, mute, conf = folder / "lose-answers", folder / "mute", folder / "slurm.conf"
    conf.symlink_to(cluster.conf)
    for name in ("sbatch", "scancel", "squeue", "sinfo"):
        (folder / name).write_text(MUTE.format(folder=folder, name=name, program=cluster.programs[name]))
        (folder / name).chmod(0o755)
    settings = {"root": str(folder / "root"), "partition": "main", "conf": str(conf), "bin": str(folder)}
    settings |= {"python": sys.executable, "agent": str(agent.path)}

    def fresh() -> SlurmProvider:
        """It does not wait for a scheduler that looks once a second."""
        return SlurmProvider(read_settings(settings), join, settle_s=0.0)

    def point_to(path: Path) -> None:
        conf.unlink()
        conf.symlink_to(path)

    def recover() -> None:
        lose.unlink(missing_ok=True)
        mute.unlink(missing_ok=True)
        point_to(cluster.conf)
        cluster.ask("scontrol", "update", "PartitionName=main", "State=UP")

    def close() -> None:
        recover()
        cluster.end_all()
        agent.leave_nothing()

    def wait() -> None:
        agent.gate.touch()
        until("every job is an agent", lambda: len(agent.roots()) == len(cluster.jobs("--states=R,PD")))
        agent.wait()

    return Rig(
        fresh(),
        agent.made,
        wait=wait,
        cut=lambda: point_to(cluster.elsewhere),
        sell_out=lambda: void(cluster.ask("scontrol", "update", "PartitionName=main", "State=DRAIN")),
        answer_with_errors=lose.touch,
        recover=recover,
        again=fresh,
        close=close,
        can_reset=False,
    )


def void(_: object) -> None: ...


def documented(folder: Path, run: Run, servers: Servers) -> Rig:
    """The one that the docs show how to make."""
    stand_in, root = StandIn(folder), folder / "root"
    root.mkdir()
    away, losing = folder / "unmounted", [False]

    class Interrupted(folder_provider()):  # type: ignore[misc]
        """Nothing between us and our own machine loses an answer, so this loses them by itself."""

        agent = stand_in.command

        async def launch(self, request: LaunchNode) -> None:
            await super().launch(request)
            self.lose_answer()

        async def terminate(self, node: str) -> None:
            await super().terminate(node)
            self.lose_answer()

        def lose_answer(self) -> None:
            if losing[0]:
                raise OutcomeUnknown("interrupted")

    fresh = lambda: Interrupted({"root": str(root), "most": "4"}, join)  # noqa: E731
    provider = fresh()

    def recover() -> None:
        losing[0], provider.most = False, 4
        if away.exists():
            away.rename(root)

    return Rig(
        provider,
        stand_in.made,
        wait=stand_in.wait,
        cut=lambda: os.rename(root, away),
        sell_out=lambda: setattr(provider, "most", 0),
        answer_with_errors=lambda: losing.__setitem__(0, True),
        recover=recover,
        again=fresh,
        close=stand_in.leave_nothing,
        can_reset=False,
    )


PROVIDERS: dict[str, Callable[[Path, Run, Servers], Rig]] = {
    "simulated": simulated,
    "on a market": on_a_market,
    "local": local,
    "ssh": ssh,
    "ec2": ec2,
    "slurm": slurm,
    "documented": documented,
}


class Started:
    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.folder, self.stack = folder, stack
        self._sshd: Sshd | None = None
        self._slurm: Slurm | None = None

    def sshd(self) -> Sshd:
        if self._sshd is None:
            self._sshd = Sshd(self.folder / "sshd")
            self.stack.callback(self._sshd.stop)
        return self._sshd

    def slurm(self) -> Slurm:
        self._slurm = self._slurm or self.stack.enter_context(shared_slurm())
        return self._slurm


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    with ExitStack() as stack:
        yield Started(tmp_path_factory.mktemp("servers"), stack)


WITH_A_QUEUE = ("simulated", "on a market", "slurm")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Every test of every provider; what is said of queues, of those that have one."""
    if "rig" in metafunc.fixturenames:
        about_queues = metafunc.function.__name__.startswith("test_whoever_tells_of_a_queue")
        metafunc.parametrize("rig", WITH_A_QUEUE if about_queues else list(PROVIDERS), indirect=True)


@pytest.fixture
def rig(request: pytest.FixtureRequest, tmp_path: Path, run: Run, servers: Servers) -> Iterator[Rig]:
    made = PROVIDERS[request.param](tmp_path, run, servers)
    assert isinstance(made.provider, Queueing) is (request.param in WITH_A_QUEUE)
    yield made
    made.close()
