"""What may be compiled, and when what was compiled is used."""

import ast
import os
import sys
from pathlib import Path

import pytest

from holdfast.gateway import compile as compiling
from holdfast.gateway import native


def test_nothing_that_msgspec_reads_by_its_annotations_is_compiled() -> None:
    """mypyc hides annotations: a struct of a compiled module cannot be decoded, and says so only then."""
    for path in native.sources():
        for each in ast.walk(ast.parse(path.read_text())):
            if isinstance(each, ast.ClassDef):
                bases = {ast.unparse(base) for base in each.bases}
                assert "msgspec.Struct" not in bases, f"{path.name}: {each.name} belongs to another module"


def test_other_sources_have_another_fingerprint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for path in native.files(native.MODULES + native.TYPES):
        copy = tmp_path / path.relative_to(native.PACKAGE)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(path.read_bytes())
    fingerprints = [native.fingerprint.__wrapped__()]
    monkeypatch.setattr(native, "PACKAGE", tmp_path)
    assert native.fingerprint.__wrapped__() == fingerprints[0]  # the same wherever they are
    for path in (native.sources()[0], native.files(native.TYPES)[0]):
        with path.open("a") as file:
            file.write("\n")
        fingerprints.append(native.fingerprint.__wrapped__())
    assert len(set(fingerprints)) == 3


def test_all_is_known_whose_types_are_compiled_in() -> None:
    """What was compiled for an int takes no float: it must not be found when a field has become one."""
    known = {f"holdfast.{name}" for name in (*native.MODULES, *native.TYPES)}
    for path in native.sources():
        for each in ast.walk(ast.parse(path.read_text())):
            if isinstance(each, ast.ImportFrom) and str(each.module).startswith("holdfast."):
                asked = {str(each.module), *(f"{each.module}.{name.name}" for name in each.names)}
                assert asked & known, f"{path.name} uses {each.module}"


def test_what_is_not_there_is_not_used_and_must_be_if_somebody_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = list(sys.meta_path)
    monkeypatch.delenv(native.SWITCH, raising=False)
    assert not native.use(tmp_path / "none")
    monkeypatch.setenv(native.SWITCH, "1")
    with pytest.raises(native.NotCompiled, match=r"python -m holdfast\.gateway\.compile"):
        native.use(tmp_path / "none")
    monkeypatch.setenv(native.SWITCH, "0")
    assert not native.use(tmp_path)
    assert sys.meta_path == before


def test_only_what_was_compiled_is_found_there(tmp_path: Path) -> None:
    finder = native.Finder({"holdfast.gateway.up": tmp_path / f"up{native.SUFFIX}"})
    assert finder.find_spec("holdfast.gateway.down") is None
    spec = finder.find_spec("holdfast.gateway.up")
    assert spec is not None
    assert spec.origin == str(tmp_path / f"up{native.SUFFIX}")


def test_a_machine_without_a_compiler_is_told_what_it_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "no-such-compiler")
    lacking = compiling.missing()
    assert lacking is not None
    assert lacking.hint.startswith(("apt-get install ", "pip install "))


def test_what_mypyc_says_is_passed_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "holdfast").mkdir()
    broken = tmp_path / "holdfast" / "broken.py"
    broken.write_text("def half(of: int) -> str:\n    return of\n")
    monkeypatch.setattr(native, "PACKAGE", tmp_path / "holdfast")
    monkeypatch.setattr(native, "MODULES", ("broken",))
    (tmp_path / "here").mkdir()
    with pytest.raises(compiling.CannotCompile, match=r"broken\.py:2: error: Incompatible return value"):
        compiling._make(tmp_path / "here")


def test_whoever_was_slower_leaves_what_is_used_already_and_takes_away_what_nobody_finds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two compile the same at once. A worker may be reading what the first has put there."""
    monkeypatch.setattr(native, "KEPT", tmp_path)
    for name in ("now", "old", ".making-1/made", ".making-2/made"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "by").write_text(name)
    compiling._put(tmp_path / ".making-1" / "made", tmp_path / "now")
    assert (tmp_path / "now" / "by").read_text() == "now"
    assert not (tmp_path / "old").exists()
    assert (tmp_path / ".making-2" / "made" / "by").exists()  # somebody is at it


def test_a_compiler_may_be_named_with_its_options(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", f"{sys.executable} -pipe")
    lacking = compiling.missing()
    assert lacking is None or "compiler" not in str(lacking)


def test_one_that_takes_too_long_is_told_as_what_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "holdfast").mkdir()
    monkeypatch.setattr(native, "PACKAGE", tmp_path / "holdfast")
    monkeypatch.setattr(native, "MODULES", ())
    monkeypatch.setattr(compiling, "WITHIN_S", 0.01)
    (tmp_path / "here").mkdir()
    with pytest.raises(compiling.CannotCompile, match="longer than 0 s"):
        compiling._make(tmp_path / "here")


def test_what_a_killed_compile_left_is_removed_by_the_next_and_what_is_being_made_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(native, "KEPT", tmp_path)
    for name in (".making-old", ".making-now", "of-other-sources"):
        (tmp_path / name / "made").mkdir(parents=True)
    os.utime(tmp_path / ".making-old", (1, 1))
    compiling._put(tmp_path / ".making-now" / "made", tmp_path / "fresh")
    assert sorted(each.name for each in tmp_path.iterdir()) == [".making-now", "fresh"]


def test_two_interpreters_that_share_a_tree_leave_each_other_what_they_compiled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each took the other's away, and the gateway of the other ran interpreted from its next start on."""
    monkeypatch.setattr(native, "KEPT", tmp_path)
    fresh = {}
    for version in ("3.11.2", "3.11.9", "3.13.0", "3.11.2"):
        monkeypatch.setattr(sys, "version", version)
        for number in ("1", "2"):  # it is compiled again after an edit
            monkeypatch.setattr(native, "fingerprint", lambda number=number: number * 16)
            (tmp_path / ".making-1" / "made").mkdir(parents=True)
            fresh[version] = native.folder()
            compiling._put(tmp_path / ".making-1" / "made", fresh[version])
    left = {each for each in tmp_path.iterdir() if not each.name.startswith(".making-")}
    assert left == set(fresh.values())
    assert len(left) == 3


def test_the_folder_is_named_for_its_interpreter() -> None:
    tag = sys.implementation.cache_tag
    assert native.folder().name.startswith(f"{tag}-")
    assert native.folder().name.endswith(native.fingerprint())
