"""Requests in scenario files, and those who ask them."""

from typing import Any

import pytest

from holdfast.files.problem import FileProblem
from holdfast.files.scenario.scenario_file import from_tables
from holdfast.model.gateway import Key, Limits
from holdfast.model.scale import Signal
from holdfast.model.units import MINUTE, NEVER, SECOND
from holdfast.sim.scenario.load_profile import Burst, Load, LoadStep
from holdfast.sim.traffic.requests import LONGEST, Callers, Requests

KEYS = {"app": Key("app", b""), "batch": Key("batch", b"")}


def tables(**change: Any) -> dict[str, Any]:
    chat = {"name": "chat", "serves": {}, "requests": {}, "load": {"signal": "requests_per_s", "base": 2}}
    return {"pools": [{"name": "std", "nodes": 2}], "workloads": [chat | change]}


def test_requests_gateways_and_limits_are_read() -> None:
    story = tables(requests={"prompt": 800, "keys": ["app"]}, program={"first": "1s"})
    story |= {
        "gateways": {"count": 2, "patience": "10s"},
        "limits": {"key:app": {"tokens_per_min": 9}},
        "faults": [{"at": "1m", "fault": "gateway crash", "gateway": "gw-2"}],
    }
    read = from_tables(story, "story.toml")
    assert read.workloads[0].requests == Requests(prompt=800)
    assert read.workloads[0].program.first_ms == SECOND
    assert (read.gateways.count, read.gateways.patience_ms) == (2, 10 * SECOND)
    assert read.limits == {"key:app": Limits(tokens_per_min=9)}
    assert read.troubles[0].gateway == "gw-2"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"serves": None}, "expected what it serves at the gateways"),
        ({"load": {"base": 2}}, "expected how many requests a second"),
        ({"requests": {"keys": []}}, "expected who asks"),
    ],
)
def test_requests_want_a_service_that_gateways_lead_to(change: dict[str, Any], words: str) -> None:
    story = tables(**{name: table for name, table in change.items() if table is not None})
    for name in [name for name, table in change.items() if table is None]:
        del story["workloads"][0][name]
    with pytest.raises(FileProblem) as found:
        from_tables(story, "story.toml")
    assert words in str(found.value)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"limits": {"app": {"tokens_per_min": 9}}}, 'got "app"'),
        ({"faults": [{"at": "1m", "fault": "gateway crash"}]}, "expected the gateway that it happens to"),
        ({"faults": [{"at": "1m", "fault": "gateway crash", "gateway": "gw-2"}]}, "expected a gateway"),
        (
            {"faults": [{"at": "1m", "fault": "signals stuck", "lasts": "1m", "workload": "chat"}]},
            "expected a service with a load",
        ),
    ],
)
def test_limits_and_faults_name_what_there_is(more: dict[str, Any], words: str) -> None:
    with pytest.raises(FileProblem) as found:
        from_tables(tables() | more, "story.toml")
    assert words in str(found.value)


def callers(load: Load, wanted: Requests) -> Callers:
    return Callers("chat", load, wanted, KEYS, 1)


def test_as_many_come_as_the_load_says() -> None:
    who = callers(Load(signal=Signal.REQUESTS, base=5.0), Requests())
    now = came = 0
    while now < 10 * MINUTE:
        now, asks = who.next_at(now)
        came += asks
    assert 2_800 < came < 3_200


def test_while_nothing_is_asked_nobody_looks_until_it_changes() -> None:
    steps = (LoadStep(MINUTE, 3.0),)
    burst = Burst(3 * MINUTE, 5 * SECOND, 1.0)
    who = callers(Load(signal=Signal.REQUESTS, steps=steps), Requests())
    assert who.next_at(0) == (MINUTE, False)
    who = callers(Load(signal=Signal.REQUESTS, bursts=(burst,)), Requests())
    assert who.next_at(0) == (3 * MINUTE, False)
    assert who.next_at(4 * MINUTE) == (NEVER, False)


def test_requests_are_about_as_long_as_they_should_be_and_share_their_beginnings() -> None:
    wanted = Requests(prompt=100, answer=50, answer_max=80, keys=("app", "batch"), beginnings=3)
    who = callers(Load(), wanted)
    drawn = [who.draw() for _ in range(3_000)]
    assert 90 < sum(want.prompt for want in drawn) / len(drawn) < 112
    assert max(want.prompt for want in drawn) <= LONGEST * 100 + 1
    assert max(want.answer for want in drawn) == 80 == drawn[0].most
    assert len({want.prefix[0] for want in drawn}) == 3
    assert len({want.prefix for want in drawn}) == len(drawn)
    assert sum(want.key.id == "app" for want in drawn) == 1_500
