"""Why is this node, workload, replica, pool or offer as it is, and what would help?

An explanation has a summary, what it is because of, and what a person could do about it. It is read off the
world by the functions that decide: the witnesses and the rule are those of `detect`, leases are those of
`fencing`, empty seats are explained by `pending` with the real placement. So an explanation cannot disagree
with what is done; it can only be shorter.

Instants are told as time from now, because the reader's clock is not ours. Unknown names are a KeyError.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType

import msgspec

from holdfast.core import timeouts
from holdfast.core.agent import desired_set
from holdfast.core.cost import report
from holdfast.core.evidence import peers_say
from holdfast.core.explain import (
    offer_list,
    pending,
    scaling,
    spot_mix,
)
from holdfast.core.explain.pending import may_still_run, within
from holdfast.core.health import brake, detect
from holdfast.core.health.detect import RULES, Senses
from holdfast.core.plan.draft import NOBODY, Draft
from holdfast.core.scaling.demand import Ears
from holdfast.core.state.fold import may_be_forgotten
from holdfast.model.node import JOINED, Clues, Fencing, Isolation, LimitedBy, Node, NodeState, Step
from holdfast.model.replica import LIVE, Phase, Replica, Role, Slot, State, slot_id
from holdfast.model.units import NEVER, Instant, Millis, many, seconds
from holdfast.model.verdict import Doubt, Evidence, Level, Peers, Said, Silence, Word
from holdfast.model.workload import Job, Service, Training, Workload, wanted
from holdfast.model.world import World

SEATS_SHOWN = 8

Probed = Callable[[str, str], tuple[str, Millis] | None]  # of a node's replica: an answer, and for how long


def nothing_heard(node: str, replica: str) -> tuple[str, Millis] | None:
    return None


OVERUSE = 1.2  # of the processors that were asked for: less is a moment's burst
OVERUSE_MILLI = 100
UNMEASURED: Mapping[str, tuple[int, int]] = MappingProxyType({})


class Explanation(msgspec.Struct, frozen=True):
    summary: str
    because: tuple[str, ...] = ()
    would_help: tuple[str, ...] = ()
    mix: spot_mix.Told | None = None  # of a service on spot and on demand


# nodes


def explain_node(
    world: World,
    senses: Senses | None,
    name: str,
    now: Instant,
    used: Mapping[str, tuple[int, int]] = UNMEASURED,
) -> Explanation:
    """`senses` are the leader's; without them the evidence is that of the last verdict. `used`: by replica,
    thousandths of a CPU and MiB, as its agent measured them."""
    node = world.nodes[name]
    told = f"{name} is {node.state}"
    because = [*_state(world, node, now)]
    if node.state in JOINED:
        told += f" and {node.verdict.level}: {node.verdict.rule}"
        if node.state is NodeState.READY and node.verdict.level is Level.DEAD:
            told = f"{name} is dead: {node.verdict.rule}"
        because += [*_verdict(world, senses, node, now), *_lease(world, node, now)]
    held = brake.engaged_for(world, node, now)
    if held and not brake.harmless(node):
        because.append(f"what would disturb it is held: {held}")
    because += [*_repair(world, node, now), _work(world, node), *_limits(world, node, used)]
    return Explanation(told, tuple(because), tuple(_help_node(world, node)))


def _ago(at: Instant, now: Instant) -> str:
    return f"{seconds(max(0, now - at))} ago"


def _state(world: World, node: Node, now: Instant) -> Iterator[str]:
    policy, ago, age = world.policy, _ago(node.since, now), seconds(max(0, now - node.since))
    hand = " by hand" if node.by_hand else ""
    match node.state:
        case NodeState.LAUNCHING:
            end = node.since + policy.capacity.launch_timeout_ms - now
            yield f"asked for {ago}; given up {within(end)} if its provider does not answer"
        case NodeState.BOOTING:
            end = node.since + policy.capacity.boot_timeout_ms - now
            yield f"its provider has had it for {age}; given up {within(end)} if its agent does not join"
            if node.queued_at:
                turn = within(node.starts_at - now) if node.starts_at else "nobody knows when"
                waited = seconds(max(0, now - node.queued_at))
                yield f"it has waited in its provider's queue for {waited}; its turn comes: {turn}"
            if node.hedge in world.nodes:
                yield f"{node.hedge} was asked for as well: the first one ready stays"
        case NodeState.TERMINATING:
            end = max(node.since + policy.capacity.terminate_retry_ms, node.retry_at) - now
            yield f"told to go {ago}; told again {within(end)} if its provider does not confirm"
        case NodeState.RESETTING:
            end = max(node.since + policy.repair.reset_ms, node.retry_at) - now
            yield f"told to reset {ago}; given up {within(end)} if it does not come back"
        case NodeState.DRAINING if node.releasing:
            call = timeouts.last_call(node, policy, exclusive=True) - now
            yield f"being emptied for {age}, to be released: its work fits elsewhere"
            yield f"given back to work {within(call)} if it is not empty by then"
        case NodeState.DRAINING:
            yield f"being drained{hand} for {age}; {_last_calls(world, node, now)}"
        case NodeState.CORDONED:
            yield f"cordoned{hand} {ago}: nothing new goes there"
        case NodeState.QUARANTINED:
            yield f"kept off work for {age}, until {_released(world, node, now)}"
        case NodeState.READY:
            if node.standby:
                yield "a warm standby node: only work that ran before goes there"
            if node.deadline:
                yield f"it will be taken away {within(node.deadline - now)}"


def _released(world: World, node: Node, now: Instant) -> str:
    """What ends its quarantine."""
    ends = [finding.expires for (name, _), finding in world.findings.items() if name == node.id]
    if not ends or not all(ends):
        return "a person looks"
    return f"a person looks, or it is tried again {within(max(ends) - now)}"


def _last_calls(world: World, node: Node, now: Instant) -> str:
    """When what is left there will be stopped: services have less to do at the end than what saves."""
    there = (world.replicas[name].exclusive for name in world.on_node[node.id])
    kinds = sorted(set(there), reverse=True) or [True]
    calls = [within(timeouts.last_call(node, world.policy, exclusive=exclusive) - now) for exclusive in kinds]
    if len(set(calls)) == 1:
        return f"what is there then is stopped {calls[0]}"
    return f"what saves (jobs, trainings) is stopped {calls[0]}, services {calls[1]}"


def _verdict(world: World, senses: Senses | None, node: Node, now: Instant) -> Iterator[str]:
    """The rule, what each witness says by now, and when it is looked at again."""
    verdict = node.verdict
    number = next((at for at, rule in enumerate(RULES, 1) if rule.name == verdict.rule), 0)
    where = f", by rule {number} of {len(RULES)}" if number else ""
    on = "" if verdict.level is Level.ALIVE else f" ({verdict.evidence})"
    yield f"{verdict.level} for {seconds(max(0, now - verdict.since))}{where}: {verdict.rule}{on}"
    if senses is not None and verdict.level is not Level.DEAD and node.id in senses.beats.row:
        evidence = detect.evidence_on(world, senses, node, now, detect.company_of(world, senses, now))
        rule = detect.weigh(evidence)
        if rule.then is not verdict.level:
            yield f"judged at this moment it would be {rule.then}: {rule.name}"
        yield _silence(evidence)
        if evidence.doubt is not Doubt.NONE:
            yield f"we doubt ourselves: {evidence.doubt}"
    elif verdict.level is not Level.ALIVE:
        yield f"it was last heard {_ago(node.heard_at, now)}"
    clues = node.clues
    yield f"its link is {clues.link}"
    yield _peers(clues, peers_say(clues, world.policy.detection), now)
    yield _provider(clues, now)
    if clues.said is not Said.NOTHING:
        notice = "it got a spot notice" if node.spot else "it said that it is leaving"
        yield "it said goodbye" if clues.said is Said.GOODBYE else notice
    yield from _next_look(world, senses, node, now)


def _silence(evidence: Evidence) -> str:
    if evidence.silence is Silence.FRESH:
        return "its heartbeats are on time"
    usual = f"{seconds(evidence.usual_ms)} would be usual"
    return f"it has been silent for {seconds(evidence.silent_ms)} ({evidence.silence}), {usual}"


def _peers(clues: Clues, says: Peers, now: Instant) -> str:
    if says is Peers.UNASKED:
        return "no peer was asked about it"
    if not clues.asked:
        return f"peers: {says}"
    answers = ", ".join(f"{peer} {clues.answers.get(peer, 'has not answered')}" for peer in clues.asked)
    return f"peers asked {_ago(clues.asked_at, now)}: {answers}; together: {says}"


def _provider(clues: Clues, now: Instant) -> str:
    match clues.word:
        case Word.UNASKED:
            return "its provider was not asked about it"
        case Word.WAITING:
            return f"its provider was asked {_ago(clues.word_at, now)} and has not answered"
        case _:
            return f"its provider said {_ago(clues.word_at, now)}: {clues.word}"


def _next_look(world: World, senses: Senses | None, node: Node, now: Instant) -> Iterator[str]:
    if node.verdict.level is Level.ALIVE:
        return
    looks = [timeouts.next_ask(node, world.policy)]
    if senses is not None and node.id in senses.beats.row:
        looks.append(int(senses.beats.look_at[senses.beats.row[node.id]]))
    looks = [max(look, now) for look in looks if look < NEVER]
    yield f"looked at again {within(min(looks) - now)}"
    pool = world.pools.get(node.pool)
    if node.verdict.level is Level.DEAD and (pool is None or pool.can_terminate) and not node.by_hand:
        end = max(timeouts.give_up_at(node, world.policy), now)
        yield f"terminated {within(end - now)} if it does not come back and no peer reaches it"


def _lease(world: World, node: Node, now: Instant) -> Iterator[str]:
    exclusive = _exclusive(world, node)
    over = timeouts.lease_over_at(world, node.id) - now
    if node.verdict.level is Level.ALIVE:
        lasts = seconds(world.policy.leases.lease_ms)
        yield f"its lease is renewed by every heartbeat and lasts {lasts}"
    elif node.fencing is Fencing.NONE:
        yield "its lease runs out, and that proves nothing"
    elif over > 0:
        what = f"{', '.join(exclusive)} may" if exclusive else "an exclusive replica could"
        yield f"its lease is surely over {within(over)}: until then {what} still run there"
    else:
        yield "its lease is over: no exclusive replica runs there any more"
    if node.fencing is Fencing.NONE:
        yield (
            "fencing: none: nothing there ends an exclusive replica whose shim was killed, so it is gone "
            "only by its provider's or an operator's word"
        )
    else:
        yield "fencing: kernel: what an exclusive replica started dies with its shim"


def _exclusive(world: World, node: Node) -> list[str]:
    return [name for name in world.on_node[node.id] if world.replicas[name].exclusive]


def _repair(world: World, node: Node, now: Instant) -> Iterator[str]:
    repair = node.repair
    if repair.step is not Step.HEALTHY:
        times = f", repaired {repair.repeats} times before" if repair.repeats else ""
        yield f"repair: {repair.step.name.lower()} {_ago(repair.since, now)}{times}: {repair.why}"
    for (name, _), finding in world.findings.items():
        if name == node.id:
            sure = f"{finding.confidence * 100:.0f} % sure"
            remedy = f"; remedy: {finding.remedy}" if finding.remedy else ""
            end = f"; it is over {within(finding.expires - now)}" if finding.expires else ""
            yield f"finding: {finding.name}, {sure}: {finding.evidence}{remedy}{end}"
    if now < node.retry_at:
        yield f"what was asked for it is tried again {within(node.retry_at - now)}"


def _work(world: World, node: Node) -> str:
    states = Counter(world.replicas[name].state for name in world.on_node[node.id])
    counts = ", ".join(f"{count} {state}" for state, count in states.items())
    return f"replicas there: {counts}" if counts else "no replicas are there"


LIMITED = {
    LimitedBy.CGROUP: "limits: cgroup: the kernel keeps its replicas to their cpus and memory",
    LimitedBy.WATCHDOG: "limits: watchdog: its agent kills a replica above its memory; cpus are not limited",
    LimitedBy.UNKNOWN: "limits: unknown: its agent does not say what keeps its replicas to theirs",
}


ISOLATED = {
    Isolation.USER: "isolation: user: each workload runs as a user of its own, without the agent's rights",
    Isolation.NONE: "isolation: none: what runs there can do all that its agent can, and read its key",
    Isolation.UNKNOWN: "isolation: unknown: its agent does not say what keeps replicas apart",
}


def _limits(world: World, node: Node, used: Mapping[str, tuple[int, int]]) -> Iterator[str]:
    if node.state in JOINED:
        yield LIMITED[node.limits]
        yield ISOLATED[node.isolation]
    for name in world.on_node.get(node.id, ()):
        asked, (cpu_milli, _) = world.replicas[name].needs.cpu_milli, used.get(name, (0, 0))
        if node.limits is not LimitedBy.CGROUP and cpu_milli > asked * OVERUSE + OVERUSE_MILLI:
            yield f"{name} uses {cpu_milli / 1000:g} cpus and asked for {asked / 1000:g}"


def _help_node(world: World, node: Node) -> Iterator[str]:
    name = node.id
    if node.state is NodeState.QUARANTINED:
        yield f"look at the machine, then: holdfast uncordon {name}"
    elif node.state in (NodeState.CORDONED, NodeState.DRAINING) and node.by_hand:
        yield f"holdfast uncordon {name}"
    if node.verdict.level is Level.DEAD:
        yield "start its agent again: only a hello brings it back"
        pool = world.pools.get(node.pool)
        if node.fencing is Fencing.NONE and (left := _exclusive(world, node)):
            yield f"if the machine is off, so that {', '.join(left)} cannot run: holdfast forget {name}"
        elif pool is not None and not pool.can_terminate:
            yield f"if it will not come back: holdfast forget {name}"
    elif node.verdict.level is not Level.ALIVE and node.verdict.evidence.peers is Peers.NOBODY:
        yield "a node in another rack, that could be asked"
    elif unproven := [n for n in world.on_node[name] if world.replicas[n].unproven]:
        yield f"restart the machine: then {', '.join(unproven)} surely runs no more"
    if node.id in world.kept or any(scope in world.brakes for scope in _scopes(world, node)):
        yield "if these nodes are really gone: holdfast release-brake"


def _scopes(world: World, node: Node) -> tuple[str, str]:
    return brake.FLEET, node.place.domain(world.policy.brake.domain_level)


# pools


def explain_pool(world: World, name: str, now: Instant, unlisted: Mapping[str, str] = NOBODY) -> Explanation:
    """`unlisted`: pools that could not be asked what they offer, and why."""
    pool, state = world.pools[name], world.pool_states[name]
    nodes = [world.nodes[node] for node in world.in_pool.get(name, ())]
    told = f"{name} has {many(len(nodes), 'node')}, {pool.min} to {pool.max} are wanted"
    if state.deleted_at:
        told = f"{name} was deleted {seconds(now - state.deleted_at)} ago: {many(len(nodes), 'node')} left"
    states = Counter(str(n.state) if n.state is not NodeState.READY else str(n.verdict.level) for n in nodes)
    because = [f"nodes: {', '.join(f'{count} {what}' for what, count in states.items())}"] if nodes else []
    if pool.standby:
        because.append(f"{many(pool.standby, 'warm standby node')} wanted")
    helps = []
    if state.deleted_at:
        because.append("its nodes are emptied and let go; it is forgotten when none is left")
        unseen = [node.id for node in nodes if may_be_forgotten(world, node, now) and not node.joined_at]
        helps += [f"holdfast forget {each}, if you know that it never came up" for each in unseen[:3]]
        because += (
            [f"its last request failed {seconds(now - state.why_at)} ago: {state.why}"] if state.why else []
        )
    elif (not pool.can_launch or not world.offers[name]) and name not in unlisted:
        because.append("it launches no nodes: they join by themselves")
    elif world.offers[name]:
        supply = pending.launches(Draft(world, now), pool, world.offers[name])
        because.append(f"it {supply.text}")
        helps += [supply.would_help] if supply.would_help else []
    if name in unlisted:
        because.append(f"it {pending.unasked(unlisted[name])}")
    because += report.tell_pool(world, name, now)
    if state.failures_in_a_row:
        asked = many(state.failures_in_a_row, "launch request")
        ago = f", {seconds(now - state.why_at)} ago" if state.why_at else ""  # older snapshots do not tell
        because.append(f"its last {asked} failed{ago}: {state.why}")
    orphans = [node for node, owner in world.orphans.items() if owner == name]
    if orphans:
        because.append(f"its provider lists what nobody here knows: {', '.join(orphans)}")
    return Explanation(told, tuple(because), tuple(helps))


def explain_offer(world: World, key: str, now: Instant) -> Explanation:
    of = offer_list.one(world, key, now)
    return Explanation(
        offer_list.summary(of), tuple(offer_list.because(of, now)), tuple(offer_list.would_help(of))
    )


# workloads and replicas


def explain_workload(
    world: World,
    name: str,
    now: Instant,
    ears: Ears | None = None,
    unlisted: Mapping[str, str] = NOBODY,
    probed: Probed = nothing_heard,
) -> Explanation:
    """`ears` are the leader's; without them the signals are those of the last decision. `unlisted`: pools
    that could not be asked what they offer, and why. `probed`: what the last probe of a replica answered."""
    slots = [world.slots[slot] for slot in world.of_workload.get(name, ())]
    workload = world.workloads.get(name)
    if workload is None:
        if not slots:
            raise KeyError(name)
        copies = [may_still_run(world, r, now) for slot in slots for r in _copies(world, slot)]
        return Explanation(f"{name} was deleted and is on its way out", tuple(copies))
    waits = pending.waiting(world, workload, now, unlisted=unlisted)
    ear = ears.of(name) if ears is not None else None
    mix = spot_mix.told(world, workload, now)
    because = [
        *scaling.size(world, ear, workload, now),
        *spot_mix.lines(mix),
        *_course(world, workload, now),
        *_waits(waits),
        *_under_way(world, slots, now, probed),
        *_rolling(world, workload, slots),
        *scaling.cost(world, workload),
    ]
    helps = dict.fromkeys(text for wait in waits for text in wait.would_help)
    helps |= dict.fromkeys(scaling.helps(ear, workload, now))
    return Explanation(_count(world, workload, slots), tuple(because), tuple(helps), mix)


def _course(world: World, workload: Workload, now: Instant) -> Iterator[str]:
    """Of a job with a deadline: the way it goes, and how much of its work is certain."""
    course, slot = world.courses.get(workload.name), world.slots.get(slot_id(workload.name, 0))
    if course is None or not isinstance(workload.shape, Job) or slot is None:
        return
    if slot.phase is not Phase.OPEN:
        if course.missed:
            yield f"it missed its deadline, {seconds(now - course.missed)} ago"
        return
    left = course.begun + workload.shape.deadline_ms - now
    work = seconds(max(0, workload.shape.work_ms - slot.progress_ms))
    late = f"{seconds(left)} to the deadline" if left > 0 else f"the deadline was {seconds(-left)} ago"
    yield f"{late}, {work} of work not saved yet"
    if course.why:
        yield f"its way is {course.way} for {seconds(now - course.since)}: {course.why}"


def _count(world: World, workload: Workload, slots: list[Slot]) -> str:
    actives = [slot for slot in slots if slot.role is Role.ACTIVE and slot.phase is not Phase.CLOSED]
    ready = sum(_is_ready(world, slot) for slot in actives)
    if isinstance(workload.shape, Training) and not desired_set.is_ready(world, workload.name):
        ready = 0  # its members are ready together or not at all
    phases = Counter(slot.phase for slot in actives)
    targeted = isinstance(workload.shape, Service) and (workload.shape.availability or workload.shape.scale)
    parts = [f"{ready} of {len(actives) if actives or targeted else wanted(workload)} ready"]
    parts += [f"{phases[Phase.DONE]} done"] if phases[Phase.DONE] else []
    parts += [f"{phases[Phase.FAILED]} given up"] if phases[Phase.FAILED] else []
    parts += ["paused"] if workload.paused else []
    return f"{workload.name}: {', '.join(parts)}"


def _is_ready(world: World, slot: Slot) -> bool:
    return any(copy.state is State.READY for copy in _copies(world, slot))


def _copies(world: World, slot: Slot) -> list[Replica]:
    return [world.replicas[name] for name in world.of_slot.get(slot.id, ())]


def _waits(waits: list[pending.Waiting]) -> Iterator[str]:
    """The first reason says whose they all are."""
    for wait in waits:
        first, *others = wait.because
        yield from (f"{whose(wait)}{first}", *others)


def whose(wait: pending.Waiting) -> str:
    """`web/0, web/1: `; nothing if it is the whole workload that waits."""
    more = f" and {len(wait.slots) - SEATS_SHOWN} more" if len(wait.slots) > SEATS_SHOWN else ""
    return f"{', '.join(wait.slots[:SEATS_SHOWN])}{more}: " if wait.slots else ""


def _under_way(world: World, slots: list[Slot], now: Instant, probed: Probed) -> Iterator[str]:
    """Seats that are filled and not ready yet or fail their probe, and copies on nodes in doubt."""
    shown = 0
    for slot in slots:
        for copy in _copies(world, slot):
            doubted = world.nodes[copy.node].verdict.level is not Level.ALIVE
            fails = probed(copy.node, copy.id) is not None
            if copy.state not in LIVE or (copy.state is State.READY and not doubted and not fails):
                continue
            if shown < SEATS_SHOWN:
                yield _replica(world, copy, now) + _answer(probed, copy)
            shown += 1
    if shown > SEATS_SHOWN:
        yield f"and {shown - SEATS_SHOWN} more are under way"


def _rolling(world: World, workload: Workload, slots: list[Slot]) -> Iterator[str]:
    old = [
        c for slot in slots for c in _copies(world, slot) if c.state in LIVE and c.version < workload.version
    ]
    if old:
        yield f"{many(len(old), 'replica')} of an older version, being replaced by version {workload.version}"


def explain_replica(world: World, name: str, now: Instant, probed: Probed = nothing_heard) -> Explanation:
    """A replica ("web/0.3"), or a slot ("web/0") and what is in it."""
    replica = world.replicas.get(name)
    if replica is not None:
        node = world.nodes[replica.node]
        doubt = node.verdict.level is not Level.ALIVE
        because = (f"{node.id} is {node.verdict.level}: {node.verdict.rule}",) if doubt else ()
        helps = (f"holdfast explain node {node.id}",) if doubt else ()
        return Explanation(_replica(world, replica, now) + _answer(probed, replica), because, helps)
    slot = world.slots[name]
    workload = world.workloads.get(slot.workload)
    waits = pending.waiting(world, workload, now) if workload is not None else []
    mine = [wait for wait in waits if slot.id in wait.slots]
    if not mine:
        copies = "; ".join(
            _replica(world, copy, now) + _answer(probed, copy) for copy in _copies(world, slot)
        )
        return Explanation(copies or f"{name} is {slot.phase}", (slot.why,) if slot.why else ())
    down = f", down for {seconds(now - slot.down_since)}" if slot.down_since else ""
    return Explanation(
        f"{name} is {'given up' if slot.phase is Phase.FAILED else 'empty'}{down}",
        tuple(text for wait in mine for text in wait.because),
        tuple(text for wait in mine for text in wait.would_help),
    )


def _answer(probed: Probed, replica: Replica) -> str:
    answer = probed(replica.node, replica.id)
    return "" if answer is None else f"; {answer[0]}, for {seconds(answer[1])}"


def _replica(world: World, replica: Replica, now: Instant) -> str:
    """Its state in one line, with the time-out that ends it."""
    where, since = f"{replica.id} on {replica.node}", seconds(max(0, now - replica.since))
    match replica.state:
        case State.READY:
            return f"{where} has been ready for {since}"
        case State.PLACED | State.STARTING:
            end = replica.since + timeouts.start_timeout(replica, world.policy) - now
            word = "was given to its node" if replica.state is State.PLACED else "was started"
            return f"{where} {word} {since} ago and is not ready; another node is tried {within(end)}"
        case State.STOPPING | State.LOST:
            return may_still_run(world, replica, now)
