"""Is this node broken, or is the program that fails there flaky?

A node can send perfect heartbeats and fail whatever it is given (a full disk, a broken driver, a lost mount).
A program can fail three times in ten wherever it runs. Both look the same from one node: failures. What tells
them apart is the same version of the same program at the same time on other nodes.

**Which evidence counts.** On this node: the failures since anything succeeded here, at most `gray_window_ms`
old, of workloads that still exist in that version. One success (a task done, a copy of a service that was
placed since and serves for `PROVEN_MS`, a task that has run twice as long as those that failed) ends the
suspicion. Elsewhere: outcomes of the same version from `BEFORE_MS` before the first failure here until now,
but for nodes that were found broken themselves, and copies that run there now. A workload of which nothing
succeeded elsewhere since the first failure here is no evidence: whatever ails it may ail it everywhere.

**The rule.** What is believed of a program's failure rate is a Beta distribution: `PRIOR`, and what was seen
elsewhere. If the node were like the others, so many failures in a row would have the chance

    (a)(a+1)...(a+k-1) / (a+b)(a+b+1)...(a+b+k-1)      a = 0.1 + failed, b = 0.9 + worked elsewhere

(Beta-binomial), and the chances of several workloads multiply. With few numbers elsewhere it stays large,
which is the point of it. Failures must come from `gray_failures` different seats, and

- the chance is below `CHANCE_MAX`, whichever workloads they are of. A task that fails three times in ten
  needs some thirty failures in a row; one that never fails elsewhere, nine. Or
- *several services* failed here, which are not expected to end at all, none of them failed elsewhere, nothing
  at all is ready here any more, and the chance is below `SEVERAL_MAX`. Services give few outcomes; waiting
  for thirty of them would be waiting for ever.

**Where the numbers come from.** A hundred nodes that each try a thousand tasks an hour begin some hundred
thousand runs of failures an hour: at one in 1e9 of them, a node is blamed wrongly once in a year. `PRIOR` is
worth one run, and says that one in ten fails. Half a minute of serving is longer than programs take that fail
when they begin.

**Refused.** Counting failures, even of different seats (that took two of three healthy nodes out of service
beside one flaky sweep). A fixed rate (it is wrong for every program but one). Comparing with the whole past:
a bad input, or a database that is gone, fails a program everywhere for some minutes, and the past knows
nothing of it. Remembering a chance for each node: a node that worked for a year is broken from one moment to
the next, so what it did before is no alibi.
"""

from collections.abc import Iterator
from itertools import islice
from math import prod

import msgspec

from holdfast.model.finding import Finding, Severity
from holdfast.model.node import Node
from holdfast.model.outcomes import PROVEN_MS, Failed
from holdfast.model.replica import Replica, State
from holdfast.model.units import MINUTE, Instant, Millis, many
from holdfast.model.workload import Service, Workload
from holdfast.model.world import World

GRAY = "fails every replica"
BEFORE_MS = 1 * MINUTE
PRIOR = (0.1, 0.9)  # failed, worked
CHANCE_MAX = 1e-9
SEVERAL_MAX = 1e-3
SEVERAL = 2  # services
LOOKED_AT = 64  # running copies elsewhere: more would not make it any surer


class Contrast(msgspec.Struct, frozen=True):
    """What one version of a workload did here, and elsewhere at the same time."""

    workload: Workload
    here: tuple[Failed, ...]
    worked: int  # elsewhere
    failed: int  # elsewhere
    ever_failed: bool  # elsewhere, as far as is remembered

    @property
    def chance(self) -> float:
        """Of so many failures in a row, if this node is like the others."""
        a, b = PRIOR[0] + self.failed, PRIOR[1] + self.worked
        return prod((a + i) / (a + b + i) for i in range(len(self.here)))


