"""Somebody follows docs/how-to/add-a-provider.md, and somebody else makes every mistake on the way."""

import os
import signal
import time
from pathlib import Path

import pytest

from tests.e2e.live import WEB, Ground, Started, Unanswered, kill, processes, replicas, until
from tests.how_to import PAGE, blocks, install, install_documented, profiles

BAD = """
[project]
name = "bad"
version = "1"
[project.entry-points."holdfast.providers"]
absent = "nowhere:Provider"
number = "bad_provider:NUMBER"
broken = "bad_provider:Broken"
mistaken = "bad_provider:Mistaken"
"""
BAD_PROVIDER = """
from holdfast.adapters.providers.join import JoinProvider

NUMBER = 7

class Broken:
    def __init__(self, settings, credentials):
        raise OSError("no key for this cloud")

class Mistaken(JoinProvider):
    def __init__(self, settings, credentials): ...

    async def launch(self, request):
        return {}["region"]
"""
WHY = {
    "absent": "the provider absent cannot be loaded: No module named 'nowhere'",
    "number": "the provider number cannot be made: its entry point is nothing to call",
    "broken": "the provider broken cannot be made: OSError: no key for this cloud",
    "mistaken": "its provider fails by a mistake: KeyError: 'region'",
}

TWO = WEB.replace("replicas: 3", "replicas: 2")


def bad_pool(name: str) -> str:
    return f"{{kind: pool, name: {name}-pool, provider: {name}, nodes: 1, zones: [a], cpus: 2, memory: 2GiB}}"


