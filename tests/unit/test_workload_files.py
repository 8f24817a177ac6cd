"""What a workload file may say, and what its writer hears when it says something else."""

import json
import re
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from holdfast.adapters.providers.ssh.hosts import read_hosts
from holdfast.files import yaml_lines
from holdfast.files.problem import FileProblem
from holdfast.files.values import show_duration
from holdfast.files.workload import workload_file, workload_reference
from holdfast.files.workload.workload_file import documents
from holdfast.model.money import Budget
from holdfast.model.place import Level
from holdfast.model.policy import Policy
from holdfast.model.pool import Pool
from holdfast.model.program import Probe, Program
from holdfast.model.scale import ScalePolicy, Signal, Window
from holdfast.model.units import HOUR, MINUTE, SECOND
from holdfast.model.workload import Job, Serves, Service, Spread, Sweep, Training, Workload

ROOT = Path(__file__).resolve().parents[2]
# a gateway has a file of another kind
EXAMPLES = sorted(file for file in (ROOT / "examples").glob("*.yaml") if file.stem != "gateway")
WEB = "kind: service\nname: web\ncommand: [serve]\n"
JOB = WEB.replace("service", "job")
POOL = "kind: pool\nname: std\n"
SSH = f"{POOL}provider: ssh\n"
EC2 = f"{POOL}provider: ec2\nmax: 1\n"
SLURM = f"{POOL}provider: slurm\nmax: 1\n"
IMAGE = "image: ami-1, install: holdfast"
PLACE = "regions: us-east-1, install: holdfast"


def one(text: str) -> Workload:
    (found,) = documents(text, "f.yaml")
    assert isinstance(found, Workload)
    return found


def program(text: str) -> Program:
    found = one(text).program
    assert found is not None
    return found


def pool(text: str) -> Pool:
    (found,) = documents(text, "f.yaml")
    assert isinstance(found, Pool)
    return found


def problems(text: str) -> list[str]:
    with pytest.raises(FileProblem) as caught:
        documents(text, "f.yaml")
    assert all("\n" not in line for line in caught.value.lines())
    return caught.value.lines()


# ---- what is good


@pytest.mark.parametrize(
    ("fields", "shape"),
    [
        ("kind: service", Service()),
        ("kind: service\nreplicas: 2\nstandby: 1\navailability: 99.9%", Service(2, 1, 0.999)),
        ("kind: job", Job()),
        ("kind: training\nnodes_min: 2", Training(2, 2)),
        ("kind: training\nnodes_min: 2\nnodes_max: 3\nstandby: 1", Training(2, 3, 1)),
        ("kind: sweep\ntasks: 10\nparallel: 2", Sweep(10, 2)),
        ("kind: Sweep\ntasks: 10", Sweep(10)),
    ],
)
def test_every_kind_of_workload_can_be_written(fields: str, shape: object) -> None:
    assert one(f"{fields}\nname: a\ncommand: [x]\n").shape == shape


def test_every_field_of_a_workload_arrives() -> None:
    made = one(
        f"""{WEB}
cpus: 0.5
memory: 1GiB
gpus: 0.5
gpu_kind: l4|h100
labels: {{ disk: ssd, generation: 3 }}
tolerates: [gpu]
spot: false
spread: require
spread_over: node
priority: 5
checkpoint: 5m
move_cost: 10
stop_grace: 1s
after: [db]
restart: {{ backoff: 2s, limit: 3 }}
paused: true
env: {{ MODE: fast }}
workdir: /srv
ready: {{ http: /healthz, every: 500ms, timeout: 2, failures: 5 }}
alive: {{ exec: [check, 1] }}
tell: usr1
"""
    )
    needs, resources = made.needs, made.needs.resources
    assert (resources.cpu_milli, resources.memory_mib, resources.gpu_milli) == (500, 1024, 500)
    assert (resources.gpu_kind, needs.labels) == ("l4|h100", {"disk": "ssd", "generation": "3"})
    assert (needs.tolerates, needs.spot, needs.spread) == (("gpu",), False, Spread.REQUIRE)
    assert (needs.spread_over, made.priority, made.after) == (Level.NODE, 5, ("db",))
    assert (made.checkpoint_ms, made.move_cost_ms, made.stop_grace_ms) == (5 * MINUTE, 10 * SECOND, SECOND)
    assert (made.restart.backoff_ms, made.restart.limit, made.paused) == (2 * SECOND, 3, True)
    assert made.program == Program(
        command=("serve",),
        env={"MODE": "fast"},
        workdir="/srv",
        ready=Probe(http="/healthz", every_ms=500, timeout_ms=2000, failures=5),
        alive=Probe(exec=("check", "1")),
        tell="SIGUSR1",
    )


def test_a_command_is_a_list_of_words_or_a_text_for_the_shell() -> None:
    assert program("kind: job\nname: a\ncommand: [sleep, 8080, no]\n").command == ("sleep", "8080", "no")
    assert program("kind: job\nname: a\ncommand: echo $PORT\n").command == ("sh", "-c", "echo $PORT")
    several = program("kind: job\nname: a\ncommand: |\n  cd x\n  run\n").command
    assert several == ("sh", "-c", "cd x\nrun\n")


