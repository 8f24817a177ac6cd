"""Another user of the machine looks for what a control plane and its nodes keep on disk."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from holdfast.adapters.providers.local.folders import Folders
from holdfast.agent.home import Home
from holdfast.agent.replicas import Tree, save_task
from holdfast.ports import private_folder
from holdfast.wiring import _make
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
    (tmp_path / "token").touch()
    tmp_path.chmod(0o1777)  # as /tmp
    _make(tmp_path)
    assert mode(tmp_path) == 0o1777


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
