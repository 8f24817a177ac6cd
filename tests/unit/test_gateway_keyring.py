"""What a gateway that works alone keeps on its disk: its keys, and what is drawn of budgets."""

import errno
import os
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from holdfast.cli import log_lines
from holdfast.cli.main import main
from holdfast.core.gateway.quota.local_quota import Purse, Short
from holdfast.gateway import budgets, keyring, messages, settings
from holdfast.gateway.book import hashed
from holdfast.gateway.budgets import Budgets
from holdfast.gateway.keeper import Keeper
from holdfast.gateway.keyring import Damaged, Keyring, NotOurs, Unknown, write_whole
from holdfast.model.gateway import Grade, Limits
from holdfast.wire.keys import KeyWanted, NotRotatable
from tests.gateways import key

NOW = 1_750_000_000_000


def ring(folder: Path) -> Keyring:
    return Keyring(folder / "keys.json", (key(id="fixed"),))


def test_keys_are_there_after_a_restart_and_their_secrets_nowhere(tmp_path: Path) -> None:
    made, secret = ring(tmp_path).create(KeyWanted("ci", "ann", limits=Limits(concurrent=2)), NOW)
    again = ring(tmp_path)
    assert again.get("ci") == made
    assert again.get("ci").hash == hashed(secret.encode())
    assert secret.encode() not in (tmp_path / "keys.json").read_bytes()
    assert (tmp_path / "keys.json").stat().st_mode & 0o777 == 0o600
    assert [one.id for one in again.all()] == ["fixed", "ci"]


def test_every_change_is_there_after_a_restart(tmp_path: Path) -> None:
    ours = ring(tmp_path)
    ours.create(KeyWanted("ci", ttl_ms=5_000), NOW)
    ours.suspend("ci", "")
    assert ring(tmp_path).get("ci").suspended == "by an operator"
    ours.graded("ci", Grade.CLAMP)
    assert ring(tmp_path).get("ci").grade is Grade.CLAMP
    ours.restore("ci", NOW)
    assert (ring(tmp_path).get("ci").suspended, ring(tmp_path).get("ci").grade) == ("", Grade.FINE)
    old, fresh, _ = ours.rotate("ci", NOW + 1_000, 60_000)
    assert old.expires_at == NOW + 5_000, "a grace does not lengthen a life"
    assert {one.id for one in ring(tmp_path).all()} == {"fixed", "ci", fresh.id}
    ours.delete("ci")
    assert {one.id for one in ring(tmp_path).all()} == {"fixed", fresh.id}


def test_a_key_that_was_replaced_is_not_rotated_again_and_its_successor_is_named(tmp_path: Path) -> None:
    """The new secret ended with the grace of the old one."""
    ours = ring(tmp_path)
    ours.create(KeyWanted("ci"), NOW)
    _, fresh, _ = ours.rotate("ci", NOW, 60_000)
    with pytest.raises(NotRotatable, match=f"replaced by {fresh.id}") as caught:
        ours.rotate("ci", NOW + 1_000)
    assert caught.value.hint == f"rotate {fresh.id} instead"
    assert {one.id for one in ring(tmp_path).all()} == {"fixed", "ci", fresh.id}, "no key was made"
    _, next_one, _ = ours.rotate(fresh.id, NOW + 1_000, 60_000)
    assert next_one.expires_at == 0, "it is good for as long as the first one was"
    ours.delete(fresh.id)
    with pytest.raises(NotRotatable) as caught:
        ours.rotate("ci", NOW + 2_000)
    assert "holdfast keys create" in caught.value.hint, "to rotate what is gone would lead nowhere"


def test_one_that_was_replaced_before_that_was_noted_is_not_rotated_either(tmp_path: Path) -> None:
    ours = ring(tmp_path)
    ours.create(KeyWanted("ci"), NOW)
    ours.rotate("ci", NOW, 60_000)
    ours.own["ci"] = msgspec.structs.replace(ours.own["ci"], replaced_by="")
    with pytest.raises(NotRotatable, match="was replaced") as caught:
        ours.rotate("ci", NOW + 1_000)
    assert "holdfast keys list" in caught.value.hint


def test_a_key_that_is_over_has_no_successor(tmp_path: Path) -> None:
    """The new secret was refused from its first moment on."""
    ours = ring(tmp_path)
    ours.create(KeyWanted("ci", ttl_ms=1_000), NOW)
    with pytest.raises(NotRotatable, match="expired") as caught:
        ours.rotate("ci", NOW + 1_000)
    assert "holdfast keys create" in caught.value.hint


def test_keys_of_the_configuration_and_strangers_are_not_changed(tmp_path: Path) -> None:
    ours = ring(tmp_path)
    for change in (
        ours.delete,
        lambda id: ours.restore(id, NOW),
        lambda id: ours.suspend(id, "x"),
        lambda id: ours.rotate(id, NOW),
    ):
        with pytest.raises(NotOurs):
            change("fixed")
        with pytest.raises(Unknown):
            change("nobody")
    assert not (tmp_path / "keys.json").exists()


