import msgspec

from holdfast.core.disruption.rebalance import Move, moves
from holdfast.model.place import Level
from holdfast.model.policy import BalancePolicy, Policy
from holdfast.model.replica import State
from holdfast.model.units import HOUR, MINUTE
from holdfast.model.workload import Needs, Spread, Workload
from holdfast.model.world import World
from tests.build import needs, node, resources, run, service, training, world

LATER = 1 * HOUR
THREE = Policy(balance=BalancePolicy(moves_max=3))


def rounds(built: World, now: int = LATER) -> list[Move]:
    return moves(built, built.room.copy(), now)


def spread(
    name: str = "web", how: Spread = Spread.PREFER, over: Level = Level.ZONE, gpu: float = 0
) -> Workload:
    return service(name, Needs(resources(gpu=gpu), spread=how, spread_over=over))


def test_a_copy_goes_to_the_zone_that_came_back() -> None:
    built = world([node("a1", zone="a"), node("a2", zone="a"), node("b1", zone="b")])
    run(built, spread(), ["a1"], at=1)
    run(built, spread(), ["a2"], at=2)
    why = "web has 2 copies in test/here/a and 0 in test/here/b"
    assert rounds(built) == [Move("web/1.1", "b1", (), why)]


def test_copies_leave_free_nodes_for_ones_that_cost_only_when_more_than_half_are_in_one_zone() -> None:
    free = [node(f"free-{zone}{n}", zone=zone, price=0) for zone in "ab" for n in range(3)]
    paid = [node("paid", zone="z")]
    built = world(free + paid)
    run(built, spread(), ["free-a0", "free-a1", "free-b0", "free-b1"])
    assert rounds(built) == []
    built = world(free + paid)
    run(built, spread(), ["free-a0", "free-a1", "free-a2", "free-b0"])
    assert [move.to for move in rounds(built)] == ["free-b1"]
    built = world(free[:3] + paid)
    run(built, spread(), ["free-a0", "free-a1"])
    assert [move.to for move in rounds(built)] == ["paid"]


def test_a_free_node_hands_no_load_to_one_that_costs() -> None:
    built = world([node("free", price=0), node("paid", zone="b")])
    run(built, service("web", needs(cpu=3)), ["free", "free"])
    assert rounds(built) == []


def test_a_spread_that_cannot_be_better_is_left_alone() -> None:
    built = world([node("a1", zone="a"), node("b1", zone="b")])
    run(built, spread(), ["a1", "a1", "b1"])
    assert rounds(built) == []


def test_a_zone_without_room_does_not_count() -> None:
    built = world([node("a1", zone="a"), node("b1", zone="b")])
    run(built, service("full", needs(cpu=8)), ["b1"])
    run(built, spread(), ["a1", "a1"])
    assert rounds(built) == []


def test_replicas_with_gpus_move_for_their_spread() -> None:
    built = world([node("a1", zone="a", gpus=2), node("b1", zone="b", gpus=2)])
    run(built, spread(gpu=1), ["a1", "a1"])
    assert [(move.to, move.devices) for move in rounds(built)] == [("b1", (0,))]


def test_copies_on_one_node_part_when_the_spread_is_over_nodes() -> None:
    built = world([node("a"), node("b")])
    run(built, spread(over=Level.NODE), ["a", "a"])
    assert [move.why for move in rounds(built)] == ["web has 2 copies in a and 0 in b"]


def test_a_busy_node_hands_over_to_an_idle_one() -> None:
    built = world([node("a"), node("b")])
    run(built, service("web", needs(cpu=2)), ["a"] * 4)
    assert [(move.to, move.why) for move in rounds(built)] == [("b", "a is 100% full, b is 0% full")]


def test_a_small_difference_is_not_worth_a_move() -> None:
    built = world([node("a"), node("b")])
    run(built, service("web", needs(cpu=2)), ["a"])
    assert rounds(built) == []


def test_a_move_that_only_swaps_the_busy_node_is_not_made() -> None:
    built = world([node("a"), node("b")])
    run(built, service("web", needs(cpu=7)), ["a"])
    assert rounds(built) == []


def test_a_move_must_pay_for_itself() -> None:
    built = world([node("a"), node("b")])
    run(built, service("web", needs(cpu=2), move_cost_ms=HOUR), ["a"] * 4)
    assert rounds(built) == []


