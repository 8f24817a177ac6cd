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

from collections.abc import Iterable, Iterator

from holdfast.model.workload import Serves, Service, Workload
from holdfast.model.world import World


def problems(world: World, applied: Iterable[Workload], *, of_project: bool) -> Iterator[str]:
    """What of these another project serves already, without its name. `of_project`: whoever applies them may
    act for one project alone."""
    new = {workload.name: workload for workload in applied}
    known = world.workloads | new
    serving = {name: known[name] for name in {*world.fronted, *new} if _serves(known[name]) is not None}
    for name, workload in new.items():
        serves, before = _serves(workload), _serves(world.workloads.get(name))
        if serves is None or serves == before:
            continue
        for other in serving.values():
            if other.project != workload.project:
                yield from _overlaps(name, serves, other, of_project=of_project)


def _serves(workload: Workload | None) -> Serves | None:
    return workload.shape.serves if workload is not None and isinstance(workload.shape, Service) else None


def _overlaps(name: str, mine: Serves, other: Workload, *, of_project: bool) -> Iterator[str]:
    theirs = _serves(other)
    if theirs is None:
        return
    taken = "is another project's, or a part of what is"
    for model in mine.models or (name,):
        if any(_same_models(model, each) for each in theirs.models or (other.name,)):
            yield f"{name}.serves.models: {model} {taken}"
    for host in mine.hosts:
        if _host(host) in map(_host, theirs.hosts):
            yield f"{name}.serves.hosts: {host} {taken}"
    for prefix in mine.prefixes:
        if any(_inside(prefix, each) or _inside(each, prefix) for each in theirs.prefixes):
            yield f"{name}.serves.prefixes: {prefix} {taken}"
    if of_project and ((mine.hosts and theirs.prefixes) or (mine.prefixes and theirs.hosts)):
        kind, others = ("hosts", "prefixes") if mine.hosts and theirs.prefixes else ("prefixes", "hosts")
        yield f"{name}.serves.{kind}: another project has {others}; it takes a token without a project"


def _same_models(a: str, b: str) -> bool:
    """Is there a model that both answer for?"""
    if a.endswith("*") and b.endswith("*"):
        return a.startswith(b[:-1]) or b.startswith(a[:-1])
    if a.endswith("*"):
        return b.startswith(a[:-1])
    return a.startswith(b[:-1]) if b.endswith("*") else a == b


def _host(host: str) -> str:
    """Without its port: a host with one is found before the same without."""
    return host.lower().rpartition(":")[0] or host.lower()


def _inside(path: str, prefix: str) -> bool:
    return path == prefix or path.startswith(f"{prefix.rstrip('/')}/")
