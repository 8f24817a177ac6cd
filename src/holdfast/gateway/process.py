"""The process of a worker: its hot path is compiled if that was made, its loop is uvloop if that is there.

python -m holdfast.gateway.process SOCKET
"""

import asyncio
import gc
import sys

from holdfast.gateway import native


async def main(path: str) -> None:
    from holdfast.gateway.link import connect
    from holdfast.gateway.worker import Worker

    link, start = await connect(path)
    worker = Worker(start, link, asyncio.get_running_loop())
    link.on_message = worker.told
    link.on_lost = worker.close
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)  # requests leave no circles behind; connections do
    await worker.serve()


def runner() -> asyncio.Runner:
    try:
        import uvloop
    except ImportError:
        return asyncio.Runner()
    return asyncio.Runner(loop_factory=uvloop.new_event_loop)


if __name__ == "__main__":
    native.use()
    with runner() as running:
        running.run(main(sys.argv[1]))
