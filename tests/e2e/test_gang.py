"""A gang of real processes loses members, nodes, agents and its control plane: it meets again in one
generation, with right ranks and addresses, goes on from its checkpoint, and ends as done."""

import json
import sys
from pathlib import Path
from typing import Any

from tests.e2e.live import PROGRAMS, Ground, Started, kill, processes, replicas, until

EXAMPLE = Path(__file__).parents[2] / "examples" / "training.yaml"
A_LOT = 1_000_000


def member(folder: Path, steps: int, least: int = 3, more: tuple[str, ...] = ()) -> str:
    command = json.dumps(
        [sys.executable, "-I", "-S", str(PROGRAMS / "member.py"), str(folder / "gang"), str(steps), *more]
    )
    asks = f", tell: {more[0]}" if more else ""
    sizes = f"cpus: 0.1, memory: 32MiB, stop_grace: 2s, checkpoint: 100ms{asks}"
    return f"{{kind: training, name: gang, nodes_min: {least}, nodes_max: 3, command: {command}, {sizes}}}"


def said(folder: Path, word: str) -> list[dict[str, Any]]:
    """What its members wrote, in order."""
    try:
        lines = (folder / "gang.log").read_text().splitlines()
    except FileNotFoundError:
        return []
    return [found for line in lines if (found := json.loads(line))["word"] == word]


def generation(folder: Path, word: str, size: int, above: int = 0) -> list[dict[str, Any]]:
    """The members of the newest generation, by rank, when so many have met; empty: not yet."""
    found = said(folder, word)
    newest = max((each["gang"] for each in found), default=0)
    members = {each["me"]: each for each in found if each["gang"] == newest}
    return list(members.values()) if newest > above and len(members) == size else []


def agree(members: list[dict[str, Any]]) -> None:
    """Ranks are a permutation, and everybody has the same list of peers, with a port each."""
    size = len(members)
    assert sorted(int(each["RANK"]) for each in members) == list(range(size))
    for each in members:
        assert each["HOLDFAST_RANK"] == each["RANK"]
        assert each["WORLD_SIZE"] == each["HOLDFAST_WORLD_SIZE"] == str(size)
        assert each["LOCAL_RANK"] == "0"
    (peers,) = {each["HOLDFAST_PEERS"] for each in members}
    addresses = peers.split(",")
    assert len(set(addresses)) == size
    for each in members:
        assert addresses[int(each["RANK"])].rpartition(":")[2] == each["PORT"] != "0"
        assert f"{each['MASTER_ADDR']}:{each['MASTER_PORT']}" == addresses[0]


def kill_member(folder: Path, member: dict[str, Any]) -> None:
    kill(replicas(folder)[member["replica"]].program)


def until_ready(up: Started, count: int) -> dict[str, Any]:
    def look() -> dict[str, Any]:
        found = dict(up.get("/v1/workloads/gang"))
        return found if found["ready"] == count and found["gang"] else {}

    return until(look, f"a gang of {count} is ready")


def until_done(up: Started, name: str = "gang") -> dict[str, Any]:
    def look() -> dict[str, Any]:
        found = dict(up.get(f"/v1/workloads/{name}"))
        return found if found["done"] == found["wanted"] > 0 else {}

    return until(look, "it is done")


def test_all_members_start_anew_when_one_is_killed_and_the_end_is_done(ground: Ground) -> None:
    up = ground.up()
    up.apply(member(up.folder, A_LOT))
    first = until(lambda: generation(up.folder, "start", 3), "three start")
    agree(first)
    until(lambda: len(said(up.folder, "saved")) > 5, "checkpoints are written")
    victim = next(each for each in first if each["RANK"] == "1")
    kill_member(up.folder, victim)
    second = until(lambda: generation(up.folder, "start", 3, above=first[0]["gang"]), "three start again")
    agree(second)
    assert {each["me"] for each in first}.isdisjoint(each["me"] for each in second)
    assert until_ready(up, 3)["gang"] == second[0]["gang"]
    before = said(up.folder, "saved")[-1]["step"]
    up.apply(member(up.folder, before + 20))
    assert until_done(up)["why"] == ""
    assert said(up.folder, "TWICE") == []
    steps = [each["step"] for each in said(up.folder, "saved")]
    assert steps == sorted(steps), "it goes on from the checkpoint, and one member writes it"
    assert "3 done" in ground.cli("workloads", url=up.url).stdout


