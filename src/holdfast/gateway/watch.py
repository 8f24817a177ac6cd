"""Follows what the control plane says, and goes on by the last of it when there is none.

A view is whole, so nothing can be missed: what changed is found by comparing it with the one before. After it
only changes come, as long as the connection holds; if the number of one is not the next, we connect anew. The
view is kept on disk, and a gateway that starts while the control plane is away starts from there.
"""

import asyncio
import contextlib
import random
from pathlib import Path
from urllib.parse import urlsplit

import msgspec
import structlog

from holdfast.gateway.keeper import Keeper
from holdfast.gateway.keyring import write_whole
from holdfast.gateway.plane import Away, ControlPlane, Denied
from holdfast.gateway.view import NOTHING, Change, View, changed, difference, together
from holdfast.model.gateway import Key

FIRST_WITHIN_S = 3.0
AGAIN_S = (0.1, 0.2, 0.5, 1.0, 2.0)
DENIED_AGAIN_S = 5.0
KEEP_EVERY_S = 1.0
REMIND_S = 30.0  # so often it is said again that nobody answers

log = structlog.get_logger("holdfast.gateway")


class Stopped(Exception):
    """Somebody ended us before we knew anything to go by."""


class Watch:
    def __init__(self, keeper: Keeper, plane: ControlPlane) -> None:
        self.keeper, self.plane = keeper, plane
        self.file: Path = keeper.wanted.state / "view.json"
        self.view = View()
        self._kept = True
        self._trouble = ""

    async def begin(self, stop: asyncio.Event) -> None:
        """Not before there is something to go by. Denied: it will not have us, and we know of nothing."""
        tries, began, told_at = 0, self.keeper.now(), -REMIND_S
        while not stop.is_set():
            try:
                self.apply(await self.plane.view(FIRST_WITHIN_S))
                return
            except (Away, Denied) as error:
                if self._from_disk():
                    asked = ", ".join(self.plane.urls)
                    log.warning("starting with what was last known", control=asked, why=str(error))
                    return
                if isinstance(error, Denied):
                    raise
                now = self.keeper.now()
                if now - told_at >= REMIND_S:
                    told_at = now
                    self._say_that_we_wait(str(error), now - began)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_again(tries)):
                    await stop.wait()
            tries += 1
        raise Stopped

    def _say_that_we_wait(self, why: str, waited_s: float) -> None:
        """At once, and now and then: whoever started us may look elsewhere meanwhile."""
        more: dict[str, object] = {"waited_s": round(waited_s)} if waited_s >= 1.0 else {}
        portless = [url for url in self.plane.urls if urlsplit(url).port is None]
        if portless:
            more["hint"] = f"{portless[0]} names no port: a control plane usually listens at 7700"
        log.warning(
            "cannot reach the control plane, and nothing is known of an earlier run: it is tried again until"
            " it answers; Ctrl-C or SIGTERM ends this",
            control=", ".join(self.plane.urls),
            why=why,
            **more,
        )

    def _from_disk(self) -> bool:
        try:
            self.apply(msgspec.json.decode(self.file.read_bytes(), type=View))
        except FileNotFoundError:
            return False
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
            log.warning("what was last known cannot be read", why=str(error))
            return False
        return True

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._follow())
            group.create_task(self._keep())

    async def _follow(self) -> None:
        tries = 0
        while True:
            wait = _again(tries)
            tries += 1
            try:
                async for said in self.plane.views():
                    if isinstance(said, View):
                        self.apply(said)
                    else:
                        self.follow(said)
                    self._say("")
                    tries = 0
            except Away as away:
                self._say(str(away))
            except Denied as denied:
                self._say(str(denied))
                wait = DENIED_AGAIN_S
            await asyncio.sleep(wait)

    def _say(self, trouble: str) -> None:
        """Once, until it is over."""
        if bool(trouble) != bool(self._trouble):
            if trouble:
                text = "the control plane is away: what is known serves on, limits while what was lent lasts"
                log.warning(text, why=trouble)
            else:
                log.info("the control plane is back")
        self._trouble = trouble

    async def _keep(self) -> None:
        while True:
            await asyncio.sleep(KEEP_EVERY_S)
            await asyncio.to_thread(self.save)

    def save(self) -> None:
        if self._kept:
            return
        try:
            self._kept = True
            write_whole(self.file, msgspec.json.encode(self.view))
        except OSError as error:
            self._kept = False
            log.error("what the control plane says cannot be kept", why=error.strerror)

    # what changed

    def apply(self, view: View) -> None:
        """All of it: the first, or the first after a pause."""
        change = difference(self.view, view)
        self.view = view
        if change != NOTHING:
            self._carry_out(change, self.view)

    def follow(self, change: Change) -> None:
        if change.number != self.view.number + 1:
            raise Away(f"change {change.number} came after {self.view.number}")
        self.view = changed(self.view, change)
        self._carry_out(change, self.view)

    def _carry_out(self, change: Change, view: View) -> None:
        self._kept = False
        keeper = self.keeper
        before = keeper.ring.fixed
        keeper.ring.fixed = view.keys
        for id in change.gone:
            keeper.drop_key(id)
            keeper.watch.forget(id)
        for id, key in change.keys.items():
            self._put(None if id in change.gone else before.get(id), key)
        for scope, limits in change.limits.items():
            keeper.put_limits(scope, limits)
        for id, share in change.clamps.items():
            keeper.clamp(id, share)
        services = together(view.services, keeper.wanted.services)
        if services != keeper.services:
            keeper.put_services(services)

    def _put(self, before: Key | None, key: Key) -> None:
        self.keeper.watch.heard(before, key)
        self.keeper.put_key(key)


def _again(tries: int) -> float:
    return AGAIN_S[min(tries, len(AGAIN_S) - 1)] * (0.5 + random.random())