def test_only_replicas_that_have_been_ready_for_a_while_move() -> None:
    built = world([node("a"), node("b")])
    run(built, service("web", needs(cpu=2)), ["a"] * 4, at=LATER - 5 * MINUTE + 1)
    assert rounds(built) == []
    assert rounds(built, LATER + 1) != []


def test_exclusive_work_and_work_that_is_not_ready_stays() -> None:
    built = world([node("a"), node("b")])
    run(built, training("train", needs(cpu=2), members=2), ["a", "a"])
    run(built, service("web", needs(cpu=2)), ["a", "a"], state=State.STARTING)
    assert rounds(built) == []


def test_a_slot_that_is_moving_is_left_alone() -> None:
    built = world([node("a", zone="a"), node("b", zone="b"), node("c", zone="c")])
    run(built, spread(), ["a", "a"])
    heir = msgspec.structs.replace(
        built.replicas["web/1.1"], id="web/1.2", epoch=2, node="b", state=State.PLACED
    )
    built.replicas[heir.id] = heir
    built.of_slot["web/1"][heir.id] = None
    assert rounds(built) == []


def test_load_is_moved_neither_onto_gpu_nodes_nor_standbys_nor_closed_nodes() -> None:
    built = world([node("a"), node("gpu", gpus=8), node("warm", standby=True), node("closed")])
    built.room.open[built.room.row["closed"]] = False
    run(built, service("web", needs(cpu=2)), ["a"] * 4)
    assert rounds(built) == []


def test_load_goes_nowhere_where_another_copy_is_if_they_must_be_apart() -> None:
    """Two may be in one zone already: the zone was lost for a while, or the rule is a new one."""
    apart = msgspec.structs.replace(needs(cpu=4), spread=Spread.REQUIRE, spread_over=Level.ZONE)
    built = world([node("a1", zone="a"), node("a2", zone="a"), node("b1", zone="b"), node("c1", zone="c")])
    run(built, service("web", apart), ["a1", "a1", "b1"])
    assert [move.to for move in rounds(built)] == ["c1"], "neither a2 nor b1"
    built = world([node("a1", zone="a"), node("a2", zone="a"), node("b1", zone="b")])
    run(built, service("web", apart), ["a1", "a1", "b1"])
    assert rounds(built) == []


def test_load_moves_never_crowd_the_copies() -> None:
    built = world([node("a1", zone="a"), node("b1", zone="b"), node("b2", zone="b")])
    run(built, service("filler", needs(cpu=5)), ["a1"])
    run(built, spread(), ["a1", "b1"])
    assert [move.replica for move in rounds(built) if move.replica.startswith("web")] == []


def test_no_more_moves_than_allowed_and_one_a_workload() -> None:
    nodes = [node(name) for name in "abcdef"]
    built = world(nodes, THREE)
    for name in ("v", "w", "x", "y"):
        run(built, service(name, needs(cpu=2)), ["a", "b", "c"])
    found = rounds(built)
    assert len(found) == 3
    assert len({move.replica.split("/")[0] for move in found}) == 3
    assert sorted(move.to for move in found) == ["d", "e", "f"]
    assert moves(built, built.room.copy(), LATER) == found


def test_the_room_of_a_move_is_taken() -> None:
    built = world([node("a"), node("b")])
    run(built, service("web", needs(cpu=2)), ["a"] * 4)
    room = built.room.copy()
    moves(built, room, LATER)
    assert room.cpu[[room.row["a"], room.row["b"]]].tolist() == [0, 6000]


def test_measured_load_replaces_what_was_asked_for() -> None:
    built = world([node("a"), node("b"), node("c")])
    run(built, service("web", needs(cpu=2)), ["a"])
    run(built, service("api", needs(cpu=1)), ["b"])
    found = moves(built, built.room.copy(), LATER, load={"a": 0.1, "b": 0.9, "c": 0.2})
    assert [(move.replica, move.to) for move in found] == [("api/0.1", "a")]


def test_policy_can_turn_it_off() -> None:
    built = world([node("a"), node("b")], Policy(balance=BalancePolicy(moves_max=0)))
    run(built, service("web", needs(cpu=2)), ["a"] * 4)
    assert rounds(built) == []
