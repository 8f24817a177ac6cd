"""Reads the file of a gateway: one YAML document.

settings = read(Path("gateway.yaml"), state)
"""

import os
import ssl
from collections.abc import Iterator
from pathlib import Path

from holdfast.core.gateway.quota.limits_in_force import is_limited
from holdfast.core.spelling import did_you_mean
from holdfast.files import read_text, yaml_lines
from holdfast.files.gateway.gateway_schema import (
    AllLimitsForm,
    GatewayForm,
    HoldForm,
    KeyForm,
    ServiceForm,
    UpstreamForm,
    limits_of,
)
from holdfast.files.partial import UNNAMED, Salvaged
from holdfast.files.problem import FileProblem, Problem, shown
from holdfast.files.validation_errors import YAML
from holdfast.gateway import settings
from holdfast.model.gateway import GLOBAL, Key, Limits, both, scope_of_model, scope_of_team
from holdfast.ports import secret_file
from holdfast.wire import certificates

PATTERNS = ("*.yaml", "*.yml")
EMPTY = Problem("", "expected a gateway, got an empty file", "Try: services: [{ name: llama, ... }]")
ENV = "env:"
INSTEAD = {"name": UNNAMED, "id": UNNAMED, "url": "http://unnamed-{}".format, "sha256": "{:064x}".format}


def read(path: Path, state: Path, *, alone: bool = False) -> settings.Gateway:
    """`alone`: nobody else tells of services."""
    return parsed(read_text.text(path, "YAML", PATTERNS), str(path), state, alone=alone)


def bare(state: Path) -> settings.Gateway:
    """As an empty file would have it: what it leads to comes from elsewhere."""
    return _gateway(GatewayForm(), state)


def parsed(text: str, name: str, state: Path, *, alone: bool = False) -> settings.Gateway:
    found = yaml_lines.documents(text, name)
    if not found:
        raise FileProblem(name, [EMPTY])
    document = found[0]
    if isinstance(document.data, dict) and "kind" in document.data:
        text = f"expected the file of a gateway, got one of workloads (kind: {document.data['kind']})"
        raise FileProblem(name, [Problem("", text, f"Try: holdfast apply {name}", document.line_of("kind"))])
    problems = list(document.problems)
    if len(found) > 1:
        problems.append(Problem("", f"expected one document, got {len(found)}"))
    if not isinstance(document.data, dict):
        raise FileProblem(
            name, [Problem("", f"expected fields such as services, got {shown(document.data)}")]
        )
    read = Salvaged(GatewayForm, document.data, YAML, INSTEAD)
    if read.form is not None:
        read.tell(_checked(read.form))
        if alone:
            read.tell(_whole(read.form))
    problems += read.problems
    if problems or read.form is None:
        placed = [
            problem._replace(line=problem.line or document.line_of(problem.path)) for problem in problems
        ]
        raise FileProblem(name, sorted(placed, key=lambda problem: problem.line))
    return _gateway(read.form, state)


def _checked(form: GatewayForm) -> Iterator[Problem]:
    if form.admin[1] and form.admin == form.listen:
        text = f"expected another address than listen has, got {form.admin[0]}:{form.admin[1]} for both"
        yield Problem("admin", text, f"Try: admin: {form.admin[0]}:{form.admin[1] + 1}")
    yield from _answered_once(form)
    yield from _buffered(form)
    seen: dict[str, str] = {}
    for number, service in enumerate(form.services):
        where = f"services[{number}]"
        if service.name in seen:
            text = f"expected another name than {seen[service.name]} has"
            yield Problem(f"{where}.name", text, f"Try: name: {service.name}-2")
        seen.setdefault(service.name, where)
        ids = [upstream.id or upstream.url for upstream in service.upstreams]
        for at, id in enumerate(ids):
            if id in ids[:at]:
                text = f"expected each upstream once, got {id} again"
                yield Problem(f"{where}.upstreams[{at}]", text, "Try: leave one out, or give them an id each")
        for at, upstream in enumerate(service.upstreams):
            if upstream.credential.startswith(ENV) and not os.environ.get(_variable(upstream)):
                text = f"expected the variable {_variable(upstream)} to be set, got nothing"
                hint = f"Try: export {_variable(upstream)}=... before it starts"
                yield Problem(f"{where}.upstreams[{at}].credential", text, hint)
    yield from _trusted(form)
    ids = [key.id for key in form.keys]
    for at, key in enumerate(form.keys):
        if key.id in ids[:at]:
            text = f"expected each key once, got {key.id} again"
            yield Problem(f"keys[{at}].id", text, f"Try: id: {key.id}-2")


def _whole(form: GatewayForm) -> Iterator[Problem]:
    """Whoever asks for what has no upstream waits for one in vain, and a limit of a model that there is not
    limits nobody."""
    for number, service in enumerate(form.services):
        if not service.upstreams:
            hint = "Try: upstreams: [http://10.0.0.1:8000], or follow a control plane with --control"
            yield Problem(f"services[{number}].upstreams", "expected one at least, got none", hint)
    known = [model for service in form.services for model in service.models or (service.name,)]
    limited = [(f"limits.models.{model}", model) for model in form.limits.models]
    limited += [
        (f"limits.teams.{team}.models.{model}", model)
        for team, scope in form.limits.teams.items()
        for model in scope.models
    ]
    for where, model in limited:
        if known and not is_limited(model, known):
            text = f"expected a model of a service, got {shown(model)}"
            yield Problem(where, text, did_you_mean(model, known))
    for number, key in enumerate(form.keys):
        near = did_you_mean(key.team, form.limits.teams) if key.team not in ("", *form.limits.teams) else ""
        if near.startswith("Did"):  # one that is like no other is new
            text = f"expected a team of limits.teams, got {shown(key.team)}, which has no limits"
            yield Problem(f"keys[{number}].team", text, f"{near}? If not: limits.teams.{key.team}: {{}}")


