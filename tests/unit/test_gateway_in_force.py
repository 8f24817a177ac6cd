"""Which limits hold for a key, and which names of teams and models are known."""

import pytest

from holdfast.core.gateway.quota.limits import scopes_of
from holdfast.core.gateway.quota.limits_in_force import InForce, is_served, teams
from holdfast.model.gateway import Limits, may_use
from holdfast.wire.keys import KeyWanted, NotKnown, check_names, met_by_nobody
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


@pytest.mark.parametrize(("models", "met"), [((), True), (("a-1",), True), (("a-*",), True), (("b",), False)])
def test_a_limit_of_models_with_a_star_is_in_force_for_a_key_of_one_of_them(
    models: tuple[str, ...], met: bool
) -> None:
    assert ("model:a-*" in InForce({"model:a-*": ONE}).of(key(models=models))) is met


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


@pytest.mark.parametrize(
    ("scope", "why"),
    [
        ("global", ""),
        ("team:red", ""),
        ("team:blue/model:toy", ""),
        ("team:redd", "there is no team called redd yet. Did you mean: red"),
        ("model:toy", ""),
        ("model:llama-7b", ""),
        ("model:llama-*", ""),
        ("model:llama-7*", "no service names a model so: llama-7*. Did you mean: llama-*"),
        ("team:red/model:tyo", "no service names a model so: tyo. Did you mean: toy"),
        ("key:ci/model:toy*", "no service names a model so: toy*. Did you mean: toy"),
    ],
)
def test_a_limit_that_nobody_meets_is_said_to_be_one(scope: str, why: str) -> None:
    """A misspelt team was limited without a word, though a key of it is refused."""
    assert met_by_nobody(scope, SET, [key(id="ci")], ["toy", "llama-*"]) == why
    assert met_by_nobody("model:any", {}, (), ()) == "", "nothing is served yet"
