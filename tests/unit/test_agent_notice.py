import time
from pathlib import Path

import pytest

from holdfast.agent import notice


def test_a_notice_says_how_long_is_left(tmp_path: Path) -> None:
    (tmp_path / "notice").write_text(f"{time.time() + 120}\n")
    left = notice.left_ms(tmp_path / "notice")
    assert left is not None
    assert 110_000 < left <= 120_000


def test_what_is_over_has_a_moment_left(tmp_path: Path) -> None:
    (tmp_path / "notice").write_text("1")
    assert notice.goes_at(tmp_path / "notice") == 1
    assert notice.left_ms(tmp_path / "notice") == 1


@pytest.mark.parametrize("text", ["", "soon", "nan", "inf", "-inf", "9" * 70, "9e99", "\udcff"])
def test_nonsense_is_no_notice(tmp_path: Path, text: str) -> None:
    (tmp_path / "notice").write_bytes(text.encode(errors="surrogateescape"))
    assert notice.goes_at(tmp_path / "notice") is None


def test_no_file_is_no_notice(tmp_path: Path) -> None:
    assert notice.goes_at(tmp_path / "notice") is None
