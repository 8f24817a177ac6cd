import msgspec
import pytest

from holdfast.core.placement.placement import (
    Ask,
    Spot,
    place,
    why_not,
)
from holdfast.model.node import Node
from holdfast.model.place import Level
from holdfast.model.room import PRICE_BITS, price_level
from holdfast.model.workload import Needs, Spread
from tests.build import needs, node, resources, room


def at(spots: list[Spot]) -> list[str]:
    return [spot.node for spot in spots]


def spread(how: Spread, over: Level = Level.ZONE, cpu: float = 1) -> Needs:
    return Needs(resources(cpu), spread=how, spread_over=over)


ZONES = [node(f"{zone}{n}", zone=zone) for zone in "abc" for n in range(3)]


def test_copies_prefer_the_domain_that_has_the_fewest() -> None:
    assert at(place(room(ZONES), Ask(spread(Spread.PREFER), count=4))) == ["a0", "b0", "c0", "a1"]


def test_copies_that_are_there_already_count_for_the_spread() -> None:
    ask = Ask(spread(Spread.PREFER), count=2, beside=("a1", "a1", "b2"))
    assert at(place(room(ZONES), ask)) == ["c0", "b0"]


def test_one_more_copy_goes_where_there_is_none() -> None:
    assert at(place(room(ZONES), Ask(spread(Spread.PREFER), beside=("a0", "b0", "gone")))) == ["c0"]


def test_a_required_spread_places_no_more_copies_than_there_are_domains() -> None:
    assert at(place(room(ZONES), Ask(spread(Spread.REQUIRE), count=5))) == ["a0", "b0", "c0"]
    assert at(place(room(ZONES), Ask(spread(Spread.REQUIRE), count=5, beside=("b1",)))) == ["a0", "c0"]
    assert place(room(ZONES), Ask(spread(Spread.REQUIRE), beside=("a0", "b0", "c0"))) == []


def test_a_spread_over_nodes_uses_every_node_before_one_twice() -> None:
    spots = place(room(ZONES), Ask(spread(Spread.PREFER, Level.NODE), count=10))
    assert sorted(at(spots[:9])) == [each.id for each in ZONES]
    assert spots[9].node == "a0"


def test_without_spread_one_node_is_filled_before_the_next() -> None:
    assert at(place(room(ZONES), Ask(needs(cpu=3), count=4))) == ["a0", "a0", "a1", "a1"]


def test_the_fullest_node_that_has_room_is_taken() -> None:
    nodes = room([node("large", cpu=64), node("small", cpu=4)])
    assert at(place(nodes, Ask(needs(cpu=3)))) == ["small"]


def test_among_equals_the_cheapest_is_taken_and_then_the_first() -> None:
    nodes = room([node("dear", price=2_000_000), node("cheap"), node("cheap-too")])
    assert at(place(nodes, Ask(needs()))) == ["cheap"]


FREE = [node(f"free-{zone}{n}", zone=zone, cpu=64, price=0) for zone in "ab" for n in range(2)]
PAID = [node(f"paid-{zone}", zone=zone, cpu=2, price=300_000, spot=True) for zone in "xyz"]


def taken(count: int, how: Spread = Spread.PREFER, *, even: bool = False) -> list[str]:
    return at(place(room(PAID + FREE), Ask(spread(how), count=count, even=even)))


def test_what_costs_nothing_is_taken_before_what_costs_though_that_is_fuller_or_in_another_domain() -> None:
    assert taken(1) == ["free-a0"]
    assert taken(2) == ["free-a0", "free-b0"]
    assert taken(4) == ["free-a0", "free-b0", "free-a1", "free-b1"]
    assert taken(3, Spread.NONE) == ["free-a0"] * 3


