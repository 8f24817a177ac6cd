"""The machine's errors, in the words of the port."""

import contextlib
import errno
from collections.abc import Iterator

from holdfast.adapters.providers.local import tree
from holdfast.ports.errors import Denied, Full, OutcomeUnknown, PortError, Unreachable


@contextlib.contextmanager
def plainly(what: str, exhausted: type[PortError] = Unreachable) -> Iterator[None]:
    """`exhausted`: which error it is when no processes, memory or files are left."""
    try:
        yield
    except tree.Lingering as error:
        raise OutcomeUnknown(f"{what}: {error}") from error
    except OSError as error:
        why = f"{what}: {error.strerror or error}" + (f": {error.filename}" if error.filename else "")
        match error.errno:
            case errno.ENOSPC | errno.EDQUOT:
                raise Full(why) from error
            case errno.EAGAIN | errno.ENOMEM | errno.EMFILE | errno.ENFILE:
                raise exhausted(why) from error
            case errno.ENOENT | errno.ENOTDIR | errno.ESTALE | errno.EIO:
                raise Unreachable(why) from error
            case _:
                raise Denied(why) from error
