"""Which keys drain quota for nobody, how soon are they found, and who is clamped that works?

The made-up lives of `_zombie_traces` pass through the detector as the gateway would feed it, one key after
the other; it is asked for its judgement every ten minutes of their time. It sees requests, keys and the
hours of teams. What each key was is read only here, afterwards.

The headline is `false_clamps`: healthy keys (and zombies before they were any, and leaked keys, whose
owners work) that were clamped. Then precision and recall of clamps, and by kind how many of the zombies
were clamped, minutes and tokens from the onset until then; a healthy tenant's tags are counted too, for
somebody must read them.

`five_times` is the rule that guides recommend, on the same lives: clamp what takes five times as much in an
hour as its average hour so far (after three days).
"""

import argparse
import tracemalloc
from collections import defaultdict
from time import perf_counter

import msgspec
import numpy as np

from bench._zombie_life import Trace, Truth, monotonic
from bench._zombie_traces import lives
from holdfast.core.gateway.key_audit.audit import Judgement, Seen, Watch
from holdfast.gateway.glance import LOOK_EVERY
from holdfast.model.gateway import Grade
from holdfast.model.units import HOUR, MINUTE, NEVER, Instant

ASK_MS = 10 * MINUTE
QUIET_MS = 2 * HOUR  # with nothing sent for longer, asking once an hour finds the same
DETAILS = 5


class Found(msgspec.Struct):
    tag_at: Instant = NEVER
    clamp_at: Instant = NEVER
    leak_at: Instant = NEVER
    why: str = ""
    five_at: Instant = NEVER


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seeds", type=int, default=20, help="one life of each kind for each")
    parser.add_argument("--first-seed", type=int, default=1001)
    parser.add_argument("--kinds", nargs="*", default=[], metavar="KIND", help="only these; default: all")


def run(args: argparse.Namespace) -> dict[str, object]:
    start = perf_counter()
    seen: list[tuple[Truth, Found, int]] = []
    requests = 0
    for seed in range(args.first_seed, args.first_seed + args.seeds):
        for trace, truth in lives(seed, frozenset(args.kinds)):
            found = follow(trace)
            requests += len(trace.walls)
            seen.append((truth, found, wasted(trace, truth.onset, found.clamp_at)))
    measured = count(seen)
    return measured | {
        "seeds": f"{args.first_seed} to {args.first_seed + args.seeds - 1}",
        "requests": requests,
        "note_us": round(note_us(), 2),
        "bytes_a_key": bytes_a_key(),
        "seconds": round(perf_counter() - start, 1),
    }


def follow(trace: Trace) -> Found:
    """Until it is clamped, or to the end."""
    watch, found = Watch(), Found()
    keys = list(trace.keys)
    key = keys.pop(0)[1]
    asked = int(trace.walls[0]) if len(trace.walls) else trace.ends
    last = asked
    requests = trace.requests()
    following = next(requests, None)
    while asked < trace.ends and found.clamp_at == NEVER:
        asked += ASK_MS if asked - last < QUIET_MS else HOUR
        while following is not None and following[0] <= asked:
            last, seen = following
            watch.note(key.id, seen, monotonic(last), last)
            following = next(requests, None)
        while keys and keys[0][0] <= asked:
            key = keys.pop(0)[1]
        _write(found, watch.judge(key, trace.team, monotonic(asked), asked), asked)
    found.five_at = five_times(trace)
    return found


def _write(found: Found, judgement: Judgement, wall: Instant) -> None:
    if judgement.grade in (Grade.TAG, Grade.CLAMP):
        found.tag_at = min(found.tag_at, wall)
        found.why = found.why or judgement.why
    if judgement.grade is Grade.CLAMP:
        found.clamp_at, found.why = wall, judgement.why
    if judgement.leak is not None:
        found.leak_at = min(found.leak_at, wall)


