"""What is done on a host: this text is sent there with each request, and run by the host's own Python.

    <root>/lock             held by whoever changes anything
    <root>/gone             names of terminated nodes, one a line: spent for ever
    <root>/node.json        the node that this host is, if it is one
    <root>/node/            its root: token ca.pem agent.log cgroup, and the agent's own in agent/
    <root>/agents/VERSION/  a virtual environment with the agent
    <root>/checkpoints/

Only the standard library and `tree` (sent along) are used. There is one request and one answer, a line of
JSON behind MARK, since a login shell may say things of its own. Files were preferred to a daemon: a host that
is no node runs nothing of ours.
"""

import binascii
import contextlib
import errno
import fcntl
import json
import os
import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from holdfast.adapters.providers.local import tree

MARK = "holdfast-answer "
ROOT = "@root@"  # in arguments: the host knows where its folder is
BUSY_S = 45.0
Answer = dict[str, Any]


class Refusal(Exception):
    """An answer other than yes: `kind` is what the provider makes an error of."""

    def __init__(self, kind: str, why: str) -> None:
        super().__init__(why)
        self.kind = kind


def answer(request: Answer) -> Answer:
    """`act` and all that can come of it."""
    try:
        return act(request)
    except Refusal as refusal:
        return {"error": refusal.kind, "why": str(refusal)}
    except tree.Lingering as lingering:
        return {"error": "lingering", "why": str(lingering)}
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        where = f": {error.filename}" if error.filename else ""
        return {"error": "full" if full else "denied", "why": f"{error.strerror or error}{where}"}


def act(request: Answer) -> Answer:
    root = os.path.realpath(os.path.expanduser(request["root"]))
    node = request.get("node", "")
    match request["do"]:
        case "look":
            return look(root)
        case "launch":
            with held(root):
                return launch(root, node, request)
        case "install":
            with held(root):
                return install(root, request)
        case "terminate":
            with held(root):
                return terminate(root, node)
        case "reset" | "revive":
            with held(root):
                return restart(root, node, request)
    raise Refusal("denied", f"no such deed: {request['do']}")


def look(root: str) -> Answer:
    known = marker(root)
    if known is None:
        return {"node": ""}
    boots = not known["pid"] and not known.get("ending")
    agent = tree.agent_of(home(root), agent_root(root)) is not None
    up = boots or agent or tree.alive(home(root))
    return {"node": known["node"], "launch": known["launch"], "up": up, "agent": agent}


def launch(root: str, node: str, request: Answer) -> Answer:
    if node in gone(root):
        return {}
    known = marker(root)
    if known is not None and known["node"] != node:
        raise Refusal("taken", f"it is {known['node']} already")
    if known is not None and (known["pid"] or known.get("ending")):
        return {}
    insist_on_agent(root, request)
    if known is None:
        write(os.path.join(root, "node.json"), note(node, request["launch"], 0))
    try:
        start(root, node, request)
    except OSError:
        if known is None:  # as if we had never been asked
            tree.kill(home(root))
            forget(root)
        raise
    return {}


def start(root: str, node: str, request: Answer) -> None:
    at = home(root)
    os.makedirs(agent_root(root), mode=0o700, exist_ok=True)
    os.makedirs(os.path.join(root, "checkpoints"), mode=0o700, exist_ok=True)
    found = tree.agent_of(at, agent_root(root))  # started by somebody who could not note it any more
    pid = found.pid if found else tree.start(at, command(root, request))
    write(os.path.join(root, "node.json"), note(node, request["launch"], pid))


def command(root: str, request: Answer) -> list[str]:
    at = home(root)
    for name in ("token", "ca.pem"):
        if request[name]:
            write(os.path.join(at, name), request[name])
    python = os.path.join(root, "agents", request["version"], "bin", "python")
    program = request["command"] or [python, "-m", "holdfast.agent"]
    trust = ["--ca", os.path.join(at, "ca.pem")] if request["ca.pem"] else []
    told = [word.replace(ROOT, root) for word in request["arguments"]]
    return [*program, *told, *trust]


def terminate(root: str, node: str) -> Answer:
    known = marker(root)
    if known is None or known["node"] != node:
        raise Refusal("missing", f"this host is not {node}")
    with contextlib.suppress(OSError):  # a full disk must not keep anybody from ending a node
        write(os.path.join(root, "node.json"), json.dumps({**known, "ending": True}))
    tree.kill(home(root))
    with open(os.path.join(root, "gone"), "a", encoding="utf-8") as file:
        file.write(json.dumps(node) + "\n")
        file.flush()
        os.fsync(file.fileno())
    forget(root)
    return {}


