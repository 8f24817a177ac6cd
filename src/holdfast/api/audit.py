"""`GET /v1/audit`: who came in, who was refused, and who changed what, for admins."""

from typing import Annotated

from fastapi import APIRouter, Query
from starlette.requests import Request
from starlette.responses import Response

from holdfast.api import shapes
from holdfast.api.edge import ThisPlane, give
from holdfast.api.gate import Register
from holdfast.api.problems import Refused
from holdfast.api.projects import HEADER
from holdfast.api.reads import Filter
from holdfast.api.said import gives
from holdfast.ports.audit import Record

LIMIT_MAX = 1_000
SEQ_MAX = 1 << 53

router = APIRouter(prefix="/v1", route_class=Register, tags=["what happened, and why"])

Number = Annotated[int, Query(ge=0, le=SEQ_MAX)]


@router.get(
    "/audit",
    summary="The audit log: log-ins that failed, tokens, what was refused, who changed what",
    **gives(shapes.Audited, "records of all control planes, the oldest first", many=True),
)
async def audit(
    request: Request,
    plane: ThisPlane,
    actor: Annotated[Filter, Query(description="the name or the id of a token")] = "",
    after: Annotated[Number, Query(description="only records after this number, the oldest of them")] = 0,
    before: Annotated[Number, Query(description="only records before this number; 0: to the end")] = 0,
    since_ms: Annotated[Number, Query(description="only from this instant on")] = 0,
    until_ms: Annotated[Number, Query(description="only before this instant; 0: up to now")] = 0,
    limit: Annotated[int, Query(ge=1, le=LIMIT_MAX)] = 100,
) -> Response:
    """With `after`, the oldest records after it; else the newest. The registry keeps the last 100,000."""
    if request.headers.get(HEADER):
        raise Refused(
            422, "the audit log is of the whole fleet", "leave out --project; --actor names a token"
        )
    found = await plane.registry.audited(
        actor=actor, after=after, before=before, since=since_ms, until=until_ms, limit=limit
    )
    return give([_shown(record) for record in found])


def _shown(of: Record) -> shapes.Audited:
    return shapes.Audited(
        seq=of.seq,
        at_ms=of.at,
        kind=of.kind.value,
        actor=of.actor,
        token=of.token,
        origin=of.origin,
        subject=of.subject,
        text=of.text,
        count=of.count,
        plane=of.plane,
    )
