"""No path that is passed on means another place to any of the usual readers of paths."""

import itertools
import posixpath
import re
import unicodedata
from collections.abc import Callable, Iterator
from urllib.parse import unquote_to_bytes, urljoin

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from holdfast.gateway.paths import is_ambiguous, readings

PIECES = [
    *(
        "..",
        ".",
        "/",
        "//",
        "\\",
        ";",
        ";a=b",
        "...",
        " ",
        "a",
        "admin",
        "public",
        "?",
        "#",
        "x.y",
        ".x",
        "..x",
    ),
    *(
        "%2e",
        "%2E",
        "%2f",
        "%2F",
        "%5c",
        "%3b",
        "%25",
        "%252e",
        "%252f",
        "%25252e",
        "%00",
        "%0a",
        "%20",
        "%61",
    ),
    *(
        "%c0%ae",
        "%c0%af",
        "%e0%80%ae",
        "%ef%bc%8e",
        "%ef%bc%8f",
        "%e2%80%a5",
        "%",
        "%u002e",
        "%%32%65",
        "\u2025",
    ),
]
PATHS = st.lists(st.sampled_from(PIECES), max_size=8).map(lambda parts: "/public/" + "".join(parts))
Reader = Callable[[str], str]


def undone(path: str) -> str:
    return unquote_to_bytes(path).decode("latin1")


def overlong(path: str) -> str:
    """As readers that do not look whether UTF-8 is as short as it can be."""
    for wrong, right in (("\xc0\xae", "."), ("\xc0\xaf", "/"), ("\xe0\x80\xae", ".")):
        path = path.replace(wrong, right)
    return path


def normal(path: str) -> str:
    try:
        return unicodedata.normalize("NFKC", path.encode("latin1").decode())
    except (UnicodeDecodeError, UnicodeEncodeError):
        return path


STEPS: tuple[Reader, ...] = (
    undone,
    undone,
    overlong,
    normal,
    lambda path: path.replace("\\", "/"),
    lambda path: re.sub(r";[^/]*", "", path),
    lambda path: path.partition("\x00")[0],
    lambda path: re.sub(r"[\t\r\n]", "", path),
    lambda path: re.sub(r"[. ]+(?=/|$)", lambda dots: dots[0] if dots[0] in (".", "..") else "", path),
    lambda path: re.sub("/{2,}", "/", path),
)


def read(path: str) -> Iterator[str]:
    """By every reader that takes some of these steps, in this order, and then resolves."""
    seen = {path}
    for step in STEPS:
        seen |= {step(each) for each in seen}
    for each in seen:
        yield posixpath.normpath(each)
        joined = urljoin("http://h/", each)
        yield posixpath.normpath(joined.removeprefix("http://h"))


def resolves_outside(path: str) -> bool:
    return any(
        not (found == "/public" or found.startswith(("/public/", "/public;", "/public?", "/public#")))
        for found in read(path)
    )


@given(PATHS)
@settings(max_examples=3_000, deadline=None)
@example("/public/../admin")
@example("/public/%2e%2e/admin")
@example("/public/..%2fadmin")
@example("/public/..\\admin")
@example("/public/..;/admin")
@example("/public/%252e%252e/admin")
@example("/public/.%2e;a=b/admin")
def test_no_path_that_passes_resolves_outside_its_prefix(path: str) -> None:
    if not is_ambiguous(path.encode()):
        assert not resolves_outside(path.encode().decode("latin1")), path


@pytest.mark.parametrize(
    "path",
    [
        *(
            "/public",
            "/public/",
            "/public/v1/files/a.b",
            "/public/.well-known/x",
            "/public/a..b/c",
            "/public/%C3%A9t%C3%A9",
        ),
        *("/public/100%25", "/public/a%20b", "/public/a;v=1/b", "/public/~x/-_.,:@!$&'()*+="),
    ],
)
def test_what_people_write_passes(path: str) -> None:
    assert not is_ambiguous(path.encode())
    assert not resolves_outside(path)


@pytest.mark.parametrize(
    "path",
    [
        *(
            "/public/../admin",
            "/public/%2e%2e/..",
            "/public/..%2fadmin",
            "/public/..\\admin",
            "/public/..;/admin",
        ),
        *("/public/./x", "/public/%252e%252e/x", "/public/a%2fb", "/public/a%5cb", "/public/%c0%ae%c0%ae/x"),
        *(
            "/public/a%00",
            "/public/%zz",
            "/public/%u002e",
            "/public/%e2%80%a5/x",
            "/public/.. /x",
            "/public/%2e%2e;x/",
        ),
        *("/public/..", "/public/.", "/public/%25252525252e"),
    ],
)
def test_what_a_review_and_others_got_through_is_refused(path: str) -> None:
    assert is_ambiguous(path.encode())


def test_the_readings_of_a_path_are_those_of_engines_that_are_not_strict() -> None:
    ways = (
        "/v1//chat/completions",
        "/v1/chat/completion%73",
        "/v1/chat/completions/",
        "/v1/chat;x/completions",
        "/v1/chat/completions%3fx",
        "//v1/chat/completions",
        "/v1/chat/completions#x",
        "/v1/chat/completion%2573",
    )
    for way in ways:
        assert b"/v1/chat/completions" in readings(way.encode()), way
    for one, other in itertools.pairwise(ways):
        assert readings(one.encode()) != readings(other.encode())
