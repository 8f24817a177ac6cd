"""What is applied, written down: to read it gives the same again."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from holdfast.files.workload import workload_file as workload_file
from holdfast.files.workload import workload_writer
from holdfast.model.workload import Workload

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = sorted(file for file in (ROOT / "examples").glob("*.yaml") if file.stem != "gateway")

FULL = """
kind: service
name: shop
replicas: 3
standby: 1
availability: 99.95%
command: |
  set -e
  exec serve --port $PORT   # and a comment
env: { MODE: "no", VERSION: "1.10", EMPTY: "", SECRET: "a: b # c", ZERO: "007" }
workdir: /srv/app
ready: { http: /healthz, every: 500ms, timeout: 2s, failures: 5 }
alive: { exec: [check, "--fast"] }
tell: SIGUSR1
cpus: 0.25
memory: 1.5GiB
gpus: 0.5
gpu_kind: h100|a100
labels: { disk: "yes" }
tolerates: [batch]
spot: false
spread: require
spread_over: rack
priority: 7
move_cost: 90s
stop_grace: 1500ms
after: [db]
restart: { backoff: 250ms, limit: 3 }
paused: true
serves: { models: ["llama-*"], probe: /health, concurrent: 8 }
"""
SCALED = """
kind: service
name: api
replicas: 2
mix: { on_demand: 1, spares: 2 }
command: ["serve", "8080"]
scale:
  min: 0
  max: 12
  per_replica: { in_flight: 8, cpu: 0.7 }
  policy: target tracking
  target: 0.65
  idle: 5m
  schedule:
    - { replicas: 4, days: mon-fri, start: "08:30", end: "18:00" }
    - { replicas: 2 }
  utc_offset: "-03:30"
  prometheus: http://127.0.0.1:9090
  query: { queue: sum(waiting) }
"""
OTHERS = [
    FULL,
    SCALED,
    "kind: job\nname: j\ncommand: [a]\ndeadline: 52h\nwork: 48h\ncheckpoint: 10m\nstandby: 1\n",
    "kind: training\nname: t\ncommand: a b\nnodes_min: 2\nnodes_max: 4\n",
    "kind: training\nname: t\ncommand: a b\nnodes_min: 2\n",
    "kind: sweep\nname: s\ncommand: a\ntasks: 100\nparallel: 10\n",
    "kind: service\nname: s\ncommand: a\nserves: {}\n",
    "kind: service\nname: s\ncommand: a\navailability: 0.9995\nready: { tcp: true }\n",
]


def read(text: str) -> list[Workload]:
    return [each for each in workload_file.documents(text, "it") if isinstance(each, Workload)]


def again(workload: Workload) -> Workload:
    (found,) = read(workload_writer.text(workload_writer.fields(workload)))
    return found


@pytest.mark.parametrize("text", OTHERS)
def test_what_is_written_reads_as_the_same_workload(text: str) -> None:
    (workload,) = read(text)
    assert again(workload) == workload
    assert again(replace(workload, version=7)) == workload, "a file says no version"


@pytest.mark.parametrize("file", EXAMPLES, ids=lambda file: file.name)
def test_every_example_survives_being_written(file: Path) -> None:
    for workload in read(file.read_text()):
        assert again(workload) == workload


def test_what_is_as_usual_is_left_out_and_scripts_stay_readable() -> None:
    (workload,) = read("kind: service\nname: web\ncommand: |\n  a\n  b\n")
    text = workload_writer.text(workload_writer.fields(workload))
    assert text == "kind: service\nname: web\nreplicas: 1\ncommand: |\n  a\n  b\n"


PRINTED = st.characters(exclude_categories=["Cs"], exclude_characters="\0")
WORD = st.text(PRINTED, min_size=1, max_size=30).filter(lambda word: word.strip() != "" and "$" not in word)


@given(
    st.dictionaries(st.sampled_from(["A", "B_1"]), st.text(PRINTED, max_size=40)), st.lists(WORD, min_size=1)
)
def test_any_text_in_a_command_or_an_environment_survives(env: dict[str, str], command: list[str]) -> None:
    (plain,) = read("kind: job\nname: j\ncommand: [x]\n")
    assert plain.program is not None
    program = replace(plain.program, env=env, command=("prog", *command))
    workload = replace(plain, program=program)
    assert again(workload) == workload
