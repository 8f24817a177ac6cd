"""A database that is reached over a network must prove who it is; else the log says so at the start."""

from pathlib import Path

import pytest
from structlog.testing import capture_logs

from holdfast import wiring
from holdfast.adapters.stores import unverified

HERE = [
    "sqlite:////var/lib/holdfast/journal.db",
    "postgresql:///holdfast",
    "postgresql://u:p@/holdfast?host=/run/postgresql",
    "postgresql://u:p@127.0.0.1/holdfast",
    "postgresql://u:p@localhost:5433/holdfast?sslmode=require",
    "postgresql://u:p@[::1]/holdfast",
    "postgresql://u:p@db/holdfast?hostaddr=127.0.0.1",
    "postgresql://u:p@db.example.org/holdfast?sslmode=verify-full",
    "postgresql://u:p@/holdfast?host=a:5432&host=b:5432&sslmode=verify-full",
]
THERE = {
    "postgresql://u:p@db.example.org/holdfast": "db.example.org",
    "postgres://u:p@db.example.org/holdfast?sslmode=require": "db.example.org",
    "postgresql://u:p@db.example.org/holdfast?sslmode=verify-ca": "db.example.org",
    "postgresql://u:p@10.0.0.9:5432/holdfast?sslmode=prefer": "10.0.0.9",
    "postgresql://u:p@/holdfast?host=a:5432&host=127.0.0.1:5432": "a:5432",
    "postgresql://u:p@localhost.evil.example/holdfast": "localhost.evil.example",
}


@pytest.fixture(autouse=True)
def nothing_said(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PGHOST", "PGHOSTADDR", "PGSSLMODE", "PGSERVICE"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize("url", HERE)
def test_one_of_this_machine_or_with_a_certificate_that_is_looked_at_is_not_told_of(url: str) -> None:
    assert unverified(url) == ""


@pytest.mark.parametrize("url", THERE)
def test_one_that_could_be_somebody_else_is_named_without_its_password(url: str) -> None:
    assert unverified(url) == THERE[url]


def test_what_the_environment_says_counts_where_the_url_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGHOST", "db.example.org")
    assert unverified("postgresql:///holdfast") == "db.example.org"
    assert unverified("postgresql://127.0.0.1/holdfast") == ""
    monkeypatch.setenv("PGSSLMODE", "verify-full")
    assert unverified("postgresql:///holdfast") == ""
    assert unverified("postgresql://db.example.org/holdfast?sslmode=require") == "db.example.org"


def test_the_log_says_so_at_the_start_with_what_helps_and_without_the_password(tmp_path: Path) -> None:
    with capture_logs() as told:
        wiring._warn(wiring.Settings(tmp_path, database="postgresql://u:password@db.example.org/holdfast"))
        wiring._warn(wiring.Settings(tmp_path, database="postgresql://u:password@127.0.0.1/holdfast"))
        wiring._warn(wiring.Settings(tmp_path))
    (only,) = told
    assert (only["log_level"], only["host"]) == ("warning", "db.example.org")
    assert "sslmode=verify-full" in only["hint"]
    assert "password" not in str(only)


def test_plain_http_beyond_this_machine_is_told_and_tls_is_not(tmp_path: Path) -> None:
    with capture_logs() as told:
        wiring._warn(wiring.Settings(tmp_path, host="0.0.0.0", insecure=True))
        wiring._warn(wiring.Settings(tmp_path, host="0.0.0.0"))
        wiring._warn(wiring.Settings(tmp_path, insecure=True))
    assert [each["event"] for each in told] == ["no TLS"]
