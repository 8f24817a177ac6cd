"""Evidence: what the answers of peers, and the word of the provider, come to.

The failure detector (`detect`) weighs it, the brake, the provisioner and `explain` read it, and `fold_plan`
keeps what a round of questions came to. It stands below all of them, so that the only writer of the world
does not depend on the failure detector.

The numbers (quorum, patience) are the policy's: see `detect` for why no peer decides alone.
"""

from holdfast.model.node import Answer, Clues
from holdfast.model.policy import Detection
from holdfast.model.verdict import Peers, Word

UNREACHED = (Peers.NOT_REACHED, Peers.NOT_REACHED_AGAIN)


def peers_say(clues: Clues, policy: Detection) -> Peers:
    """What the answers come to. Until a round is decided, the round before it stands."""
    if not clues.asked_at:
        return Peers.UNASKED
    answers = [answer for answer in clues.answers.values() if answer is not Answer.FAILED]
    reached, refused = answers.count(Answer.REACHED), answers.count(Answer.REFUSED)
    others = len(answers) - reached
    if reached > 1 or (reached and not others):
        return Peers.REACHED
    if refused >= policy.peers_quorum:
        return Peers.REFUSED
    if reached:
        return Peers.OUTVOTED if _outvoted(clues, others, policy) else Peers.DISPUTED
    failed = len(clues.answers) - len(answers)
    could = len(clues.asked) - failed
    if could == 0:
        return Peers.NOBODY
    if len(answers) >= min(policy.peers_quorum, could):
        return Peers.NOT_REACHED_AGAIN if clues.concluded in UNREACHED else Peers.NOT_REACHED
    if clues.concluded is Peers.UNASKED:
        return Peers.WAITING
    return clues.concluded


def _outvoted(clues: Clues, others: int, policy: Detection) -> bool:
    """The word of one peer, against so many others, has been waited on for long enough."""
    enough = others >= policy.peers_quorum
    patience = policy.disputed_patience_ms if enough else policy.unreachable_patience_ms
    return clues.disputed_at > 0 and clues.asked_at - clues.disputed_at >= patience


def provider_says(clues: Clues, peers: Peers) -> Word:
    """Where its word decides, because there is nobody else to ask, that it runs stands until it is answered
    anew. Else each question would be a change of mind, and each of these a reason to ask."""
    again = peers is Peers.NOBODY and clues.word is Word.WAITING and clues.word_before is Word.RUNNING
    return Word.RUNNING if again else clues.word
