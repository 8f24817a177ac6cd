"""Pins with hashes, no secrets in what is committed, and what a release is made of."""

import hashlib
import json
import random
import re
import shutil
import string
import subprocess
import zipfile
from pathlib import Path

import pytest

from tools import dist, pins, secrets_scan
from tools.advisories import affected
from tools.advisories import main as advisories_main
from tools.pins import CannotPin, Indexes, configured, hashes_in, lock_of, read_pins, running
from tools.secrets_scan import RULES, scan

ROOT = Path(__file__).resolve().parents[2]
DIGEST = "0123456789abcdef" * 4

# pins


def locked(name: str) -> tuple[pins.Pins, str]:
    text = (ROOT / name).read_text()
    rows = "\n".join(row.removesuffix(" \\") for row in text.splitlines() if "==" in row)
    return read_pins(rows), text


def test_the_lock_files_pin_what_the_constraints_pin() -> None:
    constraints = read_pins((ROOT / "constraints.txt").read_text())
    everything, _ = locked("requirements-dev.lock")
    assert everything == constraints, "make pins"
    needed, _ = locked("requirements.lock")
    assert needed == {name: constraints[name] for name in needed}, "make pins"


def test_the_lock_file_has_all_that_running_needs() -> None:
    needed, _ = locked("requirements.lock")
    assert set(needed) == running(), "make pins"


@pytest.mark.parametrize("name", ["requirements.lock", "requirements-dev.lock"])
def test_every_pin_has_hashes_and_no_address_of_an_index_is_written_down(name: str) -> None:
    found, text = locked(name)
    rows = text.splitlines()
    for at, row in enumerate(rows):
        if "==" in row:
            assert re.fullmatch(r"    --hash=sha256:[0-9a-f]{64}(?: \\)?", rows[at + 1]), row
    assert found
    assert "://" not in text
    assert not re.search(r"--(?:extra-)?index|--find-links|trusted", text)


def test_hashes_of_other_versions_and_other_names_are_not_taken() -> None:
    files = {
        "some_name-1.2-cp311-cp311-linux_x86_64.whl": "a" * 64,
        "some-name-1.2.tar.gz": "b" * 64,
        "some_name-1.2.1-py3-none-any.whl": "c" * 64,
        "some_name_more-1.2-py3-none-any.whl": "d" * 64,
        "some-name-1.2.tar.gz.asc": "e" * 64,
    }
    page = "".join(f'<a href="../../files/{file}#sha256={digest}">x</a>' for file, digest in files.items())
    assert hashes_in(page + '<a href="some_name-1.2.zip#md5=1">', "some-name", "1.2") == {"a" * 64, "b" * 64}


def test_a_pin_without_a_hash_is_an_error() -> None:
    indexes = Indexes(["https://index.invalid"], [], fetch=lambda url: None)
    with pytest.raises(CannotPin, match="no index has a file of numpy 1"):
        indexes.hashes("numpy", "1")


def test_what_pip_is_configured_with_is_asked(tmp_path: Path) -> None:
    config = f"global.extra-index-url='file:///a file:///b'\n:env:.find-links='{tmp_path}'\nglobal.cert='x'\n"
    assert configured(config) == ([pins.PYPI, "file:///a", "file:///b"], [tmp_path])
    assert configured("install.index-url='https://x/simple'") == (["https://x/simple"], [])


def test_a_lock_file_is_the_same_each_time() -> None:
    hashes = {"b": {"2" * 64, "1" * 64}, "a": ["3" * 64, "3" * 64]}
    text = lock_of({"b": "1", "a": "2"}, hashes)
    assert text == lock_of({"a": "2", "b": "1"}, hashes)
    assert text.split("\n", 1)[1].startswith(f"a==2 \\\n    --hash=sha256:{'3' * 64}\nb==1 \\\n")


# secrets


def drawn(length: int, seed: int = 7) -> str:
    """Made here, so that this file has none in it."""
    return "".join(random.Random(seed).choices(string.ascii_letters + string.digits, k=length))


PLANTED = {
    "private key": "-----BEGIN {}PRIVATE KEY-----\n".format("EC ") + drawn(64),
    "AWS access key": "AKIA" + drawn(16).upper(),
    "GitHub token": "ghp_" + drawn(36),
    "GitLab token": "glpat-" + drawn(20),
    "PyPI token": "pypi-" + drawn(60),
    "Slack token": "xoxb-" + drawn(40),
    "OpenAI or Anthropic key": "sk-ant-" + drawn(40),
    "Hugging Face token": "hf_" + "".join(random.Random(3).choices(string.ascii_letters, k=34)),
    "Google key": "AIza" + drawn(35),
    "holdfast token": "hfj_" + drawn(43),
    "web token": f"eyJ{drawn(20)}.eyJ{drawn(30)}.{drawn(40)}",
    "password in a URL": f"postgresql://holdfast:{drawn(12)}@db.example.org/holdfast",
    "assigned secret": f'CLIENT_SECRET = "{drawn(32)}"',
}


def test_there_is_a_planted_secret_for_each_rule() -> None:
    assert PLANTED.keys() == RULES.keys()


@pytest.mark.parametrize("rule", PLANTED)
def test_a_planted_secret_is_found_and_not_printed(rule: str) -> None:
    text = f"a line\nnumber 2: {PLANTED[rule]}\nmore\n"
    found = [each for each in scan("file.txt", text) if each.rule == rule]
    assert [each.line for each in found] == [2]
    assert all(each.text not in str(each) for each in found)
    assert (
        not list(scan("file.txt", text.replace("\nmore", f"  # {secrets_scan.MARK}\nmore")))
        or "\n" in (PLANTED[rule])
    )


