"""Does a service claim requests that are for the service of another project?

The question: gateways route by model, host and path prefix, and a workload file claims them. The more
specific claim wins, and of equal ones the first. So whoever may apply workloads in one project could claim
`llama-70b` where another project serves `llama-*`, and would read its prompts and write its answers.

The rule: what a service newly claims must not overlap with what a service of another project claims, in
either direction. A host takes all paths of that host, prefixes of others too; so a token with a project
claims no hosts where others have prefixes, and no prefixes where others have hosts. One without a project may
arrange that. What was claimed before stays.

Refused: priority to whoever claimed first. It would depend on the order in which a gateway was told, and a
service that is deleted and applied again would have lost its requests meanwhile.
"""

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence

from holdfast.model.workload import Serves, Service, Workload
from holdfast.model.world import World

TAKEN = "is another project's, or a part of what is"


def problems(world: World, applied: Iterable[Workload], *, of_project: bool) -> Iterator[str]:
    """What of these another project serves already, without its name. `of_project`: whoever applies them may
    act for one project alone."""
    new = {workload.name: workload for workload in applied}
    known = world.workloads | new
    serving = [workload for name in {*world.fronted, *new} if _serves(workload := known[name]) is not None]
    others: dict[str, Claims] = {}
    for name, workload in new.items():
        serves = _serves(workload)
        if serves is None or serves == _serves(world.workloads.get(name)):
            continue
        if workload.project not in others:
            theirs = (other for other in serving if other.project != workload.project)
            others[workload.project] = Claims(theirs)
        yield from _overlaps(name, serves, others[workload.project], of_project=of_project)


class Claims:
    """Of several services together, so that a long list is compared with all of them at once."""

    def __init__(self, services: Iterable[Workload]) -> None:
        found = [(each.name, serves) for each in services if (serves := _serves(each)) is not None]
        models = [model for name, serves in found for model in serves.models or (name,)]
        self.models = frozenset(model for model in models if not model.endswith("*"))
        self.starts = tuple(model[:-1] for model in models if model.endswith("*"))
        self.sorted_models = sorted({*self.models, *self.starts})
        self.hosts = frozenset(_host(host) for _, serves in found for host in serves.hosts)
        self.prefixes = tuple(sorted({_folder(path) for _, serves in found for path in serves.prefixes}))

    def have_model(self, model: str) -> bool:
        """Is there a model that both answer for?"""
        if model.endswith("*"):
            start = model[:-1]
            return start.startswith(self.starts) or _begins(self.sorted_models, start)
        return model in self.models or model.startswith(self.starts)

    def have_prefix(self, path: str) -> bool:
        folder = _folder(path)
        return folder.startswith(self.prefixes) or _begins(self.prefixes, folder)


def _serves(workload: Workload | None) -> Serves | None:
    return workload.shape.serves if workload is not None and isinstance(workload.shape, Service) else None


def _overlaps(name: str, mine: Serves, theirs: Claims, *, of_project: bool) -> Iterator[str]:
    for model in mine.models or (name,):
        if theirs.have_model(model):
            yield f"{name}.serves.models: {model} {TAKEN}"
    for host in mine.hosts:
        if _host(host) in theirs.hosts:
            yield f"{name}.serves.hosts: {host} {TAKEN}"
    for prefix in mine.prefixes:
        if theirs.have_prefix(prefix):
            yield f"{name}.serves.prefixes: {prefix} {TAKEN}"
    if of_project and ((mine.hosts and theirs.prefixes) or (mine.prefixes and theirs.hosts)):
        kind, others = ("hosts", "prefixes") if mine.hosts and theirs.prefixes else ("prefixes", "hosts")
        yield f"{name}.serves.{kind}: another project has {others}; it takes a token without a project"


def _begins(texts: Sequence[str], start: str) -> bool:
    """Does one of these, which are sorted, begin so?"""
    at = bisect_left(texts, start)
    return at < len(texts) and texts[at].startswith(start)


def _host(host: str) -> str:
    """Without its port: a host with one is found before the same without."""
    return host.lower().rpartition(":")[0] or host.lower()


def _folder(path: str) -> str:
    return f"{path.rstrip('/')}/"
