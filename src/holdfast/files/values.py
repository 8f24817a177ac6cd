"""The kinds of value that people write: a duration, a size, an amount of money, a count, a name.

Each kind knows what to call itself when the value is wrong, an example, how to read it, and how to show it.
pydantic does the tables around them; its own messages speak of Python's types, which is not what the writer
of the file thinks in.
"""

import enum
import ipaddress
import json
import math
import re
from collections.abc import Callable, Mapping
from decimal import Decimal
from difflib import get_close_matches
from typing import Any

from pydantic import GetCoreSchemaHandler
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from holdfast.model.resources import GPU, NODE_MAX
from holdfast.model.units import DAY, HOUR, MINUTE, SECOND

UNITS_MS = {"ms": 1, "s": SECOND, "m": MINUTE, "min": MINUTE, "h": HOUR, "d": DAY, "w": 7 * DAY}
UNITS_BYTES = {f"{prefix}iB": 1024**power for power, prefix in enumerate("KMGT", 1)}
UNITS_BYTES |= {f"{prefix}B": 1000**power for power, prefix in enumerate("KMGT", 1)}
LONGEST_MS = 3650 * DAY
MOST = 100_000  # of anything that is counted
MIB = 1024**2
NETWORKS_MAX = 64
NUMBER = r"\d+(?:\.\d+)?"
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,62}")
OFFER_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.@:/-]{0,119}")
HTTP_PATH = re.compile(r"/[!-~]*")


