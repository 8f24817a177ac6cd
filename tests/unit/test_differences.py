"""What changed of a pool, of the policy, of keys and limits, in words and without secrets."""

from typing import Any

import pytest
from msgspec.structs import replace

from holdfast.core.workloads.differences import (
    key_differences,
    limits_differences,
    policy_differences,
    pool_differences,
    project_differences,
)
from holdfast.model.gateway import Key, Limits
from holdfast.model.money import Budget
from holdfast.model.place import Place
from holdfast.model.policy import Policy
from holdfast.model.pool import Offer, Pool
from holdfast.model.project import Project
from holdfast.model.resources import GPU, Resources

SMALL = Offer("small", Place("local"), Resources(1_000, 512), price_micro_usd=31_200)
LARGE = replace(SMALL, name="large")
POOL = Pool("cloud", "ec2", (SMALL,), settings={"key": "hunter2"}, labels={"disk": "ssd"})
KEY = Key("k1", b"secret", owner="ada")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"max": 20, "min": 2}, ["min 0 -> 2", "max 1000 -> 20"]),
        ({"offers": (SMALL, LARGE)}, ["offer large added"]),
        ({"offers": (LARGE,)}, ["offer large added", "offer small removed"]),
        ({"offers": (replace(SMALL, price_micro_usd=40_000),)}, ["offer small price $0.0312 -> $0.04"]),
        ({"settings": {"key": "swordfish"}}, ["setting key changed"]),
        ({"labels": {"disk": "hdd"}}, ["label disk ssd -> hdd"]),
        ({"budget": Budget(hour_micro_usd=5_000_000)}, ["budget.hour none -> $5"]),
        ({"idle_ms": 120_000}, ["idle 10.0 min -> 2.0 min"]),
        ({}, []),
    ],
)
def test_what_changed_of_a_pool_is_said(changes: dict[str, Any], words: list[str]) -> None:
    assert pool_differences(POOL, replace(POOL, **changes)) == words


def test_quotas_are_said_in_the_units_of_a_file() -> None:
    new = Project("vision", cpu_milli=200, memory_mib=2_048, gpu_milli=8 * GPU)
    words = ["cpus none -> 0.2", "memory in MiB none -> 2048", "gpus none -> 8"]
    assert project_differences(None, new) == words


def test_nothing_changed_of_what_is_new() -> None:
    assert pool_differences(None, POOL) == []


def test_what_changed_of_the_policy_is_said() -> None:
    policy = Policy()
    other = replace(policy, leases=replace(policy.leases, lease_ms=45_000))
    assert policy_differences(policy, other) == ["leases.lease 30 s -> 45 s"]


def test_what_changed_of_limits_and_keys_is_said_without_a_hash() -> None:
    few, many = Limits(tokens_per_min=100), Limits(tokens_per_min=200, concurrent=4)
    words = ["tokens_per_min 100 -> 200", "concurrent none -> 4"]
    assert limits_differences(few, many) == words
    assert key_differences(replace(KEY, limits=few), replace(KEY, limits=many, hash=b"other")) == words
    assert key_differences(KEY, replace(KEY, owner="bob", suspended="leaked")) == ["owner ada -> bob"]
