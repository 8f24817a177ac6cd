"""What replicas wrote last, on its way to the store."""

import asyncio

import pytest
from msgspec.structs import replace

from holdfast.control import last_words
from holdfast.control.last_words import WAITING_BYTES_MAX, LastWords
from holdfast.ports.store import TAIL_COSTS, Tail
from holdfast.sim.twins.store import SimStore
from tests.planes import until


class SlowStore(SimStore):
    """It begins to write when it may."""

    def __init__(self) -> None:
        super().__init__(lambda: 0)
        self.may = asyncio.Event()
        self.batches: list[int] = []

    async def keep_tails(self, tails: tuple[Tail, ...]) -> None:
        self.batches.append(len(tails))
        await self.may.wait()
        await super().keep_tails(tails)


def tail(number: int) -> Tail:
    return Tail(f"web/{number}.1", "n1", b"x", written=1, at=number)


async def test_words_are_known_from_the_first_moment_and_while_they_are_written() -> None:
    store = SlowStore()
    words = LastWords(store)
    words.keep([tail(1)])
    assert await words.of("web/1.1") == tail(1)
    await until(lambda: store.batches == [1])
    words.keep([tail(2)])
    assert [await words.of(f"web/{number}.1") for number in (1, 2)] == [tail(1), tail(2)]
    store.may.set()
    await until(lambda: len(store.tails) == 2)
    await words.close()
    assert await words.of("web/1.1") == tail(1)


async def test_a_great_many_short_ones_wait_for_a_slow_store_only_up_to_a_bound() -> None:
    store = SlowStore()
    words = LastWords(store)
    words.keep([tail(0)])
    await until(lambda: store.batches == [1])
    most = WAITING_BYTES_MAX // (TAIL_COSTS + 1)
    words.keep(tail(number) for number in range(1, most + 100))
    store.may.set()
    await until(lambda: len(store.tails) == most + 1)
    assert store.batches == [1, most]
    await words.close()


async def test_what_running_replicas_write_is_written_together_bounded_and_not_over_an_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(last_words, "RUNNING_EVERY_S", 0.05)
    monkeypatch.setattr(last_words, "RUNNING_BYTES_MAX", 10 * (TAIL_COSTS + 1))
    store = SlowStore()
    store.may.set()
    words = LastWords(store)
    words.keep_running(replace(tail(number), ended=False) for number in range(20))
    assert await words.of("web/3.1") == replace(tail(3), ended=False)
    words.keep([tail(3)])
    await until(lambda: len(store.tails) == 10)
    assert store.batches == [1, 9]
    assert store.tails["web/3.1"].ended
    assert not store.tails["web/4.1"].ended
    words.keep_running([replace(tail(5), ended=False, written=7)])
    await words.close()
    assert store.tails["web/5.1"].written == 7
