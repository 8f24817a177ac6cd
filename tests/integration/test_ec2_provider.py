"""EC2 as far as it can be seen on loopback: moto's server behind a front, and a twin of the metadata."""

import base64
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from msgspec.structs import replace
from structlog.testing import capture_logs

from holdfast.adapters.providers.ec2 import account, provider
from holdfast.adapters.providers.ec2.order import instances
from holdfast.adapters.providers.ec2.provider import Ec2Provider
from holdfast.agent.notice import left_ms
from holdfast.model.action import LaunchNode
from holdfast.model.place import Place
from holdfast.model.pool import Offer, Pool
from holdfast.model.resources import Resources
from holdfast.model.verdict import Word
from holdfast.ports.errors import (
    CapacityShort,
    Denied,
    NotFound,
    OutcomeUnknown,
    PortError,
    Throttled,
    Unreachable,
)
from holdfast.ports.provider import Join
from holdfast.wiring import Providers, Settings
from tests.ec2_front import NOTHING, Front, Trouble, empty_front, settings
from tests.imds_twin import imds
from tests.stand_in import join, until

WATCHER = Path(provider.__file__).with_name("watch.py")
BLIND = Trouble(("DescribeInstances",), text=NOTHING)


def wish(node: str = "n1", zone: str = "us-east-1a", *, spot: bool = False) -> LaunchNode:
    return LaunchNode(
        node=node,
        pool="gpus",
        offer=f"m5.large@{zone}{':spot' if spot else ''}",
        place=Place("ec2", zone[:-1], zone),
        capacity=Resources(2000, 7000),
        price_micro_usd=96_000,
        spot=spot,
        why="w",
    )


class Bench:
    def __init__(self, front: Front) -> None:
        self.front = front

    def provider(self, credentials: Any = join, **more: str) -> Ec2Provider:
        return Ec2Provider.from_settings(settings(self.front, **more), credentials)

    def pool(self, *offers: Offer) -> Pool:
        return Pool("gpus", "ec2", offers)

    def only(self, region: str = "us-east-1") -> dict[str, Any]:
        (machine,) = self.front.machines(region)
        return machine

    def user_data(self) -> str:
        found = self.front.client().describe_instance_attribute(
            InstanceId=self.only()["InstanceId"], Attribute="userData"
        )
        return base64.b64decode(found["UserData"]["Value"]).decode()


@pytest.fixture
def bench() -> Iterator[Bench]:
    front = empty_front()
    yield Bench(front)
    front.stop()


# launching


async def test_a_machine_carries_everything_it_is_known_by_from_the_first_moment(bench: Bench) -> None:
    await bench.provider(tags="team=ml", key_name="", fleet="prod").launch(wish())
    machine = bench.only()
    tags = {tag["Key"]: tag["Value"] for tag in machine["Tags"]}
    assert tags == {
        "Name": "prod n1",
        "team": "ml",
        "holdfast:fleet": "prod",
        "holdfast:node": "n1",
        "holdfast:pool": "gpus",
        "holdfast:offer": "m5.large@us-east-1a",
    }
    assert machine["InstanceType"] == "m5.large"
    assert machine["Placement"]["AvailabilityZone"] == "us-east-1a"
    assert "CreateTags" not in {asked.action for asked in bench.front.asked}
    words = next(asked.words for asked in bench.front.asked if asked.action == "RunInstances")
    assert words["InstanceInitiatedShutdownBehavior"] == "terminate"
    assert words["MetadataOptions.HttpTokens"] == "required"


async def test_spot_is_asked_for_once_and_ends_when_it_is_taken(bench: Bench) -> None:
    await bench.provider().launch(wish(spot=True))
    assert bench.only()["InstanceLifecycle"] == "spot"
    words = next(asked.words for asked in bench.front.asked if asked.action == "RunInstances")
    assert words["InstanceMarketOptions.SpotOptions.SpotInstanceType"] == "one-time"
    assert words["InstanceMarketOptions.SpotOptions.InstanceInterruptionBehavior"] == "terminate"
    assert "spot-instances-request" in words.values()


