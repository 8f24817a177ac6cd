"""What a scenario file may say, and what its writer hears when it says something else."""

from pathlib import Path

import msgspec
import pytest

from holdfast.files.policy import policy_file
from holdfast.files.policy.policy_file import POLICY
from holdfast.files.problem import FileProblem
from holdfast.files.scenario import scenario_file
from holdfast.files.values import show_duration
from holdfast.model.place import Level
from holdfast.model.policy import Detection, Policy
from holdfast.model.units import DAY, HOUR, MINUTE, SECOND
from holdfast.model.workload import Job, Service, Spread, Sweep, Training
from holdfast.sim.run import Simulation
from holdfast.sim.scenario.scenario import Between, Fault, Scenario

ROOT = Path(__file__).resolve().parents[2]
POOL = '[[pools]]\nname = "std"\nnodes = 3\nmax = 4\n'
WEB = '[[workloads]]\nname = "web"\n'


def read(tmp_path: Path, text: str) -> Scenario:
    file = tmp_path / "story.toml"
    file.write_text(text, encoding="utf-8")
    return scenario_file.read(file)


def problems(tmp_path: Path, text: str) -> list[str]:
    with pytest.raises(FileProblem) as caught:
        read(tmp_path, text)
    return [str(problem) for problem in caught.value.problems]


# ---- what is good


def test_the_shortest_scenario_is_a_pool(tmp_path: Path) -> None:
    story = read(tmp_path, '[[pools]]\nname = "std"\n')
    assert story.name == "story"
    assert story.lasts_ms == 10 * MINUTE
    assert story.policy == Policy()


def test_a_pool_stays_as_large_as_it_is_unless_told_otherwise(tmp_path: Path) -> None:
    pool = read(tmp_path, '[[pools]]\nname = "std"\nnodes = 3\n').pools[0].pool
    assert (pool.min, pool.max) == (3, 3)


def test_zones_and_racks_become_offers_in_turn(tmp_path: Path) -> None:
    text = '[[pools]]\nname = "std"\nzones = ["a", "b"]\nracks_per_zone = 2\nregion = "r"\n'
    offers = read(tmp_path, text).pools[0].pool.offers
    assert [offer.name for offer in offers] == ["a-r1", "b-r1", "a-r2", "b-r2"]
    assert offers[3].place.domain(Level.RACK) == "local/r/b/b-r2"


def test_an_offer_takes_from_its_pool_what_it_does_not_say(tmp_path: Path) -> None:
    pool = '[[pools]]\nname = "p"\ncpus = 4\nprice = "$1.20"\n'
    text = pool + '[[pools.offers]]\nname = "big"\ncpus = 16\nzone = "z"\n'
    (offer,) = read(tmp_path, text).pools[0].pool.offers
    assert (offer.capacity.cpu_milli, offer.capacity.memory_mib) == (16_000, 32_768)
    assert (offer.price_micro_usd, offer.place.zone) == (1_200_000, "z")


@pytest.mark.parametrize(
    ("fields", "shape"),
    [
        ("", Service()),
        ('replicas = 2\nstandby = 1\navailability = "99.9%"', Service(2, 1, 0.999)),
        ('kind = "job"', Job()),
        ('kind = "training"\nnodes_min = 2', Training(2, 2)),
        ('kind = "training"\nnodes_min = 2\nnodes_max = 3\nstandby = 1', Training(2, 3, 1)),
        ('kind = "sweep"\ntasks = 10\nparallel = 2', Sweep(10, 2)),
    ],
)
def test_every_kind_of_workload_can_be_written(tmp_path: Path, fields: str, shape: object) -> None:
    assert read(tmp_path, f"{POOL}{WEB}{fields}\n").workloads[0].workload.shape == shape


