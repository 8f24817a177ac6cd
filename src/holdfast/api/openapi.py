"""The OpenAPI document: what FastAPI reads off the routes, with the shapes, the problems and the keys added.

FastAPI does not know msgspec structs, nor what the gate in front of each route may answer. Both are facts
that a route's class knows, so they are written in from there, and no endpoint can forget one.
"""

from collections.abc import Iterable
from typing import Any

import msgspec
from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from holdfast import __version__
from holdfast.api import shapes
from holdfast.api.gate import Open
from holdfast.api.said import problem
from holdfast.core.gateway.key_audit.audit import Row
from holdfast.core.gateway.quota.broker import Ask, Grants
from holdfast.gateway.view import View
from holdfast.model.gateway import Limits
from holdfast.ports.registry import Role
from holdfast.wire.gateway import LoadTold
from holdfast.wire.keys import KeyMade, KeyShown

ALL = [500, 503]
WITH_ACCESS = [401, 403, 429]
WITH_BODY = [400, 408, 413, 415, 422]
WITH_PARAMETERS = [422]
WITH_JOURNAL = [507]

# Shapes that others use too.
OTHERS = (KeyShown, KeyMade, Row, Ask, Grants, LoadTold, View, Limits)

ABOUT = (
    "What holdfast knows, and what it can be asked to do. Instants and durations are in milliseconds, money"
    " in micro-dollars. Errors are problems as RFC 9457 has them, with a hint. Reads are answered by every"
    " control plane; what needs the leader is sent on to it with a 307."
)


def document(app: FastAPI, routes: Iterable[Open]) -> dict[str, Any]:
    made = get_openapi(title="holdfast", version=__version__, description=ABOUT, routes=app.routes)
    found = made.setdefault("components", {}).setdefault("schemas", {})
    for name in ("HTTPValidationError", "ValidationError"):
        found.pop(name, None)  # problems are said in another form here
    found.update(schemas())
    made["components"]["schemas"] = dict(sorted(found.items()))
    made["components"]["securitySchemes"] = {
        "token": {"type": "http", "scheme": "bearer", "description": "made by `POST /v1/tokens`"}
    }
    for route in routes:
        for method in route.methods or ():
            _complete(made["paths"][route.path_format][method.lower()], route, method)
    return made


def schemas() -> dict[str, Any]:
    kinds = [
        kind for kind in vars(shapes).values() if isinstance(kind, type) and issubclass(kind, shapes.Shape)
    ]
    _, found = msgspec.json.schema_components(
        [*OTHERS, *(kind for kind in kinds if kind is not shapes.Shape)],
        ref_template="#/components/schemas/{name}",
    )
    made: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(found))  # as JSON has it: lists, no tuples
    return made


def _complete(operation: dict[str, Any], route: Open, method: str) -> None:
    answers = operation["responses"]
    if "422" in answers:
        answers.pop("422")
    for status in _meets(operation, route, method):
        answers.setdefault(str(status), problem(status))
    operation["responses"] = dict(sorted(answers.items()))
    if route.least is not None:
        operation["security"] = [{"token": []}]
        words = [operation.get("description", ""), f"Takes a token of the role {_enough(route.least)}."]
        operation["description"] = "\n\n".join(word for word in words if word)


def _enough(needed: Role) -> str:
    first, *others = (role for role in reversed(Role) if role.allows(needed))
    return " or ".join(filter(None, (", ".join([first, *others[:-1]]), *others[-1:])))


def _meets(operation: dict[str, Any], route: Open, method: str) -> list[int]:
    met = list(ALL)
    if route.least is not None:
        met += WITH_ACCESS
    if operation.get("parameters"):
        met += WITH_PARAMETERS
    if method in ("POST", "PUT"):
        met += WITH_BODY
    if route.leads:
        met += [307]
        if method != "GET":
            met += WITH_JOURNAL
    return met