@pytest.mark.parametrize(
    "text",
    [
        "postgresql://holdfast:PASSWORD@db/holdfast",
        f"--hash=sha256:{DIGEST}",
        "secret = token_of_the_role_gateway_and_of_no_other_one",
        "password = 'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa'",
        "api_key: ${{ secrets.SOMETHING }}",
    ],
)
def test_what_is_no_secret_is_not_found(text: str) -> None:
    assert not list(scan("file.txt", text))


def test_no_secret_is_in_a_tracked_file() -> None:
    if shutil.which("git") is None or not (ROOT / ".git").exists():
        pytest.skip("not a clone")
    found = [str(each) for where, text in secrets_scan.tracked(ROOT) for each in scan(where, text)]
    assert not found


def test_a_secret_that_was_committed_and_deleted_is_found_in_the_history(tmp_path: Path) -> None:
    if shutil.which("git") is None:
        pytest.skip("there is no git")

    def git(*words: str) -> None:
        who = ("-c", "user.name=x", "-c", "user.email=x@example.org", "-c", "commit.gpgsign=false")
        subprocess.run(["git", *who, *words], cwd=tmp_path, check=True, capture_output=True)

    git("init", "-q")
    (tmp_path / "a b.txt").write_text(PLANTED["GitHub token"])
    git("add", "-A")
    git("commit", "-qm", "one")
    git("rm", "-q", "a b.txt")
    git("commit", "-qm", "two", "--allow-empty")
    assert not [each for where, text in secrets_scan.tracked(tmp_path) for each in scan(where, text)]
    (found,) = [each for where, text in secrets_scan.committed(tmp_path) for each in scan(where, text)]
    assert found.where.endswith("a b.txt")


# known vulnerabilities


def advisory(*events: dict[str, str], name: str = "Some_Thing", **more: object) -> dict[str, object]:
    about = {
        "package": {"ecosystem": "PyPI", "name": name},
        "ranges": [{"type": "ECOSYSTEM", "events": list(events)}],
    }
    return {"id": "PYSEC-1", "summary": "it leaks", "affected": [about], **more}


@pytest.mark.parametrize(
    ("events", "version", "found"),
    [
        (({"introduced": "0"},), "1.2", True),
        (({"introduced": "0"}, {"fixed": "1.10"}), "1.9", True),
        (({"introduced": "0"}, {"fixed": "1.10"}), "1.10", False),
        (({"introduced": "2"}, {"fixed": "3"}), "1.9", False),
        (({"introduced": "0"}, {"last_affected": "1.9"}), "1.9", True),
        (({"introduced": "0"}, {"last_affected": "1.9"}), "1.9.1", False),
        (({"introduced": "0"}, {"fixed": "1"}, {"introduced": "2"}, {"fixed": "2.5"}), "2.1", True),
        (({"introduced": "0"}, {"fixed": "1"}, {"introduced": "2"}, {"fixed": "2.5"}), "1.5", False),
    ],
)
def test_an_advisory_about_a_pinned_version_is_found(
    events: tuple[dict[str, str], ...], version: str, *, found: bool
) -> None:
    pinned = {"some-thing": version}
    wanted = [f"some-thing {version}: PYSEC-1 it leaks"] if found else []
    assert list(affected([advisory(*events)], pinned)) == wanted
    assert not list(affected([advisory(*events, withdrawn="2020-01-01")], pinned))
    assert not list(affected([advisory(*events, name="other")], pinned))


def test_advisories_are_read_from_an_export_without_a_network(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lock, export = tmp_path / "x.lock", tmp_path / "all.zip"
    lock.write_text(lock_of({"some-thing": "1.2"}, {"some-thing": [DIGEST]}))
    with zipfile.ZipFile(export, "w") as archive:
        archive.writestr("PYSEC-1.json", json.dumps(advisory({"introduced": "0"}, {"fixed": "1.3"})))
    assert advisories_main([str(export), str(lock)]) == 1
    assert "PYSEC-1" in capsys.readouterr().out
    assert advisories_main([str(tmp_path / "none.zip"), str(lock)]) == 2
    assert "make audit OSV=" in capsys.readouterr().err


# what is released


def test_builds_that_differ_are_not_released(tmp_path: Path) -> None:
    first, second = tmp_path / "1", tmp_path / "2"
    for folder in (first, second):
        folder.mkdir()
        (folder / "a.whl").write_bytes(b"same")
    dist.check_same(first, second)
    (second / "a.whl").write_bytes(b"other")
    with pytest.raises(dist.NotGood, match=r"two builds of a\.whl are not the same"):
        dist.check_same(first, second)
    (second / "b.whl").write_bytes(b"more")
    with pytest.raises(dist.NotGood, match="different files"):
        dist.check_same(first, second)


def test_an_sbom_that_lacks_something_is_not_released() -> None:
    lock = lock_of({"a": "1", "b": "2"}, {"a": [DIGEST], "b": [DIGEST]})
    dist.check_sbom({"components": [{"name": "a"}, {"name": "b"}]}, lock)
    with pytest.raises(dist.NotGood, match="the SBOM lacks b"):
        dist.check_sbom({"components": [{"name": "a"}]}, lock)


def test_the_sums_are_those_of_the_files(tmp_path: Path) -> None:
    (tmp_path / "a.whl").write_bytes(b"a")
    dist.write_sums(tmp_path)
    assert (tmp_path / dist.SUMS).read_text() == f"{hashlib.sha256(b'a').hexdigest()}  a.whl\n"