def test_the_environment_is_what_is_written() -> None:
    text = WEB + 'env: { A: 1.10, B: no, C: true, D: 0x1f, E: 1e3, F: 007, G: 12:30, H: "", I: " x", J: on }'
    assert program(text).env == {
        "A": "1.10",
        "B": "no",
        "C": "true",
        "D": "0x1f",
        "E": "1e3",
        "F": "007",
        "G": "12:30",
        "H": "",
        "I": " x",
        "J": "on",
    }


def test_json_is_yaml_too() -> None:
    text = json.dumps({"kind": "service", "name": "web", "command": ["a"], "env": {"N": 1, "S": "\u00e9/\t"}})
    assert program(text).env == {"N": "1", "S": "\u00e9/\t"}


def test_several_documents_come_in_their_order_and_empty_ones_not_at_all() -> None:
    text = f"---\n{WEB}---\n# nothing\n---\n{POOL}nodes: 1\n---\nkind: policy\nleases: {{ lease: 20s }}\n"
    web, std, policy = documents(text, "f.yaml")
    assert isinstance(web, Workload)
    assert isinstance(std, Pool)
    assert isinstance(policy, Policy)
    assert policy.leases.lease_ms == 20 * SECOND


def test_anchors_and_merge_keys_save_typing() -> None:
    text = "kind: job\nname: a\ncommand: [x]\nlabels: &small { a: 1, b: 2 }\nenv: { <<: *small, a: 3 }\n"
    assert one(text).needs.labels == {"a": "1", "b": "2"}
    assert program(text).env == {"a": "3", "b": "2"}


@pytest.mark.parametrize(
    ("fields", "limits"),
    [
        ("nodes: 3", (3, 3)),
        ("min: 2", (2, 2)),
        ("max: 5", (0, 5)),
        ("min: 1\nmax: 5", (1, 5)),
        ("can_launch: false", (0, 1000)),
        ("provider: ssh\nhosts: [{ name: a }, { name: b }]", (2, 2)),
        ("provider: ssh\nmin: 1\nhosts: [{ name: a }, { name: b }]", (1, 2)),
        ("provider: ssh\nmax: 1\nhosts: [{ name: a }, { name: b }]", (1, 1)),
    ],
)
def test_how_many_nodes_a_pool_has_follows_from_what_is_said(fields: str, limits: tuple[int, int]) -> None:
    made = pool(f"{POOL}{fields}\n")
    assert (made.min, made.max) == limits


@pytest.mark.parametrize(
    ("written", "networks"),
    [
        ("10.0.0.0/8", ("10.0.0.0/8",)),
        ("[10.0.0.0/8, 'fd00::/8']", ("10.0.0.0/8", "fd00::/8")),
        ("192.0.2.1", ("192.0.2.1/32",)),
    ],
)
def test_the_network_of_a_pool_is_one_or_several(written: str, networks: tuple[str, ...]) -> None:
    (pool,) = workload_file.documents(f"{{kind: pool, name: p, nodes: 1, network: {written}}}", "f")
    assert isinstance(pool, Pool)
    assert pool.network == networks


@pytest.mark.parametrize("written", ["10.0.0.1/8", "example.org", "[]", "''", "10", "10.0.0.0/33"])
def test_what_is_no_network_is_refused(written: str) -> None:
    with pytest.raises(FileProblem, match="expected a network such as"):
        workload_file.documents(f"{{kind: pool, name: p, nodes: 1, network: {written}}}", "f")


def test_zones_of_a_pool_become_offers() -> None:
    made = pool(f"{POOL}nodes: 4\nzones: [1, b]\nregion: r\ncpus: 2\nprice: $1.20\nspot: true\n")
    assert [(offer.name, offer.place.domain(Level.ZONE)) for offer in made.offers] == [
        ("1", "local/r/1"),
        ("b", "local/r/b"),
    ]
    assert {(offer.capacity.cpu_milli, offer.price_micro_usd, offer.spot) for offer in made.offers} == {
        (2000, 1_200_000, True)
    }


@pytest.mark.parametrize(
    "name", ["m5.large@us-east-1a", "g5.12xlarge@eu-west-1b:spot", "gpu/a_1-2", "a" * 120]
)
def test_an_offer_may_be_called_what_its_provider_calls_it(name: str) -> None:
    made = pool(f"{POOL}max: 1\noffers: [{{ name: {name} }}]")
    assert [offer.name for offer in made.offers] == [name]


@pytest.mark.parametrize("name", ['""', "'-x'", "'a b'", "a" * 121, '"a\\n"', "'a,b'", "'$(x)'"])
def test_what_is_no_name_of_an_offer_is_refused(name: str) -> None:
    with pytest.raises(FileProblem, match="at most 120 long"):
        pool(f"{POOL}max: 1\noffers: [{{ name: {name} }}]")


