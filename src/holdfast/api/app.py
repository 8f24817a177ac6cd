"""The REST API of a control plane: `create_app(plane, access=Access())`.

The stable contract is under /v1; what it gives is in `shapes`, made from the world by `views`. Every request
goes through `gate`. There is nothing here that decides: an order becomes an event, and the control loop does
the rest.

Before the server is told to stop, call `close(app)`: streams of events and logs end then, and the server need
not wait for them.
"""

from typing import Any

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from holdfast.api import (
    again,
    audit,
    capacity,
    gateways,
    history,
    keys,
    logs,
    openapi,
    orders,
    probes,
    problems,
    reads,
    tokens,
    writes,
)
from holdfast.api.access import Access
from holdfast.api.edge import Edge, KnownBy
from holdfast.api.gate import Open
from holdfast.api.token_limits import USUAL, TokenLimits
from holdfast.control.plane import Plane
from holdfast.ports.audit import Sink

ROUTERS = (
    reads.router,
    capacity.router,
    history.router,
    logs.router,
    writes.router,
    writes.heard,
    writes.dry,
    writes.supply,
    again.router,
    again.looks,
    orders.router,
    orders.harm,
    tokens.router,
    audit.router,
    keys.reads,
    keys.told,
    keys.router,
    gateways.router,
    gateways.resets,
    probes.router,
    probes.counts,
)


class Api(FastAPI):
    """The routes. They need no control plane to be described, only to be called."""

    def __init__(self) -> None:
        super().__init__(
            title="holdfast",
            docs_url=None,
            redoc_url=None,
            redirect_slashes=False,
            generate_unique_id_function=lambda route: route.name,
        )
        for router in ROUTERS:
            self.include_router(router)
        self.add_exception_handler(HTTPException, problems.handle)
        self.add_exception_handler(RequestValidationError, problems.handle)

    def openapi(self) -> dict[str, Any]:
        if self.openapi_schema is None:
            routes = (route for router in ROUTERS for route in router.routes if isinstance(route, Open))
            self.openapi_schema = openapi.document(self, routes)
        return self.openapi_schema


def create_app(
    plane: Plane,
    *,
    access: Access,
    limits: TokenLimits = USUAL,
    sink: Sink | None = None,
    authority: KnownBy | None = None,
) -> FastAPI:
    """`sink`: where the audit log goes besides the registry."""
    app = Api()
    app.state.edge = Edge(plane, access, limits, sink, authority)
    return app


async def finish(app: FastAPI) -> None:
    """When the server has stopped: what is known for the audit log is written."""
    edge: Edge = app.state.edge
    await edge.audit.close()


def close(app: FastAPI) -> None:
    """Ends the streams that are open, and opens no more."""
    edge: Edge = app.state.edge
    edge.streams.close()
