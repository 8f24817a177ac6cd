"""What is told of a service on spot and on demand: where it stands, why, what was learnt, its price."""

from msgspec.structs import replace

from holdfast.api import views
from holdfast.core.explain.explain import explain_workload
from holdfast.core.explain.spot_mix import Told
from tests.unit.test_mixing import PAID, SPOT, Mixed


def told(play: Mixed) -> list[str]:
    return list(explain_workload(play.world, "web", play.now).because)


def figures(play: Mixed) -> Told:
    found = explain_workload(play.world, "web", play.now).mix
    assert found is not None
    return found


def test_it_says_how_many_stand_where_and_what_was_asked_for() -> None:
    play = Mixed(on_demand=1, spares=1)
    play.minutes(10)
    lines = told(play)
    assert "2 on spot and 1 on demand; 3 wanted, 1 of them always on demand, and 1 spare on spot" in lines
    assert any(
        line.startswith("spot pool/spot-a: ") and "$1.00/h, expected to stay" in line for line in lines
    )
    of = figures(play)
    assert (of.wanted, of.floor, of.spares, of.on_demand, of.spot) == (3, 1, 1, 1, 2)


def test_what_comes_and_what_goes_is_told_by_offer() -> None:
    play = Mixed()
    play.minutes(1)
    assert any(line.startswith("spot pool/spot-a: 2 coming, $1.00/h") for line in told(play))
    play.minutes(10)
    play.there["spot-a"] = False
    play.minutes(1)
    (line,) = [line for line in told(play) if line.startswith("spot pool/spot-a: ")]
    assert "2 of them under notice" in line
    assert line.endswith("it has taken nodes away in the last minutes")


def test_on_demand_beyond_the_floor_is_explained_by_the_spot_that_is_not_there() -> None:
    play = Mixed(on_demand=1)
    play.minutes(10)
    play.there.update({"spot-a": False, "spot-b": False})
    play.minutes(30)
    standing = "0 on spot and 3 on demand; 3 wanted, 1 of them always on demand. "
    assert f"{standing}2 on demand because there is no spot to be had" in told(play)
    assert any("none may be had now" in line for line in told(play))


def test_the_losses_that_were_learnt_are_told() -> None:
    play = Mixed(on_demand=1)
    play.minutes(10)
    assert any("0.000 losses of a single node an hour" in line for line in told(play))
    assert any("(assumed, as none was seen yet)" in line for line in told(play))
    play.there["spot-a"] = False
    play.minutes(30)
    assert figures(play).learnt.alone_per_hour > 0.3
    (line,) = [line for line in told(play) if line.startswith("learnt: ")]
    assert "0.000" not in line
    assert "fewer ready than wanted 0.00 % of the time, 1 % is accepted" in told(play)


def test_the_alternatives_have_their_prices() -> None:
    play = Mixed(on_demand=1)
    play.minutes(10)
    ways = {way.name: way for way in figures(play).ways}
    assert {name: way.price for name, way in ways.items()} == {
        "as it is": PAID + 2 * SPOT,
        "as asked": PAID + 2 * SPOT,
        "all on spot": 3 * SPOT,
        "all on demand": 3 * PAID,
    }
    assert ways["all on demand"].losses == 0 < ways["as it is"].losses < ways["all on spot"].losses
    lines = told(play)
    assert any(line.startswith("instead, all on spot: $3.00/h ($2.00 less), and losses") for line in lines)
    assert "instead, all on demand: $9.00/h ($4.00 more)" in lines
    assert not any("as asked" in line for line in lines), "it is as asked"


def test_what_nobody_offers_is_no_alternative() -> None:
    play = Mixed("spot")
    play.minutes(10)
    assert [way.name for way in figures(play).ways] == ["as it is", "all on spot"]
    play = Mixed("paid", on_demand=1)
    play.minutes(10)
    assert [way.name for way in figures(play).ways] == ["as it is", "all on demand"]


def test_a_program_gets_the_same_figures() -> None:
    play = Mixed(on_demand=1)
    play.minutes(10)
    shape = views.mix(figures(play))
    assert shape is not None
    assert (shape.wanted, shape.floor, shape.on_demand, shape.spot) == (3, 1, 1, 2)
    assert [(offer.key, offer.ready) for offer in shape.offers] == [("pool/spot-a", 1), ("pool/spot-b", 1)]
    assert [way.name for way in shape.ways] == ["as it is", "as asked", "all on spot", "all on demand"]
    assert views.mix(None) is None


def test_nothing_is_told_of_a_mix_that_there_is_not() -> None:
    play = Mixed()
    play.minutes(5)
    web = play.world.workloads["web"]
    play.apply(replace(web, paused=True))
    assert explain_workload(play.world, "web", play.now).mix is None
