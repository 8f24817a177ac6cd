"""What is free, how it lies, and what would fit."""

from holdfast.core.explain import headroom
from holdfast.model.node import NodeState
from holdfast.model.resources import GPU
from holdfast.model.workload import Spread, Sweep, Workload
from holdfast.model.world import World
from tests.build import needs, node, run, service, world
from tests.play import Play


def report(of: World) -> headroom.Headroom:
    return headroom.headroom(of, 1_000)


def words(of: World) -> list[str]:
    return headroom.tell(report(of))


def test_what_is_free_is_told_by_pool_zone_and_kind() -> None:
    built = world([node("a1", zone="a", gpus=2), node("a2", zone="a"), node("b1", zone="b", gpus=4)])
    run(built, service("web", needs(cpu=3, gpu=0.5)), ["b1"])
    rows = report(built).free
    assert [(row.zone, row.gpu_kind, row.cpu_milli, row.gpus, row.shares_milli) for row in rows] == [
        ("test/here/a", "", 8_000, 0, 0),
        ("test/here/a", "h100", 8_000, 2, 0),
        ("test/here/b", "h100", 5_000, 3, GPU // 2),
    ]


def test_closed_nodes_and_warm_ones_are_not_free() -> None:
    built = world([node("a"), node("b"), node("warm", standby=True)])
    built.room.open[built.room.row["b"]] = False
    (row,) = report(built).free
    assert (row.nodes, row.open, row.standby, row.cpu_milli) == (3, 1, 1, 8_000)


def test_what_comes_and_what_leaves_is_counted() -> None:
    play = Play(min=2)
    play.settle()
    assert all(each.state is NodeState.LAUNCHING for each in play.world.nodes.values())
    (row,) = headroom.free(play.world)
    assert (row.nodes, row.coming, row.leaving) == (0, 2, 0)
    assert "0 of 0 nodes open, with 0 cpus, 0 GiB free; 2 coming" in words(play.world)


def test_free_gpus_that_no_node_has_together_are_named() -> None:
    built = world([node(f"n{number}", cpu=64, memory=262_144, gpus=4) for number in range(4)])
    run(built, service("web", needs(gpu=2)), ["n0", "n1", "n2", "n3"])
    (kind,) = report(built).kinds
    assert (kind.gpus, kind.largest, kind.together) == (8, 2, {1: 8, 2: 4, 4: 0, 8: 0})
    assert "8 h100 are free, but no node has 4 together" in words(built)


def test_gpus_without_cpus_beside_them_are_stranded() -> None:
    built = world([node("a", cpu=8, memory=262_144, gpus=4)])
    run(built, service("greedy", needs(cpu=8)), ["a"])
    (kind,) = report(built).kinds
    assert kind.stranded_milli == 4 * GPU
    assert any(text.startswith("4.0 of the free h100 are stranded") for text in words(built))


def test_room_that_nothing_asked_for_can_use_is_told() -> None:
    built = world([node("a", cpu=8), node("b", cpu=8)])
    run(built, service("large", needs(cpu=6)), ["a"])
    found = report(built)
    assert (found.cpu_milli, found.cpu_milli_unusable) == (10_000, 2_000)
    assert "2 cpus are free where nothing that is asked for fits" in words(built)


def test_how_many_more_of_each_would_fit() -> None:
    built = world([node("a", zone="a"), node("b", zone="b"), node("c", zone="c")])
    run(built, service("web", needs(cpu=2, spread=Spread.PREFER)), ["a"])
    run(built, service("apart", needs(cpu=1, spread=Spread.REQUIRE)), ["a"])
    assert {fit.workload: fit.more for fit in report(built).fits} == {"web": 10, "apart": 2}


def test_it_counts_no_further_than_a_hundred() -> None:
    built = world([node(f"n{number}", cpu=64, memory=1 << 20) for number in range(4)])
    run(built, service("web", needs(cpu=1)), ["n0"])
    assert [fit.more for fit in report(built).fits] == [headroom.MORE_MAX]


def test_tasks_beyond_what_may_run_do_not_wait_for_room() -> None:
    play = Play(can_launch=False)
    play.join("a")
    play.apply(Workload("many", Sweep(10, parallel=2)), Workload("large", Sweep(10), needs(cpu=3)))
    play.obey()
    fits = {fit.workload: fit.waiting for fit in report(play.world).fits}
    assert fits["many"] == 0
    assert fits["large"] > 0


def test_a_full_fleet_says_who_does_not_fit() -> None:
    built = world([node("a", cpu=8)])
    run(built, service("web", needs(cpu=8)), ["a"])
    assert "not one more replica of web would fit" in words(built)
    assert report(world([])) == headroom.Headroom((), (), (), 0, 0, 0)
