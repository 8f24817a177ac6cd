"""An engine that answers nobody but the gateways of its fleet."""

import json
import os
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

SECRET = os.environ["HOLDFAST_GATEWAY_SECRET"]


class Guarded(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.say(200 if self.path == "/health" else 404, {})

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        if self.headers["authorization"] != f"Bearer {SECRET}":
            self.say(401, {"error": "you came past the gateway"})
            return
        usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
        self.say(200, {"choices": [{"message": {"content": "by the gateway"}}], "usage": usage})

    def say(self, status: int, what: object) -> None:
        body = json.dumps(what).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


ThreadingHTTPServer(("127.0.0.1", int(os.environ["PORT"])), Guarded).serve_forever()
