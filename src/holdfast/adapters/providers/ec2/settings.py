"""What a pool's settings say of EC2: where, which image, how the agent gets onto it.

All of it is text, as people write it in a pool file. What is missing, misspelt or of the wrong form is told
with what to write instead, all of it before anything is asked of EC2: a mistake should not cost a launch.
"""

import re
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from typing import Final

import msgspec

from holdfast.model.units import MicroUsd
from holdfast.ports.errors import Denied

SHELL: Final = "sh:"  # before an `install` that is a line for the shell and not a pip requirement

# Each setting, and what to write.
SETTINGS: Final[Mapping[str, str]] = {
    "regions": "regions: us-east-1,eu-west-1",
    "image": "image: ami-0123456789abcdef0, or for each region: us-east-1=ami-...,eu-west-1=ami-...",
    "install": "install: https://example.org/holdfast-1.0-py3-none-any.whl (anything that pip installs), or "
    'install: "sh: LINE", a line for the shell that leaves an agent in /opt/holdfast/bin/python',
    "instance_types": "instance_types: m5.large,g5.xlarge",
    "buy": "buy: spot or buy: on-demand, of the instance_types; both without it",
    "subnets": "subnets: us-east-1a=subnet-0123,us-east-1b=subnet-4567",
    "security_groups": "security_groups: sg-0123, or for each region: us-east-1=sg-0123,eu-west-1=sg-4567",
    "key_name": "key_name: ops, or for each region: us-east-1=ops,eu-west-1=ops-eu",
    "profile": "profile: holdfast, a profile of the AWS configuration of whoever runs the control plane",
    "endpoint_url": "endpoint_url: https://ec2.example.org, for clouds that speak as EC2 does",
    "tags": "tags: team=ml,stage=prod",
    "prices": "prices: m5.large=0.096,eu-west-1/m5.large=0.107, in dollars an hour on demand",
    "fleet": "fleet: prod, to be told from other holdfasts in the same account",
}
REQUIRED: Final = ("regions", "image", "install")

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
    wrong = [*_unknown(settings), *_missing(settings)]
    read: dict[str, object] = {}
    for name, text in settings.items():
        if name in READ and text.strip():
            try:
                read[name] = READ[name](text.strip())
            except ValueError as error:
                wrong.append(f"{name}: {error}; write {SETTINGS[name]}")
    if wrong:
        raise Denied(f"the pool's settings for ec2 are not right: {'; '.join(wrong)}")
    made = msgspec.convert(read, Ec2Settings)
    _check_places(made)
    return made


def _unknown(settings: Mapping[str, str]) -> list[str]:
    found = []
    for name in sorted(settings.keys() - SETTINGS.keys()):
        near = get_close_matches(name, SETTINGS, n=1)
        hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(SETTINGS)}"
        found.append(f"there is no setting called {name} ({hint})")
    return found


def _missing(settings: Mapping[str, str]) -> list[str]:
    return [
        f"{name} is missing: write {SETTINGS[name]}"
        for name in REQUIRED
        if not settings.get(name, "").strip()
    ]


def _check_places(made: Ec2Settings) -> None:
    without = [region for region in made.regions if not of_region(made.image, region)]
    if without:
        raise Denied(f"there is no image for {', '.join(without)}: write {SETTINGS['image']}")
    lost = [zone for zone in made.subnets if not any(zone.startswith(region) for region in made.regions)]
    if lost:
        raise Denied(f"no zone of these regions is called {', '.join(lost)}: write {SETTINGS['subnets']}")


def of_region(values: Mapping[str, tuple[str, ...]], region: str) -> tuple[str, ...]:
    return values.get(region, values.get("", ()))


# forms


def _words(text: str) -> tuple[str, ...]:
    found = tuple(dict.fromkeys(word for each in text.split(",") if (word := each.strip())))
    if not found:
        raise ValueError("there is nothing in it")
    return found


def _list_of(form: re.Pattern[str], what: str) -> Callable[[str], tuple[str, ...]]:
    def read(text: str) -> tuple[str, ...]:
        for word in (words := _words(text)):
            if not form.fullmatch(word):
                raise ValueError(f"{word!r} is no {what}")
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
            raise ValueError(f"{where}={value} is not of the form PLACE=VALUE")
        found[where] = (*found.get(where, ()), value)
    return found


def _by_zone(text: str) -> dict[str, tuple[str, ...]]:
    found = _by_place(text)
    if "" in found:
        raise ValueError(f"{', '.join(found[''])} has no zone")
    return found


def _tags(text: str) -> dict[str, str]:
    found = {}
    for word in _words(text):
        key, equals, value = (part.strip() for part in word.partition("="))
        if not equals or not key or key.startswith(NOT_YOURS):
            raise ValueError(f"{word!r} is no tag of yours")
        found[key] = value
    return found


def _prices(text: str) -> dict[str, MicroUsd]:
    found = {}
    for key, value in _pairs(text):
        if not TYPE.fullmatch(key.rpartition("/")[2]) or not PRICE.fullmatch(value) or not float(value):
            raise ValueError(f"{key}={value} is no price of a type")
        found[key] = round(float(value) * 1_000_000)
    return found


def _one(form: re.Pattern[str]) -> Callable[[str], str]:
    def read(text: str) -> str:
        if not form.fullmatch(text):
            raise ValueError(f"{text!r} is not of the right form")
        return text

    return read


READ: Final[Mapping[str, Callable[[str], object]]] = {
    "regions": _list_of(REGION, "region"),
    "image": _by_place,
    "install": _one(re.compile(r"[^\0]{1,2000}")),
    "instance_types": _list_of(TYPE, "instance type"),
    "buy": _one(re.compile("spot|on-demand")),
    "subnets": _by_zone,
    "security_groups": _by_place,
    "key_name": _by_place,
    "profile": _one(re.compile(r"[^\0\n]{1,200}")),
    "endpoint_url": _one(re.compile(r"https?://[^\s]{1,300}")),
    "tags": _tags,
    "prices": _prices,
    "fleet": _one(FLEET),
}
