"""`holdfast demo`: the story by itself, in about a minute, with real processes on this machine.

A fleet is started, work is applied, a node is killed, another hung, a third drained. What is said on the way
is read from the control plane's own history, and what is claimed at the end is checked: exit 1 if not.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from holdfast.cli import output

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


WEB = """
kind: service
name: web
replicas: 3
command: python3 -m http.server $PORT
ready: { http: / }
cpus: 0.1
memory: 64MiB
stop_grace: 2s
---
kind: job
name: count
command: |
  file=$HOLDFAST_CHECKPOINT_DIR/count
  n=$(cat $file 2>/dev/null || echo 0)
  while [ $n -lt 600 ]; do
    n=$((n + 1)); echo $n > $file.new && mv $file.new $file
    echo "epoch $HOLDFAST_EPOCH on $HOLDFAST_NODE: $n"; sleep 0.1
  done
checkpoint: 1s
cpus: 0.1
memory: 32MiB
---
kind: sweep
name: squares
tasks: 12
parallel: 4
command: sleep 1; echo "task $HOLDFAST_INDEX is $((HOLDFAST_INDEX * HOLDFAST_INDEX))"
cpus: 0.1
memory: 32MiB
"""
SHOWN = ("verdict", "user")
READ_S = 6.0
ACTIONS = ("PlaceReplica", "StopReplica", "PromoteStandby", "DeclareGone", "LaunchNode", "TerminateNode")


class Broken(Exception):
    """The story did not go as it should."""


def demo(
    json: Annotated[bool, typer.Option("--json", help="End with the figures as one JSON object.")] = False,
) -> None:
    """Tell the story of a small fleet by itself. Start, run, kill, hang, drain: about a minute."""
    import tempfile

    with tempfile.TemporaryDirectory(prefix="holdfast-demo-") as folder:
        try:
            figures = _story(Path(folder))
        except Broken as broken:
            output.fail([str(broken)], "run it again; if it stays so, it is a bug", output.FAILED)
    if json:
        output.as_json(figures)


def _story(folder: Path) -> dict[str, float]:
    import time

    from rich.console import Console

    out = Console(highlight=False, soft_wrap=True)
    begun = time.monotonic()
    with _fleet(folder) as url:
        story = Story(url, (folder / "state" / "token").read_text().strip(), out)
        took = time.monotonic() - begun
        story.title("A fleet", f"a control plane and three nodes in three zones, up after {took:.1f} s")
        story.nodes()
        story.title(
            "Work", "a service that must stay up, a job that must never run twice, a sweep of 12 tasks"
        )
        story.apply(WEB)
        story.until(lambda: story.ready("web") == 3 and story.ready("count") == 1, "the work is running")
        story.workloads()
        figures = {"up_s": took, **_kill(story), **_hang(story), **_drain(story)}
        story.until(lambda: story.workload("squares")["done"] == 12, "all tasks of the sweep are done")
        _sum_up(story, figures)
    out.print("\nEverything that was started has ended. Your turn: [bold]make up[/]")
    return figures


def _kill(story: "Story") -> dict[str, float]:
    victim = story.node_of("count")
    story.title("Kill", f"{victim} loses everything at once, without warning: SIGKILL to its whole tree")
    epoch = story.epoch("count")
    seq = story.chaos("kill", victim)
    story.until(lambda: story.ready("web") == 3 and story.epoch("count") > epoch, "it all runs again")
    story.until(lambda: story.ready("count") == 1, "the job runs again")
    story.tell(seq)
    verdict, again = story.times(seq, victim)
    story.say(
        f"dead after {verdict:.2f} s, everything ready again after {again:.2f} s. The job went on where it "
        "was: its old copy is provably gone, the provider confirmed it.",
        loud=f"{again:.2f} s",
    )
    return {"kill_verdict_s": verdict, "kill_ready_s": again}


def _hang(story: "Story") -> dict[str, float]:
    victim = story.node_of("web", but=story.node_of("count"))
    story.title("Hang", f"{victim} stops moving: SIGSTOP to its whole tree. Its connection stays open")
    seq = story.chaos("hang", victim)
    story.until(lambda: story.verdict(victim) in ("dead", ""), "the silent node is noticed", 30)
    story.until(lambda: story.ready("web") == 3, "the service is whole again")
    story.tell(seq)
    verdict, again = story.times(seq, victim)
    story.say(
        f"dead after {verdict:.2f} s: it was silent and no peer in another zone reached it; "
        f"ready again after {again:.2f} s.",
        loud=f"{again:.2f} s",
    )
    return {"hang_verdict_s": verdict, "hang_ready_s": again}


def _drain(story: "Story") -> dict[str, float]:
    story.until(lambda: story.alive() >= 3, "the fleet has three living nodes again")
    node = story.node_of("web", but=story.node_of("count"))
    story.title("Drain", f"{node} is to be emptied: what it runs moves first, and only then stops")
    seq, least = story.order(f"/v1/nodes/{node}/drain"), 3
    import time

    begun = time.monotonic()
    while story.runs(node):
        least = min(least, story.ready("web"))
        story.hurry(begun, 30, f"{node} is empty")
    took = time.monotonic() - begun
    story.tell(seq)
    loud = f"{least} of 3"
    story.say(f"empty after {took:.2f} s; the service never had fewer than {loud} ready.", loud)
    return {"drain_s": took, "ready_least": least}


def _sum_up(story: "Story", figures: dict[str, float]) -> None:
    story.title("In short", "measured by the control plane, on this machine, just now")
    story.say(f"killed:  ready again after {figures['kill_ready_s']:.2f} s")
    story.say(f"hung:    ready again after {figures['hang_ready_s']:.2f} s")
    story.say(f"drained: never fewer than {figures['ready_least']:.0f} of 3 ready")
    story.say(f"sweep:   {story.workload('squares')['done']} of 12 tasks done, through all of it")
    story.say(f"job:     under epoch {story.epoch('count')}, and never two at a time")


def _fleet(folder: Path) -> "Any":
    """`holdfast up` as a process of its own; gives its URL."""
    import contextlib
    import json
    import signal
    import subprocess
    import sys

    @contextlib.contextmanager
    def running() -> "Iterator[str]":
        command = [sys.executable, "-m", "holdfast.cli.main", "up", "--json", "--port", "0"]
        with open(folder / "up.log", "w") as errors:
            child = subprocess.Popen(
                [*command, "--dir", str(folder / "state")],
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                start_new_session=True,  # Ctrl-C is for us: we end it
            )
        try:
            assert child.stdout is not None
            line = child.stdout.readline()
            if not line:
                raise Broken(f"holdfast up did not start: {(folder / 'up.log').read_text()[-2000:]}")
            yield json.loads(line)["url"]
        finally:
            child.send_signal(signal.SIGTERM)
            try:
                child.wait(60)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()

    return running()


class Story:
    """What is asked of the control plane, and how it is shown."""

    def __init__(self, url: str, token: str, out: "Any") -> None:
        import httpx

        self.out = out
        headers = {"authorization": f"Bearer {token}"}
        self.client: httpx.Client = httpx.Client(base_url=url, headers=headers, timeout=30)
        self.chapter = 0
        self.struck_at = 0.0  # when the deed was done that is told of

    # asking

    def get(self, path: str, **query: object) -> Any:
        answer = self.client.get(path, params={key: str(value) for key, value in query.items()})
        if answer.is_error:
            raise Broken(f"GET {path}: {answer.text}")
        return answer.json()

    def order(self, path: str, **body: object) -> int:
        """How long the journal was when the order was given. All times count from here."""
        import time

        self.struck_at = time.time()
        before = int(self.get("/v1/status")["journal"])
        answer = self.client.post(path, json=body)
        if answer.is_error:
            raise Broken(f"POST {path}: {answer.text}")
        return before

    def chaos(self, deed: str, node: str) -> int:
        return self.order(f"/v1/chaos/{deed}", node=node)

    def apply(self, text: str) -> None:
        answer = self.client.post("/v1/apply", content=text, headers={"content-type": "application/yaml"})
        if answer.is_error:
            raise Broken(answer.text)

    def workload(self, name: str) -> Any:
        return self.get(f"/v1/workloads/{name}")

    def ready(self, name: str) -> int:
        return int(self.workload(name)["ready"])

    def replicas(self, name: str) -> list[Any]:
        return [r for r in self.get("/v1/replicas", workload=name) if r["state"] == "ready"]

    def epoch(self, name: str) -> int:
        return max((int(r["epoch"]) for r in self.get("/v1/replicas", workload=name)), default=0)

    def node_of(self, name: str, but: str = "") -> str:
        for replica in self.replicas(name):
            if replica["node"] != but:
                return str(replica["node"])
        raise Broken(f"no node runs {name}")

    def runs(self, node: str) -> int:
        return len(self.get("/v1/replicas", node=node))

    def verdict(self, node: str) -> str:
        nodes = {n["name"]: n["verdict"] for n in self.get("/v1/nodes")}
        return str(nodes.get(node, ""))

    def alive(self) -> int:
        return sum(n["verdict"] == "alive" and n["state"] == "ready" for n in self.get("/v1/nodes"))

    def times(self, since: int, node: str) -> tuple[float, float]:
        """From the deed to the verdict, and to the last replica that was ready again."""
        lines = self.get("/v1/events", since=since, limit=1000)
        struck = self.struck_at * 1000
        dead = [x["at_ms"] for x in lines if x["node"] == node and x["kind"] == "verdict"]
        wanted = ("web", "count")
        ready = [x["at_ms"] for x in lines if x["workload"] in wanted and x["text"].startswith("ready on")]
        if not dead or not ready:
            raise Broken(f"no verdict about {node}, or nothing became ready again")
        return (max(dead) - struck) / 1000, (max(ready) - struck) / 1000

    # waiting

    def until(self, true: "Callable[[], bool]", what: str, seconds: float = 60) -> None:
        import time

        begun = time.monotonic()
        while not true():
            self.hurry(begun, seconds, what)

    def hurry(self, begun: float, seconds: float, what: str) -> None:
        import time

        if time.monotonic() - begun > seconds:
            raise Broken(f"it took more than {seconds:.0f} s until {what}")
        time.sleep(0.05)

    # telling

    def title(self, word: str, text: str) -> None:
        """On a terminal there is somebody who reads."""
        import time

        if self.chapter and self.out.is_terminal:
            time.sleep(READ_S)
        self.chapter += 1
        self.out.print()
        self.show(f"{self.chapter}. ", f"{word}. {text}", f"{word}.")

    def say(self, text: str, loud: str = "") -> None:
        self.show("   ", text, loud)

    def show(self, first: str, text: str, loud: str = "") -> None:
        """Wrapped before it is coloured: marks have no width."""
        from rich.text import Text

        from holdfast.cli.render import theme

        shown = Text(theme.hanging(first, text, theme.width()))
        shown.stylize("dim", 0, len(first))
        if loud:
            shown.highlight_words([loud], "bold")
        self.out.print(shown)

    def nodes(self) -> None:
        for node in self.get("/v1/nodes"):
            self.say(f"{node['name']:<9} zone {node['place']['zone']}   {node['verdict']}")

    def workloads(self) -> None:
        for workload in self.get("/v1/workloads"):
            where = [seat["node"] for seat in workload["seats"] if seat["node"]]
            self.say(f"{workload['name']:<9} {workload['kind']:<8} on {', '.join(dict.fromkeys(where))}")

    def tell(self, since: int) -> None:
        """What the control plane wrote down, with the time since the deed."""
        for line in self.get("/v1/events", since=since, limit=1000):
            if line["workload"] != "squares" and _told(line):
                after = line["at_ms"] / 1000 - self.struck_at
                self.show(f"   {after:6.2f} s  {line['subject']:<9} ", line["text"])


def _told(line: "Any") -> bool:
    if line["kind"] == "action":
        return str(line["text"]).split()[0].rstrip(":") in ACTIONS
    return line["kind"] in SHOWN or str(line["text"]).startswith(("ready on", "its link", "joined"))
