"""What a machine has, read from files like those that Linux shows."""

import os
from pathlib import Path

import pytest

from holdfast.agent import machine_facts
from holdfast.agent.machine_facts import host_name, kind_of, memory_mib, processors_milli, resources
from holdfast.model.resources import Resources

ALL = 1000 * len(os.sched_getaffinity(0))


def write(root: Path, **files: str) -> None:
    """`proc__meminfo` is proc/meminfo, and so on."""
    for name, text in files.items():
        path = root / name.replace("__", "/").replace("_dot_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def test_without_limits_a_node_has_the_whole_machine(tmp_path: Path) -> None:
    write(tmp_path, proc__meminfo="MemTotal:       16384000 kB\nMemFree: 1 kB\n", proc__self__cgroup="0::/\n")
    assert memory_mib(tmp_path) == 16_000
    assert processors_milli(tmp_path) == ALL


def test_the_narrowest_limit_of_the_groups_around_us_counts(tmp_path: Path) -> None:
    write(
        tmp_path,
        proc__meminfo="MemTotal:       16384000 kB\n",
        proc__self__cgroup="0::/pod/box\n",
        sys__fs__cgroup__pod__box__memory_dot_max="max\n",
        sys__fs__cgroup__pod__memory_dot_max=f"{512 << 20}\n",
        sys__fs__cgroup__pod__box__cpu_dot_max="50000 100000\n",
        sys__fs__cgroup__pod__cpu_dot_max="max 100000\n",
    )
    assert memory_mib(tmp_path) == 512
    assert processors_milli(tmp_path) == 500


def test_groups_of_the_first_version_count_too(tmp_path: Path) -> None:
    write(
        tmp_path,
        proc__meminfo="MemTotal:       16384000 kB\n",
        proc__self__cgroup="5:memory:/box\n3:cpu,cpuacct:/box\n1:name=systemd:/\n",
        sys__fs__cgroup__memory__box__memory_dot_limit_in_bytes=f"{256 << 20}\n",
        sys__fs__cgroup__cpu__box__cpu_dot_cfs_quota_us="25000\n",
        sys__fs__cgroup__cpu__box__cpu_dot_cfs_period_us="100000\n",
    )
    assert memory_mib(tmp_path) == 256
    assert processors_milli(tmp_path) == 250


def test_no_limit_of_the_first_version_is_no_limit(tmp_path: Path) -> None:
    write(
        tmp_path,
        proc__meminfo="MemTotal:       2048 kB\n",
        proc__self__cgroup="5:memory:/\n3:cpu:/\n\nnonsense\n",
        sys__fs__cgroup__memory__memory_dot_limit_in_bytes="9223372036854771712\n",
        sys__fs__cgroup__cpu__cpu_dot_cfs_quota_us="-1\n",
        sys__fs__cgroup__cpu__cpu_dot_cfs_period_us="100000\n",
    )
    assert memory_mib(tmp_path) == 2
    assert processors_milli(tmp_path) == ALL


def test_this_machine_has_something() -> None:
    found = resources(None, None, 0, "")
    assert found.cpu_milli > 0
    assert found.memory_mib > 100
    assert (found.gpu_milli, found.gpu_kind) == (0, "")


def test_what_was_said_is_not_looked_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert resources(1500, 2048, 2, "h100") == Resources(1500, 2048, 2000, "h100")
    assert resources(1500, 2048, None, "h100") == Resources(1500, 2048, 0, "")


@pytest.mark.parametrize(
    ("model", "kind"),
    [
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("NVIDIA A100-SXM4-80GB", "a100"),
        ("Tesla V100-SXM2-16GB", "v100"),
        ("Tesla T4", "t4"),
        ("NVIDIA GeForce RTX 4090", "rtx4090"),
        ("NVIDIA RTX A6000", "a6000"),
        ("NVIDIA L40S", "l40s"),
        ("NVIDIA GH200 480GB", "gh200"),
        ("Graphics Device", "graphics-device"),
        ("", "gpu"),
    ],
)
def test_the_kind_of_a_gpu_is_the_short_name_that_people_use(model: str, kind: str) -> None:
    assert kind_of(model) == kind


@pytest.mark.parametrize(
    ("models", "found"),
    [
        ("NVIDIA H100 80GB HBM3\nNVIDIA H100 80GB HBM3\n", (2, "h100")),
        ("NVIDIA A100-SXM4-40GB\nTesla T4\nTesla T4\n", (1, "a100")),
        ("", (0, "")),
    ],
)
def test_gpus_that_are_alike_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, models: str, found: tuple[int, str]
) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text(f"#!/bin/sh\nprintf '{models}'\n")
    program.chmod(0o700)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert machine_facts.gpus() == found


def test_a_driver_that_does_not_answer_means_no_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\necho broken\nexit 9\n")
    program.chmod(0o700)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr(machine_facts, "DRIVER", tmp_path / "none")
    assert machine_facts.gpus() == (0, "")


def test_the_driver_s_own_files_will_do_where_its_program_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(
        tmp_path,
        gpus__0__information="Model: \t\t NVIDIA L4\nIRQ: 1\n",
        gpus__1__information="Model: NVIDIA L4\n",
    )
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(machine_facts, "DRIVER", tmp_path / "gpus")
    assert machine_facts.gpus() == (2, "l4")


def test_a_host_has_a_name_that_a_node_may_have() -> None:
    assert host_name()
    assert all(c.isalnum() or c in "-_" for c in host_name())