async def test_spot_is_asked_for_at_no_more_than_it_may_cost(bench: Bench) -> None:
    """The price may have risen since it was listed, and rises later: EC2 keeps the ceiling then too."""
    await bench.provider().launch(replace(wish(spot=True), price_max_micro_usd=123_456))
    await bench.provider().launch(replace(wish("n2", spot=True)))
    await bench.provider().launch(replace(wish("n3"), price_max_micro_usd=123_456))
    words = [asked.words for asked in bench.front.asked if asked.action == "RunInstances"]
    most = [each.get("InstanceMarketOptions.SpotOptions.MaxPrice") for each in words]
    assert most == ["0.123456", None, None]


async def test_on_demand_is_not_spot(bench: Bench) -> None:
    await bench.provider().launch(wish())
    assert bench.only().get("InstanceLifecycle") != "spot"


async def test_a_new_control_plane_that_cannot_see_the_machine_yet_makes_no_second_one(bench: Bench) -> None:
    await bench.provider().launch(wish())
    bench.front.troubles.append(BLIND)
    await bench.provider().launch(wish())
    assert bench.front.count("RunInstances") == 2
    assert len(bench.front.machines()) == 1


async def test_a_machine_that_was_asked_for_before_an_upgrade_is_still_ours(bench: Bench) -> None:
    async def elsewhere(node: str) -> Join:
        return Join(("https://new:7700",), f"token-of-{node}")

    await bench.provider().launch(wish())
    bench.front.troubles.append(replace_times(BLIND, 1))
    await bench.provider(elsewhere).launch(wish())
    assert len(bench.front.machines()) == 1


async def test_a_token_of_another_request_means_that_there_may_be_a_machine_though_nobody_sees_it(
    bench: Bench,
) -> None:
    """The leader before us asked for it a moment ago, at another address, and EC2 does not show it yet."""

    async def elsewhere(node: str) -> Join:
        return Join(("https://new:7700",), f"token-of-{node}")

    await bench.provider().launch(wish())
    bench.front.troubles.append(BLIND)
    heir = bench.provider(elsewhere)
    with pytest.raises(OutcomeUnknown, match="asked for before"):
        await heir.launch(wish())
    with pytest.raises(OutcomeUnknown, match="does not show it yet"):
        await heir.terminate("n1")
    bench.front.recover()
    await heir.terminate("n1")
    assert bench.only()["State"]["Name"] == "terminated"


async def test_a_spent_name_stays_spent_when_ec2_has_forgotten_the_machine(bench: Bench) -> None:
    first = bench.provider()
    await first.launch(wish())
    await first.terminate("n1")
    bench.front.troubles.append(BLIND)
    await bench.provider().launch(wish())
    assert [machine["State"]["Name"] for machine in bench.front.machines()] == ["terminated"]


def replace_times(trouble: Trouble, times: int) -> Trouble:
    return Trouble(**{**vars(trouble), "times": times})


# what is not shown yet, and what takes its time


