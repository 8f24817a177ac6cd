"""What a pool's settings say of the cluster: all of it text, and each mistake answered with what to write."""

import os
import re
import shlex
import sys

import msgspec

from holdfast.ports.errors import Denied

NOTICE_S = 300  # how long before its end a node should know; never more than a quarter of its time
DURATION = re.compile(r"([0-9]{1,6})\s*([smhd])")
SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
WORD = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]*")
# Options that would make of a job something other than one node, or hide it from us.
OURS = {
    *("--array", "--begin", "--comment", "--export", "--hold", "--job-name", "--nodes", "--ntasks"),
    *("--output", "--parsable", "--requeue", "--signal", "--test-only", "--wait", "--wrap"),
}
KNOWN = {
    "root": "a folder that the control planes and all compute nodes share, such as /home/me/holdfast",
    "partition": "the partition of every offer; without it, an offer's name up to the first @",
    "account": "who is charged",
    "qos": "the quality of service to ask for",
    "time": "how long a node may live at most, such as 4h; without it, as the partition says",
    "notice": "how long before its end a node is emptied, such as 5m",
    "python": "Python 3.11 or newer with holdfast, on the compute nodes",
    "agent": "the command that starts the agent there, instead of `PYTHON -m holdfast.agent`",
    "sbatch": "more options for sbatch, each in the form --name=value",
    "conf": "the file slurm.conf, where it is not at its usual place",
    "bin": "the folder of sbatch, squeue, scancel and sinfo, where they are not on the path",
}


class SlurmSettings(msgspec.Struct, frozen=True):
    root: str
    partition: str = ""
    account: str = ""
    qos: str = ""
    time_s: int = 0  # 0: as the partition says
    notice_s: int = NOTICE_S
    python: str = sys.executable
    agent: tuple[str, ...] = ()
    sbatch: tuple[str, ...] = ()
    conf: str = ""
    bin: str = ""

    @property
    def agent_command(self) -> list[str]:
        return list(self.agent) or [self.python, "-m", "holdfast.agent"]


def read_settings(settings: dict[str, str]) -> SlurmSettings:
    strange = sorted(set(settings) - set(KNOWN))
    if strange:
        raise Denied(f"no setting of a Slurm pool is called {strange[0]!r}; there are {', '.join(KNOWN)}")
    given = {name: text.strip() for name, text in settings.items() if text.strip()}
    for name in ("root", "python", "conf", "bin"):
        _insist_on_path(name, given.get(name, "/"))
    if "root" not in given:
        raise Denied(f"the pool's settings need `root`: {KNOWN['root']}")
    for name in ("partition", "account", "qos"):
        if not WORD.fullmatch(given.get(name, "x")):
            raise _wrong(name, given[name])
    time_s = _seconds("time", given.get("time", "0s"))
    return SlurmSettings(
        root=os.path.normpath(given["root"]),
        partition=given.get("partition", ""),
        account=given.get("account", ""),
        qos=given.get("qos", ""),
        time_s=time_s,
        notice_s=_notice_s(given.get("notice", ""), time_s),
        python=given.get("python", sys.executable),
        agent=_words("agent", given.get("agent", "")),
        sbatch=_options(given.get("sbatch", "")),
        conf=given.get("conf", ""),
        bin=given.get("bin", ""),
    )


def _wrong(name: str, got: str, expected: str = "") -> Denied:
    return Denied(f"the pool's setting `{name}` is {got!r}; expected {expected or KNOWN[name]}")


def _insist_on_path(name: str, text: str) -> None:
    if not os.path.isabs(text) or not text.isprintable():
        raise _wrong(name, text, f"a path from the top: {KNOWN[name]}")


def _seconds(name: str, text: str) -> int:
    found = DURATION.fullmatch(text)
    if found is None:
        raise _wrong(name, text)
    return int(found[1]) * SECONDS[found[2]]


def _notice_s(text: str, time_s: int) -> int:
    if not text:
        return min(NOTICE_S, time_s // 4) if time_s else NOTICE_S
    notice_s = _seconds("notice", text)
    if time_s and notice_s >= time_s:
        raise _wrong("notice", text, "less than the setting `time`")
    return notice_s


def _words(name: str, text: str) -> tuple[str, ...]:
    try:
        return tuple(shlex.split(text))
    except ValueError:
        raise _wrong(name, text, "words, with every quote closed") from None


def _options(text: str) -> tuple[str, ...]:
    options = _words("sbatch", text)
    for option in options:
        if not option.startswith("--"):
            raise _wrong("sbatch", text)
        if option.partition("=")[0] in OURS:
            raise _wrong("sbatch", text, f"none of {', '.join(sorted(OURS))}: these are for holdfast to say")
    return options
