"""What does a worker hold of one counter, and what of it does it give back when it is not used?

What is more than a slice goes back with the next full ask. A slice that is not used stays for some seconds,
and what the next request will need is asked for beforehand, so that one who comes now and then need not wait
for the broker each time. That is done while there is plenty: where less than half of the capacity would be
left, or anybody was refused, what was not used since the last full ask goes back, so that an idle worker does
not keep it from a busy one. Of a budget no more than a slice is held so: what a crash takes along is gone.

Of places it keeps one, and none where they are few: those go back at once (`Purse.hurries`), and so do unused
tokens of a counter that has little left. The broker is told that nothing is held until it has heard it: an
idle worker that said nothing more would keep from others what it no longer had.

Refused: giving back whatever is not used at the next full ask. Whoever came less often than every 400 ms then
waited for the broker with each request, one to two milliseconds on one machine.
"""

from math import exp, floor, inf

from holdfast.core.gateway.quota.broker import counter
from holdfast.core.gateway.quota.lent import PLACES_SHARE, SLICE_S, Part, total_slice

RESTS = 50  # full asks through which what is not used is held ready: some ten seconds
READY_SHARE = 1 / 16  # of the capacity, at most, is held ready unused


class Batch:
    """The requests whose spending one ask tells of one counter."""

    __slots__ = ("later", "mark", "term")

    def __init__(self) -> None:
        self.term = ""
        self.mark = -inf  # at which the broker holds it; -inf: it does not
        self.later: list[tuple[float, float]] = []  # reserved and unused, settled before the answer came


class Pocket:
    """What this worker holds of one counter."""

    __slots__ = (
        "asked",
        "back",
        "batch",
        "busy",
        "capacity",
        "debt",
        "denied_need",
        "denied_until",
        "freed",
        "have",
        "home",
        "kind",
        "left",
        "mark",
        "name",
        "need",
        "pressed",
        "rate",
        "ready_at",
        "recovering",
        "rests",
        "scope",
        "sent_debt",
        "sent_need",
        "sent_none",
        "sent_spent",
        "since",
        "spent",
        "until",
    )

    def __init__(self, kind: str, scope: str) -> None:
        self.kind = kind
        self.scope = scope
        self.name = counter(kind, scope)
        self.capacity = 0.0
        self.rate = 0.0
        self.have = 0.0  # may be taken now
        self.busy = 0.0  # places in use; of a total: what running requests reserved
        self.spent = 0.0  # not yet told, or told without an answer
        self.debt = 0.0
        self.sent_spent = 0.0
        self.sent_debt = 0.0
        self.sent_need = 0.0
        self.batch = Batch()
        self.asked: Batch | None = None
        self.freed = 0.0
        self.back = 0.0
        self.mark = 0.0
        self.until = inf if kind == "total" else 0.0  # a total is lent without an end
        self.since = 0.0  # when the lease began that has not ended since
        self.left = 0.0
        self.pressed = False  # somebody was refused lately
        self.need = 0.0  # the most that a request lacked, since it was last at rest
        self.rests = 0  # full asks since it was used
        self.denied_until = 0.0
        self.denied_need = 0.0
        self.ready_at = 0.0
        self.home = True  # the broker has heard that we hold nothing
        self.sent_none = False
        self.recovering = False  # the broker came after another and has not got so much yet

    @property
    def slice(self) -> float:
        if self.kind == "total":
            return total_slice(self.capacity)
        return max(float(floor(self.rate * SLICE_S)), 1.0)

    def rest(self) -> None:
        """Another full ask."""
        if self.spent or self.busy:
            self.rests = 0
            return
        self.rests += 1
        if self.rests > RESTS:
            self.need = 0.0

    def ready(self, wanted: float) -> float:
        """As much of that as may be held though it is not used."""
        if self.rests > RESTS or self.pressed:
            return 0.0
        if self.kind == "concurrent":
            return 0.0 if self.scarce else min(wanted, 1.0)
        # what a crash takes along of a total is gone for ever
        most = self.slice if self.kind == "total" else self.capacity * READY_SHARE
        held = min(wanted, most)
        return held if self.left + self.have - held >= self.capacity / 2 else 0.0

    @property
    def scarce(self) -> bool:
        """So few places that one which lies idle here is missing elsewhere: it goes back at once."""
        return self.kind == "concurrent" and self.capacity * PLACES_SHARE < 1.0

    def keep(self) -> float:
        """What to hold on to at a full ask."""
        if self.rests or self.kind == "concurrent":
            return min(self.have, self.ready(max(self.slice, self.need)))
        return min(self.have, max(self.slice, self.spent, self.ready(self.need)))

    def beforehand(self) -> float:
        """What to want before somebody needs it. Places are few, and not taken so."""
        return max(0.0, self.ready(self.need) - self.have) if self.kind != "concurrent" else 0.0

    def part(self, wants: float) -> Part:
        """Tell what there is to tell. What comes back is told once, whether it arrives or not."""
        has = self.have if self.kind in ("tokens", "requests") else self.have + self.busy
        said = Part(has, wants, self.spent, self.debt, self.freed, self.back, self.mark)
        self.sent_spent, self.sent_debt, self.sent_need = self.spent, self.debt, self.have + wants
        self.sent_none = has == 0.0
        self.freed = self.back = 0.0
        self.asked, self.batch = self.batch, Batch()
        return said

    def let_go(self, tokens: float, unused: float, mark: float) -> None:
        """Settle what the broker holds at that mark."""
        part = tokens * exp(min(0.0, mark - self.mark))
        self.freed += part
        self.back += min(unused, part)

    def begin_anew(self, now: float) -> None:
        """Another broker answers. It knows nothing of slices that the last one has lent, and counts them as
        spent: they must not live on under leases of its own."""
        self.freed = self.back = 0.0
        if self.kind in ("tokens", "requests"):
            self.have = self.spent = self.sent_spent = 0.0
            self.since = now
            self.batch = Batch()

    def expire(self, now: float) -> None:
        if now >= self.until:
            self.have = 0.0

    @property
    def idle(self) -> bool:
        return not (self.have or self.busy or self.spent or self.debt or self.freed)
