"""A database comes back from a copy, is removed, or is emptied: see docs/how-to/back-up-and-restore.md."""

import os
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest
from psycopg import sql

from tests.e2e.live import (
    LONG_S,
    WEB,
    Ground,
    Started,
    Unanswered,
    alone,
    kill,
    lives,
    replicas,
    until,
)
from tests.postgres import Postgres

NODES = ("n1", "n2")


def port_of(plane: Started) -> int:
    return int(plane.url.rsplit(":", 1)[1])


def files(folder: Path) -> list[Path]:
    """The database and the logs beside it."""
    return sorted(folder.glob("holdfast.db*"))


def back_up(folder: Path, copy: Path) -> None:
    """As `sqlite3 holdfast.db ".backup copy.db"` does, while it is in use."""
    with sqlite3.connect(folder / "holdfast.db") as source, sqlite3.connect(copy) as target:
        source.backup(target)


def restore(folder: Path, copy: Path) -> None:
    folder.mkdir(exist_ok=True)
    for file in files(folder):
        file.unlink()
    shutil.copy(copy, folder / "holdfast.db")


def begin(ground: Ground) -> Started:
    plane = ground.serve()
    ground.fleet(plane, *NODES)
    plane.apply(WEB.replace("replicas: 3", "replicas: 2"), alone(ground.folder))
    plane.until_ready("web", 2)
    plane.until_ready("job")
    return plane


def restart(ground: Ground, plane: Started, name: str = "serve", *words: str) -> Started:
    plane.stop()
    again = ground.serve(*words, name=name, port=port_of(plane))
    until(lambda: again.get("/v1/status")["leading"], "it leads")
    again.until_alive(len(NODES))
    return again


def go_on_without_a_copy(ground: Ground, plane: Started) -> Started:
    """What the copy will not know: three more terms, another epoch of the job, another size."""
    for _ in range(3):
        plane = restart(ground, plane)
    kill(*(pids.program for name, pids in replicas(ground.folder).items() if name.startswith("job/")))
    until(lambda: lives(ground.folder)[-1].epoch > 1, "the job is tried again")
    plane.until_ready("job")
    plane.post("/v1/workloads/web/scale", {"count": 3})
    plane.until_ready("web", 3)
    return plane


def said_by(ground: Ground, agent: str) -> str:
    return (ground.folder / f"{agent}.log").read_text()


def is_scaled(plane: Started, count: int) -> bool:
    """As `holdfast scale` does: while leaderships change nobody takes orders, and it may be repeated."""
    try:
        plane.post("/v1/workloads/web/scale", {"count": count})
    except Unanswered as error:
        if error.status != 503:
            raise
        return False
    return True


def obeys(ground: Ground, plane: Started) -> None:
    """The fleet does what the restored leader wants, and nothing ran twice."""
    until(lambda: plane.get("/v1/status")["leading"], "it leads")
    plane.until_alive(len(NODES))
    until(lambda: is_scaled(plane, 4), "it leads, above what its nodes have obeyed, and takes an order")
    plane.until_ready("web", 4)
    plane.until_ready("job", seconds=2 * LONG_S)
    until(lambda: len(replicas(ground.folder)) == 5, "nothing else is left running")
    epochs = [life.epoch for life in lives(ground.folder)]
    assert epochs == sorted(set(epochs)), "no epoch is used again"


@pytest.mark.parametrize("folder", ["serve", "another"], ids=["here", "on another machine"])
def test_a_fleet_obeys_a_control_plane_that_was_restored_from_a_copy(ground: Ground, folder: str) -> None:
    plane, copy = begin(ground), ground.folder / "copy.db"
    back_up(plane.folder, copy)
    plane = go_on_without_a_copy(ground, plane)
    plane.kill()
    restore(ground.folder / folder, copy)
    restored = ground.serve(name=folder, port=port_of(plane))
    obeys(ground, restored)
    assert "the journal is" in restored.said
    if folder == "another":  # nothing but the agents could tell it
        assert "leading on under a generation above" in restored.said
        refused = [node for node in NODES if "it leads on above that" in said_by(ground, node)]
        assert refused, "an agent says so, too"
    assert any("the journal is older" in line for line in restored.history())