def test_one_by_one_copies_find_the_same_free_nodes_as_together() -> None:
    nodes, found = room(PAID + FREE), list[str]()
    for _ in range(4):
        found += at(place(nodes, Ask(spread(Spread.PREFER), beside=tuple(found))))
    assert {"free-a0", "free-b0"} < set(found)
    assert sum(name.startswith("paid") for name in found) == 1, "the third: two of three were in one domain"


def test_a_domain_that_costs_is_used_when_more_than_half_of_the_copies_would_go_with_one() -> None:
    assert sorted(taken(3)) == ["free-a0", "free-b0", "paid-x"]
    assert sorted(taken(5)) == ["free-a0", "free-a1", "free-b0", "free-b1", "paid-x"]


def test_what_was_required_or_promised_is_kept_at_any_price() -> None:
    assert sorted(taken(4, Spread.REQUIRE)) == ["free-a0", "free-b0", "paid-x", "paid-y"]
    assert sorted(taken(4, even=True)) == ["free-a0", "free-b0", "paid-x", "paid-y"]


def test_no_two_copies_share_a_node_to_save_money() -> None:
    nodes = room([node("free-a", price=0, zone="a"), node("free-b", price=0, zone="b"), *PAID])
    assert sorted(at(place(nodes, Ask(spread(Spread.PREFER), count=4)))) == [
        *("free-a", "free-b", "paid-x", "paid-y"),
    ]


def test_a_free_gpu_is_taken_before_one_that_costs_though_less_would_be_stranded_there() -> None:
    nodes = room([node("paid", cpu=8, memory=32_768, gpus=1, price=9), node("free", cpu=64, gpus=8, price=0)])
    assert at(place(nodes, Ask(needs(gpu=1)))) == ["free"]


def test_what_is_in_use_is_filled_before_an_empty_node_and_of_those_the_cheapest_is_taken() -> None:
    nodes = room(
        [
            node("dear", cpu=4, price=2_000_000),
            node("cheap", cpu=32, price=500_000),
            node("used", cpu=64, price=4_000_000),
        ]
    )
    nodes.take(nodes.row["used"], resources(1), ())
    assert at(place(nodes, Ask(needs(cpu=3)))) == ["used"]
    assert at(place(nodes, Ask(needs(cpu=3), avoid=("used",)))) == ["cheap"]


def test_prices_of_any_size_are_told_apart_where_they_differ_by_two_in_a_hundred() -> None:
    prices = [0, 1, 2, 90, 10_400, 10_700, 1_000_000, 1_020_000, 98_000_000, 2_000_000_000_000]
    levels = [price_level(price) for price in prices]
    assert levels == sorted(set(levels))
    assert levels[-1] < 1 << PRICE_BITS


def test_a_gang_gets_all_its_members_or_none_and_leaves_the_room_as_it_was() -> None:
    nodes = room([node("a", cpu=4), node("b", cpu=4), node("c", cpu=1)])
    assert place(nodes, Ask(needs(cpu=3), count=3, at_least=3, one_per_node=True)) == []
    assert nodes.cpu[[nodes.row[name] for name in "abc"]].tolist() == [4000, 4000, 1000]
    assert at(place(nodes, Ask(needs(cpu=3), count=3, at_least=2, one_per_node=True))) == ["a", "b"]


def test_members_of_a_gang_sit_on_different_nodes() -> None:
    nodes = room([node("a", cpu=64), node("b", cpu=64)])
    assert at(place(nodes, Ask(needs(), count=4, one_per_node=True))) == ["a", "b"]
    assert at(place(nodes, Ask(needs(), count=4, one_per_node=True, beside=("a",)))) == ["b"]


def test_work_without_gpus_keeps_off_gpu_nodes_while_it_can() -> None:
    nodes = room([node("gpu", cpu=4, gpus=1), node("plain", cpu=64)])
    assert at(place(nodes, Ask(needs(cpu=2)))) == ["plain"]
    assert at(place(nodes, Ask(needs(cpu=2), avoid=("plain",)))) == ["gpu"]