def five_times(trace: Trace) -> Instant:
    hours = ((trace.walls - trace.walls[0]) // HOUR).astype(np.int64)
    tokens = np.bincount(hours, trace.columns[2] + trace.columns[3])
    before = np.cumsum(tokens) - tokens
    usual = before / np.maximum(1, np.arange(len(tokens)))
    over = np.flatnonzero((tokens > 5 * usual) & (np.arange(len(tokens)) >= 72))
    return int(trace.walls[0] + (over[0] + 1) * HOUR) if len(over) else NEVER


def wasted(trace: Trace, onset: Instant, until: Instant) -> int:
    part = (trace.walls >= onset) & (trace.walls < until)
    return int((trace.columns[2] + trace.columns[3])[part].sum())


def count(seen: list[tuple[Truth, Found, int]]) -> dict[str, object]:
    kinds: dict[str, list[tuple[Truth, Found, int]]] = defaultdict(list)
    for each in seen:
        kinds[each[0].kind].append(each)
    wrong = [(truth, found) for truth, found, _ in seen if _wrong(truth, found.clamp_at)]
    right = sum(truth.zombie and truth.onset <= found.clamp_at < NEVER for truth, found, _ in seen)
    zombies = sum(truth.zombie for truth, _, _ in seen)
    of_five = sum(truth.zombie and truth.onset <= found.five_at < NEVER for truth, found, _ in seen)
    false_five = sum(_wrong(truth, found.five_at) for truth, found, _ in seen)
    return {
        "false_clamps": len(wrong),
        "healthy_keys": sum(not truth.zombie for truth, _, _ in seen),
        "precision_pct": _percent(right, right + len(wrong)),
        "recall_pct": _percent(right, zombies),
        "zombies": {kind: _zombie(rows) for kind, rows in kinds.items() if rows[0][0].zombie},
        "healthy_tagged": {
            kind: sum(found.tag_at < NEVER for _, found, _ in rows)
            for kind, rows in kinds.items()
            if not rows[0][0].zombie and any(found.tag_at < NEVER for _, found, _ in rows)
        },
        "leaked_found": _percent(sum(f.leak_at < NEVER for _, f, _ in kinds["leaked"]), len(kinds["leaked"])),
        "called_leaked": {
            kind: sum(found.leak_at < NEVER for _, found, _ in rows)
            for kind, rows in kinds.items()
            if kind != "leaked" and any(found.leak_at < NEVER for _, found, _ in rows)
        },
        "five_times": {
            "false_clamps": false_five,
            "precision_pct": _percent(of_five, of_five + false_five),
            "recall_pct": _percent(of_five, zombies),
        },
        "wrong": [f"{truth.kind}: {found.why}" for truth, found in wrong[:DETAILS]],
    }


def _wrong(truth: Truth, clamp_at: Instant) -> bool:
    return clamp_at < (truth.onset if truth.zombie else NEVER)


def _zombie(rows: list[tuple[Truth, Found, int]]) -> dict[str, object]:
    caught = [(f.clamp_at - t.onset, w) for t, f, w in rows if t.onset <= f.clamp_at < NEVER]
    tagged = [f.tag_at - t.onset for t, f, _ in rows if t.onset <= f.tag_at < NEVER]
    measured: dict[str, object] = {
        "clamped_pct": _percent(len(caught), len(rows)),
        "tagged_pct": _percent(len(tagged), len(rows)),
    }
    if tagged:
        measured["tag_min_p50"] = round(float(np.median(tagged)) / MINUTE)
    if caught:
        minutes = np.array([ms for ms, _ in caught]) / MINUTE
        measured["clamp_min_p50"] = round(float(np.median(minutes)))
        measured["clamp_min_max"] = round(float(minutes.max()))
        measured["tokens_p50"] = round(float(np.median([tokens for _, tokens in caught])))
    return measured


def _percent(part: int, whole: int) -> float:
    return round(100 * part / whole, 1) if whole else 100.0


def note_us() -> float:
    """The best of some rounds: the machine is shared."""
    rows = [
        Seen(n * 7919, 200, 900, 600, 300, 0, False, False, 7, 8, 9, 0 if n % LOOK_EVERY else n + 1)
        for n in range(2_000)
    ]
    watch, best = Watch(), 1e9
    for _ in range(15):
        start = perf_counter()
        for n, seen in enumerate(rows):
            watch.note("key", seen, n * 0.5, n * 500)
        best = min(best, perf_counter() - start)
    return best / len(rows) * 1e6


def bytes_a_key(keys: int = 50) -> int:
    """After two days of use, its place in the table included."""
    rows = [Seen(n * 7919, 200, 900, 600, 300, 0, False, False, 7, 8, 9) for n in range(100)]
    tracemalloc.start()
    watch = Watch()
    for number in range(keys):
        for n, seen in enumerate(rows):
            watch.note(f"key-{number}", seen, n * 1800.0, n * HOUR // 2)
    size, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return size // keys
