"""Is this node alive, suspect, unreachable or dead?

The question is never answered by one time-out seen from one place. Six witnesses are heard: its silence
against its own history, the state of its link, peers in other failure domains that we asked to probe it, its
provider, the node itself (goodbye, spot notice), and our own health. `RULES` is the whole judgement: the
first row that matches the evidence decides. It is data, so that it can be printed beside a verdict, and the
test can walk it.

Three things to notice. A node that a peer reached is *unreachable*, not dead, however long we cannot hear it.
When a majority falls silent at once the fault is ours until peers have failed to reach them for long, and
when many do, peers must fail to reach them twice. And after a leader change nobody is dead until heard or
until grace has passed. Dead is final: only a new hello revives (see `fold`), so that a late beat cannot bring
back a node whose work is already elsewhere.

No peer decides alone, since one may lie. A refusal counts when a quorum says the same; until then it is no
more than not having reached it. That one peer reached it holds a verdict back, but when others did not, more
of them are asked each time beside that one (`peer_probes`): if still nobody else reaches it after
`disputed_patience_ms`, or, with too few for a quorum, after `unreachable_patience_ms`, it is outvoted. Only
where nobody else can be asked does the word of one stand for ever. Refused: a majority of each round. That a
node answered is strong evidence and that it did not is weak, so an honest witness must have time to find a
second one.

What is dead here is dead for interchangeable replicas. For exclusive ones a verdict is no proof: see
`fencing`.

Refused: weights that add up to a score. A score is right more often, and nobody can say why it was wrong.
Numbers: `late` at about two beats, peers answer within 0.8 s, so a silent host is judged within 4 s at one
beat a second. A whole rack takes some two seconds longer, which is the price of asking twice.
"""

import msgspec

from holdfast.core.evidence import UNREACHED, peers_say, provider_says
from holdfast.core.health.heartbeats import Beats
from holdfast.model.event import NodeJudged
from holdfast.model.node import JOINED, Node
from holdfast.model.policy import Detection
from holdfast.model.units import Instant
from holdfast.model.verdict import Doubt, Evidence, Level, Link, Peers, Said, Silence, Verdict, Word
from holdfast.model.world import World


class Rule(msgspec.Struct, frozen=True):
    """Every witness named in `when` must say one of the listed things."""

    name: str
    when: dict[str, tuple[str, ...]]
    then: Level


SILENT = (Silence.SILENT, Silence.LONG)
QUIET = (Silence.LATE, *SILENT)
NEGATIVE = (Peers.REFUSED, *UNREACHED)

RULES: tuple[Rule, ...] = (
    Rule("it said goodbye", {"said": (Said.GOODBYE,)}, Level.DEAD),
    Rule(
        "silent, and its provider says it stopped",
        {"silence": QUIET, "provider": (Word.STOPPED,)},
        Level.DEAD,
    ),
    Rule("heartbeats on time", {"silence": (Silence.FRESH,), "link": (Link.OPEN,)}, Level.ALIVE),
    Rule(
        "we cannot hear it, but a peer reached it",
        {"peers": (Peers.REACHED, Peers.DISPUTED)},
        Level.UNREACHABLE,
    ),
    Rule("we are new here: grace", {"doubt": (Doubt.GRACE,)}, Level.SUSPECT),
    Rule("our own loop ran late: doubt ourselves first", {"doubt": (Doubt.LATE,)}, Level.SUSPECT),
    Rule(
        "a majority fell silent, and for long, and peers agree",
        {"doubt": (Doubt.MAJORITY,), "silence": (Silence.LONG,), "peers": NEGATIVE},
        Level.DEAD,
    ),
    Rule(
        "a majority fell silent at once: doubt ourselves first", {"doubt": (Doubt.MAJORITY,)}, Level.SUSPECT
    ),
    Rule("its host answers, but nothing of ours lives there", {"peers": (Peers.REFUSED,)}, Level.DEAD),
    Rule(
        "many fell silent at once: ask twice",
        {"doubt": (Doubt.CROWD,), "peers": (Peers.NOT_REACHED,)},
        Level.SUSPECT,
    ),
    Rule(
        "one peer reached it, and for long nobody else did",
        {"silence": (Silence.LONG,), "peers": (Peers.OUTVOTED,)},
        Level.DEAD,
    ),
    Rule("silent, and no peer reached it", {"silence": SILENT, "peers": UNREACHED}, Level.DEAD),
    Rule(
        "silent for long, nobody to ask, its provider says it runs",
        {"silence": (Silence.LONG,), "peers": (Peers.NOBODY,), "provider": (Word.RUNNING,)},
        Level.UNREACHABLE,
    ),
    Rule(
        "silent for long, and nobody to ask",
        {"silence": (Silence.LONG,), "peers": (Peers.NOBODY,), "provider": (Word.UNKNOWN, Word.UNASKED)},
        Level.DEAD,
    ),
    Rule("late: ask others", {}, Level.SUSPECT),
)


