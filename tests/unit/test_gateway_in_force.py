"""Which limits hold for a key, and which names of teams and models are known."""

import pytest

from holdfast.core.gateway.quota.limits import scopes_of
from holdfast.core.gateway.quota.limits_in_force import InForce, is_served, teams
from holdfast.model.gateway import Limits, may_use
from holdfast.wire.keys import KeyWanted, NotKnown, check_names
from tests.gateways import key

ONE = Limits(tokens_per_min=1)
SET = dict.fromkeys(
    (
        "global",
        "model:a",
        "model:b",
        "team:red",
        "team:red/model:a",
        "team:blue",
        "key:ci/model:a",
        "key:ci/model:b",
        "key:other/model:a",
    ),
    ONE,
)


@pytest.mark.parametrize("team", ["", "red", "blue", "rde"])
@pytest.mark.parametrize("models", [(), ("a",), ("a*", "c")])
@pytest.mark.parametrize("own", [Limits(), ONE])
def test_in_force_is_what_some_request_of_the_key_would_meet(
    team: str, models: tuple[str, ...], own: Limits
) -> None:
    one = key(id="ci", team=team, models=models, limits=own)
    met = {
        scope
        for model in ("a", "b", "c")
        if may_use(one, model)
        for scope in scopes_of(one, model)
        if scope in SET or (scope == "key:ci" and own != Limits())
    }
    assert set(InForce(SET).of(one)) == met


def test_a_scope_whose_limits_were_taken_away_limits_nobody() -> None:
    assert InForce({"global": Limits()}).of(key()) == {}


def test_a_team_is_known_by_its_limits_or_by_its_keys() -> None:
    assert teams(["global", "team:red/model:a", "key:x"], [key(team="blue"), key()]) == {"red", "blue"}


@pytest.mark.parametrize(
    ("model", "served"), [("toy", True), ("toy-7", True), ("to*", True), ("tyo", False), ("x*", False)]
)
def test_a_model_is_served_by_its_name_or_by_one_with_a_star(model: str, served: bool) -> None:
    assert is_served(model, ["toy", "toy-*"]) is served


@pytest.mark.parametrize(
    ("wanted", "hint"),
    [
        (KeyWanted(team="rde"), "Did you mean: red; if the team is new: --new-team (new_team: true)"),
        (KeyWanted(team="zzzz"), "There is: blue, red; if the team is new: --new-team (new_team: true)"),
        (KeyWanted(models=("tyo",)), "Did you mean: toy; if the model is new: --new-model (new_model: true)"),
    ],
)
def test_a_name_that_is_not_known_is_refused_with_what_may_have_been_meant(
    wanted: KeyWanted, hint: str
) -> None:
    with pytest.raises(NotKnown) as caught:
        check_names(wanted, SET, (), ["toy"])
    assert caught.value.hint == hint
    check_names(KeyWanted(team=wanted.team, models=wanted.models, new_team=True, new_model=True), SET, (), [])
