"""Processes that ask the same replicas and tell one another what they do."""

import random

import pytest

from holdfast.core.gateway.routing.balancer import NOBODY, Pool, summed
from holdfast.core.gateway.routing.endpoints import Replica
from holdfast.core.gateway.routing.prefix_affinity import BLOCKS_MAX
from holdfast.core.gateway.routing.updates import Load, ReplicaSpec

TALK = (1, 2, 3, 4)


def pools(count: int = 2, replicas: int = 4, streams_max: int = 0) -> list[Pool]:
    found = []
    for _ in range(count):
        pool = Pool("model")
        specs = [ReplicaSpec(f"r{n}", f"r{n}:80", streams_max=streams_max) for n in range(replicas)]
        pool.set_replicas(specs, 0.0)
        found.append(pool)
    return found


def send(pool: Pool, cost: float = 100, prefix: tuple[int, ...] | None = None, session: str = "") -> Replica:
    replica = pool.pick(cost, prefix, session, 1.0, random.Random(1).random, NOBODY)
    assert replica is not None
    pool.dispatch(replica, cost)
    return replica


def moved(pool: Pool, prefix: tuple[int, ...], session: str = "") -> Replica:
    """A conversation that had to go elsewhere than everybody would send it, and where it went."""
    usual = send(pool, 100, prefix, session)
    pool.dispatch(usual, 1_000_000)
    other = send(pool, 100, prefix, session)
    assert other is not usual
    pool.release(usual, 1_000_000)
    return other


@pytest.mark.parametrize("session", ["", "s"])
def test_a_conversation_is_found_again_by_a_process_that_was_told(session: str) -> None:
    one, told, stranger = pools(3)
    there = moved(one, TALK, session)
    went = one.went(TALK, session, there)
    assert went is not None
    told.told(went)
    assert send(told, 100, (*TALK, 5), session).id == there.id
    assert send(stranger, 100, (*TALK, 5), session).id != there.id, "or nothing was shown"


def test_what_is_common_to_one_is_common_to_those_it_told() -> None:
    """Told only that a prompt went somewhere, a sibling kept everybody together under the first block."""
    one, other = pools(replicas=8)
    talks = [(0, 10 * talk + 1, 10 * talk + 2) for talk in range(80)]
    for prefix in talks:
        went = one.went(prefix, "", send(one, 1_000, prefix))
        if went is not None:
            other.told(went)
    ours, theirs = one.replicas["r0"].level.places, other.replicas["r0"].level.places
    last = talks[60:]  # by then the first block was common
    assert [place.key for place in map(theirs.find, last) if place is not None] == [
        place.key for place in map(ours.find, last) if place is not None
    ]
    assert len({place.key for place in map(theirs.find, last) if place is not None}) == len(last)


def test_what_siblings_have_in_flight_counts_and_what_has_ended_does_not() -> None:
    one, other = pools(replicas=2)
    busy = send(one, 5_000)
    other.told_load(summed([one.in_flight()]))
    assert {send(other, 100).id for _ in range(10)} == {"r0", "r1"} - {busy.id}
    assert other.replicas[busy.id].outstanding == 5_000
    one.release(busy, 5_000)
    assert one.in_flight() == {}
    other.told_load(summed([one.in_flight()]))
    assert other.replicas[busy.id].outstanding == 0.0


def test_what_is_told_of_ours_is_ours_alone() -> None:
    one, other = pools(replicas=1)
    send(one, 700)
    other.told_load(one.in_flight())
    send(other, 50)
    assert other.in_flight() == {"r0": Load(50, 0.0, 1)}, "the largest there is another's"
    other.release(other.replicas["r0"], 50)
    assert other.replicas["r0"].outstanding == 700
    assert other.replicas["r0"].largest == 700


def test_places_of_a_replica_are_taken_by_siblings_too() -> None:
    one, other = pools(replicas=2, streams_max=2)
    for _ in range(3):
        send(one)
    other.told_load(one.in_flight())
    assert other.saturation() == pytest.approx(0.75)
    send(other)
    assert other.pick(100, None, "", 1.0, random.Random(1).random, NOBODY) is None
    one.release(one.replicas["r0"], 100)
    other.told_load(one.in_flight())
    assert other.pick(100, None, "", 1.0, random.Random(1).random, NOBODY) is other.replicas["r0"]


def test_loads_of_several_are_added_and_the_largest_is_the_largest() -> None:
    assert summed([{"a": Load(1, 1, 1)}, {"a": Load(5, 4, 2), "b": Load(2, 2, 1)}, {}]) == {
        "a": Load(6, 4, 3),
        "b": Load(2, 2, 1),
    }


def test_a_replica_that_siblings_know_and_we_do_not_is_passed_over() -> None:
    one, other = pools(replicas=1)
    went = one.went(TALK, "", send(one, 100, TALK))
    assert went is not None
    other.set_replicas([ReplicaSpec("new", "new:80")], 2.0)
    other.told(went)
    other.told_load(one.in_flight())
    assert send(other, 100, TALK).id == "new"


def test_a_long_prompt_is_told_as_far_as_it_is_remembered() -> None:
    one, other = pools()
    prefix = tuple(range(1, BLOCKS_MAX + 20))
    there = moved(one, prefix)
    went = one.went(prefix, "", there)
    assert went is not None
    assert len(went.prefix) == BLOCKS_MAX
    other.told(went)
    assert send(other, 100, prefix).id == there.id


def test_a_replica_that_leaves_and_comes_back_has_not_what_siblings_had_there_before() -> None:
    """What they said while it was leaving was not heard: it stayed full, for nobody had anything new to
    tell."""
    [other] = pools(1, replicas=2, streams_max=2)
    staying = ReplicaSpec("r1", "r1:80", streams_max=2)
    replica = other.replicas["r0"]
    other.dispatch(replica, 10)
    other.told_load({"r0": Load(100.0, 100.0, 2)})
    other.set_replicas([staying], 1.0)
    other.told_load({})
    other.set_replicas([ReplicaSpec("r0", "r0:80", streams_max=2), staying], 2.0)
    assert other.replicas["r0"] is replica
    assert (replica.streams_allowed, replica.outstanding) == (2, 10.0)
