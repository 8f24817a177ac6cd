"""How much may be wanted of one control plane, by a project and in all?

The question: a file of a few hundred bytes may ask for a hundred thousand seats, and for as many again under
another name. Seats that nothing will ever fill are journalled, kept in memory and listed like others, so
whoever may apply a workload could ask for more than any leader can hold.

The rule: the seats and the workloads of a project have a ceiling, which its `kind: project` says or which
is as below, and so have those of the fleet. What would bring one of them over it is refused when it is asked
for (apply, scale, rollback, and in a dry run), with what may be and what would be. Only growth is refused:
what is there when a ceiling is lowered stays, and may shrink. A workload counts with the most that it may
come to (`max` of its scale, standbys, all tasks of a sweep), paused or not, and with the seats that it still
has, also when it is deleted: else they could be left behind faster than they are removed.

Refused: to take what is over the ceiling in and let it wait, as what is over a quota of CPUs does. It is that
waiting that costs. Refused as well: one ceiling for all without those of projects; one project could then
use up all of it.

Where the numbers come from: with 100,000 seats that wait, a turn in which nothing changes there takes less
than a millisecond, and what is done at its longest (a snapshot, a take-over) grows with their number. One
sweep of 100,000 tasks has room in the default project beside other work, and in the fleet beside those of
other projects.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from holdfast.core.plan.project_quota import project_of
from holdfast.core.workloads.apply import Refused
from holdfast.model.project import Project
from holdfast.model.workload import DEFAULT_PROJECT, Service, Workload, standbys, wanted
from holdfast.model.world import World


class Ceiling(NamedTuple):
    seats: int
    workloads: int


FLEET = Ceiling(250_000, 10_000)
DEFAULT = Ceiling(150_000, 5_000)  # of the default project
USUAL = Ceiling(20_000, 1_000)  # of another, that does not say


class TooMany(Refused):
    """More would be wanted than may be."""


def seats_of(workload: Workload) -> int:
    """The most that it may come to. How many an availability target takes is found out later: it is never
    fewer than its `replicas`, and hardly ever many more."""
    shape = workload.shape
    most = shape.scale.max if isinstance(shape, Service) and shape.scale is not None else 0
    return max(most, wanted(workload)) + standbys(workload)


def of_project(project: Project) -> Ceiling:
    usual = DEFAULT if project.name == DEFAULT_PROJECT else USUAL
    return Ceiling(
        usual.seats if project.replicas is None else project.replicas,
        usual.workloads if project.workloads is None else project.workloads,
    )


class Taken:
    """What each project has by now, and all of them together."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.seats: Counter[str] = Counter()
        self.workloads: Counter[str] = Counter()
        there: Counter[str] = Counter()
        for line, (count, _) in world.numbered.items():
            there[line.rpartition("/")[0]] += count
        for name, workload in world.workloads.items():
            self.seats[workload.project] += max(seats_of(workload), there.pop(name, 0))
            self.workloads[workload.project] += 1
        for name, count in there.items():  # deleted, and not gone yet
            self.seats[project_of(world, name)] += count


def check(world: World, new: Sequence[Workload], projects: Mapping[str, Project]) -> None:
    """TooMany: these would bring their project, or the fleet, over its ceiling. `projects`: as they are by
    then."""
    grows = [each for each in new if _grows(world.workloads.get(each.name), each)]
    problem = next(_problems(world, grows, projects), None) if grows else None
    if problem is not None:
        raise problem


def _grows(old: Workload | None, new: Workload) -> bool:
    return old is None or seats_of(new) > seats_of(old)


def _problems(world: World, grows: Sequence[Workload], projects: Mapping[str, Project]) -> Iterator[TooMany]:
    taken = Taken(world)
    for each in grows:
        old = world.workloads.get(each.name)
        taken.seats[each.project] += seats_of(each) - (seats_of(old) if old is not None else 0)
        taken.workloads[each.project] += old is None
    new = any(each.name not in world.workloads for each in grows)
    for name in dict.fromkeys(each.project for each in grows):
        raised = f"nothing was changed; an admin may raise it (kind: project, name: {name}, {{}})"
        may, whose = of_project(projects.get(name, Project(name))), f"project {name}"
        yield from _over(whose, Ceiling(taken.seats[name], taken.workloads[name]), may, raised, new=new)
    enough = "nothing was changed; delete what is not needed any more"
    yield from _over(
        "the fleet", Ceiling(taken.seats.total(), taken.workloads.total()), FLEET, enough, new=new
    )


def _over(whose: str, after: Ceiling, may: Ceiling, hint: str, *, new: bool) -> Iterator[TooMany]:
    if after.seats > may.seats:
        yield TooMany(
            f"{whose} would have {after.seats:,} slots, and may have {may.seats:,}", hint.format("replicas")
        )
    if new and after.workloads > may.workloads:
        yield TooMany(
            f"{whose} would have {after.workloads:,} workloads, and may have {may.workloads:,}",
            hint.format("workloads"),
        )
