"""What a pool's settings say of EC2: where, which image, how the agent gets onto it.

All of it is text, as people write it in a pool file. What is missing, misspelt or of the wrong form is told
with what to write instead, all of it before anything is asked of EC2: a mistake should not cost a launch.
"""

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Final

import msgspec

from holdfast.adapters.providers.settings import Kind, Settings, Wrong
from holdfast.model.units import MicroUsd

SHELL: Final = "sh:"  # before an `install` that is a line for the shell and not a pip requirement

REGION: Final = re.compile(r"[a-z0-9][a-z0-9-]{0,40}")
TYPE: Final = re.compile(r"[a-z0-9][a-z0-9-]*\.[a-z0-9-]+")
PRICE: Final = re.compile(r"\d{1,6}(\.\d{1,12})?")
FLEET: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}")
NOT_YOURS: Final = ("holdfast:", "aws:", "Name")


class Ec2Settings(msgspec.Struct, frozen=True):
    regions: tuple[str, ...]
    image: dict[str, tuple[str, ...]]  # by region; "": everywhere else
    install: str
    instance_types: tuple[str, ...] = ()
    buy: str = ""  # spot or on-demand; empty: both
    subnets: dict[str, tuple[str, ...]] = {}  # by zone
    security_groups: dict[str, tuple[str, ...]] = {}  # by region; "": everywhere else
    key_name: dict[str, tuple[str, ...]] = {}  # by region; "": everywhere else
    profile: str = ""
    endpoint_url: str = ""
    tags: dict[str, str] = {}
    prices: dict[str, MicroUsd] = {}  # by type, or region/type
    fleet: str = "holdfast"


def read_settings(settings: Mapping[str, str]) -> Ec2Settings:
    """Denied: with everything that is wrong, and what to write."""
    return msgspec.convert(TAKES.read(settings), Ec2Settings)


def write(name: str) -> str:
    """What to write for a setting."""
    return f"write {name}: {TAKES.kinds[name].example}"


def of_region(values: Mapping[str, tuple[str, ...]], region: str) -> tuple[str, ...]:
    return values.get(region, values.get("", ()))


# forms


def _words(text: str) -> tuple[str, ...]:
    found = tuple(dict.fromkeys(word for each in text.split(",") if (word := each.strip())))
    if not found:
        raise ValueError(text)
    return found


def _list_of(form: re.Pattern[str]) -> Callable[[str], tuple[str, ...]]:
    def read(text: str) -> tuple[str, ...]:
        words = _words(text)
        if not all(form.fullmatch(word) for word in words):
            raise ValueError(text)
        return words

    return read


def _pairs(text: str) -> list[tuple[str, str]]:
    """`a=1,b=2`; a word without a key has the empty one."""
    pairs = [word.rpartition("=") if "=" in word else ("", "", word) for word in _words(text)]
    return [(key.strip(), value.strip()) for key, _, value in pairs]


def _by_place(text: str) -> dict[str, tuple[str, ...]]:
    found: dict[str, tuple[str, ...]] = {}
    for where, value in _pairs(text):
        if not value or (where and not REGION.fullmatch(where)):
            raise ValueError(text)
        found[where] = (*found.get(where, ()), value)
    return found


def _by_zone(text: str) -> dict[str, tuple[str, ...]]:
    found = _by_place(text)
    if "" in found:
        raise ValueError(text)
    return found


def _tags(text: str) -> dict[str, str]:
    found = {}
    for word in _words(text):
        key, equals, value = (part.strip() for part in word.partition("="))
        if not equals or not key or key.startswith(NOT_YOURS):
            raise ValueError(text)
        found[key] = value
    return found


def _prices(text: str) -> dict[str, MicroUsd]:
    found = {}
    for key, value in _pairs(text):
        if not TYPE.fullmatch(key.rpartition("/")[2]) or not PRICE.fullmatch(value) or not float(value):
            raise ValueError(text)
        found[key] = round(float(value) * 1_000_000)
    return found


def _one(form: re.Pattern[str]) -> Callable[[str], str]:
    def read(text: str) -> str:
        if not form.fullmatch(text):
            raise ValueError(text)
        return text

    return read


def _places_agree(settings: Mapping[str, str], _offers: Collection[str]) -> Iterator[Wrong]:
    regions = _regions(settings.get("regions", ""))
    images = _by_place(settings["image"]) if "image" in settings else {"": ("any",)}
    if without := [region for region in regions if not of_region(images, region)]:
        yield Wrong("image", f"one for {', '.join(without)} too", settings["image"], f"{without[0]}=ami-...")
    zones = _by_zone(settings["subnets"]) if regions and "subnets" in settings else {}
    if lost := [zone for zone in zones if not zone.startswith(regions)]:
        expected = f"subnets of zones in {', '.join(regions)}"
        yield Wrong("subnets", expected, f"{', '.join(lost)}", f"{regions[0]}a=subnet-0123")


def _regions(text: str) -> tuple[str, ...]:
    return _list_of(REGION)(text) if text else ()


TEXT: Final = re.compile(r"[^\0\n]{1,200}")
TAKES: Final = Settings(
    {
        "regions": Kind(
            "regions such as us-east-1,eu-west-1", "us-east-1,eu-west-1", _list_of(REGION), needed=True
        ),
        "image": Kind(
            "an image, or one for each region such as us-east-1=ami-0123,eu-west-1=ami-4567",
            "ami-0123456789abcdef0",
            _by_place,
            needed=True,
        ),
        "install": Kind(
            'anything that pip installs, or "sh: LINE", which leaves an agent in /opt/holdfast/bin/python',
            "https://example.org/holdfast-1.0-py3-none-any.whl",
            _one(re.compile(r"[^\0]{1,2000}")),
            needed=True,
        ),
        "instance_types": Kind("instance types such as m5.large,g5.xlarge", "m5.large", _list_of(TYPE)),
        "buy": Kind(
            "spot or on-demand, of the instance_types; both without it",
            "spot",
            _one(re.compile("spot|on-demand")),
        ),
        "subnets": Kind(
            "a subnet for each zone such as us-east-1a=subnet-0123", "us-east-1a=subnet-0123", _by_zone
        ),
        "security_groups": Kind(
            "a group, or one for each region such as us-east-1=sg-0123", "sg-0123", _by_place
        ),
        "key_name": Kind("a key, or one for each region such as us-east-1=ops", "ops", _by_place),
        "profile": Kind(
            "a profile of the AWS configuration of whoever runs the control plane",
            "holdfast",
            _one(TEXT),
            of_host=True,
        ),
        "endpoint_url": Kind(
            "a URL, for clouds that speak as EC2 does",
            "https://ec2.example.org",
            _one(re.compile(r"https?://[^\s]{1,300}")),
            of_host=True,
        ),
        "tags": Kind(
            f"tags such as team=ml,stage=prod, and none that begins with {', '.join(NOT_YOURS)}",
            "team=ml",
            _tags,
        ),
        "prices": Kind(
            "dollars an hour on demand, such as m5.large=0.096,eu-west-1/m5.large=0.107",
            "m5.large=0.096",
            _prices,
        ),
        "fleet": Kind("a name, to be told from other holdfasts in the same account", "prod", _one(FLEET)),
    },
    _places_agree,
)
