"""The lines of an agent."""

import io
import json

from holdfast.agent.say import Log


def test_a_line_is_for_eyes_and_stays_one_line() -> None:
    out = io.StringIO()
    Log(to=out).info("link lost", by="http://a:1", why='it said "no"\nand left', empty="")
    stamp, rest = out.getvalue().split(" ", 1)
    assert stamp.endswith("Z")
    assert rest == 'info    link lost by=http://a:1 why="it said \\"no\\"\\nand left" empty=""\n'


def test_a_line_can_be_json() -> None:
    out = io.StringIO()
    Log(as_json=True, to=out).warning("refused", code="token", times=3)
    said = json.loads(out.getvalue())
    assert (said["level"], said["event"], said["code"], said["times"]) == ("warning", "refused", "token", 3)


def test_a_reader_that_went_away_stops_nobody() -> None:
    out = io.StringIO()
    out.close()
    Log(to=out).info("still here")
    assert out.closed
