"""What fails next if a failure domain goes: the real decisions, without the domain."""

from holdfast.core.explain import failure_impact
from holdfast.core.explain.dry_run import twin
from holdfast.core.explain.failure_impact import Broken, Hit, Loss
from holdfast.core.state.snapshot import dump
from holdfast.model.place import Level
from holdfast.model.policy import Policy, ReplicaPolicy
from holdfast.model.workload import Job, Needs, Service, Spread, Training, Workload
from holdfast.model.world import World
from tests.build import needs, node, resources, run, service, training, world
from tests.play import Play

NOW = 1_000


def without(of: World, zone: str) -> Loss:
    return failure_impact.if_lost(of, Level.ZONE, f"test/here/{zone}", NOW)


def hit(of: World, zone: str, workload: str) -> Hit:
    return next(each for each in without(of, zone).hits if each.workload == workload)


def two_zones(cpu: int = 8) -> World:
    return world([node("a1", zone="a", cpu=cpu), node("b1", zone="b", cpu=cpu)])


def test_what_was_lost_is_placed_on_what_is_left() -> None:
    built = two_zones()
    run(built, service("web", needs(cpu=2)), ["a1", "b1"])
    found = hit(built, "a", "web")
    assert (found.lost, found.left, found.placed, found.short) == (1, 1, 1, 0)


def test_what_finds_no_room_is_short() -> None:
    built = two_zones()
    run(built, service("web", needs(cpu=5)), ["a1", "b1"])
    assert (hit(built, "a", "web").short, without(built, "a").short) == (1, 1)


def test_a_required_spread_is_kept_even_then() -> None:
    built = two_zones()
    run(built, service("web", needs(cpu=1, spread=Spread.REQUIRE)), ["a1", "b1"])
    assert hit(built, "a", "web").short == 1


def test_the_most_important_are_served_first() -> None:
    built = two_zones()
    run(built, service("low", needs(cpu=5)), ["a1"])
    run(built, service("high", needs(cpu=3), priority=9), ["a1"])
    run(built, service("there", needs(cpu=4), priority=9), ["b1"])
    assert (hit(built, "a", "high").placed, hit(built, "a", "low").short) == (1, 1)


def test_lower_priorities_give_way_and_are_named() -> None:
    built = two_zones()
    run(built, service("high", needs(cpu=6), priority=9), ["a1"])
    run(built, service("low", needs(cpu=6)), ["b1"])
    found = without(built, "a")
    assert (hit(built, "a", "high").by_preemption, found.pushed_out) == (1, {"low": 1})
    assert "to make room, lower priorities stop (low 1)" in failure_impact.tell(found)


def test_nobody_gives_way_where_that_is_switched_off() -> None:
    policy = Policy(replicas=ReplicaPolicy(preempt=False))
    built = world([node("a1", zone="a"), node("b1", zone="b")], policy)
    run(built, service("high", needs(cpu=6), priority=9), ["a1"])
    run(built, service("low", needs(cpu=6)), ["b1"])
    assert hit(built, "a", "high").short == 1


def test_warm_standby_nodes_are_used() -> None:
    built = world([node("a1", zone="a"), node("b1", zone="b", standby=True)])
    run(built, service("web", needs(cpu=2)), ["a1"])
    assert hit(built, "a", "web").placed == 1


def test_a_warm_replica_takes_the_seat() -> None:
    play = Play(can_launch=False)
    play.join("a1", zone="a")
    play.join("b1", zone="b")
    play.apply(Workload("web", Service(1, standby=1), Needs(resources(cpu=5))))
    play.obey()
    zone = play.node(play.replica("web/0.1").node).place.domain(Level.ZONE)
    (found,) = failure_impact.if_lost(play.world, Level.ZONE, zone, play.now).hits
    assert (found.lost, found.promoted, found.short) == (1, 1, 0)


def test_a_gang_that_is_too_small_stops_as_a_whole() -> None:
    built = two_zones()
    run(built, training("gang", needs(cpu=5), members=2), ["a1", "b1"])
    found = hit(built, "a", "gang")
    assert (found.lost, found.left, found.short) == (2, 0, 2)


def test_a_gang_that_may_be_smaller_goes_on() -> None:
    built = two_zones()
    run(built, Workload("gang", Training(1, 2), needs(cpu=5)), ["a1", "b1"])
    found = hit(built, "a", "gang")
    assert (found.lost, found.left, found.short) == (1, 1, 1)


def promised(cpu: int, replicas: int = 2) -> Workload:
    return Workload("web", Service(replicas, availability=0.999), needs(cpu=cpu))


def test_a_promise_is_broken_until_copies_have_started_or_for_as_long_as_it_is_gone() -> None:
    for cpu, how in ((2, Broken.AT_ONCE), (5, Broken.LASTING)):
        built = two_zones()
        run(built, promised(cpu), ["a1", "b1"])
        found = hit(built, "a", "web")
        assert (found.availability, found.broken) == (0.999, how)
        assert f"availability promised to web is broken {how}" in failure_impact.tell(without(built, "a"))


def test_a_promise_is_kept_by_copies_to_spare() -> None:
    built = two_zones()
    run(built, promised(5, replicas=1), ["a1", "b1"])
    assert hit(built, "a", "web").broken is Broken.NOT


def test_a_promise_that_is_broken_already_is_not_held_against_the_domain() -> None:
    built = two_zones()
    run(built, promised(5, replicas=3), ["a1", "b1"])
    assert hit(built, "a", "web").broken is Broken.NOT


def test_the_worst_loss_is_named() -> None:
    built = world([node("a1", zone="a"), node("b1", zone="b"), node("c1", zone="c")])
    run(built, service("large", needs(cpu=8)), ["a1"])
    run(built, service("small", needs(cpu=1)), ["b1"])
    found = [without(built, zone) for zone in "abc"]
    worst = failure_impact.worst(found)
    assert worst is not None
    assert worst.domain == "test/here/a"  # which fits on c, but is more than the other
    assert (
        failure_impact.tell_worst(found)
        == "any one zone could be lost: what runs there has a place elsewhere"
    )
    run(built, service("more", needs(cpu=8)), ["c1"])
    assert failure_impact.tell_worst([without(built, zone) for zone in "abc"]).startswith(
        "no loss of a zone would hurt more than this: without zone test/here/"
    )
    assert failure_impact.tell_worst([]) == ""


def test_domains_are_named_by_their_path_or_its_end() -> None:
    found = failure_impact.domains(two_zones(), Level.ZONE)
    assert found == ["test/here/a", "test/here/b"]
    assert failure_impact.named(found, "a") == failure_impact.named(found, "test/here/a") == ["test/here/a"]
    assert failure_impact.named(found, "x") == []


def test_every_replica_lost_is_accounted_for_and_the_world_is_as_before() -> None:
    play = Play(can_launch=False)
    for number in range(6):
        play.join(f"n{number}", zone="abc"[number % 3])
    play.apply(Workload("web", Service(7, standby=2), needs(cpu=3)), promised(2, replicas=4))
    play.apply(Workload("job", Job(), needs(cpu=6), priority=5))
    play.obey()
    before = dump(play.world)
    for level in (Level.PROVIDER, Level.REGION, Level.ZONE, Level.RACK):
        for domain in failure_impact.domains(play.world, level):
            found = failure_impact.if_lost(play.world, level, domain, play.now)
            assert found == failure_impact.if_lost(twin(play.world), level, domain, play.now)
            for each in found.hits:
                assert each.lost == each.promoted + each.placed + each.by_preemption + each.short
    assert dump(play.world) == before
