"""Every number that a person may want to turn, with its default and its reason."""

import msgspec

from holdfast.model.money import Budget
from holdfast.model.place import Level
from holdfast.model.units import HOUR, MINUTE, SECOND, Millis

ACT_MS_MIN: Millis = 300
PROBE_MS_MIN: Millis = 250


class Detection(msgspec.Struct, frozen=True):
    """Silence is counted in beats, so that a quicker heartbeat detects more quickly by itself."""

    beat_ms: Millis = 1 * SECOND
    late_beats: float = 2.2  # never ask before this: one lost beat is nothing
    late_beats_max: float = 10.0  # however restless its history, ask by now
    deviations: float = 6.0  # of its own inter-arrival times
    act_after_late_ms: Millis = 900  # from "late" to "silent": time for the peers; at most 1.4 beats
    silent_beats: float = 3.8  # and never before: longer than a stall of 2.5 s after a beat
    alone_beats: float = 10.0  # silence that counts when there is nobody to ask
    probe_timeout_ms: Millis = 800  # at most 1.2 beats
    peers_asked: int = 3
    peers_quorum: int = 2  # answers that must agree before a silent node is called dead
    ask_again_ms: Millis = 2 * SECOND
    late_loop_ms: Millis = 500  # our own turn may be this late before we doubt ourselves
    crowd: float = 0.01  # this share silent within `majority_window_ms`: peers must fail to reach them twice
    crowd_nodes_min: int = 5
    majority: float = 0.5  # this share is our own fault until shown otherwise
    majority_window_ms: Millis = 5 * SECOND
    majority_nodes_min: int = 4
    grace_ms: Millis = 10 * SECOND  # after a leader change nobody is dead until heard or this has passed
    unreachable_patience_ms: Millis = 10 * MINUTE  # then a service gets an extra copy elsewhere
    disputed_patience_ms: Millis = 1 * MINUTE  # for one peer alone that reached a node, against a quorum

    @property
    def late_min_ms(self) -> Millis:
        return int(self.late_beats * self.beat_ms)

    @property
    def late_max_ms(self) -> Millis:
        return int(self.late_beats_max * self.beat_ms)

    @property
    def silent_min_ms(self) -> Millis:
        return int(self.silent_beats * self.beat_ms)

    @property
    def act_ms(self) -> Millis:
        """Whoever beats quickly wants to be found quickly: a little more than a beat, if that is less."""
        return min(self.act_after_late_ms, max(ACT_MS_MIN, int(1.4 * self.beat_ms)))

    @property
    def probe_ms(self) -> Millis:
        return min(self.probe_timeout_ms, max(PROBE_MS_MIN, int(1.2 * self.beat_ms)))

    @property
    def alone_ms(self) -> Millis:
        return int(self.alone_beats * self.beat_ms)


class Leases(msgspec.Struct, frozen=True):
    lease_ms: Millis = 30 * SECOND  # longer than a router's failover: a short cut must not kill a job
    margin_ms: Millis = 1 * SECOND  # clocks that drift


class BrakePolicy(msgspec.Struct, frozen=True):
    fleet_share: float = 0.25
    domain_share: float = 0.6
    domain_level: Level = Level.ZONE
    nodes_min: int = 3  # fewer lost at once is an ordinary day
    window_ms: Millis = 5 * MINUTE
    hold_ms: Millis = 1 * MINUTE  # it must be quiet this long before the brake lets go
    quiet_ms: Millis = 10 * MINUTE  # all others were heard for so long: it holds the dead of the burst only
    disruptive_share: float = 0.1  # of the joined nodes may be in repair at once
    disruptive_min: int = 1


class RepairPolicy(msgspec.Struct, frozen=True):
    flaps_max: int = 4  # returns from suspicion within `flap_window_ms`
    flap_window_ms: Millis = 15 * MINUTE
    gray_failures: int = (
        3  # replicas of different slots that failed here and run elsewhere: see `core.health.gray_failures`
    )
    gray_window_ms: Millis = 15 * MINUTE  # so old are its failures at most; and so long the finding stands
    watch_ms: Millis = 30 * MINUTE  # a watched node without news is healthy again
    drain_ms: Millis = 5 * MINUTE
    reset_ms: Millis = 10 * MINUTE
    repeats_max: int = 2  # repaired so often, it is replaced; cannot be replaced: quarantined


class CapacityPolicy(msgspec.Struct, frozen=True):
    launch_timeout_ms: Millis = 5 * MINUTE
    boot_timeout_ms: Millis = 15 * MINUTE
    terminate_retry_ms: Millis = 30 * SECOND
    backoff_ms: Millis = 10 * SECOND
    backoff_max_ms: Millis = 10 * MINUTE
    list_every_ms: Millis = 5 * MINUTE
    offers_every_ms: Millis = 5 * MINUTE  # how often providers are asked what they offer
    launches_at_once: int = 50
    wait_worth: float = 1.0  # an hour of waiting for a node is worth so many of its hours
    queue_every_ms: Millis = 15 * SECOND  # how often a provider is asked about a launch that may be queued
    queue_patience_ms: Millis = 1 * MINUTE  # another offer must be ready so much sooner than a queue moves
    after_loss_ms: Millis = 10 * MINUTE  # so long an offer that took spot nodes away is left alone by a mix
    dead_node_ms: Millis = 2 * MINUTE  # a dead node is given this long to come back before it is terminated


class ReplicaPolicy(msgspec.Struct, frozen=True):
    place_timeout_ms: Millis = 1 * MINUTE  # from being placed to having been started by its agent
    ready_timeout_ms: Millis = 20 * MINUTE  # from there to ready: images and models take their time
    rolling_unavailable: int = 1
    preempt: bool = True
    drain_last_call_ms: Millis = (
        30 * SECOND
    )  # so long before a drain's deadline everything is stopped, room or not
    gang_grow_ms: Millis = 10 * MINUTE  # a running gang is not enlarged (restarted) more often than this


class BalancePolicy(msgspec.Struct, frozen=True):
    every_ms: Millis = 5 * MINUTE
    moves_max: int = 1  # for the load, in one round
    part_ms: Millis = 20 * SECOND  # copies that stand closer than they need part after this
    parts_max: int = 10  # workloads that part a copy in one round
    gain_horizon_ms: Millis = 1 * HOUR  # a move must pay for itself within this
    imbalance: float = 0.75  # busiest minus idlest, as a share of a node, before anything moves
    consolidate: bool = True  # empty and release under-used nodes whose work fits elsewhere


class Policy(msgspec.Struct, frozen=True):
    detection: Detection = Detection()
    leases: Leases = Leases()
    brake: BrakePolicy = BrakePolicy()
    repair: RepairPolicy = RepairPolicy()
    capacity: CapacityPolicy = CapacityPolicy()
    replicas: ReplicaPolicy = ReplicaPolicy()
    balance: BalancePolicy = BalancePolicy()
    budget: Budget = Budget()  # of the fleet; pools may have their own beside it