@pytest.fixture
def installed(ground: Ground) -> Ground:
    path = ground.folder / "site"
    install_documented(path)
    install(path, BAD, bad_provider=BAD_PROVIDER)
    paths = [str(path), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    ground.environment["PYTHONPATH"] = os.pathsep.join(os.path.abspath(each) for each in paths)
    return ground


@pytest.fixture
def root(installed: Ground) -> Path:
    """Where the documented provider has its nodes."""
    made = installed.folder / "folders"
    made.mkdir()
    return made


def documented(root: Path, provider: str = "folders") -> str:
    """Says what control planes with the file of profiles may use of this host: what the page has its reader
    say, with another folder. It is at their command line."""
    assert "/tmp/folders" in profiles()
    text = profiles().replace("/tmp/folders", str(root)).replace("provider: folders", f"provider: {provider}")
    file = root.parent / "providers.yaml"
    file.write_text(text)
    file.chmod(0o600)
    return str(file)


DOCUMENTED_POOL = blocks()["yaml"]


def nodes_of(plane: Started, pool: str) -> dict[str, str]:
    return {name: node["state"] for name, node in plane.nodes().items() if node["pool"] == pool}


def two_are_ready(plane: Started) -> bool:
    return list(nodes_of(plane, "mine").values()) == ["ready"] * 2


def test_the_page_is_short_enough_to_be_read() -> None:
    assert len(PAGE.read_text(encoding="utf-8").splitlines()) < 100


def test_nodes_of_the_documented_provider_join_run_die_and_are_replaced(
    installed: Ground, root: Path
) -> None:
    up = installed.serve("--provider-profiles", documented(root))
    until(lambda: up.apply(DOCUMENTED_POOL, TWO), "somebody leads")
    until(lambda: two_are_ready(up), "both nodes have joined")
    ready = up.until_ready("web", 2)
    assert set(ready.values()) <= set(nodes_of(up, "mine"))
    assert set(replicas(root)) == set(ready), "they run in its folders"

    victim = min(ready.values())
    kill(*processes(root / "mine" / victim))
    until(lambda: (root / "mine" / victim / "gone").exists(), "it is terminated")
    until(lambda: victim not in nodes_of(up, "mine") and two_are_ready(up), "and replaced")
    assert victim not in up.until_ready("web", 2).values()
    assert f"{victim} its provider confirms that it is gone" in up.history()


def test_a_notice_in_the_agents_folder_empties_the_node_and_it_is_terminated(
    installed: Ground, root: Path
) -> None:
    up = installed.serve("--provider-profiles", documented(root))
    until(lambda: up.apply(DOCUMENTED_POOL, TWO), "somebody leads")
    victim = min(up.until_ready("web", 2).values())
    (root / "mine" / victim / "agent" / "notice").write_text(str(time.time() + 60))
    until(lambda: (root / "mine" / victim / "gone").exists(), "its work left and it was terminated")
    assert not processes(root / "mine" / victim)
    until(lambda: victim not in nodes_of(up, "mine") and two_are_ready(up), "it is replaced")
    assert victim not in up.until_ready("web", 2).values()
    assert not any(line.startswith(f"{victim} dead") for line in up.history()), "it left, it did not fail"


def test_an_interrupt_of_up_ends_the_nodes_of_other_providers_too(installed: Ground, root: Path) -> None:
    up = installed.up("--nodes", "1", "--provider-profiles", documented(root))
    up.apply(DOCUMENTED_POOL)
    until(lambda: two_are_ready(up), "both nodes have joined")
    names = sorted(nodes_of(up, "mine"))
    assert up.stop() == 0
    assert processes(root) == {}
    assert all((root / "mine" / name / "gone").exists() for name in names)
    again = installed.up("--nodes", "1", "--provider-profiles", documented(root))

    def launched_anew() -> bool:
        return two_are_ready(again) and not set(names) & set(nodes_of(again, "mine"))

    until(launched_anew, "the next start has the pool, and launches anew")
    assert again.stop() == 0


STUBBORN = """
from holdfast_folders import FolderProvider
from holdfast.ports.errors import Unreachable

class Stubborn(FolderProvider):
    async def terminate(self, node):
        if (self.root / "stubborn").exists():
            raise Unreachable("the cloud is down")
        await super().terminate(node)
"""


def test_what_up_cannot_end_is_named_a_second_interrupt_leaves_it_and_the_next_start_finds_it(
    installed: Ground, root: Path
) -> None:
    entry = BAD.replace('name = "bad"', 'name = "stubborn"').partition("absent")[0]
    install(installed.folder / "site", f'{entry}stubborn = "stubborn:Stubborn"', stubborn=STUBBORN)
    up = installed.up("--nodes", "1", "--provider-profiles", documented(root, "stubborn"))
    up.apply(DOCUMENTED_POOL.replace("provider: folders", "provider: stubborn"))
    until(lambda: two_are_ready(up), "both nodes have joined")
    names = sorted(nodes_of(up, "mine"))
    (root / "stubborn").touch()
    up.process.send_signal(signal.SIGINT)
    until(lambda: "ending 2 nodes of mine: " in up.said, "it says what it does")
    time.sleep(1)  # what comes within half a second is the same interrupt
    assert up.stop() == 1, "a second one"
    assert all(f"{name} could not be ended: the cloud is down" in up.said for name in names)
    assert processes(root), "they run on"
    (root / "stubborn").unlink()
    again = installed.up("--nodes", "1", "--provider-profiles", documented(root, "stubborn"))
    until(lambda: sorted(nodes_of(again, "mine")) == names and two_are_ready(again), "they are found again")
    assert again.stop() == 0
    assert processes(root) == {}


def test_providers_that_cannot_be_had_are_refused_with_the_reason(installed: Ground, root: Path) -> None:
    up = installed.up("--nodes", "1", "--provider-profiles", documented(root))
    for name in ("absent", "number", "broken"):
        with pytest.raises(Unanswered) as refused:
            up.apply(bad_pool(name), DOCUMENTED_POOL)
        assert refused.value.status == 409
        assert refused.value.problem["problems"] == [f"pool {name}-pool: {WHY[name]}"]
    assert [pool["name"] for pool in up.get("/v1/pools")] == ["local"], "all of it or nothing"


def test_a_provider_that_fails_in_what_it_does_is_explained_and_hurts_no_other_pool(
    installed: Ground, root: Path
) -> None:
    up = installed.up("--nodes", "1", "--provider-profiles", documented(root))
    up.apply(bad_pool("mistaken"), DOCUMENTED_POOL)
    until(lambda: two_are_ready(up), "the good pool has its nodes")
    until_explained(installed, up, "mistaken-pool", WHY["mistaken"])
    assert any(line.endswith(f"OutcomeUnknown: {WHY['mistaken']}") for line in up.history())
    assert "Traceback" in up.said, "a mistake is in the log, for whoever made it"
    up.apply(WEB)
    up.until_ready("web", 3)


def until_explained(ground: Ground, plane: Started, pool: str, why: str) -> None:
    def look() -> bool:
        return why in " ".join(ground.cli("explain", "pool", pool, url=plane.url).stdout.split())

    until(look, f"{pool} says why")
