import pytest

from holdfast.core.placement.placement import Ask
from holdfast.core.placement.preempt import lost_ms, victims, victims_for_gang
from holdfast.model.replica import State
from holdfast.model.workload import Job, Spread, Workload
from holdfast.model.world import World
from tests.build import needs, node, run, service, training, world

BIG = Ask(needs(cpu=4))


def stop(
    built: World, ask: Ask = BIG, priority: int = 10, spoken_for: frozenset[str] = frozenset()
) -> list[str]:
    return victims(built, built.room, ask, priority, spoken_for)


def test_the_lowest_priority_goes_first_even_if_more_of_it_must() -> None:
    built = world([node("a", cpu=4), node("b", cpu=4)])
    run(built, service("middle", needs(cpu=4), priority=5), ["a"])
    run(built, service("low", needs(cpu=2), priority=1), ["b", "b"])
    assert stop(built) == ["low/0.1", "low/1.1"]


def test_of_one_priority_the_fewest_go() -> None:
    built = world([node("a", cpu=4), node("b", cpu=4)])
    run(built, service("two", needs(cpu=2)), ["a", "a"])
    run(built, service("one", needs(cpu=4)), ["b"])
    assert stop(built) == ["one/0.1"]


def test_of_as_many_the_one_goes_that_loses_the_least() -> None:
    built = world([node("a", cpu=4), node("b", cpu=4)])
    run(built, service("costly", needs(cpu=4), move_cost_ms=60_000), ["a"])
    run(built, service("light", needs(cpu=4), move_cost_ms=1_000), ["b"])
    assert stop(built) == ["light/0.1"]


def test_the_youngest_goes_when_all_else_is_equal() -> None:
    built = world([node("a", cpu=4), node("b", cpu=4)])
    run(built, service("web", needs(cpu=4)), ["a"], at=100)
    run(built, service("web", needs(cpu=4)), ["b"], at=900)
    assert stop(built) == ["web/1.1"]


@pytest.mark.parametrize("priority", [5, 4])
def test_equals_and_betters_are_never_stopped(priority: int) -> None:
    built = world([node("a", cpu=4)])
    run(built, service("web", needs(cpu=4), priority=5), ["a"])
    assert stop(built, priority=priority) == []


def test_what_is_spoken_for_is_not_stopped_twice() -> None:
    built = world([node("a", cpu=4), node("b", cpu=4)])
    run(built, service("web", needs(cpu=4)), ["a", "b"])
    assert stop(built, spoken_for=frozenset({"web/0.1"})) == ["web/1.1"]
    assert stop(built, spoken_for=frozenset({"web/0.1", "web/1.1"})) == []


def test_nobody_goes_while_enough_is_stopping_already() -> None:
    built = world([node("a", cpu=4), node("b", cpu=4)])
    run(built, service("leaving", needs(cpu=4)), ["a"], state=State.STOPPING)
    run(built, service("web", needs(cpu=4)), ["b"])
    assert stop(built) == []


def test_nobody_goes_when_there_is_room() -> None:
    built = world([node("a", cpu=4), node("b", cpu=4)])
    run(built, service("web", needs(cpu=4)), ["a"])
    assert stop(built) == []


def test_nobody_goes_in_vain() -> None:
    built = world([node("a", cpu=4)])
    run(built, service("web", needs(cpu=4)), ["a"])
    assert stop(built, Ask(needs(cpu=5))) == []
    assert stop(built, Ask(needs(cpu=4, gpu=1))) == []
    assert stop(built, Ask(needs(cpu=4), avoid=("a",))) == []
    assert stop(built, Ask(needs(cpu=4, spread=Spread.REQUIRE), beside=("a",))) == []


def test_those_that_do_not_help_stay() -> None:
    built = world([node("a", cpu=8)])
    run(built, service("small", needs(cpu=1)), ["a", "a"])
    run(built, service("middle", needs(cpu=3)), ["a", "a"])
    assert stop(built, Ask(needs(cpu=6))) == ["middle/0.1", "middle/1.1"]


def test_a_member_of_a_gang_costs_its_whole_gang() -> None:
    built = world([node("a", cpu=4), node("b", cpu=4), node("c", cpu=4)])
    run(built, training("train", needs(cpu=4), members=2), ["a", "b"])
    run(built, service("web", needs(cpu=2)), ["c"])
    assert stop(built, Ask(needs(cpu=4))) == ["web/0.1"]
    assert stop(built, Ask(needs(cpu=4), avoid=("c",))) == ["train/0.1", "train/1.1"]
    assert stop(built, Ask(needs(cpu=4), avoid=("c",)), spoken_for=frozenset({"train/1.1"})) == []


def test_whole_gpus_come_from_those_who_sit_on_them() -> None:
    built = world([node("a", cpu=32, gpus=2)])
    run(built, service("share", needs(gpu=0.5)), ["a"])
    run(built, service("whole", needs(gpu=1)), ["a"])
    run(built, service("plain", needs(cpu=8)), ["a"])
    assert stop(built, Ask(needs(gpu=1))) == ["share/0.1"]
    assert stop(built, Ask(needs(gpu=2))) == ["share/0.1", "whole/0.1"]


def test_a_gpu_that_is_free_in_sum_but_cut_up_is_freed() -> None:
    built = world([node("a", gpus=2)])
    run(built, service("half", needs(cpu=0, gpu=0.6)), ["a", "a"])
    assert stop(built, Ask(needs(cpu=0, gpu=0.5))) == ["half/0.1"]
    assert stop(built, Ask(needs(cpu=0, gpu=2))) == ["half/0.1", "half/1.1"]


def test_a_gang_frees_as_many_nodes_as_it_needs_or_none() -> None:
    built = world([node(name, cpu=4) for name in "abc"])
    run(built, service("web", needs(cpu=4)), ["a", "b"])
    gang = Ask(needs(cpu=4), count=3, at_least=3, one_per_node=True)
    assert sorted(victims_for_gang(built, built.room, gang, 10)) == ["web/0.1", "web/1.1"]
    four = Ask(needs(cpu=4), count=4, at_least=4, one_per_node=True)
    assert victims_for_gang(built, built.room, four, 10) == []
    assert victims_for_gang(built, built.room, gang, 0) == []


def test_the_room_is_left_as_it_was() -> None:
    built = world([node("a", cpu=4), node("b", cpu=4)])
    run(built, service("web", needs(cpu=4)), ["a"])
    before = built.room.cpu.tolist()
    victims_for_gang(built, built.room, Ask(needs(cpu=4), count=2, at_least=2), 10)
    stop(built, Ask(needs(cpu=4), avoid=("b",)))
    assert built.room.cpu.tolist() == before


@pytest.mark.parametrize(("checkpoint_ms", "lost"), [(0, 700), (300, 300), (900, 700)])
def test_a_job_loses_what_its_last_checkpoint_does_not_hold(checkpoint_ms: int, lost: int) -> None:
    built = world([node("a")])
    job = Workload("job", Job(), needs(), checkpoint_ms=checkpoint_ms, move_cost_ms=50)
    run(built, job, ["a"], at=300)
    assert lost_ms(job, built.replicas["job/0.1"], now=1000) == 50 + lost


def test_a_service_loses_only_its_restart() -> None:
    built = world([node("a")])
    web = service("web", needs(), move_cost_ms=50)
    run(built, web, ["a"], at=300)
    assert lost_ms(web, built.replicas["web/0.1"], now=1000) == 50
