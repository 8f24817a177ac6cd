"""What of a file takes the role admin, whichever endpoint it comes to.

A pool decides whose machines are started, with whose credentials and for how much money, and a policy when
they are harmed. A document of these that changes nothing is nobody's order, so an operator may keep it in a
file with others. A dry run is refused like the order itself: it shows what the order would come to.
"""

from collections.abc import Iterable, Iterator

from holdfast.api.problems import Refused
from holdfast.model.event import Event, PolicyApplied, PoolApplied
from holdfast.ports.registry import Role

HINT = "nothing was changed; leave it out of the file, or apply it with a token of the role admin"


def insist(role: Role, events: Iterable[Event]) -> None:
    """403: there is something among them that only an admin may change, and every such document is named."""
    if role is Role.ADMIN:
        return
    if problems := list(_of_an_admin(events)):
        raise Refused(403, "only an admin may change this", HINT, problems=problems)


def _of_an_admin(events: Iterable[Event]) -> Iterator[str]:
    for event in events:
        match event:
            case PoolApplied(pool=pool):
                yield f"pool {pool.name}: pools are an admin's to create and to change"
            case PolicyApplied():
                yield "policy: it is an admin's to change"
            case _:
                pass