async def test_what_was_launched_a_moment_ago_and_is_not_shown_is_not_gone(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = bench.provider()
    await ours.launch(wish())
    bench.front.troubles.append(BLIND)
    assert await ours.state("n1") is Word.UNKNOWN
    with pytest.raises(OutcomeUnknown, match="does not show it yet"):
        await ours.terminate("n1")
    monkeypatch.setattr(provider, "FRESH_S", 0.0)
    assert await ours.state("n1") is Word.STOPPED
    with pytest.raises(NotFound):
        await ours.terminate("n1")


REQUEST = (
    '<DescribeSpotInstanceRequestsResponse xmlns="http://ec2.amazonaws.com/doc/2016-11-15/">'
    "<spotInstanceRequestSet><item><spotInstanceRequestId>sir-1</spotInstanceRequestId>"
    "<instanceId>{machine}</instanceId><state>active</state></item></spotInstanceRequestSet>"
    "</DescribeSpotInstanceRequestsResponse>"
)
CANCELLED = (
    '<CancelSpotInstanceRequestsResponse xmlns="http://ec2.amazonaws.com/doc/2016-11-15/">'
    "<spotInstanceRequestSet><item><spotInstanceRequestId>sir-1</spotInstanceRequestId>"
    "<state>cancelled</state></item></spotInstanceRequestSet></CancelSpotInstanceRequestsResponse>"
)
LINGERS = Trouble(("DescribeInstances",), instead=("<name>terminated<", "<name>shutting-down<"))


async def test_a_termination_is_confirmed_when_the_machine_is_over_and_not_before(bench: Bench) -> None:
    ours = bench.provider()
    await ours.launch(wish())
    bench.front.troubles.append(replace_times(LINGERS, 4))
    await ours.terminate("n1")
    assert bench.front.troubles[0].times == 0
    assert bench.front.count("TerminateInstances") == 1


async def test_a_machine_that_lingers_is_neither_running_nor_gone(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(provider, "GONE_S", 1.0)
    ours = bench.provider()
    await ours.launch(wish())
    bench.front.troubles.append(LINGERS)
    with pytest.raises(OutcomeUnknown, match="not gone within"):
        await ours.terminate("n1")
    assert await ours.state("n1") is Word.UNKNOWN, "what runs there may still run"
    bench.front.recover()
    assert await ours.state("n1") is Word.STOPPED


async def test_a_spot_request_that_waits_is_cancelled_before_its_node_is_called_gone(bench: Bench) -> None:
    tags = [{"Key": "holdfast:node", "Value": "n1"}, {"Key": "holdfast:fleet", "Value": "holdfast"}]
    client = bench.front.client()
    client.request_spot_instances(
        SpotPrice="1",
        LaunchSpecification={"ImageId": "ami-12c6146b", "InstanceType": "m5.large"},
        TagSpecifications=[{"ResourceType": "spot-instances-request", "Tags": tags}],
    )
    await bench.provider().terminate("n1")
    left = client.describe_spot_instance_requests()["SpotInstanceRequests"]
    assert [each["State"] for each in left if each["State"] != "cancelled"] == []
    with pytest.raises(NotFound):
        await bench.provider().terminate("n1")


async def test_a_spot_request_that_was_fulfilled_unseen_is_ended_with_its_machine(bench: Bench) -> None:
    """Its launch was not answered in time, and EC2 does not show the machine yet: only the request."""
    await bench.provider().launch(wish(spot=True))
    machine = bench.only()["InstanceId"]
    request = REQUEST.format(machine=machine)
    bench.front.troubles += [
        replace_times(BLIND, 1),
        Trouble(("DescribeSpotInstanceRequests",), text=request),
        Trouble(("CancelSpotInstanceRequests",), text=CANCELLED),
    ]
    await bench.provider().terminate("n1")
    assert bench.only()["State"]["Name"] == "terminated"


async def test_a_machine_of_a_spot_request_that_cannot_be_ended_yet_is_not_gone(bench: Bench) -> None:
    bench.front.troubles += [
        Trouble(("DescribeSpotInstanceRequests",), text=REQUEST.format(machine="i-0123456789abcdef0")),
        Trouble(("CancelSpotInstanceRequests",), text=CANCELLED),
    ]
    with pytest.raises(OutcomeUnknown, match="does not show it yet"):
        await bench.provider().terminate("n1")


async def test_a_machine_that_is_not_shown_for_a_moment_while_it_ends_is_not_gone(bench: Bench) -> None:
    ours = bench.provider()
    await ours.launch(wish())
    found, looks = ours._find_in, list[int]()

    async def unsteady(region: str, node: str) -> tuple[provider.Found, ...]:
        looks.append(1)
        if len(looks) in (2, 3):
            return ()
        seen = await found(region, node)
        return seen if len(looks) != 4 else tuple(replace(each, state="shutting-down") for each in seen)

    ours._find_in = unsteady  # type: ignore[method-assign]
    await ours.terminate("n1")
    assert len(looks) == 5, "until EC2 says that it is over"


async def test_a_machine_that_ec2_forgets_while_it_ends_is_gone(bench: Bench) -> None:
    ours = bench.provider()
    await ours.launch(wish())
    found, looks = ours._find_in, list[int]()

    async def forgetful(region: str, node: str) -> tuple[provider.Found, ...]:
        looks.append(1)
        return await found(region, node) if len(looks) == 1 else ()

    ours._find_in = forgetful  # type: ignore[method-assign]
    await ours.terminate("n1")
    assert bench.only()["State"]["Name"] == "terminated"


async def test_a_launch_that_waited_for_its_turn_is_fresh_when_it_was_answered(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thousand launches at once wait for each other, for longer than EC2 takes to show one."""
    monkeypatch.setattr(provider, "FRESH_S", 2.0)
    ours = bench.provider()
    done = ours._account.do

    async def slowly(region: str, what: str, **words: Any) -> dict[str, Any]:
        answer = await done(region, what, **words)
        then = time.monotonic()
        monkeypatch.setattr(provider, "time", SimpleNamespace(monotonic=lambda: then + 60.0))
        return answer

    ours._account.do = slowly  # type: ignore[method-assign]
    await ours.launch(wish())
    bench.front.troubles.append(BLIND)
    assert await ours.state("n1") is Word.UNKNOWN


# finding


async def test_a_machine_without_its_name_is_told_of_and_not_taken_for_a_node(bench: Bench) -> None:
    """Somebody took the tag away: nobody can say which node it is, and it costs money."""
    ours = bench.provider()
    await ours.launch(wish("n1"))
    await ours.launch(wish("n2"))
    first = next(m for m in bench.front.machines() if {"Key": "holdfast:node", "Value": "n1"} in m["Tags"])
    bench.front.client().delete_tags(Resources=[first["InstanceId"]], Tags=[{"Key": "holdfast:node"}])
    with capture_logs() as logged:
        assert await ours.list("gpus") == ("n2",)
    assert [line["machine"] for line in logged] == [first["InstanceId"]]


async def test_machines_are_found_in_all_regions(bench: Bench) -> None:
    both = {"regions": "us-east-1,eu-west-1", "image": "us-east-1=ami-12c6146b,eu-west-1=ami-12c6146b"}
    ours = bench.provider(**both)
    await ours.launch(wish("n1"))
    await ours.launch(wish("n2", "eu-west-1b"))
    assert bench.only("eu-west-1")["Placement"]["AvailabilityZone"] == "eu-west-1b"
    heir = bench.provider(**both)
    assert sorted(await heir.list("gpus")) == ["n1", "n2"]
    assert await bench.provider(**both).state("n2") is Word.RUNNING
    await bench.provider(**both).terminate("n2")
    assert await heir.list("gpus") == ("n1",)


async def test_a_list_without_one_of_its_regions_is_no_list(bench: Bench) -> None:
    ours = bench.provider(regions="us-east-1,eu-west-1")
    await ours.launch(wish("n1"))
    bench.front.troubles.append(Trouble(("DescribeInstances",), "InternalError", 500, region="eu-west-1"))
    with pytest.raises(Unreachable):
        await ours.list("gpus")
    with pytest.raises(Unreachable):
        await ours.terminate("nobody")
    assert await ours.state("n1") is Word.RUNNING, "it is known where that one is"


async def test_a_machine_of_a_lost_launch_is_found_and_ended_by_whoever_comes_next(bench: Bench) -> None:
    bench.front.troubles.append(Trouble(("RunInstances",), lost=True, done=True))
    with pytest.raises(OutcomeUnknown):
        await bench.provider().launch(wish())
    bench.front.recover()
    heir = bench.provider()
    assert await heir.list("gpus") == ("n1",)
    await heir.terminate("n1")
    assert await heir.list("gpus") == ()


async def test_a_stopped_machine_costs_money_and_is_listed(bench: Bench) -> None:
    ours = bench.provider()
    await ours.launch(wish())
    bench.front.client().stop_instances(InstanceIds=[bench.only()["InstanceId"]])
    assert await ours.list("gpus") == ("n1",)
    assert await ours.state("n1") is Word.STOPPED
    await ours.terminate("n1")
    assert await ours.list("gpus") == ()


async def test_the_machines_of_another_fleet_in_the_same_account_are_not_ours(bench: Bench) -> None:
    theirs, ours = bench.provider(fleet="theirs"), bench.provider(fleet="ours")
    await theirs.launch(wish())
    assert await ours.list("gpus") == ()
    with pytest.raises(NotFound):
        await ours.terminate("n1")
    await ours.launch(wish())
    assert len(bench.front.machines()) == 2
    await ours.terminate("n1")
    assert await theirs.state("n1") is Word.RUNNING


# errors


@pytest.mark.parametrize(
    ("code", "status", "meant"),
    [
        ("InsufficientInstanceCapacity", 500, CapacityShort),
        ("SpotMaxPriceTooLow", 400, CapacityShort),
        ("MaxSpotInstanceCountExceeded", 400, CapacityShort),
        ("InstanceLimitExceeded", 400, CapacityShort),
        ("VcpuLimitExceeded", 400, CapacityShort),
        ("Unsupported", 400, CapacityShort),
        ("RequestLimitExceeded", 503, Throttled),
        ("Throttling", 400, Throttled),
        ("UnauthorizedOperation", 403, Denied),
        ("AuthFailure", 401, Denied),
        ("ExpiredToken", 400, Denied),
        ("InvalidAMIID.NotFound", 400, Denied),
        ("OptInRequired", 401, Denied),
        ("InvalidParameterValue", 400, Denied),
        ("Surprise", 400, Denied),
        ("InternalError", 500, OutcomeUnknown),
        ("Unavailable", 503, OutcomeUnknown),
    ],
)
async def test_what_ec2_answers_is_named_for_the_next_move(
    bench: Bench, code: str, status: int, meant: type[PortError]
) -> None:
    bench.front.troubles.append(Trouble(("RunInstances",), code, status))
    ours = bench.provider()
    with pytest.raises(meant, match=code) as told:
        await ours.launch(wish())
    assert type(told.value) is meant
    assert bench.front.count("RunInstances") == 1, "whether to ask again is not decided here"
    bench.front.recover()
    assert await ours.list("gpus") == ()
    await ours.launch(wish())
    assert await ours.list("gpus") == ("n1",)


async def test_a_throttled_call_says_when_to_come_again(bench: Bench) -> None:
    bench.front.troubles.append(
        Trouble(("RunInstances",), "RequestLimitExceeded", 503, headers={"Retry-After": "9"})
    )
    with pytest.raises(Throttled) as told:
        await bench.provider().launch(wish())
    assert told.value.retry_after_ms == 9_000


async def test_no_answer_in_time_leaves_open_whether_there_is_a_machine(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(account, "DO_S", 0.3)
    bench.front.troubles.append(Trouble(("RunInstances",), hangs_s=1.5, done=True))
    ours = bench.provider()
    with pytest.raises(OutcomeUnknown, match=r"[Tt]imeout"):
        await ours.launch(wish())
    bench.front.recover()
    assert await ours.list("gpus") == ("n1",)


async def test_an_answer_that_is_not_ec2s_leaves_it_open_too(bench: Bench) -> None:
    page = Trouble(("RunInstances", "DescribeInstances"), text="<!doctype html><h1>Bad gateway")
    bench.front.troubles.append(Trouble(**{**vars(page), "actions": ("RunInstances",)}))
    ours = bench.provider()
    with pytest.raises(OutcomeUnknown):
        await ours.launch(wish())
    bench.front.troubles[:] = [page]
    with pytest.raises(Unreachable):
        await ours.list("gpus")


async def test_renewed_credentials_are_used_without_a_restart(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.front.troubles.append(Trouble(("DescribeInstances",), "ExpiredToken", times=1))
    ours = bench.provider()
    with pytest.raises(Denied, match="renew the credentials"):
        await ours.list("gpus")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "renewed")
    assert await ours.list("gpus") == ()
    assert bench.front.asked[-1].key == "renewed"


async def test_without_credentials_nothing_is_asked(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    with pytest.raises(Denied, match="give the control plane credentials"):
        await bench.provider().list("gpus")
    assert bench.front.asked == []


async def test_a_profile_that_is_not_there_is_for_a_person(bench: Bench) -> None:
    with pytest.raises(Denied, match="nobody"):
        await bench.provider(profile="nobody").list("gpus")


async def test_without_boto3_it_says_what_to_install(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "boto3", None)
    with pytest.raises(Denied, match=r"holdfast\[aws\]"):
        await bench.provider().list("gpus")


# offers


def named(offers: tuple[Offer, ...]) -> dict[str, int]:
    return {offer.name: offer.price_micro_usd for offer in offers}


async def test_offers_are_types_in_zones_with_todays_prices(bench: Bench) -> None:
    bench.front.prices = {("us-east-1", "m5.large"): "0.0960000000"}
    bench.front.spot_prices = {("m5.large", "us-east-1a"): "0.0351", ("g4dn.xlarge", "us-east-1a"): "0.2"}
    ours = bench.provider(instance_types="m5.large,g4dn.xlarge,no.such")
    found = await ours.offers(bench.pool(Offer("a", Place("ec2", "-", "a"), Resources())))
    prices = named(found)
    assert prices["m5.large@us-east-1a"] == 96_000
    assert prices["m5.large@us-east-1a:spot"] == 35_100
    assert prices["g4dn.xlarge@us-east-1a:spot"] == 200_000
    assert "g4dn.xlarge@us-east-1a" not in prices, "nobody knows its price on demand"
    assert "m5.large@us-east-1b:spot" not in prices
    assert all(prices.values())
    gpu = next(offer for offer in found if offer.name == "g4dn.xlarge@us-east-1a:spot")
    assert (gpu.capacity.gpu_milli, gpu.capacity.gpu_kind) == (1000, "t4")
    assert gpu.capacity.cpu_milli == 4000
    assert 0.9 * 16_384 < gpu.capacity.memory_mib < 16_384
    assert gpu.place == Place("ec2", "us-east-1", "us-east-1a")
    assert gpu.spot


@pytest.mark.parametrize(("buy", "spot"), [("spot", {True}), ("on-demand", {False})])
async def test_a_pool_may_buy_one_kind_only(bench: Bench, buy: str, spot: set[bool]) -> None:
    bench.front.spot_prices = {("m5.large", "us-east-1a"): "0.0351"}
    ours = bench.provider(instance_types="m5.large", prices="m5.large=0.1", buy=buy)
    found = await ours.offers(bench.pool(Offer("a", Place("ec2", "-", "a"), Resources())))
    assert {offer.spot for offer in found} == spot


async def test_an_offer_that_was_listed_can_be_launched(bench: Bench) -> None:
    ours = bench.provider(instance_types="m5.large", prices="m5.large=0.1")
    spot = next(offer for offer in await ours.offers(bench.pool()) if offer.spot)
    await ours.launch(replace(wish(), offer=spot.name, place=spot.place, spot=True))
    assert bench.only()["InstanceType"] == "m5.large"
    assert bench.only()["InstanceLifecycle"] == "spot"


async def test_where_the_price_list_does_not_answer_the_written_prices_count(bench: Bench) -> None:
    both = {"regions": "us-east-1,eu-west-1", "instance_types": "m5.large,c5.large,r5.large"}
    ours = bench.provider(**both, prices="m5.large=0.096,eu-west-1/m5.large=0.107,c5.large=0.085")
    prices = named(await ours.offers(bench.pool()))
    assert prices["m5.large@us-east-1a"] == 96_000
    assert prices["m5.large@eu-west-1a"] == 107_000
    assert prices["c5.large@us-east-1a"] == 85_000
    assert "r5.large@us-east-1a" not in prices
    asked = bench.front.count("GetProducts")
    assert asked <= 2, "at most once for each region, whatever the number of types"
    await ours.offers(bench.pool())
    assert bench.front.count("GetProducts") == asked, "and it is not asked again at once"


async def test_offers_by_hand_are_all_there_are_and_get_the_price_of_the_day(bench: Bench) -> None:
    bench.front.prices = {("us-east-1", "m5.large"): "0.0960000000"}
    bench.front.spot_prices = {("m5.large", "us-east-1a"): "0.0351"}
    here, has = Place("ec2", "us-east-1", "us-east-1a"), Resources(1000, 1000)
    by_hand = (
        Offer("m5.large@us-east-1a", here, has, 5),
        Offer("m5.large@us-east-1a:spot", here, has, 5, spot=True),
        Offer("c5.large@us-east-1a", here, has, 85_000),
        Offer("c5.xlarge@us-east-1a", here, has, 0),
    )
    found = await bench.provider(instance_types="r5.large").offers(bench.pool(*by_hand))
    assert named(found) == {
        "m5.large@us-east-1a": 96_000,
        "m5.large@us-east-1a:spot": 35_100,
        "c5.large@us-east-1a": 85_000,
    }
    assert {offer.capacity for offer in found} == {has}


async def test_a_pool_that_says_nothing_of_types_is_told_what_to_write(bench: Bench) -> None:
    with pytest.raises(Denied, match="write instance_types"):
        await bench.provider().offers(bench.pool(Offer("a", Place("ec2"), Resources())))


# in a control plane


async def test_a_pool_of_ec2_gets_one_provider_and_wrong_settings_are_told(
    bench: Bench, tmp_path: Path
) -> None:
    providers = Providers(Settings(tmp_path), cast(Any, None), "http://127.0.0.1:1")
    pool = Pool("gpus", "ec2", (), settings=settings(bench.front))
    made = providers.of(pool)
    assert isinstance(made, Ec2Provider)
    assert providers.of(replace(pool, name="others")) is made
    assert await made.list("gpus") == ()
    with pytest.raises(Denied, match="image: expected an image"):
        providers.of(replace(pool, settings={"regions": "us-east-1"}))
    await providers.close()


# the machine itself

PYTHON = """\
#!/bin/sh
case "$*" in
  *watch.py*) exec {python} "$@" ;;
  *--help*) [ -e {folder}/broken ] && rm {folder}/broken && exit 1; exit 0 ;;
  *) echo "$$ $*" >> {folder}/agents; exec sleep 1000 ;;
