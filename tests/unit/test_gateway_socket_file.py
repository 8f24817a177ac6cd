"""The socket of a keeper: the next one takes a dead one's away, and never a living one's."""

import contextlib
import os
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.gateway.socket_file import NAME_MAX, Taken, kept


@contextlib.contextmanager
def listening(path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(path))
        listener.listen(1)
        yield listener


@pytest.fixture
def temporary(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """With a short name, as such folders have: those of tests are long."""
    with tempfile.TemporaryDirectory() as folder:
        monkeypatch.setattr(tempfile, "tempdir", folder)
        yield Path(folder)


@pytest.fixture
def state(tmp_path: Path) -> Path:
    (tmp_path / "s").mkdir()
    return tmp_path / "s"


def test_what_a_killed_keeper_left_is_gone_after_the_next_start(state: Path) -> None:
    left = state / "keeper-1.sock"
    with listening(left):
        pass
    assert left.exists(), "as a killed one leaves it"
    with kept(state) as path, listening(path):
        assert [each.name for each in state.iterdir()] == [f"keeper-{os.getpid()}.sock"]
    assert not list(state.iterdir())


def test_one_with_our_own_number_that_is_dead_is_no_hindrance(state: Path) -> None:
    """In a container the keeper has the same number at every start."""
    with listening(state / f"keeper-{os.getpid()}.sock"):
        pass
    with kept(state) as path, listening(path):
        pass
    assert not list(state.iterdir())


def test_a_living_ones_socket_stays_even_when_it_is_too_busy_to_answer(state: Path) -> None:
    other = state / "keeper-1.sock"
    with listening(other), contextlib.ExitStack() as stack:
        for _ in range(3):  # more than it takes
            caller = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
            caller.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                caller.connect(str(other))
        with kept(state):
            assert other.exists()
        assert other.exists()


def test_one_with_our_own_number_that_lives_is_not_pushed_aside(state: Path) -> None:
    ours = state / f"keeper-{os.getpid()}.sock"
    with listening(ours):
        with pytest.raises(Taken, match="another gateway"), kept(state):
            pass
        assert ours.exists()


@pytest.mark.parametrize("killed", [False, True])
def test_a_socket_that_had_to_be_elsewhere_is_taken_away_too(
    state: Path, temporary: Path, killed: bool
) -> None:
    far = state / ("long" * 25)
    far.mkdir()
    with kept(far) as path, listening(path):
        assert len(os.fsencode(path)) <= NAME_MAX
        link = os.readlink(far / f"keeper-{os.getpid()}.sock")
    if killed:
        Path(link).parent.mkdir()
        with listening(Path(link)):
            (far / "keeper-1.sock").symlink_to(link)
            with kept(far):
                assert Path(link).exists(), "it lives"
        with kept(far):
            assert not Path(link).exists()
    assert not list(far.iterdir())
    assert not list(temporary.iterdir())


def test_what_cannot_start_leaves_nothing_either(state: Path, temporary: Path) -> None:
    far = state / ("long" * 25)
    far.mkdir()
    with pytest.raises(ValueError, match="taken"), kept(far):
        raise ValueError("the port is taken")
    assert not list(temporary.iterdir())