def test_every_field_of_a_workload_arrives(tmp_path: Path) -> None:
    text = f"""{POOL}labels = {{ disk = "ssd" }}\ntaints = ["gpu"]\ngpus = 2\ngpu_kind = "l4"\n{WEB}
cpus = 0.5\nmemory = "1GiB"\ngpus = 0.5\ngpu_kind = "l4|h100"\nlabels = {{ disk = "ssd" }}
tolerates = ["gpu"]
spot = false\nspread = "require"\nspread_over = "node"\npriority = 5\ncheckpoint = "5m"\nmove_cost = 10
stop_grace = "1s"\napplied_at = "1m30s"\nrestart = {{ backoff = "2s", limit = 3 }}
program = {{ start = "4s", run = "1h", fails_at_start = true }}
"""
    item = read(tmp_path, text).workloads[0]
    workload, needs = item.workload, item.workload.needs
    assert (needs.resources.cpu_milli, needs.resources.memory_mib, needs.resources.gpu_milli) == (
        500,
        1024,
        500,
    )
    assert (needs.labels, needs.tolerates, needs.spot) == ({"disk": "ssd"}, ("gpu",), False)
    assert (needs.spread, needs.spread_over) == (Spread.REQUIRE, Level.NODE)
    assert (workload.priority, workload.checkpoint_ms, workload.move_cost_ms) == (5, 5 * MINUTE, 10 * SECOND)
    assert (workload.stop_grace_ms, item.at) == (SECOND, 90 * SECOND)
    assert (workload.restart.backoff_ms, workload.restart.limit) == (2 * SECOND, 3)
    assert (item.program.start_ms, item.program.run_ms, item.program.fails_at_start) == (4000, HOUR, True)


@pytest.mark.parametrize("word", ["agent restart", "agent-restart", "agent_restart", "Agent Restart"])
def test_a_fault_of_two_words_may_be_joined_in_any_way(tmp_path: Path, word: str) -> None:
    text = f'{POOL}[[faults]]\nat = 60\nfault = "{word}"\nnodes = ["std-a"]\n'
    assert read(tmp_path, text).troubles[0].fault is Fault.AGENT_RESTART


@pytest.mark.parametrize(
    "nodes", ["std-a", "std-7", "zone:a", "region:-", "provider:local", "domain:local/-/a", "runs:web", "*"]
)
def test_nodes_may_be_named_or_described(tmp_path: Path, nodes: str) -> None:
    cut = '[[faults]]\nat = 60\nfault = "partition"\nbetween = "control"\nlasts = "1m"\n'
    text = f'{POOL}{WEB}{cut}nodes = ["{nodes}"]\n'
    assert read(tmp_path, text).troubles[0].between is Between.CONTROL


def test_faults_may_name_exactly_the_nodes_that_the_simulator_makes(tmp_path: Path) -> None:
    base = '[[pools]]\nname = "std"\nnodes = 30\n'
    sim = Simulation(read(tmp_path, 'lasts = "2s"\n' + base))
    sim.run()
    names = ", ".join(f'"{name}"' for name in sim.fleet.hosts)
    assert len(sim.fleet.hosts) == 30
    read(tmp_path, f'{base}[[faults]]\nat = 1\nfault = "crash"\nnodes = [{names}]\n')


def test_the_rest_of_the_tables_arrives(tmp_path: Path) -> None:
    text = f"""title = "t"\nseed = 7\nsettle = "1m"\ncontrol_planes = 2\ndomain_mtbf = "30d"
domain_repair = "2h"
{POOL}mtbf = "10d"\nrepair = "5m"\npreempt_every = "12h"\n{WEB}
[providers.local]\nboot = "1m"\nlaunch_fails = "5%"\n
[network]\ndelay = "10ms"\nloss = 0.01\n
[policy.leases]\nlease = "20s"\n
[[changes]]\nat = "2m"\ndo = "release-brake"\n
[[changes]]\nat = "2m"\ndo = "scale"\nworkload = "web"\nreplicas = 2
"""
    story = read(tmp_path, text)
    assert (story.title, story.seed, story.control_planes) == ("t", 7, 2)
    assert (story.domain_mtbf_ms, story.domain_repair_ms) == (30 * DAY, 2 * HOUR)
    assert (story.pools[0].mtbf_ms, story.pools[0].preempt_every_ms) == (10 * DAY, 12 * HOUR)
    assert (story.providers["local"].boot_ms, story.providers["local"].launch_fails) == (MINUTE, 0.05)
    assert (story.network.delay_ms, story.network.loss) == (10, 0.01)
    assert story.policy.leases.lease_ms == 20 * SECOND
    assert [change.do for change in story.changes] == ["release brake", "scale"]