def test_hosts_become_offers_and_how_to_reach_them_is_for_the_provider_alone() -> None:
    made = pool(
        f"""{SSH}cpus: 16
hosts:
  - {{ name: a, zone: 1, rack: r1 }}
  - {{ name: b, address: 10.0.0.2, port: 2222, user: me, key_file: ~/.ssh/id, cpus: 4, memory: 8GiB }}
"""
    )
    assert [(offer.name, offer.capacity.cpu_milli, offer.place.zone) for offer in made.offers] == [
        ("a", 16_000, "1"),
        ("b", 4_000, "-"),
    ]
    assert [host.port for host in read_hosts(made.settings)] == [22, 2222]
    assert json.loads(made.settings["hosts"]) == [
        {"name": "a", "address": "a"},
        {"name": "b", "address": "10.0.0.2", "port": 2222, "user": "me", "key_file": "~/.ssh/id"},
    ]


def test_every_number_of_the_policy_can_be_written_and_comes_back() -> None:
    lines = ["kind: policy"]
    for table in msgspec.structs.fields(Policy):
        lines.append(f"{table.name}:")
        if table.type is Budget:
            lines.append("  {}")  # nothing, which is what it is without
            continue
        for field in msgspec.structs.fields(table.type):
            value = getattr(getattr(Policy(), table.name), field.name)
            is_time = field.name.endswith("_ms")
            shown = show_duration(value) if is_time else msgspec.json.encode(value).decode()
            lines.append(f"  {field.name.removesuffix('_ms')}: {shown}")
    assert documents("\n".join(lines), "f.yaml") == [Policy()]


def test_no_more_nodes_are_kept_in_reserve_than_there_may_be() -> None:
    """Nothing else would ever be launched there."""
    pool = "kind: pool\nname: p\nprovider: local\nzones: [a]\ncpus: 4\nmemory: 4GiB\nmax: 3\n"
    assert documents(pool + "reserve: { nodes: 3 }", "f.yaml")
    with pytest.raises(FileProblem) as told:
        documents(pool + "reserve: { nodes: 4 }", "f.yaml")
    (line,) = told.value.lines()
    assert "reserve.nodes: expected at most max (3), got 4" in line


def test_budgets_and_ceilings_are_written_in_dollars() -> None:
    policy = "kind: policy\nbudget: { hour: 12.5, month: $2000 }\n"
    pool = "kind: pool\nname: p\nmax: 3\nprice_max: 0.5\nbudget: { month: 100 }\n"
    found = documents(f"{policy}---\n{pool}", "f.yaml")
    budget = Budget(hour_micro_usd=12_500_000, month_micro_usd=2_000_000_000)
    assert found[0] == Policy(budget=budget)
    assert isinstance(found[1], Pool)
    assert found[1].budget == Budget(month_micro_usd=100_000_000)
    assert found[1].price_max_micro_usd == 500_000


@pytest.mark.parametrize("file", EXAMPLES, ids=lambda file: file.name)
def test_every_example_can_be_read(file: Path) -> None:
    assert all(isinstance(found, Workload | Pool | Policy) for found in workload_file.read(file))


def test_there_is_an_example_of_every_kind() -> None:
    files = EXAMPLES
    shapes = {
        type(found.shape)
        for file in files
        for found in workload_file.read(file)
        if isinstance(found, Workload)
    }
    assert shapes == {Service, Job, Training, Sweep}


def test_the_file_in_the_reference_can_be_read() -> None:
    _, _, rest = workload_reference.HEAD.partition("```yaml\n")
    assert one(rest.partition("```")[0]).shape == Service(3)


def test_reading_a_workload_file_loads_no_simulator() -> None:
    found = "[name for name in sys.modules if 'sim' in name.split('.')]"
    code = f"import sys, holdfast.files.workload.workload_file; print({found})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


# ---- what is bad

