"""Partitions of a real network: hosts that are namespaces, and a switch that drops what it should forward."""

import os
from collections.abc import Iterator

import pytest

from tests.e2e.live import LEASE_MS, POOL, WEB, Ground, Started, alone, boot_ms, lives, replicas, until
from tests.e2e.network import SWITCHES, Network

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces take root")

NODES = ("n1", "n2", "n3")


@pytest.fixture
def network() -> Iterator[Network]:
    with Network("cp", *NODES) as built, built.standing_on("cp"):
        yield built


@pytest.fixture
def plane(network: Network, ground: Ground) -> Started:
    """A control plane on its own host, and three nodes on theirs that have joined."""
    host = network.address("cp", "management")
    plane = ground.serve("--host", host, "--insecure", lease_ms=LEASE_MS)
    for node in NODES:
        ground.prefix[node] = network.on(node)
        ground.words[node] = ("--insecure", "--address", network.address(node, "peers"))
    ground.fleet(plane, *NODES, pool=POOL.replace("}", f", network: {SWITCHES['peers']}.0/24}}"))
    return plane


def test_a_node_cut_from_the_control_plane_but_not_from_its_peers(
    network: Network, ground: Ground, plane: Started
) -> None:
    """It is unreachable, not dead: its service is left alone, its job ends with its lease and not before, and
    only then runs elsewhere."""
    plane.apply(WEB, alone(ground.folder))
    plane.until_ready("web", 3)
    (node,) = plane.until_ready("job").values()
    before = replicas(ground.folder)
    network.cut(node, "management")
    cut = boot_ms()
    until(lambda: plane.nodes()[node]["verdict"] == "unreachable", "its peers say that it lives")
    until(lambda: len(lives(ground.folder)) == 2, "the job runs elsewhere")
    first, second = lives(ground.folder)
    assert first.last - cut > LEASE_MS - 3_000, "it ran on until its lease was over"
    assert second.start > first.last
    assert plane.nodes()[node]["verdict"] == "unreachable", "nobody called it dead for that"
    network.mend(node, "management")
    plane.until_alive(3)
    web = {name: pids for name, pids in before.items() if name.startswith("web")}
    assert web.items() <= replicas(ground.folder).items(), "its service was left alone"
    assert len(lives(ground.folder)) == 2


def test_a_node_cut_from_everybody_is_dead_and_stops_what_was_replaced_when_it_is_back(
    network: Network, ground: Ground, plane: Started
) -> None:
    plane.apply(WEB, alone(ground.folder))
    before = plane.until_ready("web", 3)
    (node,) = plane.until_ready("job").values()
    (lost,) = (name for name, where in before.items() if where == node)
    for switch in ("management", "peers"):
        network.cut(node, switch)
    until(lambda: plane.nodes()[node]["verdict"] == "dead", "nobody hears it")
    until(lambda: len(plane.ready("web")) == 3, "its service runs elsewhere")
    until(lambda: len(lives(ground.folder)) == 2, "its job runs elsewhere")
    assert lost in replicas(ground.folder), "whoever reaches it is still served"
    for switch in ("management", "peers"):
        network.mend(node, switch)
    plane.until_alive(3)
    until(lambda: lost not in replicas(ground.folder), "it is told that it was replaced")
    assert len(lives(ground.folder)) == 2


def test_peers_that_do_not_reach_one_another_disturb_nothing(
    network: Network, ground: Ground, plane: Started
) -> None:
    """Heartbeats go another way: they are what counts."""
    plane.apply(WEB)
    before = plane.until_ready("web", 3)
    for node in NODES:
        network.cut(node, "peers")
    later = boot_ms() + 6_000
    until(lambda: boot_ms() > later, "six seconds pass")
    assert {name: node["verdict"] for name, node in plane.nodes().items()} == dict.fromkeys(NODES, "alive")
    assert plane.ready("web") == before
