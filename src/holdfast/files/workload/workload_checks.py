"""Do the documents of a workload file agree with themselves and with each other?

A check names the fields it reads, and is left out when one of them could not be read; `?` stands for a field
that does not exist, and may have been meant for any other.
"""

from collections.abc import Callable, Iterator, Sequence
from pathlib import PurePosixPath
from typing import Any

from holdfast.adapters.providers.facts import LIMITS
from holdfast.adapters.providers.found import others, wrong_settings
from holdfast.adapters.providers.profiles import FILE
from holdfast.core.spelling import did_you_mean
from holdfast.files.fleet import fleet_checks, fleet_convert
from holdfast.files.problem import Problem, shown
from holdfast.files.workload.workload_schema import PoolDocument, WorkloadDocument
from holdfast.model.program import Probe

SHELLS = {"sh", "bash", "dash", "zsh", "ksh", "fish", "env"}
VARIABLES = ("$PORT", "${PORT}", "$HOLDFAST_", "${HOLDFAST_")


def fields_suit_the_kind(form: WorkloadDocument) -> Iterator[Problem]:
    yield from fleet_checks.shape_problems("", form)


def numbers_are_in_order(form: WorkloadDocument) -> Iterator[Problem]:
    yield from fleet_checks.number_problems("", form)


def commands_hold_no_variables(form: WorkloadDocument) -> Iterator[Problem]:
    yield from _unreplaced("command", form.command)
    for name, probe in (("ready", form.ready), ("alive", form.alive)):
        if probe is not None:
            yield from _unreplaced(f"{name}.exec", probe.exec)


def probes_ask_one_thing(form: WorkloadDocument) -> Iterator[Problem]:
    for name, probe in (("ready", form.ready), ("alive", form.alive)):
        if probe is not None:
            yield from _probe(name, probe)


def _probe(where: str, probe: Probe) -> Iterator[Problem]:
    asked = [name for name in ("http", "tcp", "exec") if getattr(probe, name)]
    if len(asked) != 1:
        got = " and ".join(asked) if asked else "none"
        text = f"expected one of http, tcp and exec, got {got}"
        yield Problem(where, text, f"Try: {where} = {{ http: /healthz }}")


def _unreplaced(where: str, command: tuple[str, ...]) -> Iterator[Problem]:
    """`["server", "--port", "$PORT"]`: only a shell would put a number there."""
    if not command or PurePosixPath(command[0]).name in SHELLS:
        return
    if any(word.startswith(VARIABLES) for word in command):
        text = "expected a list without variables, got one: only a shell replaces them"
        yield Problem(where, text, f"Try: {where.rpartition('.')[2]} = {' '.join(command)[:60]}")


def limits_are_in_order(form: PoolDocument) -> Iterator[Problem]:
    yield from fleet_checks.pool_limits("", form)


def names_are_unique(form: PoolDocument) -> Iterator[Problem]:
    yield from fleet_checks.repeated("offers", [offer.name for offer in form.offers])
    yield from fleet_checks.repeated("hosts", [host.name for host in form.hosts])


def its_provider_is_known(form: PoolDocument) -> Iterator[Problem]:
    known = (*LIMITS, *others())
    if form.provider not in known:
        text = f"expected one of: {', '.join(known)}, got {shown(form.provider)}"
        yield Problem("provider", text, did_you_mean(form.provider, known))


def its_provider_takes_the_settings(form: PoolDocument) -> Iterator[Problem]:
    """Hosts are a setting that the pool has as a field of its own; what is wrong in them is told there."""
    offers = [offer.name for offer in fleet_convert.offers(form)]
    for wrong in wrong_settings(form.provider, form.settings, offers, whole=not form.profile):
        if wrong.of_host:
            text = f"expected a provider profile that says it ({wrong.expected}), got nothing"
            hint = (
                f"Try: profile = {form.name}, and write {wrong.name} into {FILE} of the control plane's host"
            )
            yield Problem(f"settings.{wrong.name}", text, hint)
            continue
        hint = (
            f"Try: {wrong.name} = {wrong.example}" if wrong.example else did_you_mean(wrong.name, wrong.known)
        )
        problem = Problem(f"settings.{wrong.name}", f"expected {wrong.expected}, got {wrong.got}", hint)
        if wrong.name != "hosts":
            yield problem
        elif not form.hosts and "hosts" not in form.settings:
            yield problem._replace(path="hosts")