def test_a_restored_control_plane_waits_with_what_must_not_run_twice(ground: Ground) -> None:
    """The copy knows of a job that waited; since then it has begun on a node that does not say hello."""
    plane, copy = ground.serve(), ground.folder / "copy.db"
    ground.fleet(plane, *NODES)
    plane.apply(alone(ground.folder).replace("cpus: 0.1", "cpus: 100"))
    until(lambda: plane.history(workload="job"), "the job is known")
    back_up(plane.folder, copy)
    plane.apply(alone(ground.folder))
    plane.until_ready("job")
    home = next(iter(plane.ready("job").values()))
    plane.kill()
    ground.agents[home].terminate()  # its shims live on, and with them the job, until its lease is over
    ground.agents[home].wait(LONG_S)
    restore(plane.folder, copy)
    restored = ground.serve(port=port_of(plane))
    restored.apply_when_led(alone(ground.folder))
    assert len(lives(ground.folder)) == 1
    restored.until_ready("job", seconds=2 * LONG_S)  # `lives` fails when there were two at once
    assert len(lives(ground.folder)) == 2


def test_a_database_on_a_server_is_restored_likewise(ground: Ground, postgres: Postgres) -> None:
    name, copy = f"fleet_{os.getpid()}", f"copy_{os.getpid()}"
    url = postgres.url(name)

    def server(*statements: str) -> None:
        with psycopg.connect(postgres.url("postgres"), autocommit=True) as connection:
            for statement in statements:
                connection.execute(sql.SQL(statement).format(sql.Identifier(name), sql.Identifier(copy)))

    server("CREATE DATABASE {0}")
    plane = ground.serve("--database", url)
    ground.fleet(plane, *NODES)
    plane.apply(WEB.replace("replicas: 3", "replicas: 2"), alone(ground.folder))
    plane.until_ready("web", 2)
    plane.until_ready("job")
    plane.stop()
    server("CREATE DATABASE {1} TEMPLATE {0}")
    plane = ground.serve("--database", url, port=port_of(plane))
    for _ in range(2):
        plane = restart(ground, plane, "serve", "--database", url)
    plane.stop()
    server("DROP DATABASE {0}", "ALTER DATABASE {1} RENAME TO {0}")
    restored = ground.serve("--database", url, port=port_of(plane))
    obeys(ground, restored)
    assert "it was restored from a copy" in restored.said


def no_answer(ask: Callable[[], object]) -> bool:
    try:
        ask()
    except Unanswered as error:
        return error.status >= 500
    return False


@pytest.mark.parametrize("how", ["removed", "emptied", "replaced"])
def test_a_database_that_goes_while_it_is_in_use_ends_the_term_and_says_so(ground: Ground, how: str) -> None:
    plane, copy = begin(ground), ground.folder / "copy.db"
    back_up(plane.folder, copy)
    path = plane.folder / "holdfast.db"
    if how == "emptied":
        path.write_bytes(b"")
    else:
        path.unlink()
    if how == "replaced":
        shutil.copy(copy, path)
    until(lambda: no_answer(lambda: plane.post("/v1/workloads/web/scale", {"count": 3})), "it is not written")
    until(lambda: f"was {how} while it was in use" in plane.said, "it says so")
    assert len(replicas(ground.folder)) == 3, "what runs goes on"
    plane.stop()
    restore(plane.folder, copy)
    obeys(ground, ground.serve(port=port_of(plane)))


@pytest.mark.parametrize("how", ["gone", "empty", "another"])
def test_a_folder_that_had_a_fleet_is_not_begun_anew_by_itself(ground: Ground, how: str) -> None:
    plane = ground.serve()
    plane.apply_when_led(WEB)
    plane.stop()
    for file in files(plane.folder):
        file.unlink()
    if how == "empty":
        (plane.folder / "holdfast.db").touch()
    if how == "another":
        ground.serve(name="other").stop()
        shutil.copy(ground.folder / "other" / "holdfast.db", plane.folder)
    for command in ("serve", "up"):
        told = ground.cli(command, "--port", "0", "--dir", str(plane.folder))
        assert told.returncode != 0
        assert "had a fleet" in told.stderr
        assert "--new-fleet" in told.stderr
    anew = ground.serve("--new-fleet")
    until(lambda: anew.get("/v1/status")["leading"], "it leads")
    assert anew.get("/v1/workloads") == []
