"""What needs no EC2 to be asked: settings, names, error words, prices, and what a machine is told."""

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from holdfast.adapters.providers.ec2 import order
from holdfast.adapters.providers.ec2.account import CONNECT_S, DO_S, LOOK_S, LOOKS
from holdfast.adapters.providers.ec2.faults import CODES, THROTTLED_MS, translated
from holdfast.adapters.providers.ec2.machine import BYTES_MAX, user_data
from holdfast.adapters.providers.ec2.market import listed_price, micro_usd
from holdfast.adapters.providers.ec2.settings import TAKES, read_settings
from holdfast.control.perform import CALL_S
from holdfast.files.workload.workload_file import documents
from holdfast.model.action import LaunchNode
from holdfast.model.place import Place
from holdfast.model.pool import Pool
from holdfast.model.resources import Resources
from holdfast.ports.errors import Denied, OutcomeUnknown, PortError, Throttled, Unreachable
from holdfast.ports.provider import Join

GOOD = {"regions": "us-east-1, eu-west-1", "image": "us-east-1=ami-1,eu-west-1=ami-2", "install": "holdfast"}
TEXTS = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=60)


def wish(**more: object) -> LaunchNode:
    plain = LaunchNode(
        node="n1",
        pool="pool",
        offer="m5.large@us-east-1a",
        place=Place("ec2", "us-east-1", "us-east-1a"),
        capacity=Resources(2000, 7000),
        price_micro_usd=96_000,
        spot=False,
        why="w",
    )
    return replace(plain, **more)


# settings


def test_settings_are_read_as_people_write_them() -> None:
    read = read_settings(
        {
            **GOOD,
            "security_groups": "us-east-1=sg-1,us-east-1=sg-2,sg-9",
            "subnets": "us-east-1a=subnet-1",
            "tags": "team=ml, url=a=b",
            "prices": "m5.large=0.096,eu-west-1/m5.large=0.107",
        }
    )
    assert read.regions == ("us-east-1", "eu-west-1")
    assert read.security_groups == {"us-east-1": ("sg-1", "sg-2"), "": ("sg-9",)}
    assert read.tags == {"team": "ml", "url": "a=b"}
    assert read.prices == {"m5.large": 96_000, "eu-west-1/m5.large": 107_000}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"regions": ""}, "regions: expected regions such as us-east-1,eu-west-1, got nothing"),
        ({"image": ""}, "image: expected an image"),
        ({"install": " "}, "install: expected anything that pip installs"),
        ({"regoins": "x"}, "regoins is none of regions, image"),
        ({"regions": "US EAST"}, "regions such as us-east-1,eu-west-1, got US EAST"),
        ({"regions": ","}, "got ,"),
        ({"image": "us-east-1=ami-1"}, "image: expected one for eu-west-1 too, got us-east-1=ami-1"),
        ({"instance_types": "large"}, "instance types such as m5.large,g5.xlarge, got large"),
        ({"subnets": "subnet-1"}, "a subnet for each zone such as us-east-1a=subnet-0123, got subnet-1"),
        ({"subnets": "ap-south-1a=subnet-1"}, "zones in us-east-1, eu-west-1, got ap-south-1a"),
        ({"tags": "holdfast:node=x"}, "none that begins with holdfast:"),
        ({"tags": "x"}, "tags such as team=ml"),
        ({"prices": "m5.large=free"}, "dollars an hour on demand"),
        ({"prices": "m5.large=0"}, "dollars an hour on demand"),
        ({"prices": "m5.large=-1"}, "dollars an hour on demand"),
        ({"endpoint_url": "ec2.example.org"}, "endpoint_url: expected a URL"),
        ({"fleet": "a b"}, "fleet: expected a name"),
    ],
)
def test_what_is_wrong_is_told_with_what_to_write(change: dict[str, str], said: str) -> None:
    with pytest.raises(Denied) as told:
        read_settings({**GOOD, **change})
    assert said in str(told.value)


def test_everything_that_is_wrong_is_told_at_once() -> None:
    with pytest.raises(Denied) as told:
        read_settings({"regions": "X", "zzz": "1"})
    assert all(word in str(told.value) for word in ("got X", "zzz is none", "image: expected", "install"))


@given(st.dictionaries(st.sampled_from(sorted(TAKES.kinds)), TEXTS))
def test_whatever_is_written_is_read_or_denied(written: dict[str, str]) -> None:
    said = ""
    try:
        read = read_settings(written)
    except Denied as error:
        said = str(error)
    assert "expected" in said if said else read.regions and read.image


