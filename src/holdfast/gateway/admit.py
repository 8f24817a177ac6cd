"""Is this request let in? Who asks, what for, and whether their quota has room for it.

A request for a model is read as far as it decides anything, estimated, and reserved in one step. What is
let in goes on to a replica; what is not has its answer at once. Only where quota must be borrowed first is
there a moment in between.
"""

import posixpath
from typing import TYPE_CHECKING
from urllib.parse import unquote, unquote_to_bytes

from holdfast.core.gateway.prefix import blocks
from holdfast.gateway import ask as asks
from holdfast.gateway.replies import Answer
from holdfast.model.gateway import may_use

if TYPE_CHECKING:
    from holdfast.gateway.down import Down
    from holdfast.gateway.exchange import Exchange
    from holdfast.gateway.service import Service

MODELS = b"/v1/models"
RESPONSES = b"/v1/responses"
IDEMPOTENT = frozenset({b"GET", b"HEAD", b"OPTIONS", b"TRACE", b"PUT", b"DELETE"})  # RFC 9110, 9.2.2
IDEMPOTENCY_KEY = b"idempotency-key: "


def admit(exchange: "Exchange") -> None:
    down = exchange.down
    path = down.path
    if path in asks.SHAPES:
        if down.method != b"POST":
            exchange.answer(Answer(405, "method_not_allowed", "this path takes POST"))
        elif _known(exchange):
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
    """Any other path belongs to a service as a whole. It counts as a request, and as no tokens; one that an
    engine could read as a path that counts as tokens leads nowhere."""
    worker = exchange.worker
    service = worker.book.service_at(exchange.down.host, path)
    if service is None or _plain(path) in asks.SHAPES:
        exchange.answer(Answer(404, "not_found", "nothing here has this path"))
    elif service.settings.open or _known(exchange):
        exchange.service, exchange.of = service, service.of("")
        exchange.once = not (service.settings.names_models or repeatable(exchange.down))
        exchange.cost = 1
        exchange.take(worker.purse, worker.now())


def repeatable(down: "Down") -> bool:
    """To carry it out twice is as good as once, by its method or because the service can tell."""
    return down.method in IDEMPOTENT or any(
        line.startswith(IDEMPOTENCY_KEY) and line != IDEMPOTENCY_KEY + b"\r\n" for line in down.forward
    )


def _plain(path: bytes) -> bytes:
    """As it is read by whoever undoes escapes, dots, slashes that say nothing, and fragments."""
    return posixpath.normpath(b"/" + unquote_to_bytes(path.partition(b"#")[0]).lstrip(b"/"))


def _model_wanted(exchange: "Exchange") -> None:
    worker = exchange.worker
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
    settings = service.settings
    exchange.model, exchange.service, exchange.of = model, service, service.of(model)
    exchange.prompt_bytes, exchange.pieces = asks.prompt_size(exchange.body)
    exchange.outputs = ask.outputs
    exchange.most = ask.most if exchange.down.path != b"/v1/embeddings" else 0
    exchange.tokens = exchange.cost = worker.estimator.reserve(
        model,
        exchange.key.id,
        exchange.prompt_bytes,
        exchange.pieces,
        exchange.most,
        exchange.outputs,
        settings.context,
    )
    if settings.prefix_aware:
        exchange.prefix = blocks(exchange.body)
    if ask.stream:
        exchange.streams = True
        if exchange.down.path != RESPONSES:  # its last event tells the usage, and it knows no such option
            exchange.body, wanted = asks.with_usage(
                exchange.body, ask, all_the_time=settings.usage_all_the_time
            )
            exchange.strip = not wanted
    exchange.take(worker.purse, worker.now())