def there_is_something_to_have(form: PoolDocument) -> Iterator[Problem]:
    if not form.zones and not form.offers and not form.hosts:
        yield Problem("zones", "expected at least one zone, got none", 'Try: zones = ["a"]')
    if form.offers and form.hosts:
        yield Problem("offers", "expected either offers or hosts, got both", "Try: leave out offers")
    if form.hosts and "provider" not in form.model_fields_set:
        text = "expected the provider that can reach the hosts, got nothing"
        yield Problem("provider", text, "Try: provider = ssh")
    if "hosts" in form.settings:
        text = "expected hosts as a field of the pool, got them in its settings"
        yield Problem("settings.hosts", text, "Try: hosts = [{ name: a }]")


def it_is_known_how_many(form: PoolDocument) -> Iterator[Problem]:
    limits = [name for name in ("min", "max") if getattr(form, name) is not None]
    if form.nodes is not None and limits:
        text = f"expected either nodes, or min and max, got nodes and {' and '.join(limits)}"
        yield Problem("nodes", text, "Try: leave out nodes")
    elif form.nodes is None and not limits and not form.hosts and form.can_launch:
        yield Problem("max", "expected how many nodes it may have, got nothing", "Try: nodes = 3")
    if form.hosts and form.max is not None and form.max > len(form.hosts):
        text = f"expected at most one node a host ({len(form.hosts)}), got {form.max}"
        yield Problem("max", text, f"Try: max = {len(form.hosts)}")
    needed = form.nodes if form.nodes is not None else form.min
    if form.hosts and needed is not None and needed > len(form.hosts):
        text = f"expected at most one node a host ({len(form.hosts)}), got {needed}"
        yield Problem("nodes" if form.nodes is not None else "min", text, "Try: more hosts")


def together(found: Sequence[tuple[str, object]]) -> Iterator[Problem]:
    """What no document can know alone. Each comes with its place in the file."""
    workloads = [(where, form) for where, form in found if isinstance(form, WorkloadDocument)]
    pools = [(where, form) for where, form in found if isinstance(form, PoolDocument)]
    yield from _twice([(where, form.name) for where, form in pools])
    yield from _models_twice(workloads)
    twice = list(_twice([(where, form.name) for where, form in workloads]))
    yield from twice or fleet_checks.circles(workloads)


def _models_twice(workloads: list[tuple[str, WorkloadDocument]]) -> Iterator[Problem]:
    """A gateway would not know whom to ask."""
    first: dict[str, str] = {}
    for where, form in workloads:
        for model in (form.serves.models or (form.name,)) if form.serves is not None else ():
            other = first.setdefault(model, form.name)
            if other != form.name:
                text = f"expected each model at one service, got {shown(model)}, which {other} answers for"
                yield Problem(f"{where}serves.models", text, "Try: another name for one of them")


def _twice(names: list[tuple[str, str]]) -> Iterator[Problem]:
    seen: set[str] = set()
    for where, name in names:
        if name in seen:
            text = f'expected a name of its own, got "{name}" again'
            yield Problem(f"{where}name", text, f"Try: name = {name}-2")
        seen.add(name)


Of = Callable[[Any], Iterator[Problem]]
CHECKS: dict[type, tuple[tuple[Of, frozenset[str]], ...]] = {
    WorkloadDocument: (
        (fields_suit_the_kind, frozenset({"?"})),
        (numbers_are_in_order, frozenset()),  # what is left out has defaults that agree
        (commands_hold_no_variables, frozenset({"command", "ready", "alive"})),
        (probes_ask_one_thing, frozenset({"ready", "alive"})),
    ),
    PoolDocument: (
        (limits_are_in_order, frozenset({"min", "max", "zones"})),
        (names_are_unique, frozenset({"offers", "hosts"})),
        (its_provider_is_known, frozenset({"provider"})),
        (
            its_provider_takes_the_settings,
            frozenset({"?", "provider", "profile", "settings", "zones", "offers", "hosts"}),
        ),
        (there_is_something_to_have, frozenset({"?", "zones", "offers", "hosts", "provider", "settings"})),
        (it_is_known_how_many, frozenset({"?", "nodes", "min", "max", "hosts", "can_launch"})),
    ),
}


def problems(form: WorkloadDocument | PoolDocument, broken: frozenset[str]) -> list[Problem]:
    checks = (check for check, reads in CHECKS[type(form)] if not reads & broken)
    return [problem for check in checks for problem in check(form)]
