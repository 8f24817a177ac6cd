"""What Slurm's commands say, and what a pool's settings say of a cluster: read right, or refused clearly."""

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.adapters.providers.profiles import settled
from holdfast.adapters.providers.slurm import partitions, queue, read_settings, submit
from holdfast.adapters.providers.slurm.commands import Commands, Said, _error
from holdfast.adapters.providers.slurm.settings import TAKES
from holdfast.files.provider_profiles.profiles_file import parsed
from holdfast.files.workload.workload_file import documents
from holdfast.model.action import LaunchNode
from holdfast.model.place import Place
from holdfast.model.pool import Pool
from holdfast.model.resources import Resources
from holdfast.ports.errors import (
    CapacityShort,
    Denied,
    NotFound,
    OutcomeUnknown,
    PortError,
    Throttled,
    Unreachable,
)

ROOT = {"root": "/home/me/holdfast"}


def wish(offer: str = "gpu@a", capacity: Resources | None = None, node: str = "n-1") -> LaunchNode:
    return LaunchNode(
        node=node,
        pool="pool",
        offer=offer,
        place=Place("slurm"),
        capacity=capacity or Resources(7_500, 2_048, 2_000, "a100"),
        price_micro_usd=0,
        spot=False,
        why="w",
    )


# settings


@pytest.mark.parametrize(
    ("given_settings", "says"),
    [
        ({}, "root: expected the path of a folder .* share, got nothing"),
        ({"root": "here"}, "root: expected the path of a folder"),
        ({**ROOT, "tme": "4h"}, "tme is none of root, partition"),
        ({**ROOT, "time": "4 hours"}, "time: expected .* such as 4h, got 4 hours"),
        ({**ROOT, "time": "10m", "notice": "10m"}, "notice: expected less than the setting `time`"),
        ({**ROOT, "partition": "a b"}, "partition: expected .*, got a b"),
        ({**ROOT, "account": "--uid=0"}, "account: expected .*, got --uid=0"),
        ({**ROOT, "sbatch": "script.sh"}, "each in the form --name=value"),
        ({**ROOT, "sbatch": "--requeue"}, "these are for holdfast to say"),
        ({**ROOT, "sbatch": "--array=1-9"}, "these are for holdfast to say"),
        ({**ROOT, "agent": "'open"}, "every quote closed"),
        ({"tme": "4h", "time": "x"}, "tme is none of .*; time: expected .*; root: expected"),
    ],
)
def test_a_mistake_in_the_settings_is_answered_with_what_to_write(
    given_settings: dict[str, str], says: str
) -> None:
    with pytest.raises(Denied, match=says):
        read_settings(given_settings)


def test_every_example_of_a_setting_can_be_read() -> None:
    for kind in TAKES.kinds.values():
        kind.read(kind.example)


@pytest.mark.parametrize(
    ("time", "notice", "notice_s"), [("", "", 300), ("4h", "", 300), ("8m", "", 120), ("1m", "50s", 50)]
)
def test_a_node_knows_of_its_end_five_minutes_before_or_when_a_quarter_is_left(
    time: str, notice: str, notice_s: int
) -> None:
    assert read_settings({**ROOT, "time": time, "notice": notice}).notice_s == notice_s


def test_an_offer_is_a_partition_and_its_capacity_is_what_the_job_asks_for() -> None:
    settings = read_settings(
        {**ROOT, "time": "90s", "qos": "long", "sbatch": "--constraint='a&b' --nodes-x=1"}
    )
    words = submit.options(wish(), settings, "holdfast f pool", Path("/folder"))
    assert words[:2] == ["--constraint=a&b", "--nodes-x=1"]
    for word in (
        *("--partition=gpu", "--gres=gpu:a100:2", "--cpus-per-task=8", "--mem=2048M", "--time=2"),
        *("--job-name=n-1", "--comment=holdfast f pool", "--no-requeue", "--qos=long"),
    ):
        assert word in words
    assert submit.partition_of("gpu", settings) == submit.partition_of("gpu@b@c", settings) == "gpu"


@pytest.mark.parametrize(
    "request_", [wish(offer="@a"), wish(offer="a,b"), wish(node="a b"), wish(node="--uid"), wish(node="a\nb")]
)
def test_what_cannot_be_an_option_of_sbatch_is_refused(request_: LaunchNode) -> None:
    with pytest.raises(Denied):
        submit.options(request_, read_settings(ROOT), "c", Path("/folder"))