@pytest.mark.parametrize("folder", ["scenarios", "examples"])
def test_every_scenario_of_the_repository_can_be_read(folder: str) -> None:
    files = sorted((ROOT / folder).glob("*.toml"))
    assert files
    for file in files:
        assert scenario_file.read(file).title


# ---- what is bad

FAULT = '[[faults]]\nat = "60s"\n'
TRAIN = '[[workloads]]\nname = "t"\nkind = "training"\n'
BAD = [
    # fields and types
    (f"{POOL}zone = 'a'", "pools[0].zone", "known field", "Did you mean: zones"),
    ("pool = 1", "pool", "known field", "Did you mean: pools"),
    ("lasts = '10x'\n" + POOL, "lasts", 'got "10x"', 'lasts = "10m"'),
    ("lasts = 0\n" + POOL, "lasts", "longer than nothing", ""),
    ("lasts = inf\n" + POOL, "lasts", "a duration", ""),
    ("lasts = '999999d'\n" + POOL, "lasts", "at most 3650d", ""),
    ("title = 3\n" + POOL, "title", "a text in quotes, at most 500 characters, got 3", ""),
    ("seed = true\n" + POOL, "seed", "got true", ""),
    ("control_planes = 0\n" + POOL, "control_planes", "at least 1", "control_planes = 1"),
    (POOL + WEB + "replicas = -3", "workloads[0].replicas", "at least 1", "Try: replicas = 3"),
    (POOL + WEB + "replicas = 2.5", "workloads[0].replicas", "whole number", ""),
    (POOL + WEB + "replicas = " + "9" * 30, "workloads[0].replicas", "at most 100,000", ""),
    (POOL + WEB + "memory = 4", "workloads[0].memory", "a size such as", 'memory = "32GiB"'),
    (POOL + WEB + "cpus = 0", "workloads[0].cpus", "above 0", "cpus = 2"),
    (POOL + WEB + "gpus = 1.5", "workloads[0].gpus", "a whole number of GPUs", ""),
    (POOL + WEB + "availability = 1.0", "workloads[0].availability", "below 1", "99.9%"),
    (POOL + WEB + "availability = 99.9", "workloads[0].availability", "a share", "99.9%"),
    (POOL + WEB + 'kind = "trainng"', "workloads[0].kind", "one of: service", 'kind = "training"'),
    (POOL + WEB + "restart = 3", "workloads[0].restart", "expected a table", ""),
    (POOL + WEB + "restart = { backof = 3 }", "workloads[0].restart.backof", "known field", "backoff"),
    (POOL + "price = -1", "pools[0].price", "dollars an hour", "price = 1.2"),
    (POOL + "labels = { a = 1 }", "pools[0].labels", "a table of texts", ""),
    ('[[pools]]\nname = "a b"', "pools[0].name", "letters, digits", ""),
    ("[[pools]]\nnodes = 1", "pools[0].name", "got nothing", 'name = "web"'),
    ("pools = 3", "pools", "a list of tables, got 3", "[[pools]]"),
    ("pools = [3]", "pools[0]", "expected a table, got 3", "[[pools]]"),
    (POOL + "[policy.leases]\nlease_ms = 3", "policy.leases.lease_ms", "known field", 'lease = "30s"'),
    (POOL + "[policy.detection]\nbeat = 0", "policy.detection.beat", "longer than nothing", 'beat = "1s"'),
    (POOL + "[policy.detektion]\nbeat = 1", "policy.detektion", "known field", "detection"),
    (POOL + "[network]\nloss = 2", "network.loss", "a share", ""),
    (POOL + "[providers.local]\nbot = 1", "providers.local.bot", "known field", "boot"),
    # names and limits
    ("title = 'x'", "pools", "at least one pool", "[[pools]]"),
    (POOL + POOL, "pools[1].name", '"std" again', "std-2"),
    (POOL + WEB + WEB, "workloads[1].name", '"web" again', "web-2"),
    (POOL + 2 * "[[pools.offers]]\nname = 'o'\n", "pools[0].offers[1].name", '"o" again', ""),
    (POOL + "zones = ['a', 'a']", "pools[0].zones", "each zone once", ""),
    (POOL + "zones = []", "pools[0].zones", "at least one zone", ""),
    ('[[pools]]\nname = "p"\nnodes = 3\nmax = 2', "pools[0].nodes", "at most max (2), got 3", "max = 3"),
    ('[[pools]]\nname = "p"\nmin = 3\nmax = 2', "pools[0].min", "at most max (2), got 3", "min = 2"),
    (POOL + "[providers.locl]\nboot = 1", "providers.locl", "the provider of a pool", "local"),
    (POOL + WEB + 'after = ["wob"]', "workloads[0].after", 'got "wob"', ""),
    (POOL + WEB + 'after = ["web"]', "workloads[0].after", "web -> web", ""),
    (POOL + TRAIN, "workloads[0].nodes_min", "in a training, got nothing", "nodes_min = 2"),
    (POOL + TRAIN + "nodes_min = 3\nnodes_max = 2", "workloads[0].nodes_min", "nodes_max (2)", ""),
    (POOL + TRAIN + "nodes_min = 1\nreplicas = 2", "workloads[0].replicas", "in a training", "nodes_min"),
    (POOL + WEB + 'kind = "sweep"', "workloads[0].tasks", "in a sweep, got nothing", ""),
    (POOL + WEB + 'applied_at = "20m"', "workloads[0].applied_at", "before the end (600s)", "lasts"),
    # faults and changes
    (POOL + FAULT + 'fault = "crahs"', "faults[0].fault", "one of: crash", 'fault = "crash"'),
    (POOL + '[[faults]]\nfault = "crash"\nnodes = ["*"]', "faults[0].at", "got nothing", 'at = "5m"'),
    (POOL + FAULT + 'fault = "crash"', "faults[0].nodes", "got none", 'nodes = ["std-a"]'),
    (POOL + FAULT + 'fault = "crash"\nnodes = ["std-d"]', "faults[0].nodes[0]", 'got "std-d"', "std-"),
    (POOL + FAULT + 'fault = "crash"\nnodes = ["zone:b"]', "faults[0].nodes[0]", 'got "zone:b"', "zone:a"),
    (POOL + FAULT + 'fault = "crash"\nnodes = ["runs:x"]', "faults[0].nodes[0]", 'got "runs:x"', ""),
    (POOL + FAULT + 'fault = "stock out"\nlasts = 9', "faults[0].provider", "got none", '"local"'),
    (POOL + FAULT + 'fault = "stock out"\nprovider = "local"', "faults[0].lasts", "how long", ""),
    (POOL + FAULT + 'fault = "stock out"\nprovider = "l"\nlasts = 9', "faults[0].provider", 'got "l"', ""),
    (POOL + FAULT + 'fault = "control crash"\ncontrol = "cp-2"', "faults[0].control", 'got "cp-2"', "cp-1"),
    (POOL + FAULT + 'fault = "partition"\nlasts = 9', "faults[0].nodes", "cut off", ""),
    (POOL + FAULT + 'fault = "clock jump"', "faults[0].jump", "how far", ""),
    (POOL + FAULT + 'fault = "crash"\nnodes = ["*"]\ntimes = 3', "faults[0].every", "between 3", ""),
    (POOL + '[[faults]]\nat = "11m"\nfault = "crash"\nnodes = ["*"]', "faults[0].at", "got 660s", "lasts"),
    (POOL + '[[changes]]\nat = 1\ndo = "drain"\nnode = "std-x"', "changes[0].node", 'got "std-x"', "std-"),
    (POOL + WEB + '[[changes]]\nat = 1\ndo = "pause"', "changes[0].workload", 'got ""', "web"),
    (POOL + WEB + '[[changes]]\nat = 1\ndo = "scale"\nworkload = "web"', "changes[0].replicas", "none", ""),
    (POOL + WEB + '[[changes]]\nat = 1\ndo = "fly"', "changes[0].do", "one of: delete", ""),
    # what can never fit
    (POOL + WEB + "cpus = 9", "workloads[0].cpus", "at most 8, the largest node of any pool, got 9", ""),
    (POOL + WEB + 'memory = "64GiB"', "workloads[0].memory", "the largest node", '"32768MiB"'),
    (POOL + WEB + "gpus = 1", "workloads[0].gpus", "at most 0", ""),
    (
        POOL + "gpus = 1\ngpu_kind = 'l4'\n" + WEB + "gpus = 1\ngpu_kind = 'h100'",
        "workloads[0].gpu_kind",
        "h100",
        "l4",
    ),
    (POOL + WEB + "labels = { a = 'b' }", "workloads[0]", "needs that none meets", "labels"),
    (POOL + TRAIN + "nodes_min = 5", "workloads[0].nodes_min", "at most 4 members", "nodes_min = 4"),
    (POOL + WEB + "cpus = 3\nreplicas = 9", "workloads[0].replicas", "at most 8", "replicas = 8"),
    (
        POOL + "can_launch = false\n" + WEB + "cpus = 8\nreplicas = 4",
        "workloads[0].replicas",
        "at most 3",
        "",
    ),
    (POOL + WEB + "spread = 'require'\nreplicas = 2", "workloads[0].replicas", "one a zone", "prefer"),
    (
        POOL + WEB + "replicas = 20\n" + WEB.replace("web", "api") + "replicas = 20",
        "workloads",
        "at most 32 CPUs for all services, the pools at their max, got 40",
        "fewer replicas",
    ),
]