BAD = [
    # kinds
    (
        "name: web",
        1,
        "kind",
        "one of: service, job, training, sweep, pool, policy, project, got nothing",
        "kind: service",
    ),
    (WEB.replace("service", "servce"), 1, "kind", 'got "servce"', "Did you mean: service"),
    (WEB.replace("service", "3"), 1, "kind", "got 3", "kind: service"),
    (WEB.replace("service", "[a]"), 1, "kind", "got a list", "kind: service"),
    (WEB.replace("service", "deployment"), 1, "kind", 'got "deployment"', "kind: service"),
    ("- 1", 1, "", "expected fields such as kind, got a list", ""),
    ("hello", 1, "", 'got "hello"', ""),
    # fields
    (WEB + "replcas: 3", 4, "replcas", "known field", "Did you mean: replicas"),
    (WEB + "port: 80", 4, "port", "known field", "the program finds it in $PORT"),
    (WEB + "image: x", 4, "image", "known field", "command"),
    (WEB + "environment: {}", 4, "environment", "known field", "Did you mean: env"),
    (WEB + "program: {}", 4, "program", "known field", ""),
    (WEB + "stop_grace_ms: 3", 4, "stop_grace_ms", "known field", 'Try: stop_grace: "30s"'),
    (WEB + "replicas: -1", 4, "replicas", "at least 1", "Try: replicas: 3"),
    (WEB + "replicas: many", 4, "replicas", 'got "many"', "Try: replicas: 3"),
    (WEB + "replicas:", 4, "replicas", "got nothing", "Try: replicas: 3"),
    (WEB + "replicas: " + "9" * 5000, 4, "replicas", "at most 100,000", ""),
    (WEB + "memory: 4", 4, "memory", "a size such as", 'memory: "32GiB"'),
    (WEB + "availability: 99.9", 4, "availability", "a share", "99.9%"),
    (WEB + "spot: yes", 4, "spot", 'true or false, got "yes"', "spot: true"),
    (WEB + "stop_grace: 1:30", 4, "stop_grace", "a duration", ""),
    (WEB + "labels: [a]", 4, "labels", "a table of texts, got a list", 'labels: { team: "x" }'),
    (WEB + "restart: 3", 4, "restart", "expected a table, got 3", "Try: restart: { ... }"),
    (WEB + "restart: { backof: 3 }", 4, "restart.backof", "known field", "backoff"),
    ("kind: job\nname: a b\ncommand: [x]", 2, "name", "letters, digits", ""),
    ("kind: job\ncommand: [x]", 1, "name", "got nothing", "name:"),
    # what runs
    ("kind: job\nname: a", 1, "command", "got nothing", 'command: ["python3", "app.py"]'),
    ("kind: job\nname: a\ncommand: []", 3, "command", "got an empty list", ""),
    ("kind: job\nname: a\ncommand: ['']", 3, "command", "a command", ""),
    ("kind: job\nname: a\ncommand: ' '", 3, "command", "a command", ""),
    ("kind: job\nname: a\ncommand: {a: 1}", 3, "command", "got a table", ""),
    ('kind: job\nname: a\ncommand: ["a\\0b"]', 3, "command", "a command", ""),
    ("kind: job\nname: a\ncommand: [a, [b]]", 3, "command", "a command", ""),
    ("kind: job\nname: a\ncommand: [a, $PORT]", 3, "command", "only a shell", "Try: command: a $PORT"),
    (WEB + "env: 3", 4, "env", 'expected a table, got "3"', ""),
    (WEB + "env:\n  A: [1]", 5, "env.A", "got a list", ""),
    (WEB + "env:\n  A:", 5, "env.A", "got nothing", 'A: "..."'),
    (WEB + "env:\n  A-B: 1", 5, "env.A-B", "letters, digits and _", "another name"),
    (WEB + "env:\n  PORT: 1", 5, "env.PORT", "holdfast sets itself", "another name"),
    (WEB + "env:\n  HOLDFAST_X: 1", 5, "env.HOLDFAST_X", "holdfast sets itself", "another name"),
    (WEB + "workdir: here", 4, "workdir", "an absolute path", "/srv/app"),
    (WEB + "tell: KILL", 4, "tell", "a signal that a program can catch", "SIGUSR1"),
    (WEB + "tell: 9", 4, "tell", "a signal", "SIGUSR1"),
    # probes
    (WEB + "ready: { http: healthz }", 4, "ready.http", "a path on its own port", "http: /healthz"),
    (WEB + "ready: { http: ':80/x' }", 4, "ready.http", "a path on its own port", "http: /healthz"),
    (WEB + "ready: { http: '/a b' }", 4, "ready.http", "a path", ""),
    (WEB + "ready: { tcp: 8080 }", 4, "ready.tcp", "its own port", "tcp: true"),
    (WEB + "ready: { http: /, tcp: true }", 4, "ready", "got http and tcp", "http: /healthz"),
    (WEB + "ready: { every: 1s }", 4, "ready", "got none", "ready: { http: /healthz }"),
    (WEB + "ready: {}", 4, "ready", "got none", ""),
    (WEB + "ready: /healthz", 4, "ready", 'expected a table, got "/healthz"', "ready: { ... }"),
    (WEB + "alive: { exec: [x], every: 0 }", 4, "alive.every", "longer than nothing", ""),
    (WEB + "alive: { exec: [x], failures: 0 }", 4, "alive.failures", "at least 1", ""),
    (WEB + "alive: { exec: [x, '${PORT}'] }", 4, "alive.exec", "only a shell", "exec: x ${PORT}"),
    # fields of a kind
    (JOB + "replicas: 2", 4, "replicas", "no such field in a job", "A job has: standby"),
    ("kind: sweep\nname: a\ncommand: [x]", 1, "tasks", "in a sweep, got nothing", "tasks: 2"),
    (JOB.replace("job", "training") + "nodes_min: 3\nnodes_max: 2", 4, "nodes_min", "nodes_max (2)", ""),
    (WEB + "availability: 100%", 4, "availability", "below 1", 'availability: "99.9%"'),
    (WEB + "after: [web]", 4, "after", "web -> web", ""),
    # pools
    (POOL, 1, "max", "how many nodes it may have, got nothing", "nodes: 3"),
    (POOL + "nodes: 3\nmax: 4", 3, "nodes", "got nodes and max", "leave out nodes"),
    (POOL + "min: 3\nmax: 2", 3, "min", "at most max (2), got 3", "min: 2"),
    (POOL + "nodes: 1\nzones: [a, a]", 4, "zones", "each zone once", ""),
    (POOL + "nodes: 1\nzones: []", 4, "zones", "at least one zone", ""),
    (POOL + "nodes: 1\nmtbf: 3d", 4, "mtbf", "known field", ""),
    (POOL + "hosts: [{ name: a }]", 1, "provider", "that can reach the hosts", "provider: ssh"),
    (SSH + "hosts: [{ name: a }, { name: a }]", 4, "hosts[1].name", '"a" again', "a-2"),
    (SSH + "hosts: [{ address: a }]", 4, "hosts[0].name", "got nothing", ""),
    (SSH + "hosts:\n- name: a\n  port: 0", 6, "hosts[0].port", "at least 1 (at most 65,535)", "port: 22"),
    (SSH + "hosts: a", 4, "hosts", "a list of tables", "hosts: [{ ... }]"),
    (SSH + "hosts: [a]", 4, "hosts[0]", "expected a table", ""),
    (SSH + "max: 2\nhosts: [{ name: a }]", 4, "max", "one node a host (1), got 2", "max: 1"),
    (SSH + "nodes: 2\nhosts: [{ name: a }]", 4, "nodes", "one node a host (1), got 2", ""),
    (SSH + "hosts: [{ name: a }]\noffers: [{ name: b }]", 5, "offers", "got both", ""),
    (POOL + "nodes: 1\nsettings: { boot: soon }", 4, "settings.boot", "a duration such as 2s", "boot: 2s"),
    (POOL + "nodes: 1\nsettings: { stok: 1 }", 4, "settings.stok", "its provider knows", "stock"),
    (POOL + "nodes: 1\nsettings: { stock: z=1 }", 4, "settings.stock", "offers of the pool (a)", "a=2"),
    (
        EC2 + f"settings: {{ regions: a-1, regoins: a, {IMAGE} }}",
        5,
        "settings.regoins",
        "its provider knows",
        "mean: regions",
    ),
    (EC2 + f"settings: {{ regions: A B, {IMAGE} }}", 5, "settings.regions", "got A B", "regions: us-east-1"),
    (EC2 + f"settings: {{ {IMAGE} }}", 5, "settings.regions", "got nothing", "us-east-1"),
    (
        EC2 + f"settings: {{ image: eu-west-1=a, {PLACE} }}",
        5,
        "settings.image",
        "one for us-east-1 too",
        "ami-",
    ),
    (SLURM + "settings: { root: /a, tiem: 4h }", 5, "settings.tiem", "its provider knows", "mean: time"),
    (SLURM + "settings: { root: a }", 5, "settings.root", "the path of a folder", "root: /home/me"),
    (
        SLURM + "settings: { time: 4h }",
        5,
        "settings.root",
        "got nothing",
        "profile: std, and write root into providers.yaml",
    ),
    (
        SSH + "zones: [a]\nnodes: 1",
        1,
        "hosts",
        "the machines there are, at least one, got nothing",
        "name: a",
    ),
    (SSH + "hosts: [{ name: a }]\nsettings: { user: me }", 5, "settings.user", "provider knows", "hosts"),
    (SSH + "nodes: 1\nsettings: { hosts: x }", 5, "settings.hosts", "as a field of the pool", ""),
    # policies
    ("kind: policy\nleases: { lease: 1s }", 2, "leases.lease", "at least 5 beats", ""),
    ("kind: policy\nleases: { leese: 1s }", 2, "leases.leese", "known field", "lease"),
    ("kind: policy\nname: x", 2, "name", "known field", ""),
    # YAML itself
    (WEB + "cpus: 1\ncpus: 2", 5, "cpus", "each field once, got it again (first in line 4)", ""),
    (WEB + "cpus: !!int 1", 4, "cpus", "without a tag", ""),
    (WEB + "env: *nobody", 4, "env", "the name of an anchor", ""),
    (WEB + "? [a]\n: 1", 4, "", "the name of a field", ""),
    (WEB + "env: { <<: 3 }", 4, 'env."<<"', "a table to merge", ""),
]


