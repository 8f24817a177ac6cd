"""What the world is after somebody applied, deleted, retried or restarted a workload.

The question: what becomes of seats that failed or are done when what is wanted changes? The rule: a new
version is a new chance for seats that failed (it was not the one that did), and for seats that are done only
when somebody restarts the workload: a file that is applied again, with a new command even, does not repeat a
job that has run. What a seat holds of its last checkpoint stays, except for one that was done: that begins
from the beginning.

What is paused is not down: the time that a seat is down counts from the resume on.

What ran under the last versions is kept for a rollback, a few of each workload: what a version is, and not
how many there were of it. Refused: to look it up in the journal. A rollback is wanted in a hurry, and
journals are cut.
"""

from msgspec.structs import replace

from holdfast.core.state import fold_outcomes, index
from holdfast.model import event as ev
from holdfast.model.course import Course
from holdfast.model.lease import surely_over
from holdfast.model.project import Project
from holdfast.model.replica import Phase, Slot
from holdfast.model.units import Instant
from holdfast.model.workload import DEFAULT_PROJECT, Job, Version, Workload
from holdfast.model.world import World

VERSIONS_KEPT = 10
GONE_KEPT = 10_000


def applied(world: World, workload: Workload, at: Instant) -> None:
    """A workload keeps its kind for life (the edge refuses a change of it): a copy that may run twice cannot
    become one that must not."""
    old = world.workloads.get(workload.name)
    if old is not None and type(old.shape) is not type(workload.shape):
        return
    index.put_workload(world, workload)
    _note_project(world, workload)
    _look_when_leases_are_over(world, workload, at)
    if workload.name not in world.mixed:
        world.losses.pop(workload.name, None)
    if isinstance(workload.shape, Job) and workload.shape.deadline_ms:
        course = world.courses.setdefault(workload.name, Course(workload.name, begun=at))
        deadline = course.begun + workload.shape.deadline_ms
        if course.missed not in (0, deadline):  # another one is promised now
            world.courses[workload.name] = replace(course, missed=0)
        world.agenda.at(deadline, "workload", workload.name)
    else:
        world.courses.pop(workload.name, None)
    if old is not None and old.paused and not workload.paused:
        _resume(world, workload.name, at)
    fold_outcomes.dropped(world, workload.name)
    if old is not None and workload.version > old.version:
        _remember(world, old, workload, at)
        for slot in _slots(world, workload.name):
            if slot.failures or slot.phase is Phase.FAILED:
                _open(world, slot, at)


def limited(world: World, project: Project) -> None:
    """What waited for the quota is looked at again."""
    if project.limited:
        world.projects[project.name] = project
    else:
        world.projects.pop(project.name, None)
    for name, waiting in world.waiting.items():
        if waiting and name in world.workloads and world.workloads[name].project == project.name:
            world.agenda.note("workload", name)


def _note_project(world: World, workload: Workload) -> None:
    """Whose a name is stays known when its workload is gone: its last lines of history are that project's. Of
    names that are gone, with all their replicas, so many are kept, the latest."""
    name, known = workload.name, world.project_of
    if known.get(name, DEFAULT_PROJECT) == workload.project:
        return
    known = known.copy()
    known.pop(name, None)
    if workload.project != DEFAULT_PROJECT:
        known[name] = workload.project
    if len(known) > GONE_KEPT:
        gone = [other for other in known if other not in world.workloads and not world.held.get(other)]
        for other in gone[: max(0, len(gone) - GONE_KEPT)]:
            del known[other]
    world.project_of = known


def deleted(world: World, name: str) -> None:
    index.drop_workload(world, name)
    for kept in (world.courses, world.demands, world.starts, world.losses, world.versions):
        kept.pop(name, None)


def behind(world: World, event: ev.JournalBehind) -> None:
    """What is exclusive waits until leases from before are over; a term has one such wait."""
    world.epoch_least = max(world.epoch_least, event.epoch)
    if world.behind_at < max(1, world.leader.since):
        world.behind_at = event.at
        for workload in world.workloads.values():
            _look_when_leases_are_over(world, workload, event.at)


def _look_when_leases_are_over(world: World, workload: Workload, at: Instant) -> None:
    """Nothing else would wake up what waits because the journal was restored from a copy."""
    leases = world.policy.leases
    over = surely_over(world.behind_at, leases.lease_ms, leases.margin_ms) if world.behind_at else 0
    if workload.exclusive and at < over:
        world.agenda.at(over, "workload", workload.name)


def retried(world: World, name: str, at: Instant) -> None:
    if name not in world.workloads:
        return
    for slot in _slots(world, name):
        if slot.phase is Phase.FAILED or (slot.phase is Phase.OPEN and slot.failures):
            _open(world, slot, at)
    world.agenda.note("workload", name)


def restarted(world: World, name: str, at: Instant) -> None:
    workload = world.workloads.get(name)
    if workload is None:
        return
    if name in world.courses and not world.undone.get(name):
        del world.courses[name]  # it is done: its deadline counts anew
    applied(world, replace(workload, version=workload.version + 1), at)
    for slot in _slots(world, name):
        if slot.phase is Phase.DONE:
            _open(world, replace(slot, progress_ms=0), at)


def _slots(world: World, name: str) -> list[Slot]:
    return [world.slots[slot] for slot in world.of_workload.get(name, ())]


def _open(world: World, slot: Slot, at: Instant) -> None:
    """It wants a replica, as if nothing in it had failed. A seat that is closed stays so."""
    if slot.phase in (Phase.FAILED, Phase.DONE):
        slot = replace(slot, phase=Phase.OPEN, down_since=slot.down_since or at)
    index.put_slot(world, replace(slot, failures=0, retry_at=0))


def _resume(world: World, name: str, at: Instant) -> None:
    """What its owner paused was not down: it is, from now on, until it runs again."""
    for slot in _slots(world, name):
        if slot.down_since:
            index.put_slot(world, replace(slot, down_since=at, struck=False))


def _remember(world: World, old: Workload, new: Workload, at: Instant) -> None:
    """One entry for what ran under several versions in a row: the latest of them."""
    if old.runs == new.runs:
        return
    version = Version(old.version, at, old.needs, old.program)
    world.versions[new.name] = (*world.versions.get(new.name, ()), version)[-VERSIONS_KEPT:]
