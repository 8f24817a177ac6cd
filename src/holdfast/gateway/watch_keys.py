"""Looks for keys that work for nobody, and does with them what it may.

Workers tell what they saw; once a minute every key that was used is judged. In shadow (the default) a grade
is only shown. Else a clamped key gets a tenth of its rates, and a suspended one nothing, until somebody
restores it.
"""

import asyncio
import time
from typing import TYPE_CHECKING

import structlog

from holdfast.core.gateway.key_audit.audit import Row, Watch
from holdfast.core.gateway.quota.leader_broker import CLAMP_SHARE
from holdfast.gateway.keyring import NotOurs, write_whole
from holdfast.gateway.messages import SawOne
from holdfast.model.gateway import Grade, Key

if TYPE_CHECKING:
    from holdfast.gateway.keeper import Keeper

JUDGE_S = 60.0

log = structlog.get_logger("holdfast.gateway")


class KeyWatch:
    def __init__(self, keeper: "Keeper") -> None:
        self.keeper = keeper
        self.file = keeper.wanted.state / "habits.msgpack"
        self.watch = self._before()
        self.grades: dict[str, Grade] = {}

    def _before(self) -> Watch:
        shadow = self.keeper.wanted.shadow
        try:
            return Watch.load(self.file.read_bytes(), shadow)
        except FileNotFoundError:
            return Watch(shadow)
        except (OSError, ValueError, KeyError) as error:  # msgspec's are ValueErrors
            log.warning("what was known of the habits of keys is lost", why=str(error))
            return Watch(shadow)

    def saw(self, requests: list[SawOne]) -> None:
        """Not of keys that were deleted while this was on its way: nobody would forget them any more."""
        wall, ring = self.keeper.wall(), self.keeper.ring
        for key, at, seen in requests:
            if key in ring.own or key in ring.fixed:
                self.watch.note(key, seen, at, wall)

    async def run(self) -> None:
        while True:
            await asyncio.sleep(JUDGE_S)
            self.judge()
            self.save()

    def judge(self) -> None:
        now, wall = time.monotonic(), self.keeper.wall()
        for key in self.keeper.ring.all():
            found = self.watch.judge(key, None, now, wall)
            if found.grade is self.grades.get(key.id, key.grade):
                continue
            self.grades[key.id] = found.grade
            log.warning("a key seems to work for nobody", key=key.id, grade=str(found.grade), why=found.why)
            if not found.shadow and not self.keeper.control:  # else the control plane does, for all
                self._act(key, found.grade, found.why)

    def _act(self, key: Key, grade: Grade, why: str) -> None:
        self.keeper.clamp(key.id, CLAMP_SHARE if grade is Grade.CLAMP else 1.0)
        try:
            changed = self.keeper.ring.graded(
                key.id, grade, suspended=why if grade is Grade.SUSPEND else key.suspended
            )
        except NotOurs:  # it stands in the configuration: a clamp is all we can do
            return
        self.keeper.put_key(changed)

    def heard(self, before: Key | None, key: Key) -> None:
        """From the control plane."""
        if self.watch.heard(before, key, self.keeper.wall()):
            self.grades.pop(key.id, None)
            self.keeper.clamp(key.id, 1.0)

    def restore(self, key: str) -> None:
        self.watch.restore(key, self.keeper.wall())
        self.grades.pop(key, None)
        self.keeper.clamp(key, 1.0)

    def forget(self, key: str) -> None:
        self.watch.forget(key)
        self.grades.pop(key, None)

    def report(self) -> tuple[Row, ...]:
        return self.watch.report(self.keeper.ring.all(), {}, time.monotonic(), self.keeper.wall())

    def save(self) -> None:
        try:
            write_whole(self.file, self.watch.save())
        except OSError as error:
            log.error("the habits of keys cannot be kept", why=error.strerror)
