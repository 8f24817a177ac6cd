"""Another user of the machine looks for what a control plane and its nodes keep on disk."""

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from holdfast.adapters.clock import HostClock
from holdfast.adapters.providers.local.folders import Folders
from holdfast.agent.home import Home, Unusable
from holdfast.agent.replicas import Tree, save_task
from holdfast.ports import private_folder
from holdfast.sim.twins.registry import SimRegistry
from holdfast.wiring import CannotStart, Settings, _make, first_token
from tests.runtime_rig import task_for


@pytest.fixture(params=[0o000, 0o022], ids=["umask-000", "umask-022"])
def umask(request: pytest.FixtureRequest) -> Iterator[None]:
    before = os.umask(request.param)
    yield
    os.umask(before)


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o7777


@pytest.mark.usefixtures("umask")
def test_others_can_look_into_no_folder_of_a_control_plane_or_node(tmp_path: Path) -> None:
    state = tmp_path / "state" / "holdfast"
    _make(state)
    Folders(state)
    home = Home(state / "nodes" / "n1" / "agent")
    home.enter()
    tree = Tree(str(home.path), str(state / "checkpoints"))
    tree.make()
    task = task_for(("true",))
    folders = tree.folders(task)
    private_folder.make(folders.own)
    save_task(task, folders, 0)
    home.leave()
    found = {path: mode(path) for path in [tmp_path / "state", *state.rglob("*")] if path.is_dir()}
    assert len(found) >= 9
    assert {path: what for path, what in found.items() if what & 0o077} == {}


def test_what_an_older_version_left_open_is_closed(tmp_path: Path) -> None:
    (tmp_path / "nodes").mkdir()
    tmp_path.chmod(0o755)
    (tmp_path / "nodes").chmod(0o777)
    _make(tmp_path)
    Folders(tmp_path)
    assert (mode(tmp_path), mode(tmp_path / "nodes")) == (0o700, 0o700)


def test_a_folder_in_which_there_is_nothing_of_ours_stays_as_it_is(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    _make(tmp_path)
    assert mode(tmp_path) == 0o755


def test_an_empty_folder_that_others_may_write_to_is_closed(tmp_path: Path) -> None:
    state = tmp_path / "state"
    state.mkdir()
    state.chmod(0o777)
    _make(state)
    assert mode(state) == 0o700


@pytest.mark.parametrize("with_token", [True, False])
@pytest.mark.parametrize("kind", ["shared", "open", "another's", "with something of another's"])
def test_a_folder_in_which_others_may_have_a_hand_is_refused(
    tmp_path: Path, kind: str, *, with_token: bool
) -> None:
    """Whoever made it first would find the token of an admin, and the key of a node."""
    state = tmp_path / "state"
    state.mkdir()
    (state / "token" if with_token else state / "notes").touch()
    if "another's" in kind and os.geteuid() != 0:
        pytest.skip("only root can give files away")
    why, agents = "", ""
    match kind:
        case "shared":
            state.chmod(0o1777)  # as /tmp
            why = agents = "all may write to it"
        case "open":
            state.chmod(0o777)
            why = "" if with_token else "others may write to it"
        case "another's":
            os.chown(state, 4_711, 4_711)
            why = agents = "it belongs to another user, 4711"
        case _:
            state.chmod(0o777)
            (state / "nodes").symlink_to(tmp_path)
            os.chown(state / "nodes", 4_711, 4_711, follow_symlinks=False)
            why = agents = "nodes in it belongs to another user, 4711"
    home = Home(state)
    with refused(Unusable, agents):
        home.enter()
    home.leave()
    if kind != "open":  # an agent has closed it
        with refused(CannotStart, why):
            _make(state)


def test_a_control_plane_refuses_a_folder_that_others_may_write_to(tmp_path: Path) -> None:
    (tmp_path / "notes").touch()
    tmp_path.chmod(0o777)
    with refused(CannotStart, "others may write to it"):
        _make(tmp_path)
    tmp_path.chmod(0o755)
    _make(tmp_path)


@contextlib.contextmanager
def refused(error: type[Exception], why: str) -> Iterator[None]:
    if not why:
        yield
        return
    with pytest.raises(error, match=why) as caught:
        yield
    assert getattr(caught.value, "hint", "")


async def test_a_token_is_a_new_file_whatever_was_laid_in_its_place(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_text("of another")
    state = tmp_path / "state"
    state.mkdir()
    for name in ("token", ".token.new"):
        (state / name).symlink_to(elsewhere)
    await first_token(Settings(state), SimRegistry(), HostClock())
    assert elsewhere.read_text() == "of another"
    assert not (state / "token").is_symlink()
    held = (state / "token").open()
    await first_token(Settings(state, new_token=True), SimRegistry(), HostClock())
    assert held.read().strip() != (state / "token").read_text().strip(), "who has the old one open reads it"
    held.close()


def test_a_folder_that_another_user_made_first_gets_no_token(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give files away")
    state = tmp_path / "state"
    state.mkdir()
    os.chown(state, 4_711, 4_711)
    for command in (("serve", "--port", "0"), ("up", "--nodes", "1")):
        said = [str(Path(sys.executable).parent / "holdfast"), *command, "--dir", str(state)]
        done = subprocess.run(said, capture_output=True, text=True, timeout=60)
        assert done.returncode != 0
        error, hint = done.stderr.strip().splitlines()[-2:]
        assert error.startswith("error: ")
        assert error.endswith("it belongs to another user, 4711")
        assert hint.startswith("hint: ")
    assert list(state.iterdir()) == []


def test_checkpoints_go_to_no_workload_of_another_project_that_took_the_name_over(tmp_path: Path) -> None:
    """Also where replicas have no users of their own: what is put aside is kept, and not handed over."""
    tree = Tree(str(tmp_path / "agent"), str(tmp_path / "checkpoints"))
    tree.make()
    made = task_for(("true",))
    folders = tree.folders(made)
    private_folder.make(folders.own)
    seat = Path(folders.checkpoint)
    for number in (7, 8, 7, 8):
        task = replace(made, brief=replace(made.brief, user=number))
        save_task(task, folders, 0)
        assert list(seat.iterdir()) == []
        (seat / f"{number}").write_text("a model")
        save_task(task, folders, 0)
        assert [each.name for each in seat.iterdir()] == [f"{number}"], "its own stay"
    aside = sorted(each.name for each in seat.parent.parent.iterdir() if ".of-" in each.name)
    name = seat.parent.name
    assert aside == [f"{name}.of-7", f"{name}.of-7.2", f"{name}.of-8"]
