"""What the endpoints share: the control plane behind them, who may come in, and the streams that are open."""

import asyncio
import concurrent.futures
import copy
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from contextlib import AsyncExitStack
from enum import Enum
from functools import partial
from typing import Annotated, Any, TypeVar, cast
from weakref import WeakValueDictionary

import msgspec
from fastapi import Depends
from msgspec.structs import replace
from starlette.requests import Request
from starlette.responses import Response

from holdfast.api.access import Access, Admitted
from holdfast.api.audit_log import AuditLog
from holdfast.api.fronts import Fronts
from holdfast.api.projects import Projects
from holdfast.api.streams import Streams
from holdfast.api.token_limits import SEAT_BYTES, USUAL, Rates, TokenLimits
from holdfast.control.plane import NotLeading, Plane
from holdfast.core.workloads import ceilings
from holdfast.model.event import Event, UserMade, WorkloadApplied
from holdfast.ports.audit import Sink
from holdfast.ports.errors import OutcomeUnknown
from holdfast.ports.registry import Role

T = TypeVar("T")

_encode = msgspec.json.Encoder().encode


class Lane(Enum):
    """What waits for one another when it is thought about."""

    FILES = "files"  # which every apply reads
    DRY = "dry runs"
    WHY = "explanations"


class Lately:
    """What was found out a moment ago and takes its time. It is good while the journal is as long (the key
    says so), for a moment: then back-offs and leases have run on."""

    KEPT, KEPT_S = 64, 1.0

    def __init__(self) -> None:
        self._known: OrderedDict[tuple[object, ...], tuple[float, Any]] = OrderedDict()

    def get(self, key: tuple[object, ...]) -> Any:
        until, found = self._known.get(key, (0.0, None))
        return found if time.monotonic() < until else None

    def put(self, key: tuple[object, ...], found: object) -> None:
        self._known[key] = time.monotonic() + self.KEPT_S, found
        if len(self._known) > self.KEPT:
            self._known.popitem(last=False)


class Writing:
    """One order at a time: what is written depends on what was read before (a version rises by one). Whoever
    waited here while the leadership was lost is sent on, for the world that is shown now says nothing about
    what there is."""

    def __init__(self, plane: Plane) -> None:
        self.plane, self.lock = plane, asyncio.Lock()

    async def __aenter__(self) -> None:
        await self.lock.acquire()
        if not self.plane.leading:
            self.lock.release()
            raise NotLeading("")

    async def __aexit__(self, *_: object) -> None:
        self.lock.release()


class KnownBy(msgspec.Struct, frozen=True):
    """Our own authority, by which nodes and others with a pin know us. Empty: we have no TLS."""

    ca: str = ""  # its certificate
    pin: str = ""
    everybody: bool = True  # the certificate that we show to all is by it, and not one of files

    def pin_for(self, role: Role) -> str:
        """Where we show the world another certificate, there may be a proxy that ends TLS before us: people
        and gateways may come through it. Agents cannot (`control.enrol`)."""
        return self.pin if self.everybody or role is Role.JOIN else ""


