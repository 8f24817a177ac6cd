"""`holdfast keys`: of a gateway that works alone, or of the control plane, and it says which."""

from pathlib import Path

import pytest

from tests.cli_rig import Holdfast, gives, listening, problem


def beside(folder: Path, name: str, file: str, url: str) -> None:
    (folder / name).mkdir()
    (folder / name / file).write_text(url + "\n")


@pytest.mark.parametrize("more", [(), ("--json",)])
def test_keys_say_that_they_ask_the_gateway_beside_them(
    holdfast: Holdfast, tmp_path: Path, more: tuple[str, ...]
) -> None:
    """With a control plane beside it as well, nobody could tell whose keys these are."""
    with listening(lambda method, path: gives([])) as server:
        beside(tmp_path, ".holdfast", "url", "http://127.0.0.1:1")
        beside(tmp_path, ".holdfast-gateway", "admin-url", server.url)
        told = holdfast("keys", "list", *more)
    assert (told.code, told.out) == (0, "[]\n" if more else "no keys\n")
    assert told.err == f"asking the gateway at {server.url}, by .holdfast-gateway/admin-url\n"


def test_keys_say_that_they_ask_the_control_plane_though_a_gateway_is_beside_them(
    holdfast: Holdfast, tmp_path: Path
) -> None:
    (tmp_path / ".holdfast-gateway").mkdir()
    with listening(lambda method, path: gives([])) as server:
        beside(tmp_path, ".holdfast", "url", server.url)
        told = holdfast("keys", "list")
    assert told.code == 0
    why = "the gateway of .holdfast-gateway does not run, or follows a control plane"
    assert told.err == f"asking the control plane at {server.url}: {why}\n"


def test_keys_that_are_asked_of_whom_one_named_say_nothing_of_it(holdfast: Holdfast, tmp_path: Path) -> None:
    with listening(lambda method, path: gives([])) as server:
        beside(tmp_path, ".holdfast-gateway", "admin-url", server.url)
        for named in ("--gateway", "--url"):
            assert holdfast("keys", "list", named, server.url).err == ""
    with listening(lambda method, path: gives([])) as server:
        (tmp_path / ".holdfast-gateway" / "admin-url").unlink()
        (tmp_path / ".holdfast-gateway").rmdir()
        beside(tmp_path, ".holdfast", "url", server.url)
        assert holdfast("keys", "list").err == "", "there is nobody else whom it could be"


@pytest.mark.parametrize(("option", "called"), [("--gateway", "gateway"), ("--url", "control plane")])
def test_what_is_refused_of_keys_says_who_refused_it(holdfast: Holdfast, option: str, called: str) -> None:
    with listening(lambda method, path: problem(404, "there is no key ci", "see: ...")) as server:
        told = holdfast("keys", "delete", "ci", option, server.url)
    assert told.code == 2
    assert told.err == f"error: there is no key ci (asked: the {called} at {server.url})\nhint: see: ...\n"


def test_a_gateway_that_left_its_address_and_is_gone_is_told_as_such(
    holdfast: Holdfast, tmp_path: Path
) -> None:
    beside(tmp_path, ".holdfast-gateway", "admin-url", "http://127.0.0.1:1")
    told = holdfast("keys", "list")
    assert told.code == 1
    asked, error, hint = told.err.splitlines()
    assert asked == "asking the gateway at http://127.0.0.1:1, by .holdfast-gateway/admin-url"
    assert error.startswith("error: cannot connect to the gateway at http://127.0.0.1:1: ")
    assert "--url" in hint


def test_a_key_says_which_limits_hold_for_it_and_that_there_are_none(holdfast: Holdfast) -> None:
    limits = {"key:ci": {"requests_per_min": 60}, "team:red": {"tokens_per_min": 1000}}
    more = {"team:red/model:toy": {"concurrent": 2}, "global": {"concurrent": 9}}
    found = [
        {"id": "ci", "team": "red", "note": "nightly", "in_force": {**limits, **more}},
        {"id": "free", "in_force": {}},
    ]
    with listening(lambda method, path: gives(found)) as server:
        told = holdfast("keys", "list", "--gateway", server.url)
    words = " ".join(told.out.split())
    assert (
        "nightly; limits: its own: 60 requests/min; team red: 1,000 tokens/min;"
        " team red for toy: 2 at a time; all keys: 9 at a time"
    ) in words
    assert "limits: none" in words


def test_a_new_team_is_said_to_be_new(holdfast: Holdfast) -> None:
    made = {"key": {"id": "k1", "team": "rde", "in_force": {}}, "secret": "sk-hf-1"}
    with listening(lambda method, path: gives(made)) as server:
        told = holdfast("keys", "create", "--team", "rde", "--new-team", "--gateway", server.url)
        assert b'"new_team":true' in server.asked[-1][3]
    assert (told.out, "limits: none" in told.err) == ("sk-hf-1\n", True)