@pytest.mark.parametrize(
    ("kind", "found"),
    [("", "t4"), ("h100", "h100"), ("a100|h100", "a100"), ("a100|t4", "t4"), ("v100", "")],
)
def test_a_gpu_of_a_kind_that_was_named_is_used(kind: str, found: str) -> None:
    nodes = room(
        [
            node("t4", gpus=1, kind="t4", price=1 << 20),
            node("a100", gpus=1, kind="a100", price=2 << 20),
            node("h100", gpus=1, kind="h100", price=3 << 20),
        ]
    )
    assert "".join(at(place(nodes, Ask(needs(gpu=1, kind=kind))))) == found


def test_shares_go_together_on_one_gpu() -> None:
    nodes = room([node("a", gpus=2), node("b", gpus=2)])
    spots = place(nodes, Ask(needs(gpu=0.4), count=3))
    assert spots == [Spot("a", (0,)), Spot("a", (0,)), Spot("a", (1,))]


def test_a_share_mends_a_broken_gpu_rather_than_cutting_a_whole_one() -> None:
    nodes = room([node("a", cpu=16, memory=65_536, gpus=2), node("b", cpu=64, memory=262_144, gpus=8)])
    nodes.take(nodes.row["b"], resources(gpu=0.5), (3,))
    assert place(nodes, Ask(needs(gpu=0.5))) == [Spot("b", (3,))]


def test_much_cpu_for_one_gpu_goes_where_cpu_is_plenty() -> None:
    nodes = room([node("lean", cpu=32, memory=262_144, gpus=4), node("rich", cpu=96, memory=262_144, gpus=4)])
    assert at(place(nodes, Ask(needs(cpu=24, gpu=1)))) == ["rich"]
    assert at(place(nodes, Ask(needs(cpu=4, gpu=1), avoid=("rich",)))) == ["lean"]


def test_neither_closed_nor_tainted_nor_unlabelled_nor_spot_nodes_are_used() -> None:
    nodes = room(
        [
            node("closed", labels={"disk": "nvme"}),
            node("tainted", labels={"disk": "nvme"}, taints=("batch", "noisy")),
            node("bare"),
            node("spot", labels={"disk": "nvme"}, spot=True),
            node("good", labels={"disk": "nvme", "arch": "arm"}, taints=("batch",)),
        ],
        closed=["closed"],
    )
    asked = Needs(resources(), labels={"disk": "nvme"}, tolerates=("batch",), spot=False, spread=Spread.NONE)
    assert at(place(nodes, Ask(asked, count=100))) == ["good"] * 8


def test_a_standby_node_is_used_last_and_only_by_those_who_may() -> None:
    nodes = room([node("warm", cpu=2, standby=True), node("plain", cpu=2)])
    assert at(place(nodes.copy(), Ask(needs(), count=4))) == ["plain", "plain"]
    assert at(place(nodes, Ask(needs(), count=4, use_standby=True))) == ["plain", "plain", "warm", "warm"]


def test_one_and_a_half_gpus_fit_nowhere() -> None:
    ask = Ask(needs(gpu=1.5))
    assert place(room([node("a", gpus=8)]), ask) == []
    assert why_not(room([node("a", gpus=8)]), ask) == "1.5 GPUs are neither whole ones nor a share of one"


def test_a_node_that_came_later_is_seen() -> None:
    nodes = room([node("a", taints=("batch",))])
    assert place(nodes, Ask(needs())) == []
    nodes.add(node("b"), open_=True)
    assert at(place(nodes, Ask(needs()))) == ["b"]
    nodes.remove("b")
    assert place(nodes, Ask(needs())) == []


def test_an_empty_room_has_no_room() -> None:
    assert place(room([]), Ask(needs())) == []
    assert why_not(room([]), Ask(needs())) == "there are no nodes"


