"""Is this request let in? Who asks, what for, and whether their quota has room for it.

A request for a model is read as far as it decides anything, estimated, and reserved in one step. What is
let in goes on to a replica; what is not has its answer at once. Only where quota must be borrowed first is
there a moment in between.

Most of that needs the body. Whose key it is and where the path leads does not: `refused_at_head` says no
before any of the body is read. Both are looked at again when it is there: a key may be deleted meanwhile.

A key's models and limits hold on every path of a service that names models. What only reads (GET) costs no
tokens. What else is sent there would be answered by the engine (`/invocations`, `/generate`, `/v1/messages`)
and counted by nobody, so it is refused, unless the file lists it in `paths`: then it is taken for a request
for a model, and counted as one. By a path a key reaches a service only if it may use all of its models: which
of them the engine takes, only the engine knows.
"""

import re
from typing import TYPE_CHECKING
from urllib.parse import unquote

from holdfast.core.gateway.routing.prefix_affinity import blocks
from holdfast.gateway import ask as asks
from holdfast.gateway.paths import is_ambiguous, readings
from holdfast.gateway.replies import Answer
from holdfast.gateway.shapes import NONE, Ask, listed
from holdfast.model.gateway import Key, fits, may_use

if TYPE_CHECKING:
    from holdfast.gateway.down import Down
    from holdfast.gateway.exchange import Exchange
    from holdfast.gateway.service import Service
    from holdfast.gateway.worker import Worker

MODELS = b"/v1/models"
RESPONSES = b"/v1/responses"
IDEMPOTENT = frozenset({b"GET", b"HEAD", b"OPTIONS", b"TRACE", b"PUT", b"DELETE"})  # RFC 9110, 9.2.2
READS = frozenset({b"GET", b"HEAD", b"OPTIONS"})
IDEMPOTENCY_KEY = b"idempotency-key: "
PLAIN = re.compile(rb"(/[A-Za-z0-9._~!$&'()*+,=:@-]+)+")  # to be read in one way only


def refused_at_head(worker: "Worker", down: "Down") -> Answer | None:
    """Why its head is enough to refuse it, if it is."""
    path = down.path
    if path in asks.SHAPES:
        if down.method != b"POST":
            return Answer(405, "method_not_allowed", "this path takes POST", close=True)
    elif not (path == MODELS or path.startswith(MODELS + b"/")):
        if is_ambiguous(path):
            text = "the path could be read as another: no dot segments, backslashes, or escaped slashes"
            return Answer(400, "invalid_request", text, close=True)
        service = _service_at(worker, down.host, path)
        if service is None:
            return _nothing_here()
        if service.settings.open:
            return _unlisted(service, down)
        found = worker.authenticate(down)
        return found if isinstance(found, Answer) else _not_for(found, service) or _unlisted(service, down)
    found = worker.authenticate(down)
    return found if isinstance(found, Answer) else None


def admit(exchange: "Exchange") -> None:
    down = exchange.down
    path = down.path
    if path in asks.SHAPES:
        if _known(exchange):
            _model_wanted(exchange)
    elif path == MODELS or path.startswith(MODELS + b"/"):
        if _known(exchange):
            _models(exchange)
    else:
        _path_wanted(exchange, path)


def _known(exchange: "Exchange") -> bool:
    """Whose request it is; False: it was refused."""
    found = exchange.worker.authenticate(exchange.down)
    if isinstance(found, Answer):
        exchange.answer(found)
        return False
    exchange.key = found
    return True


def _models(exchange: "Exchange") -> None:
    """All that have a name, or the one that is asked for: that may be one of a name with a star."""
    wanted = unquote(exchange.down.path[len(MODELS) + 1 :].decode("utf-8", "replace"))
    if wanted and _service_for(exchange, wanted) is None:
        exchange.answer(_no_model(wanted))
    else:
        worker = exchange.worker
        exchange.reply(200, worker.models_page(worker.book.models(exchange.key), wanted))


def _service_for(exchange: "Exchange", model: str) -> "Service | None":
    """Who answers for it, if whoever asks may use it."""
    return exchange.worker.book.service_for(model) if may_use(exchange.key, model) else None


def _no_model(model: str) -> Answer:
    return Answer(404, "model_not_found", f"there is no model {model[:200]!r} for this key", param="model")


