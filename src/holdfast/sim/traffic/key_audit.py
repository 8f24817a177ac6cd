"""What a simulated gateway makes of the keys it serves: the real detector, over simulated requests.

The twin of `gateway.watch_keys`. Habits are noted as requests end and judged once a minute while there are
any; in shadow (the default) a judgement is only told, else the leader hears of it and holds the key back at
all gateways. Habits survive their gateway, as on a disk.
"""

import zlib
from typing import TYPE_CHECKING

from holdfast.core.gateway.key_audit.audit import Row, Seen, Watch
from holdfast.core.gateway.key_audit.enforcement import worse
from holdfast.core.gateway.quota.leader_broker import clamp
from holdfast.model.gateway import Grade, Key
from holdfast.model.units import MINUTE, Instant, Millis

if TYPE_CHECKING:
    from holdfast.sim.traffic.exchange import Exchange
    from holdfast.sim.traffic.gateway import Front

JUDGE_MS: Millis = MINUTE
STATUS = {
    "suspended": 403,
    "tokens": 429,
    "requests": 429,
    "concurrent": 429,
    "total": 429,
    "held": 429,
    "never": 400,
}


class KeyTwin:
    def __init__(self, front: "Front") -> None:
        self.front, self.shadow = front, front.traits.shadow
        saved = front.traffic.habits.get(front.name)
        self.watch = Watch(self.shadow) if saved is None else Watch.load(saved, self.shadow)
        self.known: dict[str, Key] = {}  # as the leader says
        self._grades: dict[str, Grade] = {}
        self._judged_at: Instant = front.now

    def save(self) -> None:
        self.front.traffic.habits[self.front.name] = self.watch.save()

    def told(self, keys: dict[str, Key]) -> None:
        before, self.known = self.known, keys
        for id, key in keys.items():
            was = before.get(id)
            if was is key:
                continue
            if self.watch.heard(was, key, self.front.now):
                self._grades.pop(id, None)
            if clamp(was) != clamp(key):
                self.front.purse.set_clamp(id, clamp(key), self.front.now_s)
        for id in before.keys() - keys.keys():
            self.watch.forget(id)

    def saw(self, exchange: "Exchange") -> None:
        want, now = exchange.want, self.front.now
        made = exchange.winner.said(now) if exchange.winner is not None else 0
        kind = exchange.reason.partition(" ")[0]
        seen = Seen(
            prompt_hash=want.hash,
            status=200 if exchange.first_at >= 0 else STATUS.get(kind, 503),
            reserved=exchange.tokens,
            prompt_tokens=want.prompt if made else 0,
            completion_tokens=made,
            undelivered_tokens=0,
            hit_max_tokens=want.most is not None and made >= want.most,
            finish_length=False,
            source_hash=1,
            agent_hash=1,
            model_hash=zlib.crc32(exchange.model.encode()),
        )
        self.watch.note(exchange.key.id, seen, self.front.now_s, now)
        if now - self._judged_at >= JUDGE_MS:
            self._judged_at = now
            self._judge()

    def _judge(self) -> None:
        front = self.front
        for key in self.known.values():
            found = self.watch.judge(key, None, front.now_s, front.now)
            before = self._grades.get(key.id, key.grade)
            if found.grade is not before:
                if worse(found.grade, before):
                    front.traffic.checks.judged(key.id, found)
                self._grades[key.id] = found.grade
                front.traffic.teller.judged(front, key.id, found.grade, found.why)
        if not self.shadow:
            front.traffic.found_out(front, self._report())

    def _report(self) -> tuple[Row, ...]:
        return self.watch.report(self.known.values(), {}, self.front.now_s, self.front.now)
