"""What a pool's settings say of the cluster: all of it text, and each mistake answered with what to write."""

import os
import re
import shlex
import sys
from collections.abc import Collection, Iterator, Mapping

import msgspec

from holdfast.adapters.providers.inherited import may_be_inherited
from holdfast.adapters.providers.settings import Kind, Settings, Wrong, shortened

NOTICE_S = 300  # how long before its end a node should know; never more than a quarter of its time
DURATION = re.compile(r"([0-9]{1,6})\s*([smhd])")
SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
WORD = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]*")
# Options that would make of a job something other than one node, or hide it from us.
OURS = {
    *("--array", "--begin", "--comment", "--export", "--hold", "--job-name", "--nodes", "--ntasks"),
    *("--output", "--parsable", "--requeue", "--signal", "--test-only", "--wait", "--wrap"),
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
    inherit_env: tuple[str, ...] = ()
    conf: str = ""
    bin: str = ""

    @property
    def agent_command(self) -> list[str]:
        return list(self.agent) or [self.python, "-m", "holdfast.agent"]


def read_settings(settings: Mapping[str, str]) -> SlurmSettings:
    read = TAKES.read(settings)
    time_s, notice_s = read.pop("time", 0), read.pop("notice", None)
    assert isinstance(time_s, int)
    soon_s = min(NOTICE_S, time_s // 4) if time_s else NOTICE_S
    read |= {"time_s": time_s, "notice_s": soon_s if notice_s is None else notice_s}
    return msgspec.convert(read, SlurmSettings)


# forms


def _path(text: str) -> str:
    if not os.path.isabs(text) or not text.isprintable():
        raise ValueError(text)
    return os.path.normpath(text)


def _program(text: str) -> str:
    return _path(text) and text  # as it is written: a link may lead elsewhere than its normal form


def _word(text: str) -> str:
    if not WORD.fullmatch(text):
        raise ValueError(text)
    return text


def _seconds(text: str) -> int:
    found = DURATION.fullmatch(text)
    if found is None:
        raise ValueError(text)
    return int(found[1]) * SECONDS[found[2]]


def _words(text: str) -> tuple[str, ...]:
    return tuple(shlex.split(text))


def _names(text: str) -> tuple[str, ...]:
    names = tuple(word for each in text.split(",") if (word := each.strip()))
    if not names or not all(may_be_inherited(name) for name in names):
        raise ValueError(text)
    return names


def _options(text: str) -> tuple[str, ...]:
    options = _words(text)
    if not all(option.startswith("--") for option in options):
        raise ValueError(text)
    return options


def _agree(settings: Mapping[str, str], _offers: Collection[str]) -> Iterator[Wrong]:
    time, notice = settings.get("time"), settings.get("notice")
    if time and notice and 0 < _seconds(time) <= _seconds(notice):
        yield Wrong("notice", f"less than the setting `time` ({time})", notice, "5m")
    for option in _options(settings.get("sbatch", "")):
        if option.partition("=")[0] in OURS:
            expected = f"none of {', '.join(sorted(OURS))}: these are for holdfast to say"
            yield Wrong("sbatch", expected, shortened(option), "--constraint=ib")


TAKES = Settings(
    {
        "root": Kind(
            "the path of a folder that control planes and all compute nodes share",
            "/home/me/holdfast",
            _path,
            needed=True,
            of_host=True,
        ),
        "partition": Kind(
            "the partition of every offer; without it, an offer's name up to the first @", "gpu", _word
        ),
        "account": Kind("who is charged, in one word", "my-project", _word),
        "qos": Kind("the quality of service to ask for, in one word", "normal", _word),
        "time": Kind("how long a node may live at most, such as 4h", "4h", _seconds),
        "notice": Kind("how long before its end a node is emptied, such as 5m", "5m", _seconds),
        "python": Kind(
            "the path of a Python 3.11 or newer with holdfast, on the compute nodes",
            "/home/me/holdfast/venv/bin/python",
            _program,
            of_host=True,
        ),
        "agent": Kind(
            "the command that starts the agent there, with every quote closed",
            "/usr/bin/python3 -m holdfast.agent",
            _words,
            of_host=True,
        ),
        "sbatch": Kind(  # some of them name files that are read or written
            "more options for sbatch, each in the form --name=value",
            "--constraint=ib",
            _options,
            of_host=True,
        ),
        "inherit_env": Kind(
            "variables of the control plane that its jobs find too, such as KRB5CCNAME,MODULEPATH",
            "MODULEPATH",
            _names,
            of_host=True,
        ),
        "conf": Kind(
            "the path of slurm.conf, where it is not usual", "/etc/slurm/slurm.conf", _program, of_host=True
        ),
        "bin": Kind(
            "the path of the folder of sbatch, squeue, scancel and sinfo, where they are not on the path",
            "/usr/local/bin",
            _program,
            of_host=True,
        ),
    },
    _agree,
)
