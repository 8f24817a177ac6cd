"""All that the control plane knows: a mutable holder of frozen entries, with the indexes that decisions ask
for.

Only `core.state.fold` writes it. Copying a map of 100,000 entries costs milliseconds, swapping one entry a
fraction of a microsecond; so the entries are frozen and the holder is not.
"""

import msgspec

from holdfast.model.agenda import Agenda
from holdfast.model.course import Course
from holdfast.model.demand import Demand, Start
from holdfast.model.finding import Finding
from holdfast.model.gateway import Key, Limits, Tranche
from holdfast.model.market import Losses, OfferRecord
from holdfast.model.money import Account
from holdfast.model.node import Node
from holdfast.model.offer_table import Table
from holdfast.model.outcomes import Outcomes
from holdfast.model.policy import Policy
from holdfast.model.pool import Offer, Pool, PoolState
from holdfast.model.project import Project
from holdfast.model.replica import Replica, Slot
from holdfast.model.room import Room
from holdfast.model.units import Instant, Millis
from holdfast.model.workload import Version, Workload

Names = dict[str, None]  # an ordered set: iteration must not depend on hashes


class Leader(msgspec.Struct, frozen=True):
    name: str = ""
    generation: int = 0
    since: Instant = 0
    era: str = ""  # as in LeaderChanged
    offset: Millis = 0


class Brake(msgspec.Struct, frozen=True):
    """One engaged brake."""

    scope: str
    since: Instant
    why: str


class Zone(msgspec.Struct, frozen=True):
    """How often a whole zone was lost, for `redundancy`."""

    since: Instant
    outages: int = 0
    down_ms: Millis = 0
    down_since: Instant = 0  # 0: it is not down


class Gang(msgspec.Struct, frozen=True):
    """The present generation of a training: it changes whenever the membership does."""

    generation: int = 0
    members: tuple[str, ...] = ()  # slots
    since: Instant = 0
    complete: bool = False  # the port of every member is known: their programs may start


class World:
    def __init__(self, policy: Policy | None = None) -> None:
        self.policy = policy or Policy()
        self.leader = Leader()
        self.plans = 0  # accepted so far
        self.nodes: dict[str, Node] = {}
        self.pools: dict[str, Pool] = {}
        self.pool_states: dict[str, PoolState] = {}
        self.offers: dict[str, tuple[Offer, ...]] = {}  # by pool: what can be had, as far as we know
        self.workloads: dict[str, Workload] = {}
        self.versions: dict[str, tuple[Version, ...]] = {}  # by workload: what ran before, the oldest first
        self.slots: dict[str, Slot] = {}
        self.replicas: dict[str, Replica] = {}
        self.gangs: dict[str, Gang] = {}
        self.courses: dict[str, Course] = {}  # by workload, if it has a deadline
        self.demands: dict[str, Demand] = {}  # by workload, if it scales
        self.starts: dict[str, Start] = {}  # by workload
        self.outcomes: dict[str, Outcomes] = {}  # by workload
        self.findings: dict[tuple[str, str], Finding] = {}  # by node and name
        self.brakes: dict[str, Brake] = {}
        self.brake_released_at: Instant = 0  # by hand
        self.zones: dict[str, Zone] = {}  # what has been seen of each
        self.lease_before: tuple[Instant, Millis] = (0, 0)  # until when, and how long, leases were before
        self.epoch_floor: dict[str, int] = {}  # by workload: no seat made anew starts below this
        self.behind_at: Instant = 0  # when it was found that the journal is older than what was done by it
        self.epoch_least = 0  # no replica gets this epoch or a lower one
        self.launched = 0  # node numbers handed out
        self.records: dict[str, OfferRecord] = {}  # by pool/offer: what is remembered of it
        self.losses: dict[str, Losses] = {}  # by service, if it is on a mix of spot and on demand
        self.accounts: dict[str, Account] = {}  # by pool: what its nodes cost
        self.orphans: dict[str, str] = {}  # listed by a provider, unknown to us: node -> pool
        # these three are replaced whole when they change, so that it is seen at a glance
        self.keys: dict[str, Key] = {}
        self.limits: dict[str, Limits] = {}  # by scope, but for those of single keys, which say them
        self.projects: dict[str, Project] = {}  # those with a quota
        self.project_of: dict[str, str] = {}  # by workload, also deleted ones; the default's are left out
        self.drawn: dict[str, int] = {}  # of budgets: by scope
        self.tranches: dict[str, Tranche] = {}  # of limits a minute: by counter; of others nothing is lent
        self.tranches_of = 0  # the generation that last said so
        self._make_indexes()

    def _make_indexes(self) -> None:
        self.on_node: dict[str, Names] = {}  # replicas
        self.of_slot: dict[str, Names] = {}  # replicas
        self.of_workload: dict[str, Names] = {}  # slots
        self.in_pool: dict[str, Names] = {}  # nodes
        self.after: dict[str, Names] = {}  # workloads that wait for this one
        self.waiting: dict[str, Names] = {}  # workload -> open slots without a live replica
        self.promised: Names = {}  # workloads with an availability target
        self.mixed: Names = {}  # services on a mix of spot and on demand
        self.scaled: Names = {}  # workloads that grow and shrink with their load
        self.fronted: Names = {}  # services that gateways lead to
        self.held: dict[str, Names] = {}  # workload -> slots in which a replica is, or may be
        self.warm: dict[str, Names] = {}  # workload -> standby replicas that are ready
        self.closed: dict[str, Names] = {}  # workload -> slots that are not wanted any more
        self.numbered: dict[
            str, tuple[int, int]
        ] = {}  # "web/", "web/s" -> how many slots, sum of their indexes
        self.struck: dict[str, Names] = {}  # workload -> active slots that are down and were not stopped
        self.undone: dict[str, Names] = {}  # workload -> active slots that are not done
        self.lost: Names = {}  # replicas in state LOST
        self.stopping: Names = {}
        self.outdated: Names = {}  # live replicas of an older version than their workload's
        self.draining: Names = {}  # nodes
        self.cordoned: Names = {}  # nodes
        self.doubtful: Names = {}  # nodes whose verdict is not alive
        self.kept: Names = {}  # those of them to which a brake was narrowed
        self.joined = 0
        self.joined_in: dict[str, int] = {}  # zone -> joined nodes
        self.dead_in: dict[str, int] = {}  # zone -> those of them that are dead
        self.serving: dict[str, tuple[int, int]] = {}  # pool -> how many are not, and the sum of joined_at
        self.of_priority: dict[int, Names] = {}  # workloads
        self.room = Room()
        self.market = (
            Table()
        )  # all offers side by side; ask `core.market.offers.listed`, which brings it up to date
        self.agenda = Agenda()