def test_the_reason_counts_every_node_once() -> None:
    nodes = room(
        [
            *(node(f"small{n}", gpus=1, memory=3000 - n) for n in range(3)),
            *(node(f"plain{n}") for n in range(2)),
            *(node(f"closed{n}", gpus=1) for n in range(2)),
        ],
        closed=["closed0", "closed1"],
    )
    assert why_not(nodes, Ask(needs(memory=8192, gpu=1, kind="h100"))) == (
        "7 nodes: 3 have too little memory free (largest 3000 MiB, 8192 needed), 2 are closed, 2 have no h100"
    )


@pytest.mark.parametrize(
    ("ask", "said"),
    [
        (Ask(needs(cpu=9)), "has too little cpu free (largest 8, 9 needed)"),
        (Ask(needs(gpu=2)), "has too little gpu free (largest 1, 2 needed)"),
        (Ask(needs(), avoid=("a",)), "is to be avoided"),
        (Ask(msgspec.structs.replace(needs(), labels={"x": "y"})), "is not labelled x=y"),
        (Ask(needs(), beside=("a",), one_per_node=True), "has a member already"),
        (Ask(spread(Spread.REQUIRE), beside=("a",)), "is in a zone that has a copy already"),
        (Ask(spread(Spread.REQUIRE, Level.NODE), beside=("a",)), "is holding a copy already"),
    ],
)
def test_the_reason_names_what_is_in_the_way(ask: Ask, said: str) -> None:
    assert why_not(room([node("a", gpus=1)]), ask) == f"1 node: 1 {said}"


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (node("a", standby=True), "is a warm standby"),
        (node("a", spot=True), "is a spot node"),
        (node("a", taints=("batch",)), "has a taint it does not tolerate"),
    ],
)
def test_the_reason_names_what_the_node_is(made: Node, said: str) -> None:
    asked = msgspec.structs.replace(needs(), spot=False)
    assert why_not(room([made]), Ask(asked)) == f"1 node: 1 {said}"


def test_what_did_fit_is_told_with_the_reason() -> None:
    assert why_not(room([node("a", cpu=4)]), Ask(needs(cpu=3), count=2, at_least=2)) == (
        "room for 1 of 2; 1 node: 1 has too little cpu free (largest 1, 3 needed)"
    )
    assert why_not(room([node("a", cpu=4)]), Ask(needs(cpu=3))) == ""


@pytest.mark.parametrize("named", ["a100", "l4"])
def test_work_that_takes_any_gpu_leaves_the_kind_that_others_name(named: str) -> None:
    other = {"a100": "l4", "l4": "a100"}[named]
    found = room([node(kind, gpus=8, kind=kind) for kind in ("a100", "l4")])
    assert at(place(found, Ask(Needs(resources(gpu=1, kind=named), spread=Spread.NONE)))) == [named]
    anywhere = Ask(Needs(resources(gpu=1, kind=""), spread=Spread.NONE))
    assert at(place(found, anywhere)) == [other], "though the node in use is fuller"


def test_the_sums_by_kind_follow_what_is_taken_given_back_and_removed() -> None:
    found = room([node("a", gpus=8, kind="a100"), node("b", gpus=8, kind="l4")])
    kinds = {kind: found.kinds.number[kind] for kind in ("a100", "l4")}
    (spot,) = place(found, Ask(Needs(resources(gpu=2, kind="l4"))))
    assert found.kind_named[kinds["l4"]] == 2_000
    assert [found.kind_free[kinds[kind]] for kind in ("a100", "l4")] == [8_000, 6_000]
    copy = found.copy()
    copy.give(copy.row["b"], resources(gpu=2, kind="l4"), spot.devices)
    assert (copy.kind_named[kinds["l4"]], copy.kind_free[kinds["l4"]]) == (0, 8_000)
    found.remove("b")
    assert (found.kind_named[kinds["l4"]], found.kind_free[kinds["l4"]]) == (0, 0), "with its replicas"
    assert copy.kind_free[kinds["a100"]] == 8_000
