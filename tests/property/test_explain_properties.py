"""Everything that can be asked about has an answer, and no answer contradicts what was just decided."""

import random

import pytest

from holdfast.core.explain import pending
from holdfast.core.explain.dry_run import preview
from holdfast.core.explain.explain import (
    explain_node,
    explain_pool,
    explain_replica,
    explain_workload,
)
from holdfast.core.state.snapshot import dump
from tests.property.test_core_properties import WHOLE, WORKLOADS, Walk


def assert_all_is_explained(walk: Walk) -> None:
    world, now = walk.world, walk.play.now
    told = [explain_pool(world, "pool", now)]
    told += [explain_node(world, None, name, now) for name in world.nodes]
    told += [explain_replica(world, name, now) for name in (*world.replicas, *world.slots)]
    told += [explain_workload(world, name, now) for name in world.workloads]
    for each in told:
        assert each.summary
        assert all(each.because)
        assert all(each.would_help)


def assert_what_waits_must_wait(walk: Walk) -> None:
    """The world is at rest: whatever could have been placed or launched has been."""
    world = walk.world
    for workload in world.workloads.values():
        waits = pending.waiting(world, workload, walk.play.now)
        said = [text for wait in waits for text in wait.because]
        assert not [text for text in said if "next turn" in text or "may launch one" in text]
        told = {slot for wait in waits for slot in wait.slots}
        assert told >= set(world.waiting.get(workload.name, ()))


@pytest.mark.parametrize("seed", range(5))
def test_whatever_happens_it_is_explained_as_it_was_decided(seed: int) -> None:
    dice = random.Random(seed)
    walk = Walk()
    for workload in WORKLOADS[seed % 2 :: 2]:
        walk.play.apply(workload)
    for number in range(100):
        walk.step(dice.randrange(WHOLE), dice.randrange(WHOLE), dice.randrange(WHOLE))
        assert_what_waits_must_wait(walk)
        if number % 10 == 0:
            assert_all_is_explained(walk)
            before = dump(walk.world)
            preview(walk.world, [], walk.play.now)
            assert dump(walk.world) == before
