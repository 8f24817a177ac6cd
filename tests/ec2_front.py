"""EC2 on loopback: moto's server, and in front of it what moto leaves out and what can go wrong.

moto takes no notice of client tokens and has no price list, so the front does as EC2 does: a token that was
used gives the answer of its first time, a mismatch, or the news that its machine was terminated. Everything
passes through it as real HTTP, so it can answer in EC2's own form with any error, lose an answer after the
request was carried out, hang, or be gone.
"""

import atexit
import contextlib
import functools
import http.client
import json
import os
import shutil
import socket
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

import boto3
from moto.server import ThreadedMotoServer

ERROR = (
    "<?xml version='1.0' encoding='UTF-8'?><Response><Errors><Error><Code>{code}</Code>"
    "<Message>{said}</Message></Error></Errors><RequestID>r-1</RequestID></Response>"
)
# The only one that is ever asked for: moto would make 1,300, twice a test, which takes most of its time.
IMAGE = "ami-12c6146b"
DEEDS = ("RunInstances", "TerminateInstances", "RebootInstances", "CancelSpotInstanceRequests")
KEYS = {"aws_access_key_id": "testing", "aws_secret_access_key": "testing"}
# What boto3 would otherwise look for on this machine and on the network.
ENVIRONMENT = {
    **{name.upper(): value for name, value in KEYS.items()},
    "AWS_EC2_METADATA_DISABLED": "true",
    "AWS_CONFIG_FILE": os.devnull,
    "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
}

Answer = tuple[int, dict[str, str], bytes]


@dataclass(frozen=True)
class Trouble:
    """What happens to a request of one of these actions."""

    actions: tuple[str, ...]
    code: str = ""  # answered with this error
    status: int = 400
    headers: dict[str, str] = field(default_factory=dict)
    done: bool = False  # it is carried out all the same
    lost: bool = False  # no answer at all: the connection closes
    hangs_s: float = 0.0
    text: str = ""  # answered with this, as a success
    instead: tuple[str, str] = ("", "")  # in the answer, this is replaced by that
    times: int = 1_000_000
    region: str = ""  # in this one only


@dataclass(frozen=True)
class Asked:
    action: str
    region: str
    words: dict[str, str]
    key: str = ""  # whose credentials


# What EC2 says of machines that it does not show yet.
NOTHING = (
    '<DescribeInstancesResponse xmlns="http://ec2.amazonaws.com/doc/2016-11-15/">'
    "<requestId>r-1</requestId><reservationSet/></DescribeInstancesResponse>"
)


