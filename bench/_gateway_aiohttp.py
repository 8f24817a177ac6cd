"""A gateway as one would first write it, for comparison: aiohttp on both sides, and no quota.

python _gateway_aiohttp.py PORT UPSTREAM
"""

import sys
from typing import Any

from aiohttp import ClientSession, web  # type: ignore[import-not-found]

KEEP = {"content-type"}


def main(port: int, upstream: str) -> None:
    session: list[Any] = []

    async def begin(app: Any) -> None:
        session.append(ClientSession())

    async def pass_on(request: Any) -> Any:
        if request.headers.get("authorization") != "Bearer sk-bench":
            return web.json_response({"error": {"message": "no"}}, status=401)
        body = await request.read()
        headers = {"content-type": "application/json"}
        async with session[0].post(upstream + request.path, data=body, headers=headers) as found:
            kept = {name: value for name, value in found.headers.items() if name.lower() in KEEP}
            if "event-stream" not in found.headers.get("content-type", ""):
                return web.Response(body=await found.read(), status=found.status, headers=kept)
            out = web.StreamResponse(status=found.status, headers=kept)
            await out.prepare(request)
            async for piece in found.content.iter_any():
                await out.write(piece)
            await out.write_eof()
            return out

    app = web.Application()
    app.on_startup.append(begin)
    app.router.add_post("/{tail:.*}", pass_on)
    web.run_app(app, host="127.0.0.1", port=port, print=None, access_log=None)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