@pytest.mark.parametrize(
    ("text", "path", "words", "hint"), BAD, ids=[f"{n}-{row[1]}" for n, row in enumerate(BAD)]
)
def test_a_wrong_line_is_answered_with_its_path_and_what_to_write(
    tmp_path: Path, text: str, path: str, words: str, hint: str
) -> None:
    found = problems(tmp_path, text)
    (told,) = [line for line in found if line.startswith(f"{path}: ")] or [f"nothing at {path}: {found}"]
    assert words in told
    assert hint in told
    assert "\n" not in told


def test_a_wrong_line_brings_no_other_problem_with_it(tmp_path: Path) -> None:
    assert [len(problems(tmp_path, text)) for text, *_ in BAD] == [1] * len(BAD)


def test_all_problems_are_told_at_once(tmp_path: Path) -> None:
    text = f"""title = 3\n{POOL}bogus = 1\n{WEB}replicas = -1\nafter = ["b"]
[[workloads]]\nname = "b"\nafter = ["web"]\n[[workloads]]\nname = "c"\nafter = ["d"]\n"""
    paths = [line.partition(": ")[0] for line in problems(tmp_path, text)]
    assert paths == [
        "title",
        "pools[0].bogus",
        "workloads[0].replicas",
        "workloads[2].after",
        "workloads[0].after",
    ]