class Edge:
    def __init__(
        self,
        plane: Plane,
        access: Access,
        limits: TokenLimits = USUAL,
        sink: Sink | None = None,
        authority: KnownBy | None = None,
    ) -> None:
        self.plane, self.access = plane, access
        self.authority = authority or KnownBy()
        self.who = Admitted(Role.READ, "")  # of the request that is served: see `edge_in`
        self.audit = AuditLog(plane.registry, plane.name, plane.clock.wall, sink, plane.audit_dropped)
        plane.hub.enrolment.noted = self.audit.joined
        self.rates = Rates(limits.requests_per_s)
        self.streams = Streams(limits.streams)
        self.fronts = Fronts(plane.hub.enrolment.gateway_secret)
        self.writing = Writing(plane)
        self._thinking = {lane: asyncio.Lock() for lane in Lane}
        self._thinking_of: WeakValueDictionary[tuple[Lane, str], asyncio.Lock] = WeakValueDictionary()
        self.lately = Lately()

    @property
    def own(self) -> Projects:
        """The world as the one who asks may see it."""
        return Projects(self.plane.world, self.who.project)

    async def tell(self, *events: Event) -> int:
        """Journals what the one who asks made happen, with who that was, and notes it in the audit log."""
        signed = [self.signed(each) for each in events]
        self.rates.journals(self.who, sum(map(self._size, signed)))
        try:
            length = await self.plane.tell(*signed)
        except OutcomeUnknown:
            self.audit.orders(signed, " (it may have been written)")
            raise
        self.audit.orders(signed)
        return length

    def _size(self, event: Event) -> int:
        """About what it comes to in the journal."""
        size = len(_encode(event))
        if isinstance(event, WorkloadApplied):
            old = self.plane.world.workloads.get(event.workload.name)
            more = ceilings.seats_of(event.workload) - (ceilings.seats_of(old) if old is not None else 0)
            size += SEAT_BYTES * max(0, more)
        return size

    def signed(self, event: Event) -> Event:
        if not isinstance(event, UserMade):
            return event
        return replace(event, actor=self.who.name, actor_id=self.who.token, origin=self.who.origin)

    async def think(self, make: Callable[[], Callable[[], T]], lane: "Lane") -> T:
        """Does what `make` returns on another thread. Reading files and dry runs take seconds of a processor
        when they are large: one at a time, also when whoever asked has given up, for a thread cannot be
        ended; what is asked for in haste does not wait for what is not. Each token waits for itself first, so
        a hundred dry runs of one hold up another's by one.
        `make` runs here, where nobody writes the world meanwhile, when its turn has come. Nothing comes of it
        but an answer, so a control plane that ends does not wait for it."""
        own = self._thinking_of.setdefault((lane, self.who.token), asyncio.Lock())
        async with own:
            async with AsyncExitStack() as turn:
                await turn.enter_async_context(self._thinking[lane])
                done = on_a_thread(make())
                done.add_done_callback(partial(self._thought, lane))
                turn.pop_all()  # it is over when the thread is
            return await asyncio.shield(done)

    def _thought(self, lane: "Lane", done: "asyncio.Future[Any]") -> None:
        self._thinking[lane].release()
        if not done.cancelled():
            done.exception()  # whoever asked was told, or has left


def on_a_thread(work: Callable[[], T]) -> asyncio.Future[T]:
    """Unlike `asyncio.to_thread`, nobody waits for it at the end of the process."""
    done: concurrent.futures.Future[T] = concurrent.futures.Future()
    done.set_running_or_notify_cancel()  # from here on it cannot be called off

    def run() -> None:
        try:
            done.set_result(work())
        except Exception as error:  # it is raised where somebody waits for it
            done.set_exception(error)

    threading.Thread(target=run, name="dry run", daemon=True).start()
    return asyncio.wrap_future(done)


async def edge_in(request: Request) -> Edge:
    """The edge as the one who asks sees it: all else is shared."""
    edge = copy.copy(edge_of(request))
    edge.who = getattr(request.state, "admitted", edge.who)
    return edge


async def plane_in(request: Request) -> Plane:
    return edge_of(request).plane


async def admitted_in(request: Request) -> Admitted:
    return cast(Admitted, request.state.admitted)


async def role_in(request: Request) -> Role:
    return (await admitted_in(request)).role


async def actor_in(request: Request) -> str:
    return (await admitted_in(request)).name


def edge_of(request: Request) -> Edge:
    return cast(Edge, request.app.state.edge)


ThisEdge = Annotated[Edge, Depends(edge_in)]
ThisPlane = Annotated[Plane, Depends(plane_in)]
Whoever = Annotated[Admitted, Depends(admitted_in)]
ThisActor = Annotated[str, Depends(actor_in)]  # for what is journalled
ThisRole = Annotated[Role, Depends(role_in)]


def give(shape: object) -> Response:
    """A shape, or a list of them, as JSON. Not validated again: it is ours, and tests compare it with the
    OpenAPI document."""
    return Response(_encode(shape), media_type="application/json")
