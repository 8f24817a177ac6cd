"""Errors named for the caller's next move."""


class PortError(Exception):
    """Something outside did not do what it was asked."""

    retry_after_ms = 0


class CapacityShort(PortError):
    """None to be had: try another offer. The request had no effect."""


class Throttled(PortError):
    """Too many requests: try again after a while. The request had no effect."""

    def __init__(self, why: str, retry_after_ms: int) -> None:
        super().__init__(why)
        self.retry_after_ms = retry_after_ms


class NotFound(PortError):
    """It does not exist: for a termination, that is success."""


class Denied(PortError):
    """Not allowed: tell a person. The request had no effect."""


class Unwritable(Denied):
    """It could not be read again as it was. Nothing was written, and trying again does not help."""


class Unreachable(PortError):
    """No connection: try again."""


class OutcomeUnknown(PortError):
    """It may have happened: list before retrying, the machine may exist and cost money."""


class Full(PortError):
    """There is no room to write it: a person must make some. The request had no effect."""


class Fenced(PortError):
    """Another control plane leads now."""
