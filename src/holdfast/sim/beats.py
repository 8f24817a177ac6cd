"""Heartbeats of a whole simulated fleet, as vectors.

Every node beats every second, in a simulated month too. One Python event a beat would cost hours, so a round
of beats is sampled at once: when each node sends, how long the beat travels, whether it is lost. What arrived
is handed over when somebody looks (at each turn, and once a round), with the true instants of arrival. A
fault that silences a node in the middle of a round takes back the beats it had not sent yet.

A beat carries an echo of the last acknowledgement its agent got: a node that does not hear us must not count
as heard by us, or its lease would end while we believe it renewed.
"""

import numpy as np
from numpy.typing import NDArray

from holdfast.model.units import NEVER, Instant, Millis
from holdfast.sim.scenario import NetworkTraits

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

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
        n = self.size
        traits = self.traits
        noise = self.random.random((3, n))
        sent = now + self.phase[:n] + (noise[0] * 10).astype(np.int64)
        tail = -np.log1p(-noise[1]) * traits.jitter_ms
        arrives = sent + traits.delay_ms + tail.astype(np.int64) + self.extra[:n]
        quiet = ~(self.speaks[:n] & self.up[:n] & (self.known[:n] >= 0)) | (noise[2] < traits.loss)
        arrives[quiet] = NEVER
        self.rounds.append(Round(sent, arrives))

    def all_well(self) -> bool:
        """Does every node that speaks talk to the leader, with nothing lost lately?"""
        n = self.size
        speaking = self.speaks[:n]
        return bool((self.known[:n] >= 0)[speaking].all() and (self.extra[:n] == 0).all())

    def skip(self, ms: Millis) -> None:
        """Beats that were on their way arrive later; leases are renewed all the time."""
        n = self.size
        for column in (self.lease_until, self.last_ack):
            column[:n][self.speaks[:n]] += ms
        for round_ in self.rounds:
            round_.sent += ms
            round_.arrives[round_.arrives < NEVER] += ms

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
        heard = self.down[rows] & (self.random.random(len(rows)) >= self.traits.loss)
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
