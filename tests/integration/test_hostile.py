"""Those who hold a little, all at once and at full speed: what must hold however busy the machine is.

How quick the API stays and what memory grows by is measured by `python -m bench hostile`.
"""

from argparse import Namespace

import pytest

from bench import hostile
from holdfast.control import intake


@pytest.fixture(scope="module")
def measured() -> dict[str, object]:
    return hostile.run(Namespace(seconds=5.0, leader_timeout=45.0, only=hostile.KINDS))


def test_the_fleet_holds_against_those_who_hold_a_little(measured: dict[str, object]) -> None:
    assert measured["kept_leadership"]
    assert measured["looks_not_ready"] == 0
    assert measured["refused"] == 0, measured["refused_why"]
    assert measured["requests"] != 0


def test_a_job_that_must_not_run_twice_does_not_meanwhile(measured: dict[str, object]) -> None:
    assert measured["doubles"] == 0
    assert measured["copies_of_the_job"] == 1, "nobody had it moved"


def test_the_journal_grows_by_what_the_rate_limit_lets_through(measured: dict[str, object]) -> None:
    entries = measured["journal_entries"]
    assert isinstance(entries, int)
    assert entries < intake.BURST


def test_nothing_that_a_rogue_replica_started_outlives_the_fleet(measured: dict[str, object]) -> None:
    assert measured["processes_left"] == 0


def test_each_of_them_was_there(measured: dict[str, object]) -> None:
    attackers = measured["attackers"]
    assert isinstance(attackers, dict)
    assert attackers["node"]["welcomed"] >= 1
    assert attackers["node"]["reports"] > 0
    assert attackers["reader"]["answered_200"] > 0
    assert attackers["keyless"]["large_bodies"] > 0
    assert measured["replica_may"]