def test_a_gpu_of_several_kinds_cannot_be_asked_for() -> None:
    with pytest.raises(Denied, match="one kind"):
        submit.sizes(Resources(1_000, 1, 1_000, "h100|a100"))


@pytest.mark.parametrize(("said", "job"), [("12\n", 12), ("12;cluster\n", 12), ("a warning\n7\n", 7)])
def test_the_number_of_a_job_is_read(said: str, job: int) -> None:
    assert submit.number(said) == job


@given(st.text(st.characters(exclude_categories=["Nd"])))
def test_what_is_no_number_of_a_job_is_never_taken_for_one(said: str) -> None:
    with pytest.raises(ValueError):
        submit.number(said)


def test_the_pool_of_the_guide_can_be_applied_and_used() -> None:
    guide = (Path(__file__).parents[2] / "docs" / "how-to" / "slurm-pool.md").read_text()
    (said,) = re.findall(r"<<'END'\n(.*?)END\n", guide, re.DOTALL)
    profiles = parsed(said, "providers.yaml").profiles
    pool, _ = documents("\n---\n".join(re.findall(r"```yaml\n(.*?)```", guide, re.DOTALL)), "guide.yaml")
    assert isinstance(pool, Pool)
    assert not pool.can_reset
    settings = read_settings(settled(pool, profiles).settings)
    assert (settings.time_s, settings.notice_s) == (4 * 3600, 300)
    assert [submit.partition_of(offer.name, settings) for offer in pool.offers] == ["gpu", "cpu"]
    assert submit.sizes(pool.offers[0].capacity)["--gres"] == "gpu:a100:2"
    for name in TAKES.kinds:
        assert f"`{name}`" in guide, "every setting is told of"


# errors


@pytest.mark.parametrize(
    ("complaint", "acted", "looked"),
    [
        ("Unable to contact slurm controller (connect failure)", Unreachable, Unreachable),
        ("Socket timed out on send/recv operation", OutcomeUnknown, Unreachable),
        ("Zero Bytes were transmitted or received", OutcomeUnknown, Unreachable),
        ("Munge encode failed: Failed to access / Protocol authentication error", Unreachable, Unreachable),
        ("Protocol authentication error", Denied, Denied),
        ("Invalid account or account/partition combination specified", Denied, Denied),
        ("Invalid qos specification", Denied, Denied),
        ("invalid partition specified: x / Invalid partition name specified", Denied, Denied),
        ("Access/permission denied", Denied, Denied),
        ("Requested node configuration is not available", CapacityShort, CapacityShort),
        ("Required partition not available (inactive or drain)", CapacityShort, CapacityShort),
        ("QOSMaxSubmitJobPerUserLimit / Job violates accounting/QOS policy", CapacityShort, CapacityShort),
        ("Invalid generic resource (gres) specification", CapacityShort, CapacityShort),
        ("Slurm temporarily unable to accept job, sleeping and retrying", Throttled, Throttled),
        ("Kill job error on job id 12: Invalid job id specified", NotFound, NotFound),
        ("something new", Denied, Unreachable),
        ("", Denied, Unreachable),
    ],
)
def test_a_complaint_is_named_for_the_next_move(
    complaint: str, acted: type[PortError], looked: type[PortError]
) -> None:
    for kind, did in ((acted, True), (looked, False)):
        error = _error("sbatch", Said(1, "", complaint), acted=did)
        assert type(error) is kind
        assert complaint in str(error)


def test_a_command_that_was_killed_may_have_done_it() -> None:
    assert type(_error("sbatch", Said(-9, "", ""), acted=True)) is OutcomeUnknown
    assert type(_error("squeue", Said(-9, "", ""), acted=False)) is Unreachable


def command(folder: Path, name: str, does: str) -> Commands:
    (folder / name).write_text(f"#!/bin/sh\n{does}\n")
    (folder / name).chmod(0o755)
    return Commands(str(folder))


async def test_what_was_cut_off_in_the_middle_is_no_list(tmp_path: Path) -> None:
    """A node that is missing from it would be taken for one that ended."""
    cut = command(tmp_path, "squeue", "printf '7 whole\\n8 ha'")
    with pytest.raises(Unreachable, match="cut off"):
        await cut.look("squeue")
    assert await command(tmp_path, "squeue", "echo 7").look("squeue") == "7\n"
    assert await command(tmp_path, "squeue", "true").look("squeue") == "", "an empty one is a list"


