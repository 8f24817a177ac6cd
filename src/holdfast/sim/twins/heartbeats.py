"""Heartbeats of a whole simulated fleet, as vectors.

Every node beats every second, in a simulated month too. One Python event a beat would cost hours, so a round
of beats is sampled at once: when each node sends, how long the beat travels, whether it is lost. What arrived
is handed over when somebody looks (at each turn, and once a round), with the true instants of arrival. A
fault that silences a node in the middle of a round takes back the beats it had not sent yet.

While nothing else happens, many rounds are worked out at once: the same chances, the same gaps, the same
history for the detector, in a tenth of the time. The first beat that comes late enough for anybody to notice
ends that.

A beat carries an echo of the last acknowledgement its agent got: a node that does not hear us must not count
as heard by us, or its lease would end while we believe it renewed.
"""

import numpy as np
from numpy.typing import NDArray

from holdfast.core.health.heartbeats import MANY, Beats
from holdfast.model.units import NEVER, Instant, Millis
from holdfast.sim.scenario.scenario import NetworkTraits

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
Floats = NDArray[np.float64]

BLOCK = MANY - 20  # rounds; a few more may be on their way
FEWEST = 3  # rounds that are worth taking together
PHASES = 0.9  # of a round, so that nearly all of it has come in when the next begins


class Round:
    def __init__(self, sent: Ints, arrives: Ints) -> None:
        self.sent, self.arrives = sent, arrives