esac
"""


@contextlib.contextmanager
def booted(script: str, folder: Path, metadata: str) -> Iterator[subprocess.Popen[bytes]]:
    """The script, run as a machine would, in a folder of its own; a stand-in is what it installs."""
    own = {"HOLDFAST_HOME": str(folder / "home"), "HOLDFAST_METADATA": f"{metadata} 0.05"}
    (folder / "python").write_text(PYTHON.format(python=sys.executable, folder=folder))
    (folder / "python").chmod(0o755)
    running = subprocess.Popen(
        ["sh", "-s"], stdin=subprocess.PIPE, env={**os.environ, **own}, start_new_session=True
    )
    try:
        running.communicate(script.encode(), timeout=60)
        yield running
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(running.pid, signal.SIGKILL)


def agents(folder: Path) -> list[str]:
    noted = folder / "agents"
    return noted.read_text().splitlines() if noted.exists() else []


async def test_a_machine_installs_the_agent_starts_it_again_and_passes_a_notice_on(
    bench: Bench, tmp_path: Path
) -> None:
    line = f"sh: cp {tmp_path}/python bin/python"
    await bench.provider(install=line).launch(wish())
    root = tmp_path / "home" / "node" / "agent"
    with imds() as twin, booted(bench.user_data(), tmp_path, twin.url):
        until("the agent runs", lambda: len(agents(tmp_path)) == 1)
        first = agents(tmp_path)[0]
        assert f"--join http://127.0.0.1:1 --name n1 --root {root} --token-file" in first
        assert "--offer m5.large@us-east-1a --place ec2/us-east-1/us-east-1a/-" in first
        token = tmp_path / "home" / "node" / "token"
        assert token.read_text() == "token-of-n1"
        assert token.stat().st_mode & 0o077 == 0
        for passage in (tmp_path / "home", tmp_path / "home" / "node"):
            assert passage.stat().st_mode & 0o777 == 0o711, "users of workloads go through it"
        os.kill(int(first.split()[0]), signal.SIGKILL)
        until("it is started again", lambda: len(agents(tmp_path)) == 2)
        assert left_ms(root / "notice") is None
        twin.announce(120)
        until("the notice is there", lambda: left_ms(root / "notice") is not None)
        assert 115_000 < (left_ms(root / "notice") or 0) <= 121_000


async def test_an_installation_that_fails_is_tried_again(bench: Bench, tmp_path: Path) -> None:
    await bench.provider(install=f"sh: cp {tmp_path}/python bin/python").launch(wish())
    (tmp_path / "broken").touch()
    with imds() as twin, booted(bench.user_data(), tmp_path, twin.url):
        until("the agent runs", lambda: len(agents(tmp_path)) == 1)
    assert not (tmp_path / "broken").exists()


@contextlib.contextmanager
def watching(folder: Path, url: str) -> Iterator[None]:
    running = subprocess.Popen(
        [sys.executable, "-I", "-S", str(WATCHER), str(folder), url, "0.02"], stdout=subprocess.DEVNULL
    )
    try:
        yield
    finally:
        running.kill()
        running.wait()


@pytest.mark.parametrize("ahead_s", [-3600.0, 0.0, 3600.0])
def test_how_long_is_left_is_right_even_if_the_clocks_are_not(tmp_path: Path, ahead_s: float) -> None:
    with imds() as twin:
        twin.ahead_s = ahead_s
        twin.announce(120)
        with watching(tmp_path, twin.url):
            until("the notice is there", (tmp_path / "notice").exists)
    assert 110_000 < (left_ms(tmp_path / "notice") or 0) <= 122_000


def test_the_watcher_outlives_a_metadata_service_that_does_not(tmp_path: Path) -> None:
    with imds() as twin, watching(tmp_path, twin.url):
        until("it asked", lambda: 404 in twin.answered)
        twin.breaks = True
        until("it was refused", lambda: 500 in twin.answered)
        twin.breaks, twin.token = False, "t-2"
        twin.action = "what is this"
        seen = len(twin.answered)
        until("it asked again", lambda: twin.answered[seen:].count(200) > 4)
        assert not (tmp_path / "notice").exists()
        twin.announce(60)
        until("the notice is there", (tmp_path / "notice").exists)
        written = (tmp_path / "notice").stat().st_mtime_ns
        time.sleep(0.2)
        assert (tmp_path / "notice").stat().st_mtime_ns == written, "and it is said once"


def test_an_answer_without_machines_has_none() -> None:
    assert instances({}) == []
