"""The second listener: health, metrics, keys and limits, for those who run the gateway.

It answers on an address of its own, which should not be open to those who ask for models, and wants the
token in the file `admin-token` of its folder: any account of this machine reaches loopback. Only whether it
lives and serves is open. A web page in a browser of this machine can reach loopback too, under a name of its
own that leads there: on loopback it must be called by a name of this machine.
"""

import contextlib
import hmac
import secrets
from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import urlsplit

import msgspec
from msgspec.structs import replace
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from holdfast.core.gateway.quota.limits_in_force import InForce
from holdfast.gateway import settings
from holdfast.gateway.keeper import Keeper
from holdfast.gateway.keyring import NotOurs, Unknown
from holdfast.gateway.metrics import page
from holdfast.model.gateway import Key, inherited, is_scope, key_of, scope_of_key
from holdfast.model.units import SECOND
from holdfast.wire.address import is_loopback
from holdfast.wire.keys import (
    KeyMade,
    KeySent,
    KeyShown,
    LimitsWanted,
    NotKnown,
    NotRotatable,
    Rotation,
    Suspension,
    check_names,
    met_by_nobody,
    shown,
)

BODY_MAX = 65_536
SCOPES = "global, team:NAME, model:NAME, key:ID, team:NAME/model:NAME or key:ID/model:NAME"


class Refused(Exception):
    def __init__(self, status: int, detail: str, hint: str = "") -> None:
        super().__init__(detail)
        self.status, self.hint = status, hint


def problem(status: int, detail: str, hint: str = "") -> Response:
    said = {"title": "Problem", "status": status, "detail": detail, "hint": hint, "type": "about:blank"}
    return Response(msgspec.json.encode(said), status, media_type="application/problem+json")


def give(what: Any, status: int = 200) -> Response:
    return Response(msgspec.json.encode(what), status, media_type="application/json")


