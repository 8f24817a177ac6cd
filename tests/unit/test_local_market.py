"""The market of a local pool: what its settings may say, and what becomes of a node."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from holdfast.adapters.providers.local import market
from holdfast.adapters.providers.local.market import Fate, LocalTraits
from holdfast.adapters.providers.settings import told
from holdfast.model.action import LaunchNode
from holdfast.model.place import Place
from holdfast.model.resources import Resources
from holdfast.model.units import HOUR, MINUTE

NOW = 1_700_000_000_000
WISH = LaunchNode(
    node="n1",
    pool="pool",
    offer="a",
    place=Place("local", "here", "a"),
    capacity=Resources(1000, 1024),
    price_micro_usd=1,
    spot=True,
    why="w",
)


def traits(**settings: str) -> LocalTraits:
    assert market.TAKES.wrong(settings, ["a", "b"]) == []
    return market.traits(settings, LocalTraits())


@pytest.mark.parametrize(
    ("settings", "meant"),
    [
        ({}, LocalTraits()),
        ({"boot": ""}, LocalTraits()),
        ({"boot": "2s"}, LocalTraits(boot_ms=2_000)),
        ({"boot": "1m30s..2min"}, LocalTraits(boot_ms=90_000, boot_spread_ms=30_000)),
        ({"boot": "1.5"}, LocalTraits(boot_ms=1_500)),
        ({"stock": "3"}, LocalTraits(stock={"": 3})),
        ({"stock": "a=2, b=0"}, LocalTraits(stock={"a": 2, "b": 0})),
        ({"refuses": "10%"}, LocalTraits(refuses=0.1)),
        ({"refuses": "0.5"}, LocalTraits(refuses=0.5)),
        ({"lives": "5m..20m"}, LocalTraits(lives_ms=5 * MINUTE, lives_spread_ms=15 * MINUTE)),
        ({"notice": "500ms"}, LocalTraits(notice_ms=500)),
        ({"capacity": "4"}, LocalTraits(capacity=4)),
    ],
)
def test_settings_mean_what_they_say(settings: dict[str, str], meant: LocalTraits) -> None:
    assert traits(**settings) == meant


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"boot": "soon"}, "boot: expected a duration such as 2s, or two such as 2s..4s, got soon"),
        ({"boot": "4s..2s"}, "boot: expected a duration"),
        ({"boot": "-2s"}, "boot: expected a duration"),
        ({"boot": "99999d"}, "boot: expected a duration"),
        ({"stock": "many"}, "stock: expected a number of nodes"),
        ({"stock": "-1"}, "stock: expected a number of nodes"),
        ({"stock": "a=1,a=2"}, "stock: expected a number of nodes"),
        ({"stock": "c=1"}, "stock: expected offers of the pool (a, b), got c"),
        ({"refuses": "110%"}, "refuses: expected a share"),
        ({"refuses": "nan"}, "refuses: expected a share"),
        ({"boots": "2s"}, "boots is none of boot, stock, refuses, lives, notice, capacity"),
        ({"boot": "x", "lives": "y"}, "got x; lives: expected"),
    ],
)
def test_wrong_settings_are_told_all_at_once_with_what_was_expected(
    settings: dict[str, str], why: str
) -> None:
    assert why in told(market.TAKES.wrong(settings, ["a", "b"]))


@given(st.dictionaries(st.sampled_from(sorted(market.KINDS)), st.text(max_size=20)))
def test_settings_are_either_wrong_or_can_be_used(settings: dict[str, str]) -> None:
    if not market.TAKES.wrong(settings, ["a"]):
        assert isinstance(market.traits(settings, LocalTraits()), LocalTraits)


@given(st.text(min_size=1, max_size=20), st.integers(0, HOUR), st.integers(0, HOUR), st.integers(0, HOUR))
def test_a_spot_node_boots_then_is_told_then_goes(node: str, boot: int, lives: int, notice: int) -> None:
    given = LocalTraits(boot_ms=boot, boot_spread_ms=boot, lives_ms=lives + 1, notice_ms=notice)
    fate = market.fate(replace(WISH, node=node), given, NOW)
    assert NOW + boot <= fate.boots_at <= fate.told_at <= fate.goes_at
    assert fate.goes_at == fate.boots_at + lives + 1
    assert fate.goes_at - fate.told_at == min(notice, lives + 1)
    assert fate == market.fate(replace(WISH, node=node), given, NOW), "the same name has the same luck"


def test_only_spot_nodes_are_taken_away() -> None:
    fate = market.fate(replace(WISH, spot=False), traits(lives="1m", boot="1s"), NOW)
    assert fate == Fate(1_000, NOW + 1_000)


def test_about_the_share_that_was_asked_for_is_refused_and_always_the_same_names() -> None:
    names = [replace(WISH, node=f"n{number}") for number in range(1_000)]
    refused = [market.is_refused(name, traits(refuses="30%")) for name in names]
    assert 250 < sum(refused) < 350
    assert refused == [market.is_refused(name, traits(refuses="30%")) for name in names]
    assert not any(market.is_refused(name, traits()) for name in names)
    assert all(market.is_refused(name, traits(refuses="100%")) for name in names)


def test_a_notice_by_hand_never_gives_more_time_than_there_was() -> None:
    assert market.sooner(Fate(), NOW, 5_000) == Fate(told_at=NOW, goes_at=NOW + 5_000)
    settled = Fate(told_at=NOW, goes_at=NOW + 2_000)
    assert market.sooner(settled, NOW, 5_000).goes_at == NOW + 2_000
    assert market.sooner(settled, NOW, 1_000).goes_at == NOW + 1_000
