"""Why a connection came to nothing, in the words of the system: what lies above says that all failed."""


def said_by_the_system(error: BaseException) -> str:
    """Empty: it said nothing."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.strerror:
            return cause.strerror.lower()
        cause = cause.__cause__ or cause.__context__
    return ""