class Admin:
    def __init__(self, keeper: Keeper, token: str) -> None:
        self.keeper, self.token = keeper, token

    def app(self) -> Starlette:
        routes = [Route(path, of, methods=[method]) for method, path, of, _ in self._paths()]
        return Starlette(
            routes=routes,
            middleware=[Middleware(BaseHTTPMiddleware, dispatch=self.gate)],
            exception_handlers={404: _nothing_here, 405: _nothing_here},
        )

    def _paths(self) -> list[tuple[str, str, Callable[[Request], Awaitable[Response]], str]]:
        return [
            ("GET", "/", self.contents, "this list"),
            ("GET", "/healthz", self.healthz, "that it runs"),
            ("GET", "/readyz", self.readyz, "whether a worker serves"),
            ("GET", "/metrics", self.metrics, "what it counts, for Prometheus"),
            ("GET", "/v1/services", self.services, "where it leads to"),
            ("GET", "/v1/keys", self.keys, "the keys, without their secrets: holdfast keys list"),
            ("POST", "/v1/keys", self.make_key, "make one: holdfast keys create"),
            ("GET", "/v1/keys/report", self.report, "which seem to work for nobody: holdfast keys report"),
            ("DELETE", "/v1/keys/{id}", self.delete_key, "holdfast keys delete"),
            ("POST", "/v1/keys/{id}/rotate", self.rotate, "holdfast keys rotate"),
            ("POST", "/v1/keys/{id}/suspend", self.suspend, "holdfast keys suspend"),
            ("POST", "/v1/keys/{id}/restore", self.restore, "holdfast keys restore"),
            ("GET", "/v1/limits", self.limits, "holdfast limits list"),
            ("PUT", "/v1/limits/{scope:path}", self.set_limits, "holdfast limits set"),
            ("POST", "/v1/reset-limits/{scope:path}", self.reset, "forget what was used of it"),
        ]

    async def contents(self, request: Request) -> Response:
        said = {f"{method} {path.replace(':path', '')}": words for method, path, _, words in self._paths()}
        return give({"is": "the second listener of a gateway: models are asked for at the first", **said})

    async def gate(self, request: Request, go_on: Callable[[Request], Awaitable[Response]]) -> Response:
        try:
            self._check_host(request)
            if request.url.path not in ("/healthz", "/readyz"):
                sent = request.headers.get("authorization", "").removeprefix("Bearer ").strip()
                if not hmac.compare_digest(sent.encode(), self.token.encode()):
                    raise Refused(401, "a token is needed", "send it as: Authorization: Bearer TOKEN")
            if self.keeper.control and request.method != "GET":
                hint = f"ask it instead: --url {self.keeper.control}, and no --gateway"
                raise Refused(409, "keys and limits are those of the control plane", hint)
            return await go_on(request)
        except Refused as refused:
            return problem(refused.status, str(refused), refused.hint)
        except Unknown as unknown:
            return problem(404, f"there is no key {unknown}", "see: holdfast keys list")
        except NotOurs as fixed:
            return problem(409, f"the key {fixed} stands in the configuration", "change it there")
        except NotKnown as unknown:
            return problem(422, str(unknown), unknown.hint)
        except NotRotatable as replaced:
            return problem(409, str(replaced), replaced.hint)
        except OSError as error:
            return problem(507, f"this could not be written: {error.strerror}")

    def _check_host(self, request: Request) -> None:
        if not is_loopback(self.keeper.wanted.admin_host):
            return
        with contextlib.suppress(ValueError):
            if is_loopback(urlsplit(f"//{request.headers.get('host', '')}").hostname or ""):
                return
        raise Refused(403, "this was sent to another name than that of this machine", "call it 127.0.0.1")

    # how it is

    async def healthz(self, request: Request) -> Response:
        return give({"status": "ok"})

    async def readyz(self, request: Request) -> Response:
        ready = sum(seat.ready for seat in self.keeper.seats)
        if ready:
            return give({"workers": ready, "clock_jump_s": round(self.keeper.wall.jump_ms / SECOND)})
        return problem(503, "no worker serves", "look at the log")

    async def metrics(self, request: Request) -> Response:
        body, media_type = page(self.keeper)
        return Response(body, media_type=media_type)

    async def services(self, request: Request) -> Response:
        """Without what it sends to prove itself there: whoever may look here may not have that."""
        return give([_without_credentials(service) for service in self.keeper.services])

    # keys

    async def keys(self, request: Request) -> Response:
        limits = InForce(self.keeper.limits)
        return give([self._shown(key, limits) for key in self.keeper.ring.all()])

    async def make_key(self, request: Request) -> Response:
        wanted = (await _read(request, KeySent)).plain()
        ring = self.keeper.ring
        if wanted.id and any(key.id == wanted.id for key in ring.all()):
            raise Refused(409, f"there is a key {wanted.id} already", "rotate it, or take another id")
        served = [model for service in self.keeper.services for model in service.models]
        check_names(wanted, self.keeper.limits, ring.all(), served)
        key, secret = ring.create(wanted, self.keeper.wall())
        self.keeper.put_key(key)
        return give(KeyMade(self._shown(key), secret), 201)

    async def delete_key(self, request: Request) -> Response:
        id = request.path_params["id"]
        self.keeper.ring.delete(id)
        self.keeper.drop_key(id)
        self.keeper.watch.forget(id)
        return give({"done": f"deleted {id}"})

    async def rotate(self, request: Request) -> Response:
        wanted, keeper = await _read(request, Rotation), self.keeper
        old, fresh, secret = keeper.ring.rotate(request.path_params["id"], keeper.wall(), wanted.grace_ms)
        for scope, limits in inherited(keeper.limits, old.id, fresh.id).items():
            keeper.put_limits(scope, limits)
        keeper.put_key(fresh)
        keeper.put_key(old)  # last: from then on both draw of the same budgets
        return give(KeyMade(self._shown(fresh), secret), 201)

    async def suspend(self, request: Request) -> Response:
        wanted = await _read(request, Suspension)
        key = self.keeper.ring.suspend(request.path_params["id"], wanted.why)
        self.keeper.put_key(key)
        return give(self._shown(key))

    async def restore(self, request: Request) -> Response:
        ring = self.keeper.ring
        try:
            key = ring.restore(request.path_params["id"], self.keeper.wall())
        except NotOurs as fixed:  # its file cannot be changed, but a clamp is not there
            key = ring.get(str(fixed))
        self.keeper.put_key(key)
        self.keeper.watch.restore(key.id)
        return give(self._shown(key))

    async def report(self, request: Request) -> Response:
        return give(self.keeper.watch.report())

    # limits

    async def limits(self, request: Request) -> Response:
        return give(self.keeper.limits)

    async def set_limits(self, request: Request) -> Response:
        wanted = (await _read(request, LimitsWanted)).plain()
        scope = request.path_params["scope"]
        if not is_scope(scope):
            raise Refused(422, f"{scope} is no scope", SCOPES)
        kind, _, name = scope.partition(":")
        keeper = self.keeper
        served = [model for service in keeper.services for model in service.models]
        why = met_by_nobody(scope, keeper.limits, keeper.ring.all(), served)
        if kind == "key" and "/" not in name:  # they are kept with the key
            keeper.put_key(keeper.ring.limit(name, wanted))
        else:
            if kind == "key":
                keeper.ring.get(key_of(scope))
            keeper.put_limits(scope, wanted)
        return give({"done": f"set {scope}" + f", but {why}" * bool(why)})

    async def reset(self, request: Request) -> Response:
        scope, keeper = request.path_params["scope"], self.keeper
        if key_of(scope):
            keeper.ring.get(key_of(scope))
        if scope not in keeper.limits and scope != scope_of_key(key_of(scope)):
            raise Refused(404, f"nothing is limited for {scope}", "see: holdfast limits list")
        keeper.reset(scope)
        return give({"done": f"{scope} begins anew"})

    def _shown(self, key: Key, limits: InForce | None = None) -> KeyShown:
        keeper = self.keeper
        known = limits or InForce(keeper.limits)
        return shown(key, keeper.watch.grades.get(key.id), limits=known, fixed=key.id in keeper.ring.fixed)


def _without_credentials(service: settings.Service) -> settings.Service:
    upstreams = tuple(replace(each, credential="set" * bool(each.credential)) for each in service.upstreams)
    return replace(service, upstreams=upstreams)


async def _nothing_here(request: Request, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else 404
    what = "there is nothing at this path" if status == 404 else "this path does not take this method"
    return problem(status, what, "see / for what there is")


async def _read(request: Request, kind: Any) -> Any:
    body = b""
    async for piece in request.stream():
        body += piece
        if len(body) > BODY_MAX:
            raise Refused(413, f"at most {BODY_MAX} bytes are taken")
    try:
        return msgspec.json.decode(body or b"{}", type=kind)
    except msgspec.ValidationError as error:
        raise Refused(422, str(error)) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Refused(400, f"the body is not JSON: {error}") from None


def new_token() -> str:
    return "hfg_" + secrets.token_urlsafe(32)