@pytest.mark.parametrize(
    ("text", "line", "path", "words", "hint"), BAD, ids=[f"{n}-{row[2]}" for n, row in enumerate(BAD)]
)
def test_a_wrong_line_is_answered_with_its_place_and_what_to_write(
    text: str, line: int, path: str, words: str, hint: str
) -> None:
    found = [told for told in problems(text) if words in told]
    (told,) = found or [f"nothing says {words}: {problems(text)}"]
    where = f"{path}: " if path else ""
    assert told.startswith(f"f.yaml:{line}: {where}expected ")
    assert hint in told


NOT_ALONE = {"cpus: !!int 1", "env: *nobody"}  # what is wrong as YAML is wrong as a value too


def test_a_wrong_line_brings_no_other_problem_with_it() -> None:
    alone = [text for text, *_ in BAD if not any(text.endswith(end) for end in NOT_ALONE)]
    assert [text for text in alone if len(problems(text)) != 1] == []


def test_the_file_of_a_gateway_is_told_as_such_with_what_to_type() -> None:
    (told,) = problems((ROOT / "examples" / "gateway.yaml").read_text())
    assert "expected workloads, got the file of a gateway" in told
    assert told.endswith("Try: holdfast gateway --config f.yaml")


def test_all_problems_of_all_documents_are_told_at_once() -> None:
    text = f"""kind: servce
name: web
replicas: -1
alive: {{ tcp: true, http: /x }}
command: [x]
---
{WEB}
---
kind: sweep
name: b
command: [x]
after: [c]
---
kind: job
name: c
command: [x]
after: [b]
---
kind: policy
---
kind: policy
"""
    assert [" ".join(line.split(": ")[:2]) for line in problems(text)] == [
        "f.yaml:1 [0].kind",
        "f.yaml:3 [0].replicas",
        "f.yaml:4 [0].alive",
        "f.yaml:8 [1].name",
        "f.yaml:12 [2].tasks",
        "f.yaml:24 [5].kind",
    ]