def _answered_once(form: GatewayForm) -> Iterator[Problem]:
    """A model has one service; of two the second would never be asked."""
    by_model: dict[str, str] = {}
    for number, service in enumerate(form.services):
        if service.probe and not service.probe.startswith("/"):
            text = f"expected a path, got {service.probe}"
            yield Problem(f"services[{number}].probe", text, f"Try: probe: /{service.probe}")
        for model in service.models or (service.name,):
            if model in by_model and by_model[model] != service.name:
                text = f"expected one service a model, got {model} of {by_model[model]} and of {service.name}"
                hint = "Try: one service with the upstreams of both"
                yield Problem(f"services[{number}].models", text, hint)
            by_model.setdefault(model, service.name)


def _buffered(form: GatewayForm) -> Iterator[Problem]:
    """A request that has no room even alone would be refused for ever, as if that were for the moment."""
    for name in ("buffers", "buffers_per_key", "buffers_per_address"):
        if name in form.model_fields_set and getattr(form, name) < form.body_max:
            text = f"expected room for body_max ({form.body_max} MiB), got {getattr(form, name)} MiB"
            yield Problem(name, text, f"Try: {name}: {form.body_max}MiB, or a smaller body_max")


def _trusted(form: GatewayForm) -> Iterator[Problem]:
    """A worker that finds them missing would not come up, and the next would not either."""
    if form.tls is not None:
        try:
            certificates.check(Path(form.tls.certificate), Path(form.tls.key))
        except secret_file.Exposed as error:
            yield Problem("tls.key", str(error), f"Try: {error.hint}")
        except OSError as error:  # ssl's own are among them
            yield Problem("tls", f"expected a certificate and its key, got: {error.strerror or error}")
    if form.upstream_ca:
        try:
            ssl.create_default_context().load_verify_locations(form.upstream_ca)
        except OSError as error:
            yield Problem("upstream_ca", f"expected certificates, got: {error.strerror or error}")


def _gateway(form: GatewayForm, state: Path) -> settings.Gateway:
    return settings.Gateway(
        state=state,
        host=form.listen[0],
        port=form.listen[1],
        admin_host=form.admin[0],
        admin_port=form.admin[1],
        workers=form.workers,
        certificate=Path(form.tls.certificate) if form.tls else None,
        key=Path(form.tls.key) if form.tls else None,
        upstream_ca=Path(form.upstream_ca) if form.upstream_ca else None,
        body_max=form.body_max * settings.MIB,
        connections=form.connections,
        connections_per_address=form.connections_per_address,
        trusted_proxies=tuple(form.trusted_proxies),
        buffers=max(form.buffers, form.body_max) * settings.MIB,
        buffers_per_key=max(form.buffers_per_key, form.body_max) * settings.MIB,
        buffers_per_address=max(form.buffers_per_address, form.body_max) * settings.MIB,
        services=tuple(map(_service, form.services)),
        limits=dict(_limits(form.limits)),
        keys=tuple(map(_key, form.keys)),
        open=form.open,
        insecure=form.insecure,
        fail_open=form.fail_open,
        shadow=form.shadow,
    )


def _service(form: ServiceForm) -> settings.Service:
    return settings.Service(
        name=form.name,
        models=form.models or (form.name,),
        names_models=bool(form.models),
        upstreams=tuple(map(_upstream, form.upstreams)),
        hosts=form.hosts,
        prefixes=form.prefixes,
        open=form.open,
        paths=form.paths,
        probe=form.probe,
        probe_every_s=form.probe_every / 1000,
        hold=_hold(form.hold),
        concurrent=form.concurrent,
        context=form.context,
        prefix_aware=form.prefix_aware,
        hedge=form.hedge,
        continues=form.continues,
        usage_all_the_time=form.usage_all_the_time,
        tries=form.tries,
        connect_s=form.connect / 1000,
        first_byte_s=form.first_byte / 1000,
        stall_s=form.stall / 1000,
        total_s=form.total / 1000,
    )


def _hold(form: HoldForm) -> settings.Hold | None:
    if not form.requests:
        return None
    return settings.Hold(form.requests, form.tokens, form.patience / 1000)


def _upstream(form: UpstreamForm) -> settings.Upstream:
    credential = form.credential
    if credential.startswith(ENV):
        credential = os.environ.get(_variable(form), "")
    return settings.Upstream(form.url, form.id, form.weight, form.priority, credential)


def _variable(form: UpstreamForm) -> str:
    return form.credential.removeprefix(ENV)


def _limits(form: AllLimitsForm) -> Iterator[tuple[str, Limits]]:
    if form.everybody is not None:
        yield GLOBAL, limits_of(form.everybody)
    for model, limits in form.models.items():
        yield scope_of_model(model), limits_of(limits)
    for team, scope in form.teams.items():
        yield scope_of_team(team), limits_of(scope)
        for model, limits in scope.models.items():
            yield both(scope_of_team(team), model), limits_of(limits)


def _key(form: KeyForm) -> Key:
    return Key(
        id=form.id,
        hash=form.sha256,
        owner=form.owner,
        team=form.team,
        models=form.models,
        limits=limits_of(form.limits),
        exempt=form.exempt,
    )