def broken(world: World, node: Node, now: Instant) -> Finding | None:
    policy = world.policy.repair
    recent = [one for one in node.repair.failed if now - one.at <= policy.gray_window_ms]
    if _seats(recent) < policy.gray_failures:
        return None
    contrasts = [one for one in _contrasts(world, node.id, recent, now) if one.worked]
    here = [failed for one in contrasts for failed in one.here]
    if _seats(here) < policy.gray_failures or _works_here(world, node, here, now):
        return None
    chance = prod(one.chance for one in contrasts)
    if chance > CHANCE_MAX:
        contrasts = [one for one in contrasts if _is_steady(one)]
        chance = prod(one.chance for one in contrasts)
        if not _all_is_gone(world, node, contrasts) or chance > SEVERAL_MAX:
            return None
    return Finding(
        GRAY,
        node.id,
        Severity.RESET,
        0.9,
        _evidence(contrasts, chance),
        now,
        "take work away, reset it",
        expires=now + (policy.gray_window_ms << min(node.repair.repeats, 6)),
        raised_by=tuple((one.workload.name, one.workload.version) for one in contrasts),
    )


def _seats(failed: list[Failed]) -> int:
    return len({one.slot for one in failed})


def _contrasts(world: World, node: str, recent: list[Failed], now: Instant) -> Iterator[Contrast]:
    for name in dict.fromkeys(one.workload for one in recent):
        workload = world.workloads.get(name)
        if workload is None:
            continue
        here = tuple(one for one in recent if (one.workload, one.version) == (name, workload.version))
        if here:
            yield _contrast(world, node, workload, here, now)


def _contrast(
    world: World, node: str, workload: Workload, here: tuple[Failed, ...], now: Instant
) -> Contrast:
    first = here[0].at
    known = world.outcomes.get(workload.name)
    elsewhere = [
        one
        for one in (known.recent if known is not None and known.version == workload.version else ())
        if one.node != node and (one.node, GRAY) not in world.findings
    ]
    same_time = [one for one in elsewhere if one.at >= first - BEFORE_MS]
    running = _running(world, node, workload, here, now)
    works = running or any(one.ok and one.at >= first for one in same_time)
    return Contrast(
        workload,
        here,
        worked=running + sum(one.ok for one in same_time) if works else 0,
        failed=sum(not one.ok for one in same_time),
        ever_failed=not all(one.ok for one in elsewhere),
    )


def _running(world: World, node: str, workload: Workload, here: tuple[Failed, ...], now: Instant) -> int:
    """Copies on other nodes that have got further than those that failed here."""
    slots = islice(world.held.get(workload.name, ()), LOOKED_AT)
    copies = (world.replicas[name] for slot in slots for name in world.of_slot.get(slot, ()))
    age_ms = max(one.age_ms for one in here)
    return sum(
        copy.node != node
        and copy.version == workload.version
        and _has_proven_itself(world, copy, age_ms, now)
        and (copy.node, GRAY) not in world.findings
        for copy in copies
    )


def _has_proven_itself(world: World, copy: Replica, age_ms: Millis, now: Instant) -> bool:
    if copy.state is not State.READY:
        return False
    workload = world.workloads.get(copy.workload)
    if workload is not None and isinstance(workload.shape, Service):
        return now - copy.ready_at >= PROVEN_MS
    return now - copy.placed_at >= max(PROVEN_MS, 2 * age_ms)


def _works_here(world: World, node: Node, here: list[Failed], now: Instant) -> bool:
    """Something that was placed here since the first failure has got further than what failed."""
    first, age_ms = min(one.at for one in here), max(one.age_ms for one in here)
    copies = (world.replicas[name] for name in world.on_node[node.id])
    return any(copy.placed_at >= first and _has_proven_itself(world, copy, age_ms, now) for copy in copies)


def _is_steady(one: Contrast) -> bool:
    return isinstance(one.workload.shape, Service) and not one.ever_failed


def _all_is_gone(world: World, node: Node, contrasts: list[Contrast]) -> bool:
    seats = _seats([failed for one in contrasts for failed in one.here])
    enough = len(contrasts) >= SEVERAL and seats >= world.policy.repair.gray_failures
    return enough and not any(world.replicas[name].state is State.READY for name in world.on_node[node.id])


def _evidence(contrasts: list[Contrast], chance: float) -> str:
    here = sum(len(one.here) for one in contrasts)
    worked, failed = sum(one.worked for one in contrasts), sum(one.failed for one in contrasts)
    names = ", ".join(one.workload.name for one in contrasts)
    elsewhere = f"elsewhere {failed} of {many(failed + worked, 'run')} failed"
    return (
        f"{many(here, 'failure')} in a row of {names}, {elsewhere} at the same time (by chance: {chance:.0e})"
    )
