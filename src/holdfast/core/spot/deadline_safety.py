"""Which way should a job with a deadline go on now, and until when may it be left alone?

`core.spot.deadline_policy` chooses in steps of hours and dollars; the loop lives in instants and wakes when
something is due. Here is the bridge: a job's terms and progress in, a way with its reason out, and the
instant at which it must be asked again.

The net is one line. Whatever spot does, what is in the last checkpoint stays; so a job that is ordered on
demand at `safe_until` and starts from there, after the node's time to ready and its restart, still ends in
time. The instant moves on with every checkpoint. Before it, any way is safe; at it, on demand is ordered, and
what runs on spot may run on until that node is ready. Work since the last checkpoint does not count: it may
be lost in the next second. A margin covers the loop's own turn and the messages on the way.

On demand is taken as certain: it comes within `on_demand_ready_ms`. Where it does not, nothing is certain.

Before the net, the cheapest way is asked of the outlook. There a loss costs, besides the restart, the time to
ready and half a checkpoint, which is what is lost on average. A way that the outlook thinks safe for its step
is still only taken until `safe_until`. The outlook counts in whole steps and so gives up a little earlier
than the net; what it thinks impossible is told without a cost.

Where the numbers come from: the outlook of a job has 96 steps, which takes 0.2 s to make on a busy machine,
against 1 s with 256; what the coarser one costs in money has not been measured. A step may be as short as a
second, as a job of minutes that is planned in minutes has no time for anything; but it is asked again only
after a minute. A margin of a minute is many turns of the loop.
"""

import msgspec

from holdfast.core.spot.deadline_policy import Outlook, Standing, Terms
from holdfast.model.course import Way
from holdfast.model.units import HOUR, MINUTE, SECOND, Instant, MicroUsd, Millis, seconds, usd
from holdfast.reliability.onoff import Floats

STEPS = 96
DOLLAR = 1_000_000


class Job(msgspec.Struct, frozen=True):
    """What does not change. Prices are per hour. `checkpoint_ms`: at most so long between two checkpoints."""

    work_ms: Millis
    begun: Instant
    deadline: Instant
    restart_ms: Millis
    on_demand_ready_ms: Millis
    checkpoint_ms: Millis
    spot_price: MicroUsd
    on_demand_price: MicroUsd
    margin_ms: Millis = MINUTE


class Progress(msgspec.Struct, frozen=True):
    """Work in the last checkpoint, and work since. `restart_left_ms`: of the node it has, until work is done.
    `spot_there`: it runs on spot, or spot can be had now as far as we know."""

    saved_ms: Millis
    unsaved_ms: Millis
    way: Way
    restart_left_ms: Millis
    spot_there: bool


class Course(msgspec.Struct, frozen=True):
    way: Way
    why: str
    safe_until: Instant  # ask again then at the latest, whatever happens
    ask_at: Instant  # and then, to go the cheapest way
    costs: dict[Way, MicroUsd]  # expected, of the ways that keep the promise


def safe_until(job: Job, saved_ms: Millis) -> Instant:
    """The last instant at which ordering on demand still certainly meets the deadline."""
    needs = max(0, job.work_ms - saved_ms) + job.restart_ms + job.on_demand_ready_ms + job.margin_ms
    return job.deadline - needs


def outlook_of(job: Job) -> Outlook:
    """To be made once in a job's life."""
    time = job.deadline - job.begun - job.margin_ms
    return Outlook(
        Terms(
            work=job.work_ms / HOUR,
            time=time / HOUR,
            restart=(job.restart_ms + job.on_demand_ready_ms + job.checkpoint_ms // 2) / HOUR,
            step=max(SECOND, time // STEPS) / HOUR,
            spot_price=job.spot_price / DOLLAR,
            on_demand_price=job.on_demand_price / DOLLAR,
        )
    )


def course(job: Job, progress: Progress, now: Instant, outlook: Outlook, weights: Floats) -> Course:
    """`weights`: what is believed of the spot offers (`Belief.weights`)."""
    until = safe_until(job, progress.saved_ms)
    again = now + max(MINUTE, round(outlook.terms.step * HOUR))
    if now >= until:
        why = f"{seconds(job.work_ms - progress.saved_ms)} of work left, {_left(job, now)} to the deadline"
        return Course(Way.ON_DEMAND, why, until, again, {})
    found = outlook.choose(_standing(job, progress, now), weights)
    most = (
        outlook.terms.on_demand_price * outlook.terms.time
    )  # more than that is no cost: it does not work out
    costs = {way: round(cost * DOLLAR) for way, cost in found.costs.items() if cost <= most}
    ask_at = again if found.way is Way.ON_DEMAND else min(until, again)
    return Course(found.way, _why(job, found.way, costs, now, until), until, ask_at, costs)


def _standing(job: Job, progress: Progress, now: Instant) -> Standing:
    done = progress.saved_ms + progress.unsaved_ms
    return Standing(
        work_left=max(0, job.work_ms - done) / HOUR,
        time_left=max(0, job.deadline - job.margin_ms - now) / HOUR,
        way=progress.way,
        restart_left=progress.restart_left_ms / HOUR,
        spot_there=progress.spot_there,
    )


def _why(job: Job, way: Way, costs: dict[Way, MicroUsd], now: Instant, until: Instant) -> str:
    if way not in costs:
        return f"{_left(job, now)} to the deadline, too close to it to weigh one way against another"
    others = ", ".join(f"{other} {usd(cost)}" for other, cost in costs.items() if other is not way)
    against = f" (against {others})" if others else ""
    return f"{usd(costs[way])} expected{against}, safe for {seconds(until - now)}"


def _left(job: Job, now: Instant) -> str:
    return seconds(max(0, job.deadline - now))
