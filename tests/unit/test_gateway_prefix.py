"""Names for the beginnings of prompts, and the memory of where they went."""

import subprocess
import sys

from holdfast.core.gateway.routing.endpoints import Replica
from holdfast.core.gateway.routing.prefix_affinity import (
    BLOCKS_MAX,
    COMMON_AFTER,
    KIB,
    Places,
    blocks,
)
from holdfast.core.gateway.routing.updates import ReplicaSpec

TEXT = " ".join(f"word{number}" for number in range(80_000)).encode()


def body(text: bytes, head: bytes = b'{"model":"m",', tail: bytes = b'"}]}') -> bytes:
    return head + b'"messages":[{"role":"user","content":"' + text + tail


def replica(name: str) -> Replica:
    return Replica(ReplicaSpec(id=name, address=name))


def test_prompts_that_begin_alike_have_the_same_first_names_and_no_later_ones() -> None:
    one, other = blocks(body(TEXT[:6_000])), blocks(body(TEXT[:3_000] + b"!" + TEXT[3_000:6_000]))
    assert one[:2] == other[:2]
    assert not set(one[3:]) & set(other[3:])


def test_a_conversation_that_goes_on_keeps_its_names() -> None:
    before, after = blocks(body(TEXT[:20_000])), blocks(body(TEXT[:60_000]))
    assert len(after) > len(before)
    assert after[: len(before) - 1] == before[:-1]


def test_what_stands_before_the_messages_does_not_matter() -> None:
    one = blocks(body(TEXT[:9_000], b'{"model":"m","seed":1,'))
    assert one == blocks(body(TEXT[:9_000], b'{"seed":2,"user":"somebody","model":"m",'))


def test_a_short_prompt_has_one_name_of_its_own() -> None:
    assert len(blocks(body(b"hello"))) == 1
    assert blocks(body(b"hello")) != blocks(body(b"help"))
    assert len(blocks(b"")) == 1


def test_there_are_never_more_names_than_the_most() -> None:
    assert len(blocks(body(TEXT[: 400 * KIB]))) == BLOCKS_MAX
    assert blocks(bytearray(body(TEXT[:5_000]))) == blocks(body(TEXT[:5_000]))


def test_another_process_gives_the_same_names() -> None:
    told = "from holdfast.core.gateway.routing.prefix_affinity import blocks; print(blocks(b'x' * 5000))"
    environment = {"PYTHONHASHSEED": "77", "PYTHONPATH": ":".join(sys.path)}
    other = subprocess.run(
        [sys.executable, "-c", told], env=environment, capture_output=True, text=True, check=True
    )
    assert other.stdout.strip() == str(blocks(b"x" * 5000))


def test_the_deepest_known_beginning_decides() -> None:
    places = Places()
    first = places.find((1, 2, 3, 4))
    assert places.find((1, 2, 3, 4, 5, 6)) is first
    assert places.find((1, 2, 3, 4, 5, 6, 7)) is first
    assert places.find((9, 8)) is not first


def test_processes_that_never_spoke_choose_the_same_key_for_a_conversation() -> None:
    one, other = Places(), Places()
    for places in (one, other):
        shared = places.find((0, 100))
        assert shared is not None
        shared.spills = COMMON_AFTER
    began, went_on = one.find((0, 5, 6)), other.find((0, 5, 6, 7, 8))
    assert began is not None
    assert went_on is not None
    assert began.key == went_on.key == 5


def test_a_beginning_that_everybody_shares_draws_nobody() -> None:
    places = Places()
    shared = places.find((0, 1))
    assert shared is not None
    shared.spills = COMMON_AFTER
    branch = places.find((0, 2, 3))
    assert branch is not None
    assert branch is not shared
    assert places.find((0, 2, 3)) is branch
    assert places.find((0, 1)) is None, "all of it is common"
    assert places.find((0,)) is None


def test_a_session_is_kept_together_however_often_it_did_not_fit() -> None:
    places = Places()
    place = places.find_session(7)
    place.spills = 100
    assert places.find_session(7) is place


def test_the_memory_is_bounded_and_keeps_what_is_used() -> None:
    places = Places(size_max=1_000)
    used = places.find((1, 2, 3))
    for number in range(10_000):
        places.find((10 * number + 100_000, 10 * number + 100_001))
        assert places.find((1, 2, 3)) is used
        assert len(places) <= 1_000 + BLOCKS_MAX
    assert places.find((100_000, 100_001)) is not None


def test_a_prompt_used_seldom_moves_to_the_younger_generation_with_all_its_beginnings() -> None:
    places = Places(size_max=200)
    used = places.find((1, 2, 3, 4))
    for number in range(30):
        for other in range(60):
            places.find((number * 1_000 + 1_000 + other,))
        assert places.find((1, 2, 3, 4, 5)) is used
        assert places.find((1, 2, 3)) is used


def test_a_place_remembers_the_last_few_replicas() -> None:
    place = Places().find((1,))
    assert place is not None
    a, b, c, d = (replica(name) for name in "abcd")
    for each in (a, b, a, c, d):
        place.served_by(each)
    assert place.replicas == (d, c, a)
