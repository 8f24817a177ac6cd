"""What a gateway goes by: changes lead to the same view as the whole of it."""

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from holdfast.gateway.settings import Service
from holdfast.gateway.view import NOTHING, View, changed, difference
from holdfast.model.gateway import Grade, Key, Limits

IDS = st.sampled_from("abcde")
KEYS = st.builds(
    Key, IDS, st.sampled_from([b"1", b"2"]), grade=st.sampled_from(Grade), note=st.sampled_from("xy")
)
LIMITS = st.dictionaries(IDS, st.builds(Limits, concurrent=st.integers(1, 3)))
VIEWS = st.builds(
    View,
    services=st.lists(st.builds(Service, name=IDS), max_size=2).map(tuple),
    keys=st.lists(KEYS).map(lambda keys: {key.id: key for key in keys}),
    limits=LIMITS,
    clamps=st.dictionaries(IDS, st.just(0.1)),
)


@given(VIEWS, VIEWS)
def test_a_difference_leads_from_one_view_to_the_other(before: View, after: View) -> None:
    change = difference(before, after)
    assert changed(before, replace(change, number=7)) == replace(after, number=7)
    assert (change == NOTHING) is (before == after)
    assert all(before.keys[id].hash != after.keys[id].hash for id in change.gone if id in after.keys)


def test_of_a_key_made_anew_under_an_old_name_all_is_told() -> None:
    """Whoever hears that a key is gone forgets its limits for models: those of the new one, if they were the
    same, were not told, and it was not held to them."""
    limits, clamps = {"key:a/model:m": Limits(concurrent=1), "global": Limits(concurrent=2)}, {"a": 0.1}
    before = View(keys={"a": Key("a", b"1")}, limits=limits, clamps=clamps)
    change = difference(before, replace(before, keys={"a": Key("a", b"2")}))
    assert change.gone == ("a",)
    assert change.limits == {"key:a/model:m": Limits(concurrent=1)}
    assert change.clamps == clamps


@given(VIEWS)
def test_what_is_the_same_is_no_change(view: View) -> None:
    assert difference(view, replace(view, number=9)) == NOTHING
