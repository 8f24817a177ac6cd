"""Whom do we ask about a node we doubt?

Peers that we hear well, in other failure domains than the suspect (a dead switch must not vote on its own
rack), spread over several of them so that one more broken link does not decide; and its provider. Asking is
an action like any other: it is in the plan, in the journal and in the transcript. The choice is a fixed
rotation by the suspect's name: no dice in the core, yet the same three peers are not asked about everybody.
Where one peer alone reached the suspect, others are asked beside it the next time: see `detect`.

Of a dead node peers are asked once more, when its time to come back is over. It may have stood still behind
a cut and be well again: dead is final until it says hello, and over a cut it cannot. Whoever ends it on what
peers said two minutes ago ends a node that works, and every peer could have said so (see `pools`).

When there is nobody in another rack, anybody else is better than nobody; when there is nobody at all, the
empty question is recorded, and `detect` knows that silence must then speak for itself.
"""

import zlib

import numpy as np

from holdfast.core import timeouts
from holdfast.core.plan.draft import Draft
from holdfast.model import action as do
from holdfast.model.node import JOINED, Answer, Node
from holdfast.model.place import Level as Domain
from holdfast.model.room import Ints, Room
from holdfast.model.verdict import Level, Word
from holdfast.model.world import World

LOOKS = 64  # rows
STRIDE = 7919  # a prime, so that neighbours (of one rack) are not asked together


def questions(draft: Draft) -> None:
    world, policy = draft.world, draft.world.policy
    for name in draft.look["node"]:
        node = world.nodes.get(name)
        if node is None or node.state not in JOINED or node.verdict.level is Level.ALIVE:
            continue
        if draft.now < timeouts.next_ask(node, policy):
            continue
        why = f"{node.id} is {node.verdict.level}: {node.verdict.evidence}"
        dead = node.verdict.level is Level.DEAD
        if not dead or draft.now >= timeouts.give_up_at(node, policy):
            why = f"{node.id} is to be given up: does nobody reach it?" if dead else why
            peers = _corroborators(world, node, policy.detection.peers_asked)
            draft.add(do.AskPeers(node=name, peers=peers, why=why))
        if node.clues.word is not Word.WAITING or draft.now - node.clues.word_at > policy.detection.alone_ms:
            draft.add(do.AskProvider(node=name, why=why))


def _corroborators(world: World, node: Node, count: int) -> tuple[str, ...]:
    """While one peer alone says that it reached the node, it is asked again, and each time beside others."""
    clues = node.clues
    alone = [name for name, answer in clues.answers.items() if answer is Answer.REACHED]
    if len(alone) != 1 or len(clues.answers) < 2:
        return choose_peers(world, node, count)
    kept = [name for name in alone if name in world.room.row and world.room.open[world.room.row[name]]]
    found = choose_peers(world, node, count + len(clues.asked), turn=clues.asked_at)
    fresh = [name for name in found if name not in clues.asked]
    again = [name for name in found if name in clues.asked and name not in kept]
    return (*kept, *(*fresh, *again)[: count - len(kept)])


def choose_peers(world: World, node: Node, count: int, turn: int = 0) -> tuple[str, ...]:
    """Walks through the rows from a place and in steps that its name gives, until enough are found; most of a
    healthy fleet can be asked, so that is soon. Only when few can be is the whole fleet looked through."""
    room = world.room
    row = room.row.get(node.id)
    if row is None:
        return ()
    size = len(room.ids)
    start = zlib.crc32(node.id.encode()) + turn
    walk = np.unique((start + STRIDE * np.arange(min(size, LOOKS))) % size)
    able = walk[room.open[walk]]
    chosen = _of_other_zones(room, row, np.roll(able, -(start % max(1, len(able)))), count)
    if len(chosen) < count and size > LOOKS:
        able = np.flatnonzero(room.open)
        chosen = _of_other_zones(room, row, np.roll(able, -(start % max(1, len(able)))), count)
    return tuple(room.ids[each] for each in chosen)


def _of_other_zones(room: Room, row: int, rows: Ints, count: int) -> list[int]:
    """The first of each zone, then others; in other racks if there are any."""
    rows = rows[rows != row]
    racks, zones = room.domain[Domain.RACK], room.domain[Domain.ZONE]
    elsewhere = rows[racks[rows] != racks[row]]
    rows = elsewhere if len(elsewhere) else rows
    _, first_of_zone = np.unique(zones[rows], return_index=True)
    others = np.setdiff1d(np.arange(len(rows)), first_of_zone)
    return [int(rows[at]) for at in (*np.sort(first_of_zone), *others)][:count]
