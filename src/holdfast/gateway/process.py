"""The process of a worker: its hot path is compiled if that was made, its loop is uvloop if that is there.

python -m holdfast.gateway.process SOCKET
"""

import asyncio
import contextlib
import ctypes
import gc
import sys

from holdfast.gateway import log_lines, native

LARGE = 131_072  # bytes
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # of malloc.h


async def main(path: str) -> None:
    from holdfast.gateway.link import connect
    from holdfast.gateway.worker import Worker

    link, start = await connect(path)
    log_lines.set_up(as_json=start.log_json)
    worker = Worker(start, link, asyncio.get_running_loop())
    link.on_message = worker.told
    link.on_lost = worker.close
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)  # requests leave no circles behind; connections do
    await worker.serve()


def give_back_memory() -> None:
    """Pieces of bodies are large, and many come at once: what is as large as that is to go back to the system
    as soon as it is free. glibc would learn to keep it, up to the most that there ever was at a time. Where
    there is another allocator it does as it does."""
    with contextlib.suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(M_MMAP_THRESHOLD, LARGE)
        mallopt(M_TRIM_THRESHOLD, 64 * LARGE)


def runner() -> asyncio.Runner:
    try:
        import uvloop
    except ImportError:
        return asyncio.Runner()
    return asyncio.Runner(loop_factory=uvloop.new_event_loop)


if __name__ == "__main__":
    give_back_memory()
    native.use()
    with runner() as running:
        running.run(main(sys.argv[1]))
