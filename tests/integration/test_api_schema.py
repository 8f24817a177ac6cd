"""The OpenAPI document: it is complete, and whatever may be sent by it is answered as it says.

Requests are made from the document (schemathesis), right ones and wrong ones, the same in every run, and sent
to a real server with nodes and workloads. Nothing may be a fault of ours, and no answer may be one that the
document does not know.
"""

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis import checks

from holdfast.api import reference
from holdfast.api.access import Access
from holdfast.api.app import Api
from holdfast.ports.registry import Role
from tests.served import ONCE, WEB, YAML, served

ROOT = Path(__file__).resolve().parents[2]
DOCUMENT = Api().openapi()
HELD_ANYWAY = [
    checks.not_a_server_error,
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_headers_conformance,
    checks.response_schema_conformance,
]
HELD = [*HELD_ANYWAY, checks.negative_data_rejection, checks.unsupported_method]

examples = settings(
    max_examples=12,
    derandomize=True,
    deadline=None,
    database=None,
    suppress_health_check=list(HealthCheck),
)
Case = schemathesis.Case[Any]
schema = schemathesis.openapi.from_dict(DOCUMENT)
SCALES = f"{WEB}scale: {{ max: 3, per_replica: {{ in_flight: 4 }} }}\n"
ADMIN = "Bearer test-admin-0"


@schema.auth()
class WithToken:
    """Every request that is not about a missing token brings one that may do everything."""

    def get(self, case: Case, context: schemathesis.AuthContext) -> str:
        return ADMIN

    def set(self, case: Case, data: str, context: schemathesis.AuthContext) -> None:
        case.headers["Authorization"] = data


class InThread:
    """A control plane with its API in a loop of its own: the requests here are not made by a coroutine."""

    def __init__(self) -> None:
        self.url: Future[str] = Future()
        self._end = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), daemon=True)

    def __enter__(self) -> str:
        self._thread.start()
        return self.url.result(30)

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join(30)
        assert not self._thread.is_alive()

    async def _serve(self) -> None:
        async with served("n1", "n2", "n3", access=Access()) as api:
            headers = await api.token(Role.ADMIN)
            assert headers == {"authorization": ADMIN}
            self.url.set_result(api.plane.url)
            while not self._end.is_set():
                await asyncio.sleep(0.05)


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with InThread() as found:
        yield found


@pytest.fixture
def url(server: str) -> str:
    """Every test finds the workloads there: what an earlier one made up may have deleted them."""
    headers = {**YAML, "authorization": ADMIN}
    made = httpx.post(f"{server}/v1/apply", content=f"{SCALES}---\n{ONCE}", headers=headers, timeout=30)
    assert made.status_code == 200, made.text
    return server


def operations() -> list[tuple[str, str, dict[str, Any]]]:
    return [
        (method, path, operation)
        for path, methods in DOCUMENT["paths"].items()
        for method, operation in methods.items()
    ]


@schema.parametrize()
@examples
def test_whatever_is_sent_is_answered_as_the_document_says(case: Case, url: str) -> None:
    case.call_and_validate(base_url=url, checks=HELD, timeout=30)


@schema.include(path_regex=r"\{(name|kind)\}").exclude(method="DELETE").parametrize()
@examples
def test_what_is_sent_about_something_that_there_is_is_answered_as_the_document_says(
    case: Case, url: str
) -> None:
    name = "web" if "/workloads/" in case.path else "n1"
    case.path_parameters = {"name": name, "kind": "node"}
    if "{kind}" in case.path:
        case.query = {"name": name}
    if isinstance(case.body, dict) and isinstance(count := case.body.get("count"), int):
        case.body["count"] = count % 20  # what ten thousand seats cost is not asked here
    response = case.call_and_validate(base_url=url, checks=HELD_ANYWAY, timeout=30)
    assert response.status_code != 404


def test_the_document_that_is_served_is_the_one_that_is_tested(url: str) -> None:
    assert httpx.get(f"{url}/openapi.json").json() == DOCUMENT


def test_every_endpoint_says_what_it_is_for_what_it_gives_and_what_can_go_wrong() -> None:
    found = operations()
    assert len(found) == len({operation["operationId"] for _, _, operation in found}) == 56
    for method, path, operation in found:
        assert operation["summary"], path
        (good,) = [status for status in operation["responses"] if status < "300"]
        for media_type, said in operation["responses"][good]["content"].items():
            assert said["schema"], (method, path, media_type)
        problems = [said for status, said in operation["responses"].items() if status >= "300"]
        assert problems
        assert {tuple(said["content"]) for said in problems} == {("application/problem+json",)}
        is_open = path in ("/healthz", "/readyz", "/ca.pem")
        assert ("security" in operation) is not is_open
        assert {"401", "403"} <= set(operation["responses"]) or is_open


def test_every_reference_in_the_document_leads_somewhere() -> None:
    def references(part: Any) -> Iterator[str]:
        if isinstance(part, dict):
            if "$ref" in part:
                yield part["$ref"]
            for inner in part.values():
                yield from references(inner)
        elif isinstance(part, list):
            for inner in part:
                yield from references(inner)

    named = {name.removeprefix("#/components/schemas/") for name in references(DOCUMENT)}
    assert named == set(DOCUMENT["components"]["schemas"])


def test_the_reference_page_is_what_the_code_says() -> None:
    """Make it anew with `python -m holdfast.api.reference`."""
    page = (ROOT / "docs" / "reference" / "api.md").read_text(encoding="utf-8")
    assert page == reference.page()
    for method, path, _ in operations():
        assert f"## `{method.upper()} {path}`" in page