def test_a_circle_of_documents_is_told_once() -> None:
    text = "---\n".join(
        f"kind: job\nname: {name}\ncommand: [x]\nafter: [{after}]\n" for name, after in ("ab", "bc", "ca")
    )
    (told,) = problems(text)
    assert told.startswith("f.yaml:4: [0].after: ")
    assert "a -> b -> c -> a" in told


def test_a_workload_may_wait_for_one_that_is_not_in_the_file() -> None:
    assert one(f"{JOB}after: [elsewhere]\n").after == ("elsewhere",)


LAUGHS = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 10)
)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "got an empty file"),
        ("# nothing\n---\n---\n", "got an empty file"),
        (LAUGHS, "at most 100,000 values"),
        ("- a\n" * 200_000, "at most 100,000 values"),
        ("[" * 1_000_000, "at most 40 levels"),
        ("- " * 1_000_000, "at most 40 levels"),
        ("{a: " * 500_000, "at most 40 levels"),
        ("? " * 500_000, "at most 40 levels"),
        ("x" * (4 * 1024 * 1024 + 1), "at most 4 MiB"),
        ("\u00e9" * (3 * 1024 * 1024), "at most 4 MiB"),
        ("a: b: c", "f.yaml:1: expected YAML, got something else: mapping values are not allowed"),
        ("a: 1\n\tb: 2", "f.yaml:2: expected YAML"),
        ("a: 'x", "expected YAML"),
        ("a: [1, 2", "expected YAML"),
        ("a: \x01", "expected YAML"),
        ("a: \ud800", "characters that are none"),
    ],
    ids=lambda value: str(value)[:12] if isinstance(value, str) else None,
)
def test_what_is_no_workload_file_at_all_is_said_in_one_line(text: str, words: str) -> None:
    (told,) = problems(text)
    assert words in told
    assert len(told) < 300


def test_an_anchor_inside_itself_is_refused() -> None:
    assert (
        "labels.a: expected the name of an anchor that ends before"
        in problems(f"{WEB}labels: &l {{a: *l}}")[0]
    )


def test_a_tab_is_named() -> None:
    assert "Try: spaces instead of tabs" in problems("a: 1\n\tb: 2")[0]