def test_every_example_of_a_setting_can_be_read() -> None:
    for kind in TAKES.kinds.values():
        kind.read(kind.example)


def test_the_pool_of_the_guide_can_be_used_as_it_is_written() -> None:
    guide = Path(__file__).resolve().parents[2] / "docs" / "how-to" / "ec2-pool.md"
    (text,) = re.findall(r"^```yaml\n(.*?)^```", guide.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    (pool,) = documents(text, "ec2-pool.md")
    assert isinstance(pool, Pool)
    settings = read_settings(pool.settings)
    for offer in pool.offers:
        request = wish(offer=offer.name, place=offer.place, spot=offer.spot)
        words = order.run_words(request, settings, "")
        assert words["InstanceType"] == "g5.xlarge"
        assert words["Placement"]["AvailabilityZone"] == offer.place.zone
        assert ("InstanceMarketOptions" in words) == offer.name.endswith(":spot")
    assert [name for name in TAKES.kinds if f"`{name}`" not in guide.read_text(encoding="utf-8")] == []


# what is asked


@pytest.mark.parametrize(
    ("offer", "kind"),
    [
        ("m5.large@us-east-1a", "m5.large"),
        ("g5.12xlarge@us-east-1a:spot", "g5.12xlarge"),
        ("m5.large", "m5.large"),
        ("u-6tb1.metal@x@y", "u-6tb1.metal"),
        ("a", ""),
        ("std-n1", ""),
        ("@us-east-1a", ""),
    ],
)
def test_an_offer_names_its_type_up_to_the_first_at(offer: str, kind: str) -> None:
    assert order.instance_type(offer) == kind


def test_the_same_node_is_the_same_request_whoever_asks_and_why() -> None:
    settings = read_settings(GOOD)
    first = order.run_words(wish(), settings, "data")
    again = order.run_words(
        wish(why="asked for by the leader before us", price_micro_usd=5), settings, "data"
    )
    assert first == again


@given(TEXTS, TEXTS, TEXTS, TEXTS)
def test_tokens_differ_with_node_and_fleet_and_fit(fleet: str, node: str, other: str, name: str) -> None:
    token = order.token(fleet, node)
    assert len(token) <= 64
    assert token.isascii()
    assert (token == order.token(fleet, name)) == (node == name)


@pytest.mark.parametrize(("zone", "whole"), [("us-east-1a", "us-east-1a"), ("a", "us-east-1a"), ("-", "")])
def test_a_zone_may_be_written_by_its_letter(zone: str, whole: str) -> None:
    words = order.run_words(wish(place=Place("ec2", "us-east-1", zone)), read_settings(GOOD), "")
    assert words.get("Placement", {"AvailabilityZone": ""}) == {"AvailabilityZone": whole}


def test_a_subnet_goes_with_its_zone() -> None:
    settings = read_settings({**GOOD, "subnets": "us-east-1a=subnet-1,us-east-1b=subnet-2"})
    assert order.run_words(wish(), settings, "")["SubnetId"] == "subnet-1"
    with pytest.raises(Denied, match="no subnet for us-east-1c: write subnets"):
        order.run_words(wish(place=Place("ec2", "us-east-1", "us-east-1c")), settings, "")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"offer": "a"}, "names no instance type"),
        ({"place": Place("ec2", "ap-south-1", "ap-south-1a")}, "none of the pool's regions"),
    ],
)
def test_an_offer_that_makes_no_sense_is_denied(change: dict[str, object], said: str) -> None:
    with pytest.raises(Denied, match=said):
        order.run_words(wish(**change), read_settings(GOOD), "")


# errors


class Said(Exception):
    """As botocore's ClientError carries an answer."""

    def __init__(self, code: str, status: int, **headers: str) -> None:
        super().__init__(code)
        self.response = {
            "Error": {"Code": code, "Message": "m" * 1000},
            "ResponseMetadata": {"HTTPStatusCode": status, "HTTPHeaders": headers},
        }


@given(st.sampled_from(CODES), st.sampled_from([400, 403, 500, 503]), st.booleans())
def test_a_known_code_means_the_same_whatever_the_status(
    entry: tuple[str, type[PortError], str], status: int, only_looks: bool
) -> None:
    pattern, meant, hint = entry
    error = translated(Said(pattern.replace("*", ""), status), only_looks=only_looks)
    assert type(error) is meant
    assert hint in str(error)
    assert len(str(error)) < 500


