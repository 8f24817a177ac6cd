"""What a program leaves on the disk to harm whoever comes after it: links and folders without end."""

import os
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.agent import below, checkpoints, records, users
from holdfast.agent.users import Users
from holdfast.model.event import Ended
from holdfast.ports import private_folder
from tests.integration.test_users import FOUND, asked, node_of, run, task
from tests.runtime_rig import PYTHON, Rig, rig_in, until

root_only = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give its rights away")
DEPTH = 3_000  # more than Python calls itself
STRANGER = users.FIRST + 4_711
DEEP = "import os\nfor _ in range(1500): os.mkdir('d'); os.chdir('d')"


@pytest.fixture
def public() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="holdfast-", dir="/var/lib"))
    folder.chmod(private_folder.PASSAGE)
    yield folder
    below.remove(str(folder))


@pytest.fixture
def rig(public: Path) -> Iterator[Rig]:
    with rig_in(public) as rig:
        yield rig


def dig(folder: Path, depth: int = DEPTH) -> None:
    """By handles: no path is so long."""
    here = os.open(folder, os.O_RDONLY)
    for _ in range(depth):
        os.mkdir("d", dir_fd=here)
        inner = os.open("d", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = inner
    os.close(os.open("last", os.O_CREAT | os.O_WRONLY, 0o600, dir_fd=here))
    os.close(here)


# folders without end


@root_only
def test_what_is_deep_is_walked_to_its_end_and_removed(public: Path) -> None:
    deep = public / "deep"
    (deep / "beside").mkdir(parents=True)
    (deep / "beside" / "file").touch()
    dig(deep)
    top = os.open(deep, os.O_RDONLY)
    names = [name for _, name, _ in below.walk(top)]
    os.close(top)
    assert (names.count("d"), names.count("last"), names.count("file")) == (DEPTH, 1, 1)
    below.remove(str(deep))
    assert not deep.exists()


def test_what_is_removed_is_what_is_below_and_not_what_links_name(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    kept.mkdir()
    (kept / "file").touch()
    gone = tmp_path / "gone"
    gone.mkdir()
    (gone / "folder").symlink_to(kept)
    (gone / "file").symlink_to(kept / "file")
    below.remove(str(gone))
    assert not gone.exists()
    (tmp_path / "link").symlink_to(kept)
    below.remove(str(tmp_path / "link"))
    assert (kept / "file").exists()


@root_only
async def test_a_folder_without_end_stops_neither_the_cleaning_nor_the_agent(rig: Rig) -> None:
    """Python's own removal ended with an error there, for good."""
    async with rig.node() as node:
        for name in ("deep/0.1", "web/0.1"):
            await node.start((*PYTHON, "-c", DEEP if name[0] == "d" else "open('x', 'w')"), name)
            assert (await node.exit(name)).how is Ended.DONE
        for name in ("deep/0.1", "web/0.1"):
            node.runtime.forget(name)
        await until(lambda: os.listdir(rig.root / "gone") == [])


# links


def test_a_file_is_written_in_place_of_a_link_and_never_through_it(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_text("precious")
    for name in ("written", "reserved"):
        (tmp_path / f"{name}.new").symlink_to(precious)
    records.write(str(tmp_path / "written"), b"1")
    records.reserve(str(tmp_path / "reserved"))
    (tmp_path / "late.new").symlink_to(precious)
    with pytest.raises(OSError, match="symbolic"):
        records.write_reserved(str(tmp_path / "late"), b"1")
    os.link(precious, tmp_path / "linked.new")
    records.write(str(tmp_path / "linked"), b"1")
    assert precious.read_text() == "precious"
    assert stat.S_ISREG((tmp_path / "written").lstat().st_mode)


@pytest.mark.parametrize("planted", ["workload", "seat", "number"])
def test_checkpoints_are_reached_through_no_link(tmp_path: Path, planted: str) -> None:
    elsewhere, root = tmp_path / "elsewhere", tmp_path / "checkpoints"
    elsewhere.mkdir(0o755)
    (elsewhere / "file").write_text("precious")
    root.mkdir()
    if planted == "workload":
        (root / "soon").symlink_to(elsewhere)
    else:
        (root / "soon").mkdir()
        (root / "soon" / ".workload.new").symlink_to(elsewhere / "file")
    if planted == "seat":
        (root / "soon" / "0").symlink_to(elsewhere)
    user = STRANGER if os.geteuid() == 0 else 0
    if planted == "number":
        checkpoints.prepare(f"{root}/soon/0", 7, user)
    else:
        with pytest.raises(OSError, match="through no link"):
            checkpoints.prepare(f"{root}/soon/0", 7, user)
    assert (elsewhere / "file").read_text() == "precious"
    assert elsewhere.stat().st_uid == os.geteuid()
    assert elsewhere.stat().st_mode & 0o777 == 0o755


@root_only
def test_checkpoints_that_another_user_laid_out_are_not_taken(tmp_path: Path) -> None:
    laid = tmp_path / "soon"
    laid.mkdir()
    os.chown(laid, STRANGER + 1, STRANGER + 1)
    with pytest.raises(OSError, match="belong to another user"):
        checkpoints.prepare(f"{laid}/0", 7, STRANGER)
    os.chown(laid, STRANGER, STRANGER)
    checkpoints.prepare(f"{laid}/0", 7, STRANGER)
    assert (laid.stat().st_uid, (laid / "0").stat().st_uid) == (0, STRANGER)


@root_only
def test_what_is_given_away_is_deep_and_has_no_other_name(public: Path) -> None:
    seat = public / "soon" / "0"
    seat.mkdir(parents=True)
    dig(seat, 1_200)
    (public / "precious").write_text("precious")
    os.link(public / "precious", seat / "linked")
    (seat / "link").symlink_to(public / "precious")
    checkpoints.prepare(str(seat), 7, STRANGER)
    top = os.open(seat, os.O_RDONLY)
    owners = {name: seen.st_uid for _, name, seen in below.walk(top)}
    os.close(top)
    assert owners == {"d": STRANGER, "last": STRANGER, "linked": 0, "link": 0}
    assert (public / "precious").stat().st_uid == 0


# who may write where checkpoints are


@root_only
@pytest.mark.parametrize("open_to", ["all", "all sticky", "group", "another owner", "above", "by a link", ""])
def test_nobody_is_separated_where_others_may_write_to_the_checkpoints(public: Path, open_to: str) -> None:
    above = public / "above"
    above.mkdir(0o755)
    checkpoints = above / "checkpoints"
    checkpoints.mkdir(0o755)
    where, at = checkpoints, checkpoints
    if open_to in ("all", "all sticky"):
        where.chmod(0o777 if open_to == "all" else 0o1777)
    elif open_to == "group":
        os.chown(where, 0, STRANGER)
        where.chmod(0o775)
    elif open_to == "another owner":
        os.chown(where, STRANGER, STRANGER)
    elif open_to:
        where = above
        where.chmod(0o777)
        if open_to == "by a link":
            at = public / "link"
            at.symlink_to(checkpoints)
    said = asked(FOUND, str(public / "node"), str(at), "/bin/sh")
    why = "belongs to another user" if open_to == "another owner" else "may be written to by others"
    assert said.startswith(f"{where} {why}" if open_to else "own tmp")


@root_only
def test_a_folder_that_all_share_is_no_harm_where_the_next_one_is_ours(public: Path) -> None:
    shared = public / "shared"
    shared.mkdir()
    shared.chmod(0o1777)
    assert private_folder.exposed(shared / "ours") == "", "we would make it"
    (shared / "ours").mkdir(0o755)
    assert private_folder.exposed(shared / "ours") == ""
    os.chown(shared / "ours", STRANGER, STRANGER)
    assert "belongs to another user" in private_folder.exposed(shared / "ours")


@root_only
async def test_a_replica_that_lays_out_the_checkpoints_of_another_reaches_nothing_by_it(
    rig: Rig, public: Path
) -> None:
    """Also where an agent is told to go on in such a place, or was before anybody looked."""
    rooms = {name: public / name for name in ("precious", "folder")}
    rooms["folder"].mkdir(0o700)
    rooms["precious"].write_text("precious")
    rooms["precious"].chmod(0o600)
    rig.checkpoints.mkdir()
    rig.checkpoints.chmod(0o1777)
    async with node_of(rig) as node:
        plant = f"cd {rig.checkpoints} && mkdir -m 755 soon && ln -s {rooms['folder']} soon/0"
        await run(node, "preparer", f"{plant} && ln -s {rooms['precious']} soon/.workload.new", number=5)
        await node.runtime.start(task("soon", "true", number=6))
        exit = await node.exit("soon/0.1")
        assert "could not be started" in exit.why
        assert rooms["precious"].read_text() == "precious"
        assert (rooms["folder"].stat().st_uid, stat.S_IMODE(rooms["folder"].stat().st_mode)) == (0, 0o700)


# ids


@root_only
async def test_an_id_is_a_workloads_own_as_long_as_its_checkpoints_are_there(rig: Rig) -> None:
    """Where few ids are mapped two numbers soon meet; the other need not run at the same time."""
    async with node_of(rig) as node:
        save = "echo saved > $HOLDFAST_CHECKPOINT_DIR/it; id -u"
        few = Users(users.FIRST, 10, own_tmp=True)
        node.runtime._users = few
        first = int(await run(node, "a", save, number=7))
        node.runtime.forget("a/0.1")
        second = int(await run(node, "b", save, number=17))
        assert (first, second) == (users.FIRST + 7, users.FIRST + 8)
    async with node_of(rig) as node:
        node.runtime._users = few
        assert int(await run(node, "b", "id -u", number=17, epoch=2)) == second
        assert int(await run(node, "a", "id -u", number=7, epoch=2)) == first


def test_when_no_id_is_left_that_is_said() -> None:
    few = Users(users.FIRST, 2, own_tmp=True)
    with pytest.raises(ValueError, match="every user id"):
        few.of("c", 5, {users.FIRST, users.FIRST + 1})
