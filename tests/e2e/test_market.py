"""A spot pool and an on-demand pool on a pretended market: nodes are taken away, and nothing is lost."""

import json
import time
from itertools import pairwise

from tests.e2e.live import WEB, Ground, Started, alone, lives, replicas, until

SPOT = """
kind: pool
name: spot
provider: local
zones: [a, b]
min: 2
max: 5
cpus: 2
memory: 2GiB
price: 0.3
spot: true
settings: { boot: 300ms..600ms, notice: 8s }
"""
ON_DEMAND = """
kind: pool
name: steady
provider: local
zones: [c]
min: 1
max: 3
cpus: 2
memory: 2GiB
price: 1
settings: { boot: 300ms, stock: "3" }
"""


def ready_of(plane: Started, pool: str) -> set[str]:
    return {name for name, node in plane.nodes().items() if node["pool"] == pool and node["state"] == "ready"}


def test_a_node_with_notice_is_emptied_in_time_and_replaced_and_nothing_is_lost(ground: Ground) -> None:
    up = ground.up("--nodes", "1")
    up.apply(SPOT, ON_DEMAND)
    until(lambda: len(ready_of(up, "spot")) == 2 and ready_of(up, "steady"), "all nodes have booted")
    up.apply(WEB, alone(up.folder))
    up.until_ready("web", 3)
    up.until_ready("job")
    victim = until(
        lambda: next((node for node in up.ready("web").values() if node.startswith("spot-")), ""),
        "something runs on spot",
    )
    said = json.loads(ground.cli("chaos", "notice", victim, "--left", "60s", "--json", url=up.url).stdout)
    assert said["done"] == f"notice {victim}"
    begun, seen = time.monotonic(), []

    def is_empty() -> bool:
        seen.append(len(up.ready("web")))
        return not replicas(up.folder / "nodes" / victim)

    until(is_empty, "all has left the node")
    assert time.monotonic() - begun < 60, "before it went"
    until(lambda: not (up.folder / "nodes" / victim).exists(), "it is taken away")
    until(lambda: victim not in up.nodes(), "and known to be")
    until(lambda: len(ready_of(up, "spot")) == 2, "it is replaced")
    up.until_ready("web", 3)
    up.until_ready("job")
    assert min(seen) >= 3, "each copy was followed before it ended"
    assert all(one.last < two.start for one, two in pairwise(lives(up.folder)))
    told = up.history()
    assert f"{victim} chaos: notice, asked for by hand" in told
    assert not any(line.startswith(f"{victim} dead") for line in told), "it left, it did not fail"


def test_a_pool_that_is_sold_out_is_short_until_it_is_not(ground: Ground) -> None:
    up = ground.up("--nodes", "1")
    up.apply(SPOT)
    until(lambda: len(ready_of(up, "spot")) == 2, "all nodes have booted")
    told = ground.cli("chaos", "sell-out", "spot", "--for", "4s", url=up.url)
    assert (told.returncode, told.stdout) == (0, "everything of spot is sold out for 4s\n")
    up.post("/v1/chaos/kill", {"node": min(ready_of(up, "spot"))})
    until(lambda: "sold out" in {p["name"]: p for p in up.get("/v1/pools")}["spot"]["why"], "it is short")
    until(lambda: len(ready_of(up, "spot")) == 2, "and is not any more")
    assert any("everything sold out for 4.0 s, asked for by hand" in line for line in up.history())


MARKET = ("{kind: policy, capacity: {after_loss: 5s, backoff: 500ms, backoff_max: 1s}}",)
ON_SPOT = """
kind: pool
name: cheap
provider: local
zones: [a, b]
max: 6
cpus: 2
memory: 2GiB
price: 0.3
spot: true
idle: 3s
labels: { market: pretended }
settings: { boot: 200ms }
"""
STAND_IN = """
kind: pool
name: dear
provider: local
zones: [c]
max: 4
cpus: 2
memory: 2GiB
price: 1
idle: 1s
labels: { market: pretended }
settings: { boot: 200ms }
"""
MIXED = f"{WEB.replace('cpus: 0.1', 'cpus: 1.5')}mix: {{}}\nlabels: {{ market: pretended }}\n"


def homes(plane: Started) -> list[str]:
    """The pools of what is ready."""
    return sorted(name.rpartition("-")[0] for name in plane.ready("web").values())


def test_on_demand_stands_in_for_spot_until_spot_is_back_and_stays(ground: Ground) -> None:
    up = ground.up("--nodes", "1")
    up.apply(*MARKET, ON_SPOT, STAND_IN)
    up.apply(MIXED)
    until(lambda: homes(up) == ["cheap"] * 3, "all on spot")
    begun, seen = time.monotonic(), []

    def are_at(*pools: str) -> bool:
        found = homes(up)
        seen.append(len(found))
        return len(found) >= 3 and set(found) == set(pools)

    up.post("/v1/chaos/sell-out", {"pool": "cheap", "for_ms": 10_000})
    for node in ready_of(up, "cheap"):
        up.post("/v1/chaos/notice", {"node": node, "for_ms": 120_000})
    until(lambda: are_at("dear"), "on demand stands in for all of it", 20)
    until(lambda: are_at("cheap"), "spot is back", 30)
    until(lambda: not ready_of(up, "dear") and are_at("cheap"), "what stood in is released", 20)
    assert min(seen) >= 3, "it was never below its size"
    assert time.monotonic() - begun < 40
    launched = {name for name in up.nodes() if name.startswith("cheap-")}
    for _ in range(20):
        assert are_at("cheap"), "and it stays there"
        time.sleep(0.1)
    assert {name for name in up.nodes() if name.startswith("cheap-")} <= launched
