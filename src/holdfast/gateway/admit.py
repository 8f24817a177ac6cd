"""Is this request let in? Who asks, what for, and whether their quota has room for it.

A request for a model is read as far as it decides anything, estimated, and reserved in one step. What is
let in goes on to a replica; what is not has its answer at once. Only where quota must be borrowed first is
there a moment in between.
"""

from typing import TYPE_CHECKING

from holdfast.core.gateway.prefix import blocks
from holdfast.core.gateway.purse import PurseTaken, Short
from holdfast.core.gateway.quota import Refusal
from holdfast.gateway import ask as asks
from holdfast.gateway import replies
from holdfast.gateway.book import may_use
from holdfast.gateway.replies import Answer

if TYPE_CHECKING:
    from holdfast.gateway.exchange import Exchange

MODELS = b"/v1/models"
BORROWS_MAX = 100


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
    names = exchange.worker.book.models(exchange.key)
    wanted = exchange.down.path[len(MODELS) + 1 :].decode("utf-8", "replace")
    if wanted and wanted not in names:
        exchange.answer(_no_model(wanted))
    else:
        exchange.reply(200, exchange.worker.models_page(names, wanted))


def _no_model(model: str) -> Answer:
    return Answer(404, "model_not_found", f"there is no model {model[:200]!r} for this key", param="model")


def _path_wanted(exchange: "Exchange", path: bytes) -> None:
    """Any other path belongs to a service as a whole. It counts as a request, and as no tokens."""
    service = exchange.worker.book.service_at(exchange.down.host, path)
    if service is None:
        exchange.answer(Answer(404, "not_found", "nothing here has this path"))
    elif service.settings.open or _known(exchange):
        exchange.service = service
        exchange.cost = 1
        take(exchange)


def _model_wanted(exchange: "Exchange") -> None:
    worker = exchange.worker
    try:
        ask = asks.read(exchange.body)
    except asks.NotReadable as error:
        exchange.answer(Answer(400, "invalid_request", str(error), param=error.param or None))
        return
    model = ask.model
    service = worker.book.service_for(model)
    if service is None or not may_use(exchange.key, model):
        exchange.answer(_no_model(model))
        return
    settings = service.settings
    exchange.model, exchange.service = model, service
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
        exchange.body, wanted = asks.with_usage(exchange.body, ask, all_the_time=settings.usage_all_the_time)
        exchange.strip = not wanted
    take(exchange)


def take(exchange: "Exchange") -> None:
    """Reserve it. What is not lent to this worker yet is asked for; many may want the same, so more than once
    if need be."""
    worker = exchange.worker
    now = worker.now()
    chain = exchange.chain = worker.purse.chain(exchange.key, exchange.model, now)
    taken = worker.purse.take(chain, exchange.tokens, now)
    if type(taken) is PurseTaken:
        exchange.taken = taken
        exchange.dispatch()
        return
    if isinstance(taken, Short):
        exchange.short += 1
        if exchange.short <= BORROWS_MAX:
            worker.borrow(exchange, taken)
            return
        taken = Refusal("unavailable", "", 0.0, exchange.tokens, 1.0)
    assert isinstance(taken, Refusal)
    exchange.answer(replies.refused(taken, exchange.model or "this path"))
