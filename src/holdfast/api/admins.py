"""What of a file takes the role admin, whichever endpoint it comes to.

A pool decides whose machines are started, with whose credentials and for how much money, and a policy when
they are harmed. A document of these that changes nothing is nobody's order, so an operator may keep it in a
file with others. A dry run is refused like the order itself: it shows what the order would come to.

A workload names a Prometheus that the control plane's host asks; so an operator names one that a file of that
host lists, or leaves the one that is there.
"""

from collections.abc import Iterable, Iterator

from holdfast.adapters.providers.profiles import FILE
from holdfast.api.problems import Refused
from holdfast.control.plane import Plane
from holdfast.model.event import Event, PolicyApplied, PoolApplied, ProjectApplied, WorkloadApplied
from holdfast.model.workload import Service, Workload
from holdfast.ports.registry import Role

HINT = "nothing was changed; leave it out of the file, or apply it with a token of the role admin"


def insist(role: Role, events: Iterable[Event], plane: Plane) -> None:
    """403: there is something among them that only an admin may change, and every such document is named."""
    if role is Role.ADMIN:
        return
    if problems := list(_of_an_admin(events, plane)):
        raise Refused(403, "only an admin may change this", HINT, problems=problems)


def _of_an_admin(events: Iterable[Event], plane: Plane) -> Iterator[str]:
    for event in events:
        match event:
            case WorkloadApplied(workload=workload):
                there = prometheus_of(plane.world.workloads.get(workload.name))
                asked = prometheus_of(workload)
                if asked not in ("", there) and not (plane.telemetry and plane.telemetry.is_listed(asked)):
                    yield (
                        f"{workload.name}: scale.prometheus: {asked} is not in the list of this control plane"
                        f" (`telemetry` in its {FILE}); an admin may name any"
                    )
            case PoolApplied(pool=pool):
                yield f"pool {pool.name}: pools are an admin's to create and to change"
            case PolicyApplied():
                yield "policy: it is an admin's to change"
            case ProjectApplied(project=project):
                yield f"project {project.name}: its quotas are an admin's to change"
            case _:
                pass


def prometheus_of(workload: Workload | None) -> str:
    shape = workload.shape if workload is not None else None
    return shape.scale.prometheus if isinstance(shape, Service) and shape.scale is not None else ""