@pytest.mark.parametrize(
    ("status", "only_looks", "meant"),
    [(400, False, Denied), (500, False, OutcomeUnknown), (503, True, Unreachable), (500, True, Unreachable)],
)
def test_an_unknown_code_is_judged_by_its_status(
    status: int, only_looks: bool, meant: type[PortError]
) -> None:
    assert type(translated(Said("Surprise", status), only_looks=only_looks)) is meant


@pytest.mark.parametrize(("header", "ms"), [("7", 7_000), ("", THROTTLED_MS), ("soon", THROTTLED_MS)])
def test_a_throttled_request_waits_as_long_as_it_is_told(header: str, ms: int) -> None:
    error = translated(Said("Throttling", 400, **{"retry-after": header}), only_looks=False)
    assert isinstance(error, Throttled)
    assert error.retry_after_ms == ms


def test_a_launch_ends_within_the_time_that_the_control_plane_waits() -> None:
    """It looks, asks, and in the worst case looks again; botocore waits at most a second between two."""
    look_s, do_s = LOOKS * (CONNECT_S + LOOK_S) + 1, CONNECT_S + DO_S
    assert look_s + do_s + look_s < CALL_S


# prices


@pytest.mark.parametrize(
    ("text", "micro"),
    [
        ("0.0960000000", 96_000),
        ("0.0000001", 1),
        ("0", None),
        ("-1", None),
        ("NaN", None),
        ("x", None),
        ("", None),
    ],
)
def test_a_price_is_money_or_nothing(text: str, micro: int | None) -> None:
    assert micro_usd(text) == micro


def test_of_the_price_list_only_hours_that_cost_something_count() -> None:
    rows = {
        "a": {"unit": "Hrs", "pricePerUnit": {"USD": "0.0960000000"}},
        "b": {"unit": "Hrs", "pricePerUnit": {"USD": "0.0000000000"}},
        "c": {"unit": "Quantity", "pricePerUnit": {"USD": "900"}},
        "d": {"unit": "Hrs", "pricePerUnit": {"CNY": "5"}},
    }
    product = json.dumps({"terms": {"OnDemand": {"t": {"priceDimensions": rows}}}})
    assert listed_price([product, json.dumps({"terms": {}})]) == 96_000
    assert listed_price([]) is None


# what a machine is told


def told_by(script: str, variable: str) -> str:
    """What the shell has in it when the script's own part begins."""
    head = script.partition("# The rest of what a machine does")[0]
    ran = subprocess.run(
        ["sh", "-c", f'{head}\nprintf %s "${variable}"'], capture_output=True, check=True, timeout=30
    )
    return ran.stdout.decode()


def test_the_script_of_a_machine_is_one_that_a_shell_can_read() -> None:
    script = user_data(wish(), Join(("https://cp:7700",), "secret", "-----BEGIN"), "holdfast==1.0")
    assert script.startswith("#!/bin/sh\n")
    subprocess.run(["sh", "-n"], input=script.encode(), check=True, timeout=30)
    assert told_by(script, "token") == "secret"
    assert told_by(script, "requirement") == "holdfast==1.0"
    compile(told_by(script, "watcher"), "watch.py", "exec")


NASTY = ["$(touch x)", "`id`", "a'b", 'a"b', "a\\", "; reboot", "a\nb", "-x", "${home}", "é"]


@pytest.mark.parametrize("text", NASTY)
def test_nothing_in_a_name_or_a_setting_is_run(text: str) -> None:
    script = user_data(wish(offer=text), Join(("https://cp:7700",), text, text), f"sh: {text}")
    assert told_by(script, "token") == told_by(script, "ca") == text
    assert told_by(script, "line") == text.strip()
    words = shlex.split(told_by(script, "arguments"))
    assert words[words.index("--offer") + 1] == text
    subprocess.run(["sh", "-n"], input=script.encode(), check=True, timeout=30)


def test_more_than_ec2_takes_is_denied() -> None:
    with pytest.raises(Denied, match="fewer certificates"):
        user_data(wish(), Join(("https://cp:7700",), "t", "x" * BYTES_MAX), "holdfast")


def test_a_control_plane_without_ec2_pools_does_not_load_boto3() -> None:
    check = (
        "import sys, holdfast.wiring, holdfast.adapters.providers.ec2.provider; print('boto3' in sys.modules)"
    )
    ran = subprocess.run(
        [sys.executable, "-c", check], capture_output=True, text=True, check=True, timeout=60
    )
    assert ran.stdout.strip() == "False"
