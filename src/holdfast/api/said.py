"""How endpoints say what they answer: the part of the OpenAPI document that cannot be read off a function.

Answers are msgspec structs, which FastAPI does not know, so a route refers to their schemas by name and
`openapi` puts them in. Problems that any request may meet are added there too; a route names only its own.
"""

from typing import Any

import msgspec
from starlette.responses import Response

from holdfast.api.problems import MEDIA_TYPE

Answers = dict[int | str, dict[str, Any]]

PROBLEM = {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}}
WHY = {
    307: "this control plane does not lead: ask the one in Location",
    400: "the body cannot be read",
    401: "a token is missing, unknown, revoked or expired",
    403: "the role of the token is not enough",
    404: "there is no such thing",
    408: "the body did not arrive in time",
    409: "not possible as things are",
    410: "it is no longer kept",
    413: "the body is larger than 4 MiB",
    415: "the type of the body is not one that this takes",
    422: "the request is not as it should be; `problems` says where",
    429: "too many failed attempts, or too much at once for one token",
    500: "a fault of holdfast",
    502: "whoever had to be asked refused",
    503: "not now: nobody leads, the store does not answer, or too much is going on",
    507: "there is no room to write it down",
}


def ref(shape: type[msgspec.Struct], *, many: bool = False) -> dict[str, Any]:
    one = {"$ref": f"#/components/schemas/{shape.__name__}"}
    return {"type": "array", "items": one} if many else one


def gives(
    shape: type[msgspec.Struct], what: str, *more: int, many: bool = False, also: dict[str, Any] | None = None
) -> dict[str, Any]:
    """For a route that gives this shape, and may meet these problems besides those that all meet."""
    content = {"application/json": {"schema": ref(shape, many=many)}, **(also or {})}
    return {
        "response_class": Response,
        "responses": {200: {"description": what, "content": content}, **met(*more)},
    }


def gives_map(shape: type[msgspec.Struct], what: str) -> dict[str, Any]:
    """For a route that gives many of this shape, by name."""
    content = {"application/json": {"schema": {"type": "object", "additionalProperties": ref(shape)}}}
    return {"response_class": Response, "responses": {200: {"description": what, "content": content}}}


def gives_text(what: str, *more: int) -> dict[str, Any]:
    content = {"text/plain": {"schema": {"type": "string"}}}
    return {
        "response_class": Response,
        "responses": {200: {"description": what, "content": content}, **met(*more)},
    }


def met(*statuses: int) -> Answers:
    return {status: problem(status) for status in statuses}


def problem(status: int) -> dict[str, Any]:
    said: dict[str, Any] = {"description": WHY[status], "content": PROBLEM}
    if status == 307:
        said["headers"] = {"Location": {"schema": {"type": "string"}}}
    if status == 401:
        said["headers"] = {"WWW-Authenticate": {"schema": {"type": "string"}}}
    if status in (429, 503):
        said["headers"] = {"Retry-After": {"schema": {"type": "string"}}}
    return said


def takes_text(what: str) -> dict[str, Any]:
    """A body that is no JSON object of ours: a workload file."""
    text = {"schema": {"type": "string"}}
    either = {"schema": {"type": ["object", "array"]}}
    content = {"application/yaml": text, "application/json": either, "text/plain": text}
    return {"requestBody": {"description": what, "required": True, "content": content}}


def takes(shape: type[msgspec.Struct], *, many: bool = False) -> dict[str, Any]:
    """A body that is read as a struct and not as a pydantic model."""
    content = {"application/json": {"schema": ref(shape, many=many)}}
    return {"requestBody": {"required": True, "content": content}}