def weigh(evidence: Evidence) -> Rule:
    """The first rule that matches; the last one always does."""
    for rule in RULES:
        if all(getattr(evidence, witness) in said for witness, said in rule.when.items()):
            return rule
    raise AssertionError("the last rule has no condition")


class Senses:
    """What this control plane perceives of nodes by itself: heartbeats, and how well it listens. Volatile."""

    def __init__(self, policy: Detection) -> None:
        self.beats = Beats(policy)
        self.last_turn: Instant = 0
        self.late_until: Instant = 0  # we ran late; until then the silent are given the benefit of it
        self.doubts = (Doubt.NONE, False, False)  # when last judged: how many are silent, late, grace

    def listened(self, now: Instant, expected_by: Instant) -> None:
        """Called once a turn: a turn that comes late forgives everyone the time we were not listening."""
        late = now - expected_by
        if self.last_turn and late > self.beats.policy.late_loop_ms:
            self.beats.forgive(late, now)
            self.late_until = now + self.beats.policy.late_min_ms
        self.last_turn = now


def evidence_on(world: World, senses: Senses, node: Node, now: Instant, company: Doubt) -> Evidence:
    silence, silent_ms, usual_ms = senses.beats.silence(node.id, now)
    peers = peers_say(node.clues, world.policy.detection)
    return Evidence(
        silence=silence,
        link=node.clues.link,
        peers=peers,
        provider=provider_says(node.clues, peers),
        said=node.clues.said,
        doubt=doubt_on(world, senses, node, now, company),
        silent_ms=silent_ms,
        usual_ms=usual_ms,
    )


def doubt_on(world: World, senses: Senses, node: Node, now: Instant, company: Doubt) -> Doubt:
    since = world.leader.since
    unheard = senses.beats.last_acked(node.id) <= since
    if unheard and now < since + world.policy.detection.grace_ms:
        return Doubt.GRACE
    if now < senses.late_until:
        return Doubt.LATE
    return company


def company_of(world: World, senses: Senses, now: Instant) -> Doubt:
    """Does a silent node have company? A majority is our own fault. Many are more likely to be cut off from
    us than to have died together, and while we cannot hear them, one stall could look like death."""
    policy = world.policy.detection
    window = policy.majority_window_ms + policy.alone_ms
    silent = senses.beats.fell_silent_since(now - window)
    if world.joined >= policy.majority_nodes_min and silent >= policy.majority * world.joined:
        return Doubt.MAJORITY
    return Doubt.CROWD if silent >= max(policy.crowd_nodes_min, policy.crowd * world.joined) else Doubt.NONE


def judge(world: World, senses: Senses, now: Instant) -> list[NodeJudged]:
    """New verdicts for the nodes about which anything changed."""
    names = dict.fromkeys(senses.beats.changed(now))
    ripe = world.agenda.look(now)["node"] if not world.agenda.quiet(now) else {}
    names.update({name: None for name in ripe if name in world.nodes})
    if not names and not world.doubtful:
        return []
    company = company_of(world, senses, now)
    grace = now < world.leader.since + world.policy.detection.grace_ms
    doubts = (company, now < senses.late_until, grace)
    if doubts != senses.doubts:  # it begins and ends for all of them at once
        senses.doubts = doubts
        names.update(world.doubtful)
    judged = (_judge(world, senses, world.nodes[name], now, company) for name in names if name in world.nodes)
    return [event for event in judged if event is not None]


def _judge(world: World, senses: Senses, node: Node, now: Instant, company: Doubt) -> NodeJudged | None:
    if node.state not in JOINED or node.verdict.level is Level.DEAD:
        return None
    evidence = evidence_on(world, senses, node, now, company)
    rule = weigh(evidence)
    same = rule.then is node.verdict.level
    unheard = senses.beats.last_acked(node.id) <= world.leader.since
    if rule.then is Level.ALIVE and unheard:
        return None  # a new leader has no reason yet to clear anybody
    if same and (rule.then is Level.ALIVE or rule.name == node.verdict.rule):
        return None
    changed = rule.then is not node.verdict.level
    since = now if changed else node.verdict.since
    heard_at = max(senses.beats.last_acked(node.id), node.heard_at)
    return NodeJudged(
        at=now, node=node.id, verdict=Verdict(rule.then, rule.name, evidence, since), heard_at=heard_at
    )