def test_the_training_of_the_examples_goes_on_without_a_lost_node_and_is_done(ground: Ground) -> None:
    up = ground.up()
    meets = up.folder / "meets.log"
    note = 'echo "$HOLDFAST_EPOCH $HOLDFAST_RANK $HOLDFAST_WORLD_SIZE $MASTER_PORT" >> ' + str(meets)
    text = EXAMPLE.read_text().replace("command: |\n", f"command: |\n  {note}\n")
    text = text.replace("sleep 1", "sleep 0.1").replace("-lt 300", "-lt 120")
    assert "sleep 0.1" in text
    assert "-lt 120" in text
    up.apply(text)

    def met(size: int) -> bool:
        last = [line.split() for line in meets.read_text().splitlines()[-size:]] if meets.exists() else []
        ranks = sorted(int(rank) for _, rank, world, _ in last if world == str(size))
        ports = {port for *_, port in last}
        return ranks == list(range(size)) and len(ports) == 1 and "0" not in ports

    until(lambda: met(3), "three members meet")
    until(lambda: up.get("/v1/workloads/finetune")["ready"] == 3, "it is ready")
    (step,) = until(lambda: list(up.folder.glob("**/finetune/gang/step")), "a checkpoint is written")
    until(lambda: int(step.read_text() or 0) > 3, "it gets on")
    saved = int(step.read_text())
    home = next(
        each["node"] for name, each in up.replicas("finetune").items() if name.startswith("finetune/0")
    )
    kill(*processes(up.folder / "nodes" / home))
    until(lambda: met(2) or (met(3) and len(meets.read_text().splitlines()) > 3), "the others meet again")
    until(lambda: int(step.read_text() or 0) > saved, "the checkpoint goes on")
    done = until_done(up, "finetune")
    assert done["ready"] == 0
    assert done["why"] == ""
    assert step.read_text().strip() == "120"


def test_an_agent_that_is_killed_while_members_start_anew_leaves_one_generation(ground: Ground) -> None:
    up = ground.up()
    up.apply(member(up.folder, A_LOT))
    first = until(lambda: generation(up.folder, "start", 3), "three start")
    until_ready(up, 3)
    victim = next(each for each in first if each["RANK"] == "0")
    agents = [pid for pid, words in processes(up.folder / "nodes").items() if "-m holdfast.agent" in words]
    kill_member(up.folder, victim)
    until(lambda: any("RegroupGang" in line for line in up.history(workload="gang")), "it regroups")
    kill(*agents)
    second = until(lambda: generation(up.folder, "start", 3, above=first[0]["gang"]), "three start again")
    until_ready(up, 3)
    agree(generation(up.folder, "start", 3, above=first[0]["gang"]) or second)
    assert said(up.folder, "TWICE") == []


def test_a_control_plane_that_is_killed_while_members_start_anew_goes_on(ground: Ground) -> None:
    plane = ground.serve()
    ground.fleet(plane, "n1", "n2", "n3")
    plane.apply(member(plane.folder, A_LOT))
    first = until(lambda: generation(plane.folder, "start", 3), "three start")
    until_ready(plane, 3)
    kill_member(ground.folder, next(each for each in first if each["RANK"] == "2"))
    until(lambda: len(replicas(ground.folder)) < 3, "it is gone")
    plane.kill()
    port = plane.url.rpartition(":")[2].rstrip("/")
    plane = ground.serve(port=int(port))
    second = until(lambda: generation(plane.folder, "start", 3, above=first[0]["gang"]), "three start again")
    agree(second)
    until_ready(plane, 3)
    assert said(plane.folder, "TWICE") == []


def test_members_that_ask_for_a_signal_keep_running_and_read_the_new_membership(ground: Ground) -> None:
    up = ground.up()
    up.apply(member(up.folder, A_LOT, more=("USR1",)))
    first = until(lambda: generation(up.folder, "meets", 3), "three meet")
    until_ready(up, 3)
    victim = next(each for each in first if each["rank"] == 1)
    kill_member(up.folder, victim)
    second = until(lambda: generation(up.folder, "meets", 3, above=first[0]["gang"]), "three meet again")
    assert sorted(each["rank"] for each in second) == [0, 1, 2]
    assert {each["world_size"] for each in second} == {3}
    assert len({tuple(each["peers"]) for each in second}) == 1
    assert not any(peer.endswith(":0") for each in second for peer in each["peers"])
    assert len({each["me"] for each in first} & {each["me"] for each in second}) == 2, "two kept running"
