"""Ways to keep a service up on spot: ours, and those it is measured against.

Even and round robin hold one spare and nothing on demand, as in the published comparison. Spot hedge holds no
spare: it orders on demand for every spot node that is not ready.
"""

from collections import Counter

from bench._serving_world import COLD_START_S, ON_DEMAND, ON_DEMAND_PRICE, WANTED, Held
from holdfast.core.spot.mix_policy import (
    Fleet,
    MixRules,
    Orders,
    Zone,
    orders,
)
from holdfast.model.market import Losses
from holdfast.model.units import HOUR, SECOND
from holdfast.reliability import losses
from holdfast.reliability.onoff import Belief

SPARE = 1
LOOK_S = 300  # a belief learns nothing from looks that are closer
HORIZON_HOURS = 48.0
DOLLAR = 1_000_000


class Ours:
    """`core.spot.mix_policy`, asked again after each refusal, with a belief for each zone."""

    def __init__(self, zones: int, rules: MixRules | None = None) -> None:
        self.rules = rules or MixRules()
        self.beliefs = [Belief() for _ in range(zones)]
        self.stays = [self._stays(zone) for zone in range(zones)]
        self.losses, self.took = Losses(), dict[int, int]()
        self.begun: int | None = None

    def act(self, held: Held, lost: Counter[int]) -> None:
        self._learn(held, lost)
        refused: set[int] = set(lost)
        while True:
            found = orders(WANTED, self._fleet(held, refused), self.rules)
            if not self._perform(held, found, refused):
                return

    def _learn(self, held: Held, lost: Counter[int]) -> None:
        self.begun = held.now if self.begun is None else self.begun
        begun = held.now - self.begun > COLD_START_S  # nobody is ready sooner
        short = sum(held.is_ready(node) for node in held.nodes) < WANTED
        self.losses = losses.told(self.losses, _instant(held), short=short and begun)
        for zone, count in lost.items():
            self.losses = losses.lost(self.losses, _instant(held), str(zone), held.in_zone(zone), count)
            self.took[zone] = _instant(held)
            self._see(held.now, zone, there=False)
        if held.now % LOOK_S == 0:
            for zone in {node.zone for node in held.spot()} - set(lost):
                self._see(held.now, zone, there=True)

    def _see(self, now: int, zone: int, *, there: bool) -> None:
        self.beliefs[zone].see(now / 3600, there)
        self.stays[zone] = self._stays(zone)

    def _stays(self, zone: int) -> int:
        return round(self.beliefs[zone].stays_hours(HORIZON_HOURS) * HOUR)

    def _fleet(self, held: Held, refused: set[int]) -> Fleet:
        count = Counter((node.zone, held.is_ready(node)) for node in held.nodes)
        zones = [
            Zone(
                name=str(zone),
                price=DOLLAR,
                stays_ms=stays,
                ready=count[zone, True],
                coming=count[zone, False],
                refused=zone in refused,
                taking=zone in self.took and _instant(held) - self.took[zone] < losses.AFTER_LOSS_MS,
            )
            for zone, stays in enumerate(self.stays)
        ]
        return Fleet(
            zones=tuple(zones),
            on_demand_price=round(ON_DEMAND_PRICE * DOLLAR),
            ready_ms=COLD_START_S * SECOND,
            on_demand_ready=count[ON_DEMAND, True],
            on_demand_coming=count[ON_DEMAND, False],
            burn=losses.burn(self.losses, self.rules.short_share_max),
            follows=losses.follows(self.losses),
            alone_per_hour=losses.alone_per_hour(self.losses),
        )

    def _perform(self, held: Held, found: Orders, refused: set[int]) -> bool:
        """Is it to be asked again? It is after a refusal, and before what was ordered beside is done."""
        for name in found.spot:
            zone = int(name)
            taken = held.try_spot(zone)
            self._see(held.now, zone, there=taken)
            if not taken:
                refused.add(zone)
                return True
        for _ in range(found.on_demand):
            held.launch_on_demand()
        for node in [*reversed(held.on_demand())][: found.release_on_demand]:
            held.let_go(node)
        for name in found.release_spot:
            held.let_go(next(n for n in held.spot() if n.zone == int(name) and held.is_ready(n)))
        return False


def _instant(held: Held) -> int:
    return (held.now + 1) * SECOND  # zero means never


class Even:
    """So many in each zone, and the odd ones from the zone `first` on; never elsewhere."""

    def __init__(self, zones: int, first: int = 0) -> None:
        each, odd = divmod(WANTED + SPARE, zones)
        self.share = [each + ((zone - first) % zones < odd) for zone in range(zones)]

    def act(self, held: Held, lost: Counter[int]) -> None:
        for zone, share in enumerate(self.share):
            while held.in_zone(zone) < share and held.try_spot(zone):
                pass


class RoundRobin:
    """The next zone in turn that has some."""

    def __init__(self, zones: int) -> None:
        self.zones, self.next = zones, 0

    def act(self, held: Held, lost: Counter[int]) -> None:
        refused = 0
        while len(held.nodes) < WANTED + SPARE and refused < self.zones:
            refused = 0 if held.try_spot(self.next) else refused + 1
            self.next = (self.next + 1) % self.zones


class SpotHedge:
    """Zones that took or refused are avoided until fewer than two are left; of the others the one with the
    fewest of ours. On demand for all that is not ready on spot (EuroSys'25)."""

    def __init__(self, zones: int) -> None:
        self.good, self.avoided = list(range(zones)), list[int]()

    def act(self, held: Held, lost: Counter[int]) -> None:
        for zone in lost:
            self._avoid(zone)
        refused: set[int] = set()
        while len(held.spot()) < WANTED:
            left = [z for z in self.good if z not in refused] or [z for z in self.avoided if z not in refused]
            if not left:
                break
            zone = min(left, key=held.in_zone)
            if held.try_spot(zone):
                self._trust(zone)
            else:
                refused.add(zone)
                self._avoid(zone)
        missing = WANTED - sum(held.is_ready(node) for node in held.spot())
        for _ in range(missing - len(held.on_demand())):
            held.launch_on_demand()
        for node in held.on_demand()[max(0, missing) :]:
            held.let_go(node)

    def _avoid(self, zone: int) -> None:
        if zone in self.good:
            self.good.remove(zone)
            self.avoided.append(zone)
        if len(self.good) < 2:
            self.good, self.avoided = self.good + self.avoided, []

    def _trust(self, zone: int) -> None:
        if zone in self.avoided:
            self.avoided.remove(zone)
            self.good.append(zone)