# the queue


def line(*fields: str) -> str:
    return queue.APART.join(fields) + "\n"


OURS = queue.comment("f00", "pool")


def test_jobs_of_others_of_other_fleets_and_those_that_ended_are_not_nodes() -> None:
    text = (
        line("12", "n2", "PENDING", "Resources", "N/A", "N/A", "", OURS)
        + line("7", "n1", "RUNNING", "None", "1699990000", "1700000000", "c1", OURS)
        + line("8", "n3", "RUNNING", "None", "1", "NONE", "c1", queue.comment("f01", "pool"))
        + line("9", "n4", "RUNNING", "None", "1", "NONE", "c1", "(null)")
        + line("10", "n5", "CANCELLED", "None", "1", "1", "c1", OURS)
        + line("13", "n7", "NODE_FAIL", "None", "1", "1", "c1", OURS)
        + line("11_3", "n6", "RUNNING", "None", "1", "1", "c1", OURS)
        + "nonsense\n"
    )
    found = queue.parse(text, "f00")
    assert [(job.node, job.is_seen_off) for job in found if job.has_ended] == [("n5", True), ("n7", False)]
    assert tuple(job for job in found if not job.has_ended) == (
        queue.Job(7, "n1", "pool", "RUNNING", "None", 1_699_990_000.0, 1_700_000_000.0, "c1"),
        queue.Job(12, "n2", "pool", "PENDING", "Resources", None, None, ""),
    )


@given(st.text(), st.text())
def test_no_text_of_others_breaks_the_reading_or_becomes_a_node(before: str, name: str) -> None:
    ours = line("7", "n1", "RUNNING", "None", "1699990000", "1700000000", "c1", OURS)
    others = line("8", name, "RUNNING", "None", "1", "N/A", "c1", "a comment")
    assert [job.node for job in queue.parse(f"{before}\n{others}{ours}", "f00")] == ["n1"]


@pytest.mark.parametrize(
    ("reason", "kind"),
    [
        ("None", None),
        ("Resources", None),
        ("Priority", None),
        ("Licenses", None),
        ("BeginTime", None),
        ("PartitionConfig", CapacityShort),
        ("PartitionNodeLimit", CapacityShort),
        ("BadConstraints", CapacityShort),
        ("QOSMaxCpuPerUserLimit", CapacityShort),
        ("AssocGrpGRES", CapacityShort),
        ("ReqNodeNotAvail, UnavailableNodes:c1", CapacityShort),
        ("JobHeldAdmin", Denied),
        ("InvalidQOS", Denied),
        ("PartitionTimeLimit", Denied),
    ],
)
def test_a_job_that_waits_its_turn_is_a_node_that_boots_and_one_that_never_gets_it_an_error(
    reason: str, kind: type[PortError] | None
) -> None:
    refusal = queue.Job(7, "n1", "pool", "PENDING", reason).refusal
    assert (type(refusal) if refusal else None) is kind
    assert queue.Job(7, "n1", "pool", "RUNNING", reason).refusal is None


# what the cluster has


def test_partitions_that_take_no_jobs_and_nodes_that_do_not_answer_are_left_out() -> None:
    text = (
        line("main", "up", "idle", "8", "64000", "gpu:a100:2(S:0-1)")
        + line("main", "up", "mixed", "8", "64000", "gpu:a100:2(S:0-1)")
        + line("main", "up", "drained", "16", "64000", "(null)")
        + line("main", "up", "idle*", "32", "64000", "(null)")
        + line("shut", "drain", "idle", "8", "64000", "(null)")
        + line("cpu", "up", "allocated", "4", "8000", "(null)")
    )
    found = partitions.parse(text)
    assert found == (
        partitions.Kind("main", Resources(8_000, 64_000, 2_000, "a100")),
        partitions.Kind("cpu", Resources(4_000, 8_000)),
    )
    assert [offer.name for offer in partitions.offered(found, "")] == ["main", "cpu"]
    assert [offer.name for offer in partitions.offered(found, "cpu")] == ["cpu"]
    assert [o.name for o in partitions.offered((*found, found[1]), "cpu")] == ["cpu", "cpu@1"]