class Front:
    """Where to send requests: `url`."""

    def __init__(self, moto_port: int) -> None:
        self.moto_port = moto_port
        self.troubles: list[Trouble] = []
        self.asked: list[Asked] = []
        self.prices: dict[tuple[str, str], str] = {}  # by region and type; empty: no price list
        self.spot_prices: dict[tuple[str, str], str] = {}  # by type and zone; empty: moto's own
        self._tokens: dict[tuple[str, str], tuple[dict[str, str], Answer]] = {}
        self._lock = threading.Lock()
        self._server: ThreadingHTTPServer | None = None
        self.port = 0
        self.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        if self._server is not None:
            return
        handler = type("Handler", (_Handler,), {"front": self})
        self._server = ThreadingHTTPServer(("127.0.0.1", self.port), handler)
        self._server.daemon_threads = True
        self.port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()

    def stop(self) -> None:
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None

    def recover(self) -> None:
        self.troubles.clear()
        self.start()

    def count(self, action: str) -> int:
        return sum(asked.action == action for asked in self.asked)

    def client(self, region: str = "us-east-1") -> Any:
        """Straight to moto: what is really there."""
        url = f"http://127.0.0.1:{self.moto_port}"
        return boto3.client("ec2", region_name=region, endpoint_url=url, **KEYS)

    def machines(self, region: str = "us-east-1") -> list[dict[str, Any]]:
        groups = self.client(region).describe_instances()["Reservations"]
        return [machine for group in groups for machine in group["Instances"]]

    # what a request meets

    def answer(self, method: str, path: str, headers: dict[str, str], body: bytes) -> Answer | None:
        words = dict(parse_qsl(body.decode(), keep_blank_values=True))
        scope = headers.get("Authorization", "").split("Credential=")[-1].split("/")
        region = scope[2] if len(scope) > 2 else ""
        action = words.get("Action") or headers.get("X-Amz-Target", "").rpartition(".")[2]
        asked = Asked(action, region, words, scope[0])
        self.asked.append(asked)
        trouble = self._trouble(action, region)
        if trouble is None or trouble.done or trouble.instead[0]:
            found = self._carried_out(method, path, headers, body, asked)
        if trouble is None:
            return found
        time.sleep(trouble.hangs_s)
        if trouble.lost:
            return None
        if trouble.text:
            return 200, {"Content-Type": "text/xml"}, trouble.text.encode()
        if not trouble.code:
            this, that = (word.encode() for word in trouble.instead)
            return found[0], found[1], found[2].replace(this, that)
        text = ERROR.format(code=trouble.code, said=f"what EC2 says of {trouble.code}")
        return trouble.status, {"Content-Type": "text/xml", **trouble.headers}, text.encode()

    def _trouble(self, action: str, region: str) -> Trouble | None:
        with self._lock:
            for number, trouble in enumerate(self.troubles):
                here = trouble.region in ("", region)
                if here and action in trouble.actions and trouble.times:
                    left = {**vars(trouble), "times": trouble.times - 1}
                    self.troubles[number] = Trouble(**left)
                    return trouble
        return None

    def _carried_out(
        self, method: str, path: str, headers: dict[str, str], body: bytes, asked: Asked
    ) -> Answer:
        def pass_on() -> Answer:
            return self._pass_on(method, path, headers, body)

        match asked.action:
            case "RunInstances":
                return self._run(asked, pass_on)
            case "GetProducts":
                return self._products(json.loads(body))
            case "DescribeSpotPriceHistory" if self.spot_prices:
                return self._spot_history()
        return pass_on()

    def _run(self, asked: Asked, pass_on: Callable[[], Answer]) -> Answer:
        key = (asked.region, asked.words["ClientToken"])
        with self._lock:
            if key not in self._tokens:
                answer = pass_on()
                if answer[0] == 200:
                    self._tokens[key] = (asked.words, answer)
                return answer
        words, answer = self._tokens[key]
        if words != asked.words:
            return _error("IdempotentParameterMismatch")
        alive = [m for m in self.machines(asked.region) if m["InstanceId"].encode() in answer[2]]
        if not alive or alive[0]["State"]["Name"] == "terminated":
            return _error("IdempotentInstanceTerminated")
        return answer

    def _products(self, asked: dict[str, Any]) -> Answer:
        wanted = {each["Field"]: each["Value"] for each in asked["Filters"]}
        if not self.prices:
            text = json.dumps({"__type": "AccessDeniedException", "message": "no pricing:GetProducts"})
            return 400, {"Content-Type": "application/x-amz-json-1.1"}, text.encode()
        price = self.prices.get((wanted["regionCode"], wanted["instanceType"]))
        row = {"unit": "Hrs", "pricePerUnit": {"USD": price}}
        product = {"terms": {"OnDemand": {"a": {"priceDimensions": {"b": row}}}}}
        found = {"PriceList": [json.dumps(product)] if price else []}
        return 200, {"Content-Type": "application/x-amz-json-1.1"}, json.dumps(found).encode()

    def _spot_history(self) -> Answer:
        rows = "".join(
            f"<item><instanceType>{kind}</instanceType><availabilityZone>{zone}</availabilityZone>"
            f"<spotPrice>{price}</spotPrice><timestamp>2026-01-01T00:00:00.000Z</timestamp></item>"
            for (kind, zone), price in self.spot_prices.items()
        )
        text = (
            '<DescribeSpotPriceHistoryResponse xmlns="http://ec2.amazonaws.com/doc/2016-11-15/">'
            f"<spotPriceHistorySet>{rows}</spotPriceHistorySet></DescribeSpotPriceHistoryResponse>"
        )
        return 200, {"Content-Type": "text/xml"}, text.encode()

    def _pass_on(self, method: str, path: str, headers: dict[str, str], body: bytes) -> Answer:
        line = http.client.HTTPConnection("127.0.0.1", self.moto_port, timeout=30)
        with contextlib.closing(line):
            line.request(method, path, body, headers)
            answer = line.getresponse()
            kind = answer.getheader("Content-Type", "text/xml")
            return answer.status, {"Content-Type": kind}, answer.read()


def _error(code: str, status: int = 400) -> Answer:
    return status, {"Content-Type": "text/xml"}, ERROR.format(code=code, said=f"as EC2: {code}").encode()


class _Handler(BaseHTTPRequestHandler):
    front: Front

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        answer = self.front.answer(self.command, self.path, dict(self.headers.items()), body)
        self.close_connection = True
        if answer is None:
            with contextlib.suppress(OSError):
                self.connection.shutdown(socket.SHUT_RDWR)
            return
        status, headers, text = answer
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(text)), "Connection": "close"}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, format: str, *args: object) -> None:
        pass


@functools.cache
def moto_port() -> int:
    """One server for all tests of a process, ended with it: it takes seconds to start."""
    images = Path(tempfile.mkdtemp(prefix="holdfast-ec2-")) / "images.json"
    images.write_text(json.dumps([{"ami_id": IMAGE, "name": "linux", "architecture": "x86_64"}]))
    atexit.register(shutil.rmtree, images.parent, ignore_errors=True)
    os.environ.update(ENVIRONMENT, MOTO_AMIS_PATH=str(images))
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    port: int = server.get_host_and_port()[1]
    return port


def empty_front() -> Front:
    """An EC2 without machines. Stop it."""
    line = http.client.HTTPConnection("127.0.0.1", moto_port(), timeout=30)
    with contextlib.closing(line):
        line.request("POST", "/moto-api/reset")
        assert line.getresponse().status == 200
    return Front(moto_port())


def settings(front: Front, **more: str) -> dict[str, str]:
    """Of a pool that uses it."""
    plain = {"regions": "us-east-1", "image": IMAGE, "install": "holdfast==1.0"}
    return {**plain, "endpoint_url": front.url, **more}


class Machines:
    """Those that EC2 says it runs, as if each came up when it is waited for."""

    def __init__(self, front: Front) -> None:
        self.front, self.made = front, list[str]()

    def wait(self) -> None:
        for machine in self.front.machines():
            node = next(tag["Value"] for tag in machine["Tags"] if tag["Key"] == "holdfast:node")
            if machine["State"]["Name"] == "running":
                self.made += [node] * (self._boots(machine["InstanceId"]) - self.made.count(node))

    def _boots(self, machine: str) -> int:
        resets = [asked for asked in self.front.asked if asked.action == "RebootInstances"]
        return 1 + sum(machine in asked.words.values() for asked in resets)