def restart(root: str, node: str, request: Answer) -> Answer:
    """A reset ends everything first; a revival wants something to have gone on without its agent."""
    known = marker(root)
    if known is None or known["node"] != node or known.get("ending"):
        raise Refusal("missing", f"this host is not {node}")
    insist_on_agent(root, request)
    if request["do"] == "reset":
        tree.kill(home(root))
        write(os.path.join(root, "node.json"), note(node, known["launch"], 0))
    elif not tree.alive(home(root)):
        return {}
    start(root, node, request)
    return {}


# installing the agent


def install(root: str, request: Answer) -> Answer:
    import shutil  # imports that few requests need are where they are needed: each request pays for them

    version = request["version"]
    at = os.path.join(root, "agents", version)
    if os.path.exists(stamp(root, version)):
        return {}
    shutil.rmtree(at, ignore_errors=True)  # what a broken-off installation left
    os.makedirs(at)
    wheel = os.path.join(at, request["wheel"])
    with open(wheel, "wb") as file:
        file.write(binascii.a2b_base64(request["content"]))
    write(os.path.join(at, "constraints.txt"), request["constraints"])
    python, pip = os.path.join(at, "bin", "python"), bundled_pip()
    install = ["install", "--disable-pip-version-check", "--no-input", "--no-compile"]
    for step in (
        [sys.executable, "-m", "venv", *(["--without-pip"] if pip else []), at],
        [python, "-m", "pip", *install, "-c", os.path.join(at, "constraints.txt"), wheel],
        [python, "-m", "holdfast.agent", "--help"],
    ):
        run(step, request["patience_s"], {**os.environ, "PYTHONPATH": pip})
    write(stamp(root, version), "")
    return {}


def bundled_pip() -> str:
    """The pip that Python brings along can be run as it is. Copying it into each environment takes longer
    than all the rest; without one, `venv` does that, or says what is missing."""
    try:
        import ensurepip
    except ImportError:
        return ""
    folder = os.path.join(os.path.dirname(ensurepip.__file__), "_bundled")
    found = [name for name in os.listdir(folder) if name.startswith("pip-")] if os.path.isdir(folder) else []
    return os.path.join(folder, found[0]) if found else ""


def run(step: list[str], patience_s: float, env: dict[str, str]) -> None:
    import subprocess

    try:
        done = subprocess.run(
            step,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=patience_s,
            check=False,
            env=env,
        )
    except subprocess.TimeoutExpired as error:
        raise Refusal("slow", f"{' '.join(step[:4])} took longer than {patience_s:g} s") from error
    if done.returncode:
        said = [words for line in done.stdout.splitlines() if (words := line.strip())]
        raise Refusal("denied", f"{' '.join(step[:4])} failed: {' / '.join(said[-6:])}")


def insist_on_agent(root: str, request: Answer) -> None:
    if request["version"] and not os.path.exists(stamp(root, request["version"])):
        raise Refusal("install", f"{request['version']} is not installed")


def stamp(root: str, version: str) -> str:
    return os.path.join(root, "agents", version, "installed")


# files


def home(root: str) -> str:
    return os.path.join(root, "node")


def agent_root(root: str) -> str:
    return os.path.join(home(root), "agent")


def marker(root: str) -> Answer | None:
    try:
        with open(os.path.join(root, "node.json"), encoding="utf-8") as file:
            known: Answer = json.load(file)
            return known
    except FileNotFoundError:
        return None


def note(node: str, launched: str, pid: int) -> str:
    return json.dumps({"node": node, "launch": launched, "pid": pid})


def forget(root: str) -> None:
    import shutil

    shutil.rmtree(home(root), ignore_errors=True)
    os.unlink(os.path.join(root, "node.json"))


def gone(root: str) -> set[str]:
    try:
        with open(os.path.join(root, "gone"), encoding="utf-8") as file:
            return {json.loads(line) for line in file if line.endswith("\n")}
    except FileNotFoundError:
        return set()


def write(path: str, text: str) -> None:
    """Whole or not at all; for nobody else to read."""
    fresh = f"{path}.{os.getpid()}.new"
    with open(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(fresh, path)


@contextlib.contextmanager
def held(root: str) -> Iterator[None]:
    os.makedirs(root, mode=0o700, exist_ok=True)
    until = time.monotonic() + BUSY_S
    with open(os.path.join(root, "lock"), "a") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > until:
                    raise Refusal("busy", f"somebody has been busy here for {BUSY_S:g} s") from None
            time.sleep(0.02)
        yield
