"""What EC2 answers, in the words of the port: named for the caller's next move.

The code in the answer decides, and not the HTTP status: InsufficientInstanceCapacity comes as a 500 and
RequestLimitExceeded as a 503, and both mean that nothing was done. What has no entry here is judged by its
status: a 4xx was refused before anything happened, a 5xx may have happened. What went wrong on the way is
judged by whether the request had left: before that nothing happened, after it nobody knows, unless the
request only looked.
"""

from fnmatch import fnmatchcase
from typing import Any, Final

from holdfast.ports.errors import (
    CapacityShort,
    Denied,
    NotFound,
    OutcomeUnknown,
    PortError,
    Throttled,
    Unreachable,
)


class TokenSpent(Denied):
    """The machine of this client token was terminated."""


class TokenTaken(Denied):
    """There was a request of this client token in another form."""


THROTTLED_MS = 5_000  # EC2 refills its buckets every second; this lets several refills pass
WORDS_MAX = 300  # an UnauthorizedOperation carries a page of cipher text

ACCESS = "look at the credentials and rights of whoever runs the control plane"
RENEW = "renew the credentials of whoever runs the control plane"
IMAGE = "write an image of that region in the pool's settings"
WRITTEN = "look at the pool's offers and settings"

# The first pattern that fits a code counts.
CODES: Final[tuple[tuple[str, type[PortError], str], ...]] = (
    ("InsufficientInstanceCapacity", CapacityShort, ""),
    ("InsufficientHostCapacity", CapacityShort, ""),
    ("InsufficientReservedInstanceCapacity", CapacityShort, ""),
    ("InsufficientCapacity", CapacityShort, ""),
    ("InsufficientFreeAddressesInSubnet", CapacityShort, "the subnet has no address left"),
    ("SpotMaxPriceTooLow", CapacityShort, ""),
    ("MaxSpotInstanceCountExceeded", CapacityShort, "ask AWS for a higher quota"),
    ("InstanceLimitExceeded", CapacityShort, "ask AWS for a higher quota"),
    ("VcpuLimitExceeded", CapacityShort, "ask AWS for a higher quota"),
    ("Unsupported", CapacityShort, "this zone does not have that type"),
    ("RequestLimitExceeded", Throttled, ""),
    ("Throttling*", Throttled, ""),
    ("TooManyRequests*", Throttled, ""),
    ("EC2ThrottledException", Throttled, ""),
    ("InvalidInstanceID.NotFound", NotFound, ""),
    ("InvalidSpotInstanceRequestID.NotFound", NotFound, ""),
    ("IncorrectInstanceState", Unreachable, ""),
    ("IncorrectState", Unreachable, ""),
    ("UnauthorizedOperation", Denied, ACCESS),
    ("AccessDenied*", Denied, ACCESS),
    ("AuthFailure", Denied, ACCESS),
    ("InvalidClientTokenId", Denied, ACCESS),
    ("SignatureDoesNotMatch", Denied, "look at the secret key and at this machine's clock"),
    ("RequestExpired", Denied, "this machine's clock is wrong, or the credentials have expired"),
    ("ExpiredToken*", Denied, RENEW),
    ("OptInRequired", Denied, "the account must subscribe to the image or enable the region"),
    ("PendingVerification", Denied, "AWS is still checking the account"),
    ("InvalidAMIID*", Denied, IMAGE),
    ("InvalidParameter*", Denied, WRITTEN),
    ("IdempotentInstanceTerminated", TokenSpent, ""),
    ("IdempotentParameterMismatch", TokenTaken, "it was asked for before in another form"),
)

# Names of botocore's exceptions, the nearest in the class's line counts. None: it depends on whether the
# request had left and would have changed something.
EXCEPTIONS: Final[dict[str, tuple[type[PortError] | None, str]]] = {
    "EndpointConnectionError": (Unreachable, ""),
    "ConnectTimeoutError": (Unreachable, ""),
    "ProxyConnectionError": (Unreachable, ""),
    "SSLError": (Unreachable, ""),
    "HTTPClientError": (None, ""),
    "ResponseParserError": (None, ""),
    "ConnectionClosedError": (None, ""),
    "ReadTimeoutError": (None, ""),
    "NoCredentialsError": (Denied, "give the control plane credentials, or name a `profile`"),
    "BotoCoreError": (Denied, ACCESS),  # a profile, a token or a parameter that makes no sense
}


def translated(error: Exception, *, only_looks: bool) -> PortError:
    """`error`: one of botocore's."""
    unclear = Unreachable if only_looks else OutcomeUnknown
    answer = _answer(error)
    if answer:
        return _of_answer(answer, unclear)
    for kind in type(error).__mro__:
        if kind.__name__ in EXCEPTIONS:
            meant, hint = EXCEPTIONS[kind.__name__]
            return (meant or unclear)(_said(str(error), hint))
    return unclear(str(error) or type(error).__name__)


def _of_answer(answer: dict[str, Any], unclear: type[PortError]) -> PortError:
    said = answer.get("Error", {})
    code, message = str(said.get("Code", "")), str(said.get("Message", ""))
    about = answer.get("ResponseMetadata", {})
    for pattern, meant, hint in CODES:
        if fnmatchcase(code, pattern):
            words = _said(f"{code}: {message}", hint)
            return Throttled(words, _retry_after_ms(about)) if meant is Throttled else meant(words)
    refused = 400 <= int(about.get("HTTPStatusCode", 500)) < 500
    return (Denied if refused else unclear)(_said(f"{code}: {message}", ""))


def _answer(error: Exception) -> dict[str, Any]:
    found = getattr(error, "response", None)
    return found if isinstance(found, dict) else {}


def _said(words: str, hint: str) -> str:
    words = words if len(words) <= WORDS_MAX else f"{words[:WORDS_MAX]}..."
    return f"{words} ({hint})" if hint else words


def _retry_after_ms(about: dict[str, Any]) -> int:
    text = str(about.get("HTTPHeaders", {}).get("retry-after", ""))
    return min(int(text), 600) * 1000 if text.isdecimal() and int(text) else THROTTLED_MS
