"""The database goes away, or is full. What runs goes on; what was acknowledged is there afterwards."""

import contextlib
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

from tests.e2e.live import WEB, Ground, Started, alone, lives, refusal, replicas, until
from tests.postgres import Postgres

DOWN_S = 20
SMALL = "{kind: service, name: small, replicas: 1, command: sleep 1000, cpus: 0.1, memory: 32MiB}"


def test_a_database_that_is_killed_and_comes_back_costs_no_replica(
    ground: Ground, postgres: Postgres
) -> None:
    plane = ground.serve("--database", postgres.fresh())
    ground.fleet(plane, "n1", "n2", "n3")
    plane.apply(WEB, alone(ground.folder))
    placed = plane.until_ready("web", 3)
    plane.until_ready("job")
    before = replicas(ground.folder)
    postgres.kill()
    try:
        down = time.monotonic()
        refused = refusal(lambda: plane.apply(SMALL))
        assert refused is not None
        assert refused.status == 503
        assert refused.problem["detail"]
        until(lambda: not is_ready(plane), "it says that it is not ready")
        assert plane.get("/healthz")
        until(lambda: time.monotonic() > down + DOWN_S, "some time has passed")
        assert replicas(ground.folder) == before
    finally:
        postgres.start()
    until(lambda: plane.apply(SMALL), "it leads again")
    plane.until_alive(3)
    plane.until_ready("small")
    assert plane.until_ready("web", 3) == placed
    assert before.items() <= replicas(ground.folder).items()
    assert len(lives(ground.folder)) == 1
    assert "Traceback" not in plane.said


def test_a_database_that_hangs_for_a_while_costs_no_replica(ground: Ground, postgres: Postgres) -> None:
    plane = ground.serve("--database", postgres.fresh())
    ground.fleet(plane, "n1", "n2")
    plane.apply(WEB, alone(ground.folder))
    plane.until_ready("web", 3)
    plane.until_ready("job")
    before = replicas(ground.folder)
    postgres.pause()
    try:
        paused = time.monotonic()
        refused = refusal(lambda: plane.apply(SMALL))
        assert refused is not None
        assert refused.status == 503
        until(lambda: not is_ready(plane), "it says that it is not ready")
        print(f"not ready after {time.monotonic() - paused:.1f} s")
        assert replicas(ground.folder) == before
    finally:
        postgres.resume()
    until(lambda: plane.apply(SMALL.replace("small", "other")), "it leads again")
    plane.until_ready("other")
    assert before.items() <= replicas(ground.folder).items()
    assert len(lives(ground.folder)) == 1


def is_ready(plane: Started) -> bool:
    refused = refusal(lambda: plane.get("/readyz"))
    assert refused is None or refused.status == 503
    return refused is None


@contextlib.contextmanager
def small_disk(folder: Path) -> Iterator[None]:
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m,mode=777", "tmpfs", str(folder)], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_full_disk_is_told_and_nothing_that_was_accepted_is_lost(ground: Ground) -> None:
    disk = ground.folder / "disk"
    with small_disk(disk):
        plane = ground.serve("--database", f"sqlite:///{disk}/holdfast.db")
        ground.fleet(plane, "n1", "n2", "n3")
        plane.apply(WEB)
        placed = plane.until_ready("web", 3)
        before = replicas(ground.folder)
        accepted = fill(plane, disk)
        assert accepted
        assert replicas(ground.folder) == before
        (disk / "ballast").unlink()
        until(lambda: plane.apply(SMALL), "it leads again")
        plane.until_ready("small")
        plane.until_alive(3)
        known = {each["name"] for each in plane.get("/v1/workloads")}
        assert known >= {"web", "small", *accepted}
        assert plane.until_ready("web", 3) == placed
        assert before.items() <= replicas(ground.folder).items()
        plane.kill()
        again = ground.serve("--database", f"sqlite:///{disk}/holdfast.db", name="again")
        until(lambda: again.get("/v1/status")["leading"], "it leads")
        assert {each["name"] for each in again.get("/v1/workloads")} == known
        again.stop()
    assert "Traceback" not in plane.said + again.said


def fill(plane: Started, disk: Path) -> list[str]:
    """Applies until it is refused for want of room; what was accepted."""
    with (disk / "ballast").open("wb", buffering=0) as ballast, contextlib.suppress(OSError):
        while ballast.write(bytes(65_536)):
            pass
    os.truncate(disk / "ballast", (disk / "ballast").stat().st_size - 400_000)
    text = "x" * 20_000
    for number in range(200):
        document = f"{{kind: service, name: more-{number}, paused: true, replicas: 1, command: {text}}}"
        refused = refusal(lambda document=document: plane.apply(document))  # type: ignore[misc]
        if refused is not None:
            print(f"refused after {number}: {refused}")
            assert refused.status in (503, 507)
            assert "full" in refused.problem["detail"]
            assert "make room" in refused.problem["hint"]
            return [f"more-{accepted}" for accepted in range(number)]
    raise AssertionError("it never was full")
