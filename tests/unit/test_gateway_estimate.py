"""Tokens before they are counted: mostly high, not by much, and never without bound."""

import random

import pytest

from holdfast.core.gateway.request.token_estimate import (
    ANSWER_TOKENS,
    FRAME_TOKENS,
    IMAGE_TOKENS,
    Estimator,
)


def test_before_anything_is_learned_a_token_has_two_and_a_half_bytes() -> None:
    assert Estimator().prompt("m", 2_500) == 1_000 + FRAME_TOKENS
    assert Estimator().prompt("m", 10) == 10  # a byte makes at most one token
    assert Estimator().prompt("m", 0) == 0


@pytest.mark.parametrize(
    ("max_tokens", "n", "context", "tokens"),
    [
        (None, 1, 0, 1_016 + ANSWER_TOKENS),
        (100, 1, 0, 1_116),
        (100, 3, 0, 1_316),
        (100, 0, 0, 1_116),
        (0, 1, 0, 1_016),
        (None, 1, 1_100, 1_100),
        (None, 1, 500, 500),
        (5_000, 1, 2_000, 3_016),  # a shorter prompt than we think leaves room for a longer answer
    ],
)
def test_what_is_reserved_is_the_prompt_and_every_answer(
    max_tokens: int | None, n: int, context: int, tokens: int
) -> None:
    assert Estimator().reserve("m", "k", 2_500, 0, max_tokens, n, context) == tokens


def test_an_image_costs_the_same_whatever_its_bytes() -> None:
    assert Estimator().reserve("m", "k", 0, 2, 50, 1) == 2 * IMAGE_TOKENS + 50


@pytest.mark.parametrize("bytes_per_token", [1.2, 2.0, 3.5, 4.5])
def test_prompts_are_estimated_high_for_nineteen_of_twenty_and_not_by_much(bytes_per_token: float) -> None:
    chance = random.Random(7)
    estimator = Estimator()
    low, excess, count = 0, 0.0, 4_000
    for number in range(2 * count):
        size = int(chance.lognormvariate(7, 1)) + 50
        tokens = int(size / (bytes_per_token * chance.uniform(0.9, 1.2))) + 8
        if number >= count:
            guess = estimator.prompt("m", size)
            low += guess < tokens
            excess += guess / tokens
        estimator.learn("m", "k", size, 0, tokens, 0)
    assert low / count < 0.07
    assert excess / count < 1.25


def test_a_prompt_with_images_teaches_nothing_of_the_text() -> None:
    estimator = Estimator()
    for _ in range(500):
        estimator.learn("m", "k", 100, 3, 4_000, 0)
    assert estimator.prompt("m", 2_500) == 1_000 + FRAME_TOKENS


def test_a_token_is_never_thought_to_have_less_than_a_byte() -> None:
    estimator = Estimator()
    for _ in range(2_000):
        estimator.learn("m", "k", 100, 0, 10_000, 0)
    assert estimator.prompt("m", 1_000) == 1_000


@pytest.mark.parametrize("scale", [20, 300, 5_000])
def test_the_answers_of_a_key_are_learned_within_a_few_hundred(scale: int) -> None:
    chance = random.Random(11)
    estimator = Estimator()
    longer, count = 0, 3_000
    for number in range(400 + count):
        answer = 1 + int(chance.expovariate(1 / scale))
        if number >= 400:
            longer += answer > estimator.answer("m", "k")
        estimator.learn("m", "k", 100, 0, 40, answer)
    assert 0.02 < longer / count < 0.10


def test_a_new_key_starts_with_what_the_model_is_known_for() -> None:
    estimator = Estimator()
    for _ in range(1_000):
        estimator.learn("m", "old", 100, 0, 40, 30)
    assert estimator.answer("m", "new") == estimator.answer("m", "old") < 100
    assert estimator.answer("other", "new") == ANSWER_TOKENS


def test_several_answers_are_learned_as_one_each() -> None:
    one, four = Estimator(), Estimator()
    for _ in range(300):
        one.learn("m", "k", 100, 0, 40, 50)
        four.learn("m", "k", 100, 0, 40, 200, n=4)
    assert one.answer("m", "k") == four.answer("m", "k")


def test_the_keys_seen_longest_ago_are_forgotten_first() -> None:
    estimator = Estimator(entries_max=2)
    for key in ("a", "b", "a", "c"):
        for _ in range(50):
            estimator.learn("m", key, 100, 0, 40, 5)
    assert set(estimator._answers) == {("a", "m"), ("c", "m")}