def test_a_circle_is_told_once_and_in_order(tmp_path: Path) -> None:
    names = ["a", "b", "c"]
    text = POOL + "".join(
        f'[[workloads]]\nname = "{n}"\nafter = ["{names[i - 2]}"]\n' for i, n in enumerate(names)
    )
    (told,) = problems(tmp_path, text)
    assert "a -> b -> c -> a" in told


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "empty file"),
        (b"# only a comment\n", "empty file"),
        (b"x = ", "expected TOML"),
        (b"[[pools]\n", "expected TOML"),
        (b"a = 1\na = 2\n", "expected TOML"),
        (b"\x00\xff\xfe binary", "not text"),
        (b"seed = " + b"9" * 5000, "too long"),
        (b"a = " + b"[" * 5000 + b"]" * 5000, "expected TOML"),
    ],
    ids=["empty", "comment", "value", "bracket", "twice", "binary", "digits", "deep"],
)
def test_what_is_no_scenario_at_all_is_said_in_one_line(tmp_path: Path, content: bytes, words: str) -> None:
    file = tmp_path / "story.toml"
    file.write_bytes(content)
    with pytest.raises(FileProblem) as caught:
        scenario_file.read(file)
    (line,) = caught.value.lines()
    assert line.startswith(f"{file}: ")
    assert words in line


