"""What may a token with a project see and do?

The rule: of workloads, those of its project, and what is not its own is not there (404, not 403: a name that
is refused would tell that there is such a thing). Names are unique in the fleet, so one that is taken is
refused without saying by whom. Of nodes it sees names, places, sizes and states, for its work has to run
somewhere, and of what runs there only its own. Whatever else is about the whole fleet (orders to nodes,
money, keys of gateways, the capacity report, metrics) takes a token without a project.

A route is closed to such tokens unless it is in OPEN: whoever writes a new one must say that it looks at the
project.

Reasons are made by the core, which knows no secrets between projects, and name other workloads ("preempted by
...", "its room went to ..."). Those names are veiled here: a word that is the name of a workload, slot or
replica of another project is replaced. Refused: to have the core write two reasons for everything.
"""

import re
from collections.abc import Collection

from msgspec.structs import replace

from holdfast.api import shapes
from holdfast.api.problems import Refused, unknown
from holdfast.core.explain.dry_run import Preview
from holdfast.core.plan.project_quota import project_of
from holdfast.model.project import Project
from holdfast.model.workload import DEFAULT_PROJECT, Workload
from holdfast.model.world import World

HEADER = "Holdfast-Project"
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,62}")
WORD = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*(?:/\d+(?:\.\d+)?)?")
ANOTHER = "another workload"
TOKEN = "take a token without a project, which an admin makes"

# Routes by the names of their functions: each looks at the project of whoever asks.
OPEN = frozenset(
    {
        *("status", "nodes", "node", "pools", "offers", "workloads", "workload", "replicas", "findings"),
        *("projects", "apply", "plan", "delete_workload", "scale", "signals", "pause", "resume"),
        *("retry", "restart", "rollback", "versions", "spec"),
        *("events", "explained", "log"),
    }
)


def chosen(own: str, header: str) -> str:
    """The project of a request: the token's own, or the one it names; empty: all."""
    if header and not NAME.fullmatch(header):
        hint = "a name of letters, digits, - and _, at most 63 long"
        raise Refused(422, f"the header {HEADER} is no name of a project", hint)
    if own and header not in ("", own):
        raise Refused(403, f"the token is for the project {own}, not for {header}", "leave out --project")
    return own or header


class Projects:
    """The world as a project sees it; an empty one sees all."""

    def __init__(self, world: World, project: str, sent: Collection[str] = ()) -> None:
        """`sent`: names of workloads that the one who asks would apply."""
        self.world, self.project, self.sent = world, project, sent

    def sees(self, workload: str) -> bool:
        found = self.world.workloads.get(workload)
        return found is not None and self.project in ("", found.project)

    def sees_replica(self, id: str) -> bool:
        return self.sees(id.rpartition("/")[0])

    def names(self) -> list[str]:
        return [name for name in self.world.workloads if self.sees(name)]

    def workload(self, name: str) -> Workload:
        """Refused: there is none."""
        if not self.sees(name):
            raise unknown("workload", name, self.names())
        return self.world.workloads[name]

    def node(self, of: shapes.Node | None) -> shapes.Node | None:
        if of is None or not self.project:
            return of
        return replace(of, replicas=[id for id in of.replicas if self.sees_replica(id)])

    def shown(self, of: shapes.Workload | None) -> shapes.Workload | None:
        if of is None or not self.project:
            return of
        seats = [replace(seat, why=self.veiled(seat.why)) for seat in of.seats]
        return replace(of, why=self.veiled(of.why), seats=seats)

    def finding(self, of: shapes.Finding) -> shapes.Finding:
        """Evidence is made of what runs there, whosever it is."""
        return replace(of, evidence="", remedy=self.veiled(of.remedy)) if self.project else of

    def line(self, of: shapes.Line) -> shapes.Line:
        return replace(of, text=self.veiled(of.text)) if self.project else of

    def preview(self, of: Preview, sent: Collection[str]) -> Preview:
        """The steps of its own workloads and of those that were `sent`, and the nodes that are launched."""
        if not self.project:
            return of
        own, seen = {*sent, *self.names()}, Projects(self.world, self.project, sent)
        steps = (s for s in of.steps if s.subject.partition("/")[0] in own or s.action == "LaunchNode")
        return Preview(
            tuple(replace(s, text=seen.veiled(s.text), why=seen.veiled(s.why)) for s in steps),
            tuple(map(seen.veiled, (text for text in of.pending if not seen._of_another(text)))),
            tuple(map(seen.veiled, (text for text in of.cautions if not seen._of_another(text)))),
        )

    def veiled(self, text: str) -> str:
        """Without the names of what is not its own."""
        if not self.project:
            return text
        return WORD.sub(lambda word: ANOTHER if self._foreign(word[0]) else word[0], text)

    def _of_another(self, text: str) -> bool:
        first = WORD.match(text)
        return first is not None and self._foreign(first[0])

    def _foreign(self, word: str) -> bool:
        name = word.partition("/")[0]
        if name in self.world.workloads or name in self.sent:
            return not (name in self.sent or self.sees(name))
        was = self.world.project_of.get(name, "")  # gone; of the default project it is not kept
        if not was and "/" in word and not name.isdecimal():
            was = DEFAULT_PROJECT
        return was not in ("", self.project)


def check_wanted(project: str, wanted: object) -> None:
    """Refused: this document is not for a token with a project."""
    if not project:
        return
    if not isinstance(wanted, Workload):
        kind = type(wanted).__name__.lower()
        raise Refused(403, f"a {kind} is of the whole fleet, and the project is {project}", TOKEN)
    if wanted.project != project:
        what = f"{wanted.name} names the project {wanted.project}, and the project is {project}"
        raise Refused(403, what, "nothing was changed; leave out `project`")


def check_priority(quota: Project | None, old: Workload | None, new: Workload) -> None:
    """A workload of a high priority pushes out those of other projects. What has it already keeps it."""
    most = quota.priority if quota is not None else None
    if most is None or new.priority <= most or (old is not None and old.priority >= new.priority):
        return
    what = (
        f"{new.name} asks for the priority {new.priority}, and the project {new.project} has at most {most}"
    )
    raise Refused(403, what, "nothing was changed; an admin may raise it (kind: project)")


def check_name(project: str, world: World, new: Workload) -> None:
    """A workload stays in its project, and so does its name while anything of it may run: what that writes
    and how it ends belongs to whoever applied it."""
    old = world.workloads.get(new.name)
    if old is None and not world.held.get(new.name):
        return
    whose = project_of(world, new.name)
    if whose == new.project:
        return
    if project and whose != project:
        hint = "names are unique in the fleet; nothing was changed: take another"
        raise Refused(409, f"the name {new.name} is taken", hint)
    if old is None:
        what = f"{new.name} of the project {whose} was deleted, and its replicas are still being stopped"
        raise Refused(409, what, "nothing was changed; try again when they are gone")
    what = f"{new.name} is of the project {old.project} and stays there"
    raise Refused(409, what, f"nothing was changed; say `project: {old.project}`, or delete it first")
