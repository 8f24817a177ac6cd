"""What went wrong, as RFC 9457 says it, and what to do about it.

Every answer that is not a success has this form, also for paths that do not exist. A cause is in the answer
when the caller can do something about it; a traceback never is, it goes to the log.
"""

from collections.abc import Iterable, Mapping
from http import HTTPStatus

import msgspec
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from holdfast.api.shapes import Problem
from holdfast.control.last_words import NotKept
from holdfast.control.plane import NotReachable, Unsupported
from holdfast.core.spelling import did_you_mean, worth_comparing
from holdfast.core.workloads import apply
from holdfast.files.problem import FileProblem
from holdfast.ports import errors

MEDIA_TYPE = "application/problem+json"
NAME_SHOWN_MAX = 80
LOOK = "see /openapi.json for what there is"

PORT_PROBLEMS: dict[type[errors.PortError], tuple[int, str]] = {
    errors.Full: (507, "it did not happen; make room where the journal is kept, then try again"),
    errors.OutcomeUnknown: (503, "it may have happened: look before you repeat it"),
    errors.Unreachable: (503, "it did not happen; try again in a moment"),
    errors.Throttled: (503, "try again in a moment"),
    errors.Fenced: (503, "another control plane leads now; try again in a moment"),
    errors.Denied: (502, "look at the permissions of the control plane itself"),
    errors.NotFound: (404, ""),
    errors.CapacityShort: (503, "there is none to be had at the moment"),
}


class Refused(HTTPException):
    """The request is not carried out, and this is why."""

    def __init__(
        self,
        status: int,
        detail: str,
        hint: str = "",
        *,
        problems: Iterable[str] = (),
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(status, detail, headers)
        self.hint, self.problems = hint, list(problems)


def unknown(kind: str, name: str, known: Iterable[str]) -> Refused:
    """404, with the nearest name that there is."""
    word = name if len(name) <= NAME_SHOWN_MAX else name[: NAME_SHOWN_MAX - 3] + "..."
    return Refused(404, f"there is no {kind} called {word}", did_you_mean(word, worth_comparing(word, known)))


def answer(
    status: int,
    detail: str,
    hint: str = "",
    problems: Iterable[str] = (),
    headers: Mapping[str, str] | None = None,
) -> Response:
    shape = Problem(HTTPStatus(status).phrase, status, detail, hint, list(problems))
    return Response(msgspec.json.encode(shape), status, headers, MEDIA_TYPE)


def refused(error: Refused) -> Response:
    return answer(error.status_code, error.detail, error.hint, error.problems, error.headers)


def explained(error: Exception) -> Response | None:
    """The answer to an error that we know; None: it is our own fault."""
    match error:
        case Refused():
            return refused(error)
        case HTTPException(status_code=404):
            return answer(404, "there is nothing at this path", LOOK)
        case HTTPException(status_code=405):
            return answer(405, "this path does not take this method", LOOK, headers=error.headers)
        case HTTPException():
            return answer(error.status_code, str(error.detail), headers=error.headers)
        case RequestValidationError():
            wrong = [_wrong(each) for each in error.errors()]
            return answer(422, "the request is not as it should be", LOOK, wrong)
        case FileProblem():
            return answer(422, "what was sent cannot be used; nothing was changed", problems=error.lines())
        case apply.Refused():
            return answer(409, str(error), error.hint)
        case errors.PortError():
            return _port_problem(error)
        case NotReachable():
            return answer(503, str(error), "its node is not connected", headers={"Retry-After": "5"})
        case NotKept():
            return answer(410, str(error), "without `offset` the answer begins with what is kept")
        case Unsupported():
            return answer(409, str(error))
        case TimeoutError():
            hint = "if it was an order it may have happened: look before you repeat it"
            return answer(503, "it took too long", hint, headers={"Retry-After": "5"})
    return None


def _port_problem(error: errors.PortError) -> Response:
    status, hint = PORT_PROBLEMS.get(type(error), (503, "try again in a moment"))
    wait_s = max(1, -(-error.retry_after_ms // 1000))
    headers = {"Retry-After": str(wait_s)} if status == 503 else None
    return answer(status, str(error) or type(error).__name__, hint, headers=headers)


def _wrong(error: Mapping[str, object]) -> str:
    """`body.count: Input should be greater than or equal to 0`"""
    where = error.get("loc")
    path = ".".join(str(part) for part in where) if isinstance(where, tuple) else ""
    return f"{path}: {error.get('msg')}"


async def handle(request: Request, error: Exception) -> Response:
    """For what goes wrong outside of every route: unknown paths and methods."""
    found = explained(error)
    assert found is not None, "registered for errors that are known"
    return found