def test_the_parser_in_python_reads_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where libyaml is missing."""
    import yaml

    text = f"---\n{WEB}env: &e {{ A: 1.10, B: 'x' }}\n---\n{JOB.replace('web', 'b')}env: {{ <<: *e }}\n"
    with_c = [problems(text), documents(f"{WEB}env: {{ A: no }}", "f")]
    monkeypatch.setattr(yaml_lines, "PARSER", yaml.SafeLoader)
    assert [problems(text), documents(f"{WEB}env: {{ A: no }}", "f")] == with_c
    assert "at most 40 levels" in problems("[" * 1000)[0]


def test_a_file_is_read_with_its_name_and_a_missing_one_points_to_what_is_there(tmp_path: Path) -> None:
    file = tmp_path / "web.yaml"
    file.write_bytes(b"\xef\xbb\xbf" + WEB.encode())
    assert [found.name for found in workload_file.read(file) if isinstance(found, Workload)] == ["web"]
    with pytest.raises(FileProblem, match=r"no such file. Did you mean: web\.yaml"):
        workload_file.read(tmp_path / "wbe.yaml")
    with pytest.raises(FileProblem, match=r"expected a YAML file, got a folder. Try: .*web\.yaml"):
        workload_file.read(tmp_path)
    file.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(FileProblem, match="not text"):
        workload_file.read(file)


def test_a_problem_has_its_line_for_programs_too() -> None:
    with pytest.raises(FileProblem) as caught:
        documents(WEB + "replicas: -1", "f.yaml")
    (problem,) = caught.value.problems
    assert (problem.path, problem.line) == ("replicas", 4)


def test_a_pool_of_machines_that_join_by_themselves_promises_no_more_than_it_can() -> None:
    (pool,) = documents("kind: pool\nname: metal\nprovider: join\n", "pool.yaml")
    assert isinstance(pool, Pool)
    assert (pool.can_launch, pool.can_terminate, pool.can_reset) == (False, False, False)
    (pool,) = documents("kind: pool\nname: lab\nprovider: local\nnodes: 2\n", "pool.yaml")
    assert isinstance(pool, Pool)
    assert (pool.can_launch, pool.can_terminate, pool.can_reset) == (True, True, True)


def test_a_provider_that_is_not_there_is_refused_with_those_that_are() -> None:
    with pytest.raises(FileProblem, match=r"one of: local, ssh, ec2, slurm, join, got \"shh\".*ssh"):
        documents("kind: pool\nname: lab\nprovider: shh\nnodes: 2\n", "pool.yaml")


JOB = "kind: job\nname: fit\ncommand: run\n"


def test_a_deadline_comes_with_the_work() -> None:
    (job,) = documents(f"{JOB}deadline: 52h\nwork: 48h\ncheckpoint: 10m\n", "f.yaml")
    assert isinstance(job, Workload)
    assert job.shape == Job(0, 52 * HOUR, 48 * HOUR)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ("deadline: 52h\n", "work: expected how long the job takes"),
        ("work: 48h\n", "deadline: expected a deadline beside the work"),
        ("deadline: 48h\nwork: 48h\n", "deadline: expected a deadline that the work and one start fit in"),
    ],
)
def test_a_deadline_that_makes_no_sense_is_told(more: str, words: str) -> None:
    with pytest.raises(FileProblem, match=words):
        documents(JOB + more, "f.yaml")


SCALED = "kind: service\nname: web\ncommand: run\n"


def test_a_service_that_scales_is_written_in_words() -> None:
    text = SCALED + (
        "scale:\n"
        "  min: 0\n  max: 8\n  per_replica: { in_flight: 4, cpu: 0.6 }\n  confidence: 95%\n  idle: 5m\n"
        "  schedule:\n    - { replicas: 3, days: mon-fri, start: 08:30, end: 18:00 }\n"
        "  utc_offset: +02:00\n  prometheus: http://127.0.0.1:9090\n  query: { in_flight: sum(flying) }\n"
    )
    (web,) = documents(text, "f.yaml")
    assert isinstance(web, Workload)
    assert isinstance(web.shape, Service)
    scale = web.shape.scale
    assert scale is not None
    assert (scale.min, scale.max, scale.confidence, scale.utc_offset_minutes) == (0, 8, 0.95, 120)
    assert scale.per_replica == {Signal.IN_FLIGHT: 4.0, Signal.CPU: 0.6}
    assert scale.schedule == (Window(3, (0, 1, 2, 3, 4), 8 * 60 + 30, 18 * 60),)
    assert scale.query == {Signal.IN_FLIGHT: "sum(flying)"}


@pytest.mark.parametrize(
    ("lines", "policy", "target"),
    [
        ("", ScalePolicy.FORECAST, 0.7),
        ("  policy: forecast\n", ScalePolicy.FORECAST, 0.7),
        ("  policy: target_tracking\n", ScalePolicy.TARGET_TRACKING, 0.7),
        ("  policy: target tracking\n  target: 60%\n", ScalePolicy.TARGET_TRACKING, 0.6),
    ],
)
def test_the_rule_that_a_service_scales_by_can_be_chosen(
    lines: str, policy: ScalePolicy, target: float
) -> None:
    (web,) = documents(f"{SCALED}scale:\n  max: 8\n  per_replica: {{ in_flight: 4 }}\n{lines}", "f.yaml")
    assert isinstance(web, Workload)
    assert isinstance(web.shape, Service)
    assert web.shape.scale is not None
    assert (web.shape.scale.policy, web.shape.scale.target) == (policy, target)


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ("max: 2\n  per_replica: { queue: 1 }\n  policy: guess", "policy: expected one of: forecast, target"),
        ("max: 2\n  per_replica: { queue: 1 }\n  target: 0", "target: expected a share above 0 %"),
        ("max: 2\n  min: 3\n  per_replica: { queue: 1 }", "scale.min: expected at most max"),
        ("max: 2\n  per_replica: {}", "per_replica: expected a table of signals"),
        ("max: 2\n  per_replica: 8", "per_replica: expected a table of signals"),
        ("max: 2\n  per_replica: { queue: 1 }\n  query: { queue: x }", "prometheus: expected where"),
        (
            "max: 2\n  per_replica: { queue: 1 }\n  query: { queue: x }\n  prometheus: localhost:9090",
            "prometheus: expected an address",
        ),
        ("max: 2\n  per_replica: { queue: 1 }\n  fallback: 3", "fallback: expected at most max"),
        (
            "max: 2\n  per_replica: { queue: 1 }\n  schedule: [{ replicas: 3 }]",
            "replicas: expected at most max",
        ),
        ("max: 2\n  per_replica: { queue: 1 }\n  confidence: 100%", "confidence: expected a share from"),
        (
            "max: 2\n  per_replica: { queue: 1 }\n  schedule: [{ replicas: 1, days: funday }]",
            "days: expected days",
        ),
        (
            "max: 2\n  per_replica: { queue: 1 }\n  schedule: [{ replicas: 1, start: 25:00 }]",
            "start: expected a time",
        ),
        ("max: 2\n  per_replica: { queue: 1 }\n  utc_offset: two", "utc_offset: expected an offset"),
    ],
)
def test_a_scale_that_makes_no_sense_is_told(lines: str, words: str) -> None:
    with pytest.raises(FileProblem, match=words):
        documents(f"{SCALED}scale:\n  {lines}\n", "f.yaml")


@pytest.mark.parametrize(
    ("table", "told"),
    [
        (
            "per_replica: { queues: 1 }",
            ["per_replica.queues: expected a known field, got one that does not exist. Did you mean: queue"],
        ),
        (
            "per_replica: { queue: 0, cpu: many, gpu: }",
            [
                "per_replica.queue: expected a number above 0, at most 1e12, got 0. Try: queue: 4",
                'per_replica.cpu: expected a number above 0, at most 1e12, got "many". Try: cpu: 0.7',
                "per_replica.gpu: expected a number above 0, at most 1e12, got nothing. Try: gpu: 0.7",
            ],
        ),
        (
            "per_replica: { queue: 1 }\n  query: { queue: '', cup: x }",
            [
                'query.queue: expected a query in quotes, got "". Try: queue: "sum(waiting)"',
                "query.cup: expected a known field, got one that does not exist. Did you mean: cpu",
            ],
        ),
    ],
)
def test_a_wrong_signal_is_told_with_its_path_and_what_to_write(table: str, told: list[str]) -> None:
    with pytest.raises(FileProblem) as found:
        documents(f"{SCALED}scale:\n  max: 2\n  {table}\n", "f.yaml")
    lines = [line.partition(" ")[2] for line in found.value.lines()]
    assert lines == [f"scale.{line}" for line in told]


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ("replcas: 2", ["replcas", "scale.min"]),
        ("colour: red", ["colour", "scale.min"]),
        ("scael: { min: 5, max: 2, per_replica: { queue: 1 }, polcy: forecast }", ["scael", "scael.polcy"]),
        ("availability: many", ["availability", "scale.min"]),
    ],
)
def test_bounds_that_make_no_sense_are_told_beside_what_cannot_be_read(fields: str, told: list[str]) -> None:
    """They were told only when everything else was right."""
    scale = "" if "scael" in fields else "scale: { min: 5, max: 2, per_replica: { queue: 1 } }"
    with pytest.raises(FileProblem) as found:
        documents(f"{WEB}{fields}\n{scale}\n", "f.yaml")
    wanted = told if scale else [*told, "scael.min"]
    assert [problem.path for problem in found.value.problems] == wanted, found.value.lines()
    assert all(problem.suggestion for problem in found.value.problems)


def test_what_an_anchor_repeats_is_wrong_in_each_place() -> None:
    text = f"{WEB}ready: &probe {{ http: x }}\nalive: *probe\nreplicas: 0\n"
    with pytest.raises(FileProblem) as found:
        documents(text, "f.yaml")
    assert [problem.path for problem in found.value.problems] == ["ready.http", "alive.http", "replicas"]


def test_a_service_says_what_it_answers_for_at_the_gateways() -> None:
    text = (
        SCALED + "serves: { models: [llama-3-8b, 1.5], prefixes: [/tools], probe: /health, concurrent: 64 }\n"
    )
    (web,) = documents(text, "f.yaml")
    assert isinstance(web, Workload)
    assert isinstance(web.shape, Service)
    assert web.shape.serves == Serves(("llama-3-8b", "1.5"), (), ("/tools",), "/health", 64)
    (plain,) = documents(SCALED + "serves: {}\n", "f.yaml")
    assert isinstance(plain, Workload)
    assert isinstance(plain.shape, Service)
    assert plain.shape.serves == Serves()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (SCALED + "serves: { prefixes: [tools] }\n", "serves.prefixes: expected a list of paths"),
        (SCALED + "serves: { probe: health }\n", "serves.probe: expected a path"),
        (SCALED + "serves: { model: [a] }\n", "serves.model: expected a known field"),
        (SCALED.replace("service", "job") + "serves: {}\n", "serves: expected no such field in a job"),
        (
            f"{SCALED}serves: {{}}\n---\n{SCALED.replace('web', 'b')}serves: {{ models: [a, web] }}\n",
            'serves.models: expected each model at one service, got "web", which web answers for',
        ),
    ],
)
def test_what_cannot_be_answered_for_is_told(text: str, words: str) -> None:
    with pytest.raises(FileProblem, match=re.escape(words)):
        documents(text, "f.yaml")
