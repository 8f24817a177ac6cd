"""Files with keys and tokens that others on the machine can read are not taken."""

import os
from pathlib import Path

import pytest

from holdfast.ports import secret_file
from holdfast.ports.secret_file import Exposed


@pytest.mark.parametrize("mode", [0o600, 0o400, 0o700])
def test_a_file_of_its_owner_alone_is_taken(tmp_path: Path, mode: int) -> None:
    file = tmp_path / "token"
    file.write_text("hf_secret\n")
    file.chmod(mode)
    assert secret_file.read(file) == "hf_secret"
    secret_file.check(file)


@pytest.mark.parametrize("mode", [0o644, 0o620, 0o660, 0o604, 0o602, 0o601])
def test_a_file_that_others_can_read_or_write_is_refused_with_what_helps(tmp_path: Path, mode: int) -> None:
    file = tmp_path / "token"
    file.write_text("hf_secret\n")
    file.chmod(mode)
    for look in (secret_file.read, secret_file.check):
        with pytest.raises(Exposed, match=f"has the mode {mode:04o}") as exposed:
            look(file)
        assert f"chmod 600 {file}" in exposed.value.hint
        assert "hf_secret" not in str(exposed.value)


def test_only_a_file_of_root_may_be_read_by_its_group(tmp_path: Path) -> None:
    file = tmp_path / "key.pem"
    file.write_text("key")
    file.chmod(0o640)
    if os.geteuid() == 0:
        secret_file.check(file)
        os.chown(file, 65534, 65534)
    with pytest.raises(Exposed):
        secret_file.check(file)


def test_a_pipe_has_no_others(tmp_path: Path) -> None:
    """As `--token-file <(pass show join-token)` has it."""
    reading, writing = os.pipe()
    os.write(writing, b"hf_secret\n")
    os.close(writing)
    assert secret_file.read(f"/dev/fd/{reading}") == "hf_secret"
    os.close(reading)


def test_what_is_not_there_is_no_exposed_file(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        secret_file.read(tmp_path / "none")