@pytest.mark.parametrize("step", ["open", "write", "fsync", "replace"])
def test_a_disk_that_is_full_at_any_step_leaves_the_file_as_it_was(
    step: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "keys.json"
    write_whole(file, b"before")

    def full(*args: object, **more: object) -> Any:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        if step == "write":
            patched.setattr(keyring, "open", lambda *args, **more: Full(*args, **more), raising=False)
        elif step == "replace":
            patched.setattr(Path, "replace", full)
        else:
            patched.setattr(os, step, full)
        with pytest.raises(OSError, match="No space left"):
            write_whole(file, b"after" * 1_000)
    assert file.read_bytes() == b"before"
    write_whole(file, b"after")
    assert file.read_bytes() == b"after"
    assert [path.name for path in tmp_path.iterdir()] == ["keys.json"]


class Full:
    """A file on a disk with room for two bytes."""

    def __init__(self, descriptor: int, mode: str) -> None:
        self.descriptor = descriptor

    def __enter__(self) -> "Full":
        return self

    def __exit__(self, *what: object) -> None:
        os.close(self.descriptor)

    def write(self, content: bytes) -> None:
        os.write(self.descriptor, content[:2])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_what_a_crash_left_half_written_is_passed_over(tmp_path: Path) -> None:
    made, _ = ring(tmp_path).create(KeyWanted("ci"), NOW)
    (tmp_path / ".keys.json.new").write_bytes((tmp_path / "keys.json").read_bytes()[:20])
    assert ring(tmp_path).get("ci") == made
    ring(tmp_path).create(KeyWanted("next"), NOW)
    assert {one.id for one in ring(tmp_path).all()} == {"fixed", "ci", "next"}


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("keys.json", b"{}"),  # of budgets that would be one without any
        *(
            (name, content)
            for name in ("keys.json", "budgets.json")
            for content in (b"", b"[", b'[{"id":"x"}]', b"\xff\xfe", b"null")
        ),
    ],
)
def test_a_file_that_somebody_damaged_is_not_taken_for_an_empty_one(
    name: str, content: bytes, tmp_path: Path
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(Damaged, match=name):
        Keyring(tmp_path / name) if name == "keys.json" else Budgets(tmp_path / name)


def test_the_command_says_which_file_is_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "gateway.yaml").write_text(
        'listen: ":0"\nadmin: ":0"\nservices: [{name: toy, upstreams: ["http://127.0.0.1:1"]}]\n'
    )
    (tmp_path / "keys.json").write_bytes(b"[")
    words = ["gateway", "-c", str(tmp_path / "gateway.yaml"), "--dir", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", ["holdfast", *words])
    monkeypatch.setattr(log_lines, "set_up", lambda json: None)  # it would outlive this test
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 1
    told = capsys.readouterr().err
    assert "keys.json cannot be read" in told
    assert "hint: put it back from a copy" in told


def test_what_is_drawn_of_a_budget_stays_drawn(tmp_path: Path) -> None:
    file = tmp_path / "budgets.json"
    first = Budgets(file)
    assert (first.drawn, first.crashed) == ({}, False)
    first.begin()
    first.draw({"team:red": 1_000})
    crashed = Budgets(file)
    assert (crashed.drawn, crashed.crashed) == ({"team:red": 1_000}, True)
    crashed.begin()
    crashed.draw({"team:red": 900})  # what came back is not written down before the end
    assert Budgets(file).drawn == {"team:red": 1_000}
    crashed.end({"team:red": 900})
    ended = Budgets(file)
    assert (ended.drawn, ended.crashed) == ({"team:red": 900}, False)


def no_room(file: Path, content: bytes) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_slice_that_cannot_be_written_down_is_not_lent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = Budgets(tmp_path / "budgets.json")
    ours.begin()
    monkeypatch.setattr(budgets, "write_whole", no_room)
    for _ in range(2):
        with pytest.raises(OSError, match="No space left"):
            ours.draw({"team:red": 1_000})


class Worker:
    """The keeper's end of a link."""

    def __init__(self) -> None:
        self.told: list[object] = []

    def send(self, message: object) -> None:
        self.told.append(message)


def test_a_worker_hears_nothing_while_a_slice_cannot_be_written_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keeper = Keeper(settings.Gateway(state=tmp_path, limits={"team:red": Limits(tokens_total=10_000)}))
    keeper.budgets.begin()
    seat, worker = keeper.seats[0], Worker()
    seat.link = worker  # type: ignore[assignment]
    purse = Purse("w0", {"team:red": Limits(tokens_total=10_000)}, keeper.now())
    chain = purse.chain(key(id="ci", team="red"), "toy", keeper.now())
    short = purse.take(chain, 50, keeper.now())
    assert isinstance(short, Short)
    wants = {name: purse.worth_asking(name, [amount]) for name, amount in short.wants.items()}
    ask = messages.Asked(purse.ask(keeper.now(), wants, True))
    with monkeypatch.context() as patched:
        patched.setattr(budgets, "write_whole", no_room)
        keeper.heard(seat, ask)
    assert worker.told == []
    keeper.heard(seat, ask)
    assert len(worker.told) == 1
    assert Budgets(tmp_path / "budgets.json").drawn["team:red"] >= 1_000