def _path_wanted(exchange: "Exchange", path: bytes) -> None:
    """Any other path belongs to a service as a whole. It counts as a request, and as no tokens, but for what
    is listed: there models answer."""
    worker, down = exchange.worker, exchange.down
    service = _service_at(worker, down.host, path)
    if service is None:
        exchange.answer(_nothing_here())
        return
    if not service.settings.open and not _known(exchange):
        return
    refused = _not_for(exchange.key, service) or _unlisted(service, down)
    if refused is not None:
        exchange.answer(refused)
    elif is_counted(service, down.method):
        _listed_wanted(exchange, service)
    else:
        exchange.service, exchange.of = service, service.of("")
        exchange.once = not (service.settings.names_models or repeatable(down))
        exchange.cost = 1
        exchange.take(worker.purse, worker.now())


def _service_at(worker: "Worker", host: bytes, path: bytes) -> "Service | None":
    """None too where the path could be read as one that leads elsewhere, or that counts as tokens."""
    service = worker.book.service_at(host, path)
    if service is None or PLAIN.fullmatch(path) is not None:
        return service
    for other in readings(path):
        if other in asks.SHAPES or worker.book.service_at(host, other) is not service:
            return None
    return service


def _nothing_here() -> Answer:
    return Answer(404, "not_found", "nothing here has this path", close=True)


def _not_for(key: Key, service: "Service") -> Answer | None:
    """As if there were no such path, as it is for models."""
    models = service.settings.models or (service.name,)
    return None if all(may_use(key, model) for model in models) else _nothing_here()


def is_counted(service: "Service", method: bytes) -> bool:
    return service.settings.names_models and method not in READS


def _unlisted(service: "Service", down: "Down") -> Answer | None:
    if not is_counted(service, down.method):
        return None
    path = down.path.decode("utf-8", "replace")
    if any(fits(listed, path) for listed in service.settings.paths):
        return None
    text = f"{service.name} answers for models, and {path[:200]} is not listed in its `paths`"
    return Answer(403, "path_not_listed", text, "permission_error", close=True)


def _listed_wanted(exchange: "Exchange", service: "Service") -> None:
    """It is taken for a request for a model, as far as it can be read as one. What says how much may come of
    it must be read: an engine may read it too."""
    try:
        ask = asks.read(exchange.body, named=False)
    except asks.NotReadable as error:
        if asks.is_counted(error.param):
            exchange.answer(Answer(400, "invalid_request", str(error), param=error.param))
            return
        ask = Ask()
    model = ask.model
    if exchange.worker.book.service_for(model) is not service:
        model = (service.settings.models or (service.name,))[0]
    exchange.service = service
    exchange.of = of = service.of(model)
    exchange.named = of.name
    exchange.model, exchange.streams = model, bool(ask.stream)
    _reserved(exchange, ask)


def repeatable(down: "Down") -> bool:
    """To carry it out twice is as good as once, by its method or because the service can tell."""
    return down.method in IDEMPOTENT or any(
        line.startswith(IDEMPOTENCY_KEY) and line != IDEMPOTENCY_KEY + b"\r\n" for line in down.forward
    )


def _model_wanted(exchange: "Exchange") -> None:
    try:
        ask = asks.read(exchange.body)
    except asks.NotReadable as error:
        exchange.answer(Answer(400, "invalid_request", str(error), param=error.param or None))
        return
    model = ask.model
    service = _service_for(exchange, model)
    if service is None:
        exchange.answer(_no_model(model))
        return
    exchange.model, exchange.service = model, service
    exchange.of = of = service.of(model)
    exchange.named = of.name
    if ask.stream:
        exchange.streams = True
        if exchange.down.path != RESPONSES:  # its last event tells the usage, and it knows no such option
            exchange.body, wanted = asks.with_usage(
                exchange.body, ask, all_the_time=service.settings.usage_all_the_time
            )
            exchange.strip = not wanted
    _reserved(exchange, ask)


def _reserved(exchange: "Exchange", ask: Ask) -> None:
    """What it may cost is estimated, and taken."""
    worker, service, body = exchange.worker, exchange.service, exchange.down.body
    assert service is not None
    settings = service.settings
    exchange.prompt_bytes, exchange.pieces = asks.prompt_size(body)
    exchange.outputs = ask.outputs
    path = exchange.down.path
    exchange.most = ask.most if path != b"/v1/embeddings" else 0
    several = 0
    if ask.prompt is not NONE or ask.text is not NONE or ask.input_ids is not NONE:
        several = listed(ask.prompt) + listed(ask.text) + listed(ask.input_ids)
    if ask.input is not NONE and path != RESPONSES:  # there its parts are one prompt
        several += listed(ask.input)
    exchange.tokens = exchange.cost = worker.estimator.reserve(
        exchange.model,
        exchange.key.id,
        exchange.prompt_bytes,
        exchange.pieces,
        exchange.most,
        exchange.outputs,
        settings.context,
        several,
    )
    if settings.prefix_aware:
        exchange.prefix = blocks(body)
    exchange.take(worker.purse, worker.now())