def test_a_folder_and_a_missing_file_point_to_what_is_there(tmp_path: Path) -> None:
    (tmp_path / "story.toml").write_text(POOL)
    with pytest.raises(FileProblem, match=r"got a folder. Try: .*story\.toml"):
        scenario_file.read(tmp_path)
    with pytest.raises(FileProblem, match=r"no such file. Did you mean: story\.toml"):
        scenario_file.read(tmp_path / "stroy.toml")


# ---- policies


def test_a_policy_file_stands_alone(tmp_path: Path) -> None:
    file = tmp_path / "policy.toml"
    file.write_text('[detection]\nlate_beats = 3\nmajority = "60%"\n[brake]\ndomain_level = "rack"\n')
    read_policy = policy_file.read(file)
    assert read_policy.detection == Detection(late_beats=3, majority=0.6)
    assert read_policy.brake.domain_level is Level.RACK


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "an empty file"),
        ("[policy.detection]\nbeat = 1", "policy: expected a known field"),
        (
            "[detection]\nbeat = '1y'",
            'detection.beat: expected a duration longer than nothing, such as "90s"',
        ),
        ("[detection]\npeers_asked = -1", "detection.peers_asked: expected a whole number of at least 0"),
    ],
)
def test_a_wrong_policy_is_answered_like_a_wrong_scenario(tmp_path: Path, text: str, words: str) -> None:
    file = tmp_path / "policy.toml"
    file.write_text(text)
    with pytest.raises(FileProblem) as caught:
        policy_file.read(file)
    assert words in str(caught.value)


def test_every_number_of_the_policy_can_be_written_and_comes_back(tmp_path: Path) -> None:
    lines = []
    for table in msgspec.structs.fields(Policy):
        lines.append(f"[{table.name}]")
        for field in msgspec.structs.fields(table.type):
            name = field.name.removesuffix("_ms")
            value = getattr(getattr(Policy(), table.name), field.name)
            if value is None:
                continue  # nothing, which cannot be written
            shown = show_duration(value) if name != field.name else msgspec.json.encode(value).decode()
            lines.append(f"{name} = {shown}")
    file = tmp_path / "policy.toml"
    file.write_text("\n".join(lines))
    assert policy_file.read(file) == Policy()
    assert len(lines) > len(POLICY.model.model_fields)


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ('[leases]\nlease = "1s"\n', "leases.lease"),
        ("[detection]\npeers_quorum = 9\n", "detection.peers_quorum"),
        ("[detection]\nlate_beats = 20\n", "detection.late_beats"),
    ],
)
def test_numbers_of_a_policy_that_contradict_each_other_are_told(
    tmp_path: Path, text: str, path: str
) -> None:
    file = tmp_path / "policy.toml"
    file.write_text(text)
    with pytest.raises(FileProblem) as caught:
        policy_file.read(file)
    assert [problem.path for problem in caught.value.problems] == [path]
    story = tmp_path / "story.toml"
    table = text.replace("[", "[policy.", 1)
    story.write_text(f'[[pools]]\nname = "std"\nnodes = 3\n{table}')
    with pytest.raises(FileProblem) as caught:
        scenario_file.read(story)
    assert [problem.path for problem in caught.value.problems] == [f"policy.{path}"]


def test_a_byte_order_mark_is_no_mistake(tmp_path: Path) -> None:
    file = tmp_path / "story.toml"
    file.write_bytes(b"\xef\xbb\xbf" + b'[[pools]]\nname = "std"\nnodes = 3\n')
    assert scenario_file.read(file).pools[0].nodes == 3


def test_a_short_story_is_given_half_its_time_to_settle(tmp_path: Path) -> None:
    file = tmp_path / "story.toml"
    file.write_text('lasts = "10m"\n[[pools]]\nname = "std"\nnodes = 3\n')
    assert scenario_file.read(file).settle_ms == 5 * MINUTE


@pytest.mark.parametrize("fault", [fault for fault in Fault if fault.name.startswith("PROVIDER")])
def test_a_fault_of_a_provider_must_say_of_which(tmp_path: Path, fault: Fault) -> None:
    text = f'{POOL}[[faults]]\nat = "10s"\nfault = "{fault}"\nlasts = "1m"\n'
    assert any("faults[0].provider" in problem for problem in problems(tmp_path, text))
