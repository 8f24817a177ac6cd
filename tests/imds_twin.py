"""The metadata service of a machine of EC2, on loopback: version 2, so whoever asks needs a token first."""

import contextlib
import json
import threading
import time
from collections.abc import Iterator
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

ACTION = "/latest/meta-data/spot/instance-action"


class Imds:
    def __init__(self) -> None:
        self.action = ""  # what it announces; empty: nothing
        self.ahead_s = 0.0  # its clock before ours
        self.token = "t-1"
        self.breaks = False
        self.answered: list[int] = []  # the status of each answer
        self.url = ""

    def announce(self, after_s: float) -> None:
        at = time.gmtime(time.time() + self.ahead_s + after_s)
        self.action = json.dumps({"action": "terminate", "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", at)})

    def answer(self, method: str, path: str, token: str | None, ttl: str | None) -> tuple[int, str]:
        if self.breaks:
            return 500, ""
        if (method, path) == ("PUT", "/latest/api/token"):
            return (200, self.token) if ttl else (400, "")
        if token != self.token:
            return 401, ""
        return (200, self.action) if path == ACTION and self.action else (404, "")


@contextlib.contextmanager
def imds() -> Iterator[Imds]:
    twin = Imds()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            said = self.headers.get
            status, text = twin.answer(
                self.command,
                self.path,
                said("X-aws-ec2-metadata-token"),
                said("X-aws-ec2-metadata-token-ttl-seconds"),
            )
            twin.answered.append(status)
            self.send_response_only(status)
            self.send_header("Date", formatdate(time.time() + twin.ahead_s, usegmt=True))
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text.encode())

        do_PUT = do_GET  # noqa: N815

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    twin.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield twin
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