class Leaf:
    def __init__(
        self,
        expected: str,
        example: str,
        read: Callable[[object], object],
        show: Callable[[Any], str] = lambda value: json.dumps(value),
        choices: tuple[str, ...] = (),
    ) -> None:
        self.expected, self.example, self.read, self.show = expected, example, read, show
        self.choices = choices

    def like(self, default: object) -> "Leaf":
        """The same, with an example that suits the field."""
        if not default:
            return self
        return Leaf(self.expected, self.show(default), self.read, self.show, self.choices)

    def __get_pydantic_core_schema__(self, source: object, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(self.checked)

    def checked(self, value: object) -> object:
        try:
            return self.read(value)
        except (ValueError, TypeError, OverflowError):
            words = {"expected": self.expected, "example": self._nearest(value)}
            raise PydanticCustomError("leaf", "expected {expected}", words) from None

    def _nearest(self, value: object) -> str:
        near = get_close_matches(value, self.choices, n=1) if isinstance(value, str) else []
        return json.dumps(near[0]) if near else self.example


def _number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError
    return float(value)


def _within(value: float, least: float, most: float) -> float:
    if not least <= value <= most:
        raise ValueError
    return value


def whole(least: int = 0, most: int = MOST, example: int | None = None) -> Leaf:
    def read(value: object) -> int:
        if isinstance(value, bool) or not isinstance(value, int):
            raise ValueError
        return int(_within(value, least, most))

    expected = f"a whole number of at least {least} (at most {most:,})"
    return Leaf(expected, str(example or max(1, least)), read, str)


def number(least: float, most: float, example: str) -> Leaf:
    return Leaf(
        f"a number from {least:g} to {most:,g}",
        example,
        lambda value: _within(_number(value), least, most),
        lambda value: f"{value:g}",
    )


def _milliseconds(value: object) -> float:
    if not isinstance(value, str):
        return _number(value) * SECOND
    text = value.strip()
    sign, text = (-1, text[1:]) if text.startswith("-") else (1, text)
    if not re.fullmatch(rf"(?:{NUMBER}\s*(?:ms|min|[smhdw])\s*)+", text):
        raise ValueError
    return sign * sum(
        float(amount) * UNITS_MS[unit] for amount, unit in re.findall(rf"({NUMBER})\s*(ms|min|[smhdw])", text)
    )


def show_duration(ms: int) -> str:
    for unit in ("d", "h", "m", "s"):
        if ms and ms % UNITS_MS[unit] == 0:
            return f'"{ms // UNITS_MS[unit]}{unit}"'
    return f'"{ms}ms"' if ms else '"0s"'


def duration(least_ms: int = 0, example: str = '"5m"') -> Leaf:
    words = {0: 'a duration such as "90s", "5m" or "30d"', 1: 'a duration longer than nothing, such as "90s"'}
    expected = words.get(least_ms, 'a duration such as "90s" or "-90s"')
    return Leaf(
        f"{expected}, at most 3650d",
        example,
        lambda value: round(_within(_milliseconds(value), least_ms, LONGEST_MS)),
        show_duration,
    )


def _mebibytes(value: object) -> int:
    found = re.fullmatch(rf"\s*({NUMBER})\s*([KMGT]i?B)\s*", value) if isinstance(value, str) else None
    if not found:
        raise ValueError
    return int(_within(float(found[1]) * UNITS_BYTES[found[2]] / MIB, 1, NODE_MAX.memory_mib))


def show_memory(mib: int) -> str:
    return f'"{mib // 1024}GiB"' if mib % 1024 == 0 else f'"{mib}MiB"'


def _micro_usd(value: object) -> int:
    if isinstance(value, str):
        found = re.fullmatch(rf"\s*\$\s*({NUMBER})\s*", value)
        if not found:
            raise ValueError
        value = float(found[1])
    return round(_within(_number(value), 0, 1_000_000) * 1_000_000)


def _share(value: object) -> float:
    if isinstance(value, str):
        found = re.fullmatch(rf"\s*({NUMBER})\s*%\s*", value)
        if not found:
            raise ValueError
        value = float(Decimal(found[1]) / 100)  # exact: 99.9% is 0.999, not 0.9990000000000001
    return _within(_number(value), 0.0, 1.0)


def _gpu_milli(value: object) -> int:
    gpus = _within(_number(value), 0, NODE_MAX.gpu_milli // GPU)
    if gpus > 1 and not gpus.is_integer():
        raise ValueError
    return round(gpus * GPU)


def _cpu_milli(value: object) -> int:
    return round(_within(_number(value), 0.001, NODE_MAX.cpu_milli / 1000) * 1000)


def _text(value: object) -> str:
    if not isinstance(value, str) or len(value) > 500:
        raise ValueError
    return value


def _name(value: object) -> str:
    if not isinstance(value, str) or not NAME.fullmatch(value):
        raise ValueError
    return value


def _offer_name(value: object) -> str:
    if not isinstance(value, str) or not OFFER_NAME.fullmatch(value):
        raise ValueError
    return value


def _flag(value: object) -> bool:
    if not isinstance(value, bool):
        raise ValueError
    return value


def _names(value: object) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise ValueError
    return tuple(_text(item) for item in value)


def _paths(value: object) -> tuple[str, ...]:
    names = _names(value)
    if not all(name.startswith("/") for name in names):
        raise ValueError
    return names


def _url_path(value: object) -> str:
    if not isinstance(value, str) or len(value) > 500 or not HTTP_PATH.fullmatch(value):
        raise ValueError
    return value


def _networks(value: object) -> tuple[str, ...]:
    texts = (value,) if isinstance(value, str) else _names(value)
    if not texts or len(texts) > NETWORKS_MAX:
        raise ValueError
    return tuple(str(ipaddress.ip_network(text.strip())) for text in texts)


def _labels(value: object) -> dict[str, str]:
    if not isinstance(value, dict):
        raise ValueError
    return {_text(key): _text(item) for key, item in value.items()}


def choice(values: type[enum.StrEnum] | tuple[str, ...]) -> Leaf:
    """One of a few words; `-` and `_` pass for the space between two."""
    known: Mapping[str, str] = {str(value): value for value in values}

    def read(value: object) -> str:
        word = _text(value).strip().lower().replace("-", " ").replace("_", " ")
        if word not in known:
            raise ValueError
        return known[word]

    def show(value: object) -> str:
        return json.dumps(str(value))

    first = json.dumps(next(iter(known)))
    return Leaf(f"one of: {', '.join(known)}", first, read, show, tuple(known))


def show_milli(value: int) -> str:
    return f"{value / 1000:g}"


def show_texts(value: tuple[str, ...]) -> str:
    return json.dumps(list(value))


TEXT = Leaf("a text in quotes, at most 500 characters", '"..."', _text)
IDENTITY = Leaf("a name of letters, digits, - and _, at most 63 long", '"web"', _name)
OFFER = Leaf(
    "a name of letters, digits and - _ . @ : /, at most 120 long", '"m5.large@us-east-1a"', _offer_name
)
FLAG = Leaf("true or false", "true", _flag)
NAMES = Leaf("a list of texts", '["a", "b"]', _names, show_texts)
PATHS = Leaf("a list of paths that begin with /", '["/tools"]', _paths, show_texts)
NETWORKS = Leaf("a network such as 10.0.0.0/8, or a list of networks", "10.0.0.0/8", _networks, show_texts)
URL_PATH = Leaf("a path on its own port, such as /healthz", "/healthz", _url_path)
LABELS = Leaf(
    "a table of texts", '{ team = "x" }', _labels, lambda value: "{}" if not value else json.dumps(value)
)
MEMORY = Leaf('a size such as "512MiB" or "32GiB"', '"32GiB"', _mebibytes, show_memory)
DOLLARS = Leaf('dollars, such as 1.2 or "$1.20"', "20", _micro_usd, lambda value: f"{value / 1_000_000:g}")
MONEY = Leaf(
    'dollars an hour, such as 1.2 or "$1.20"', "1.2", _micro_usd, lambda value: f"{value / 1_000_000:g}"
)
SHARE = Leaf('a share such as "99.9%" or 0.999', '"99.9%"', _share, lambda value: f"{value:g}")
GPUS = Leaf("0, a share of one GPU such as 0.5, or a whole number of GPUs", "1", _gpu_milli, show_milli)
CPUS = Leaf("a number of CPUs above 0, such as 0.5 or 8", "2", _cpu_milli, show_milli)
