"""Is it up, is it ready, and what does it count: for machines that watch machines."""

from fastapi import APIRouter
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.responses import Response

from holdfast.api import shapes
from holdfast.api.edge import ThisEdge, ThisPlane, give
from holdfast.api.gate import Count, Open
from holdfast.api.problems import Refused
from holdfast.api.said import gives, gives_text
from holdfast.control.plane import Plane

router = APIRouter(route_class=Open, tags=["probes"])
counts = APIRouter(route_class=Count, tags=["probes"])


@router.get("/healthz", summary="Is the process up?", **gives(shapes.Health, "it is"))
async def healthz(plane: ThisPlane) -> Response:
    return give(_health(plane))


@router.get("/readyz", summary="Does it lead, or follow a leader?", **gives(shapes.Health, "it does", 503))
async def readyz(plane: ThisPlane) -> Response:
    if not plane.ready:
        hint = "it is tried again every second; /healthz says that the process is up"
        raise Refused(503, f"not ready: {plane.trouble}", hint, headers={"Retry-After": "1"})
    return give(_health(plane))


@router.get("/ca.pem", summary="Its authority", **gives_text("the certificate of its authority", 404))
async def ca(edge: ThisEdge) -> Response:
    """For agents and people with a pin (`holdfast token create`), who check it before they trust it. 404: it
    has no TLS."""
    if not edge.authority.ca:
        hint = "where a proxy ends TLS, trust whoever signed its certificate: --ca FILE"
        raise Refused(404, "this control plane has no certificate authority of its own", hint)
    return Response(edge.authority.ca, headers={"Content-Type": "application/x-pem-file"})


@counts.get("/metrics", summary="Counters, for Prometheus", **gives_text("in its text format"))
async def metrics(plane: ThisPlane) -> Response:
    return Response(generate_latest(plane.metrics), headers={"Content-Type": CONTENT_TYPE_LATEST})


def _health(plane: Plane) -> shapes.Health:
    return shapes.Health(plane.name, plane.leading, plane.ready)
