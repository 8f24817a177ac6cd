"""A pool's settings, which are texts that only its provider understands: how to read them, and what to say of
one that is wrong.

A provider declares what it takes, as `takes = Settings(...)`. The file reader asks that beforehand
(`found.wrong_settings`), so that a person hears of a mistake where it was written; whoever is handed settings
that cannot be used says the same in a Denied. A setting that is empty is one that is not said.

What names a program, a file, a URL or an account of the control plane's own host is marked `of_host`. Pools
come over the API, from admins who need not be the ones that host belongs to; so these settings come from a
profile, which is in a file of the host (`profiles`).
"""

import math
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import NamedTuple

from holdfast.model.units import DAY, HOUR, MINUTE, SECOND, Millis
from holdfast.ports.errors import Denied

UNITS_MS = {"ms": 1, "s": SECOND, "m": MINUTE, "min": MINUTE, "h": HOUR, "d": DAY}
LONGEST_MS = 3650 * DAY
SHOWN_MAX = 60
AMOUNT = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|min|[smhd])\s*")


class Wrong(NamedTuple):
    """A setting that cannot be used."""

    name: str
    expected: str  # "a duration such as 2s"
    got: str
    example: str = ""  # a value that would do; empty: there is no such setting
    known: tuple[str, ...] = ()  # then: those there are
    of_host: bool = False  # it has to come from a profile

    def __str__(self) -> str:
        if not self.example:
            return f"{self.name} is none of {', '.join(self.known)}" if self.known else f"{self.name} is none"
        return f"{self.name}: expected {self.expected}, got {self.got}"


class Kind(NamedTuple):
    """A kind of value: what to call it, one that would do, and how to read it (ValueError: it is none)."""

    expected: str
    example: str
    read: Callable[[str], object]
    needed: bool = False  # without it there is no using the pool
    of_host: bool = False  # names a program, file, URL or account of the control plane's host


def _agree(settings: Mapping[str, str], offers: Collection[str]) -> Iterable[Wrong]:
    return ()


def _none_inside(settings: Mapping[str, str]) -> Mapping[str, str]:
    return {}


class Settings(NamedTuple):
    """What settings a provider takes."""

    kinds: Mapping[str, Kind]
    # What is wrong with those that are right one by one; and the names of the pool's offers.
    together: Callable[[Mapping[str, str], Collection[str]], Iterable[Wrong]] = _agree
    # What is of the host inside of settings that are not: where it stands -> a text that changes with it.
    inside: Callable[[Mapping[str, str]], Mapping[str, str]] = _none_inside

    def of_host(self, settings: Mapping[str, str]) -> dict[str, str]:
        """What in them may only come from a profile: where it stands -> a text that changes with it."""
        given = said(settings)
        plain = {
            name: text for name, text in given.items() if name in self.kinds and self.kinds[name].of_host
        }
        return {**plain, **self.inside(given)}

    def wrong(
        self, settings: Mapping[str, str], offers: Collection[str] = (), *, whole: bool = True
    ) -> list[Wrong]:
        """Everything that is. `whole`: there is no profile that says more."""
        given = said(settings)
        found = [*_wrong_in(given, self.kinds), *(_missing(given, self.kinds) if whole else ())]
        without = {one.name for one in found}
        right = {name: text for name, text in given.items() if name not in without}
        return [*found, *self.together(right, offers)]

    def read(self, settings: Mapping[str, str]) -> dict[str, object]:
        """What they say. Denied: everything that is wrong."""
        if wrong := self.wrong(settings):
            raise Denied(f"the pool's settings cannot be used: {told(wrong)}")
        return {name: self.kinds[name].read(text) for name, text in said(settings).items()}


def said(settings: Mapping[str, str]) -> dict[str, str]:
    return {name: text.strip() for name, text in settings.items() if text.strip()}


def _wrong_in(settings: Mapping[str, str], kinds: Mapping[str, Kind]) -> Iterator[Wrong]:
    for name, text in settings.items():
        if name not in kinds:
            yield Wrong(name, "a setting that its provider knows", "another", known=tuple(kinds))
            continue
        try:
            kinds[name].read(text)
        except (ValueError, OverflowError):
            yield Wrong(name, kinds[name].expected, shortened(text), kinds[name].example)


def _missing(settings: Mapping[str, str], kinds: Mapping[str, Kind]) -> Iterator[Wrong]:
    for name, kind in kinds.items():
        if kind.needed and name not in settings:
            yield Wrong(name, kind.expected, "nothing", kind.example, of_host=kind.of_host)


def shortened(text: str) -> str:
    return text if len(text) <= SHOWN_MAX else f"{text[:SHOWN_MAX]}..."


def told(wrong: Iterable[Wrong]) -> str:
    return "; ".join(map(str, wrong))


def duration_ms(text: str) -> Millis:
    """`1h30m`; a bare number is seconds."""
    text = text.strip()
    if re.fullmatch(r"\d+(?:\.\d+)?", text):
        found = float(text) * SECOND
    elif text and AMOUNT.sub("", text) == "":
        found = sum(float(amount) * UNITS_MS[unit] for amount, unit in AMOUNT.findall(text))
    else:
        raise ValueError(text)
    if found > LONGEST_MS:
        raise ValueError(text)
    return round(found)


def span_ms(text: str) -> tuple[Millis, Millis]:
    """`2s`, or `2s..4s`: the least, and how much more it may be."""
    least, dots, most = text.partition("..")
    if not dots:
        return duration_ms(text), 0
    low, high = duration_ms(least), duration_ms(most)
    if low > high:
        raise ValueError(text)
    return low, high - low


def share(text: str) -> float:
    """`30%` or `0.3`."""
    text = text.strip()
    found = float(text[:-1]) / 100 if text.endswith("%") else float(text)
    if not math.isfinite(found) or not 0 <= found <= 1:
        raise ValueError(text)
    return found


def whole(text: str) -> int:
    if not re.fullmatch(r"\s*\d{1,9}\s*", text, re.ASCII):
        raise ValueError(text)
    return int(text)
