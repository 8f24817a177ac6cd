"""Workers say what they say as their keeper does."""

import json

import pytest
import structlog

from holdfast.gateway import log_lines


@pytest.mark.parametrize("as_json", [True, False])
def test_a_line_of_a_worker_is_json_where_those_of_its_keeper_are(
    as_json: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    """That a certificate was renewed stood as text, and on stdout, among lines of JSON."""
    before = structlog.get_config()
    try:
        log_lines.set_up(as_json=as_json)
        assert log_lines.are_json() is as_json
        structlog.get_logger("holdfast").info("the certificate was renewed", file="a.pem")
    finally:
        structlog.configure(**before)
    said = capsys.readouterr()
    assert said.out == ""
    assert "the certificate was renewed" in said.err
    if as_json:
        assert json.loads(said.err)["file"] == "a.pem"