class BeatWire:
    """Columns by host row. `speaks`, `up` (its beats reach the leader) and `down` (the leader's answers reach
    it) are kept by the fleet whenever something happens; everything else is kept here."""

    GROWING = ("speaks", "up", "down", "phase", "extra", "lease_until", "last_ack", "try_at", "known")

    def __init__(self, traits: NetworkTraits, beat_ms: Millis, lease_ms: Millis, seed: int) -> None:
        self.traits, self.beat_ms, self.lease_ms = traits, beat_ms, lease_ms
        self.random = np.random.default_rng([seed, 77])
        self.ack_random = np.random.default_rng([seed, 78])
        self.size = 0
        self.speaks = np.zeros(64, np.bool_)
        self.up = np.zeros(64, np.bool_)
        self.down = np.zeros(64, np.bool_)
        self.phase = np.zeros(64, np.int64)
        self.extra = np.zeros(64, np.int64)  # a slow node's delay
        self.lease_until = np.zeros(64, np.int64)
        self.last_ack = np.zeros(64, np.int64)
        self.try_at = np.full(64, NEVER, np.int64)  # when it next tries to connect
        self.known = np.full(
            64, -1, np.int64
        )  # its row in the leader's table; -1: the leader does not count its beats
        self.rounds: list[Round] = []
        self.noise = np.zeros((0, 3, 0))  # drawn ahead, by round: when sent, how long on its way, is it lost
        self.used = 0

    def add(self) -> int:
        row = self.size
        if row == len(self.speaks):
            for name in self.GROWING:
                column = getattr(self, name)
                setattr(self, name, np.concatenate([column, np.zeros_like(column)]))
            self.try_at[row:] = NEVER
            self.known[row:] = -1
        self.size += 1
        self.phase[row] = int(self.random.integers(0, int(PHASES * self.beat_ms)))
        return row

    def begin_round(self, now: Instant) -> None:
        self._draw_ahead(1)
        sent, arrives = self._sample(np.array([now]), self.noise[self.used : self.used + 1])
        self.used += 1
        self.rounds.append(Round(sent[0], arrives[0]))

    def _draw_ahead(self, count: int) -> None:
        """Chance is drawn for many rounds at once and used in order, however many are taken at a time."""
        left = self.noise[self.used :]
        if left.shape[2] < self.size:
            more = self.random.random((len(left), 3, self.size - left.shape[2]))
            left = np.concatenate([left, more], axis=2)
        if len(left) < count:
            left = np.concatenate([left, self.random.random((max(BLOCK, count), 3, self.size))])
        if left.base is not self.noise:
            self.noise, self.used = left, 0

    def _sample(self, begins: Ints, noise: Floats) -> tuple[Ints, Ints]:
        """When each node sends its beat of each round, and when that arrives; NEVER if it does not."""
        n = self.size
        sent = begins[:, None] + self.phase[:n] + (noise[:, 0] * 10).astype(np.int64)
        tail = -np.log1p(-noise[:, 1]) * self.traits.jitter_ms
        arrives = sent + self.traits.delay_ms + tail.astype(np.int64) + self.extra[:n]
        talks = self.speaks[:n] & self.up[:n] & (self.known[:n] >= 0)
        arrives[~talks | (noise[:, 2] < self.traits.loss)] = NEVER
        return sent, arrives

    # quiet time

    def quiet_until(self, now: Instant) -> Instant:
        """Until when nothing but beats can happen on the wire; 0 if something is the matter already."""
        n = self.size
        speaks = self.speaks[:n]
        if not (self.known[:n] >= 0)[speaks].all() or not self.down[:n][speaks].all() or self.extra[:n].any():
            return 0
        ends = self.lease_until[:n][~speaks]
        return int(ends[ends > now].min(initial=NEVER))  # shims watch over the leases of the silent

    def missed_at(self, beats: Beats) -> Instant:
        """When the leader will first miss one that has fallen silent already."""
        look = beats.look_at.copy()
        known = self.known[: self.size][self.speaks[: self.size]]
        look[known[known >= 0]] = NEVER
        return int(look.min())

    def pass_rounds(self, now: Instant, count: int, beats: Beats, skew: Millis) -> int:
        """Works out up to `count` rounds at once, as long as nobody is late in them. Returns how many."""
        self._draw_ahead(count)
        rows = np.flatnonzero(self.speaks[: self.size])
        known, patience = self.known[rows], beats.policy.late_min_ms
        while count >= FEWEST:
            end = now + count * self.beat_ms
            all_sent, all_arrive = self._on_the_way(now, count)
            sent, arrives = all_sent[:, rows], all_arrive[:, rows]
            came = arrives <= end
            last = np.maximum.accumulate(np.vstack([beats.heard[known] - skew, np.where(came, arrives, 0)]))
            gap = np.where(came, arrives - last[:-1], 0)
            came = gap > 0  # one that was overtaken says nothing new
            since = np.where(gap > patience, last[:-1], end)
            first = min(int(since.min(initial=end)), int(last[-1].min(initial=end)))
            if first >= end - patience:
                beats.beats_on_time(known, gap.astype(np.float64), came, last[-1] + skew)
                self._renew(rows, sent, came, end)
                coming = (all_arrive > end) & (all_arrive < NEVER)
                all_arrive[~coming] = NEVER
                self.rounds = [Round(all_sent[i], all_arrive[i]) for i in np.flatnonzero(coming.any(axis=1))]
                self.used += count
                return count
            count = (first - now) // self.beat_ms
        return 0

    def _on_the_way(self, now: Instant, count: int) -> tuple[Ints, Ints]:
        """What was sent before and has not arrived, and the rounds to come."""
        begins = now + self.beat_ms * np.arange(count)
        new_sent, new_arrive = self._sample(begins, self.noise[self.used : self.used + count])
        before = len(self.rounds)
        sent = np.zeros((before + count, self.size), np.int64)
        arrives = np.full((before + count, self.size), NEVER)
        for number, round_ in enumerate(self.rounds):
            sent[number, : len(round_.sent)] = round_.sent
            arrives[number, : len(round_.sent)] = round_.arrives
        sent[before:], arrives[before:] = new_sent, new_arrive
        return sent, arrives

    def _renew(self, rows: Ints, sent: Ints, came: Bools, end: Instant) -> None:
        acked = came & (self.ack_random.random(came.shape) >= self.traits.loss)
        newest = np.where(acked, sent, 0).max(axis=0, initial=0)
        self.lease_until[rows] = np.maximum(self.lease_until[rows], newest + self.lease_ms)
        self.last_ack[rows] = np.where(acked.any(axis=0), end, self.last_ack[rows])

    # what happens to a node

    def silence(self, row: int, now: Instant) -> None:
        """What this node had not sent by now is never sent."""
        for round_ in self.rounds:
            if row < len(round_.sent) and round_.sent[row] >= now:
                round_.arrives[row] = NEVER

    def arrived(self, now: Instant) -> list[tuple[Ints, Ints, Ints]]:
        """(rows, sent, arrived) of beats that came in by now, and counted, oldest round first."""
        batches = []
        for round_ in self.rounds:
            rows = np.flatnonzero(round_.arrives <= now)
            if len(rows):
                at = round_.arrives[rows].copy()
                round_.arrives[rows] = NEVER
                hears = self.last_ack[rows] >= now - self.lease_ms // 2
                counted = (self.known[rows] >= 0) & hears
                if not counted.all():
                    rows, at = rows[counted], at[counted]
                batches.append((rows, round_.sent[rows], at))
        if len(self.rounds) > 1:
            self.rounds = [r for r in self.rounds[:-1] if (r.arrives < NEVER).any()] + self.rounds[-1:]
        return batches

    def acknowledge(self, rows: Ints, sent: Ints, now: Instant) -> None:
        """The leader answers these beats; those that can hear it renew their lease from when they *sent*."""
        heard = self.down[rows] & (self.ack_random.random(len(rows)) >= self.traits.loss)
        rows, sent = rows[heard], sent[heard]
        self.lease_until[rows] = np.maximum(self.lease_until[rows], sent + self.lease_ms)
        self.last_ack[rows] = now

    def next_arrivals(self) -> Ints:
        """For each row, when its next beat arrives that is on its way already; NEVER if none is."""
        n = self.size
        soonest = np.full(n, NEVER, np.int64)
        for round_ in self.rounds:
            m = len(round_.arrives)
            soonest[:m] = np.minimum(soonest[:m], round_.arrives)
        return soonest
