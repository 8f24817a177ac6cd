"""The file of a control plane's host that says what pools may use of it."""

import os
import re
from pathlib import Path

import pytest

from holdfast.adapters.providers import found
from holdfast.adapters.providers.found import OURS
from holdfast.adapters.providers.profiles import Profile, check_free, settled
from holdfast.adapters.providers.ssh.hosts import read_hosts
from holdfast.files.problem import FileProblem
from holdfast.files.provider_profiles.profiles_file import HostFile, ProviderFile, parsed
from holdfast.files.workload.workload_file import documents
from holdfast.model.pool import Pool
from holdfast.ports.errors import Denied

FILE = """\
profiles:
  cluster:
    provider: slurm
    settings: { root: /home/me/holdfast, bin: /opt/slurm/bin, time: 4h }
  lab:
    provider: ssh
    settings: { key_file: /etc/holdfast/lab_key }
telemetry: [http://prometheus:9090]
"""
OLDER = "profiles: { cluster: { provider: slurm, settings: { root: /home/me/holdfast } } }\n"


def put(path: Path, text: str = FILE, mode: int = 0o644) -> Path:
    fresh = path.with_suffix(".new")
    fresh.write_text(text)
    fresh.chmod(mode)
    fresh.replace(path)
    return path


def opened(path: Path, *, must_be: bool = True) -> tuple[ProviderFile, list[FileProblem]]:
    told: list[FileProblem] = []
    return ProviderFile(path, told.append, must_be=must_be), told


def refusal(path: Path) -> str:
    with pytest.raises(FileProblem) as refused:
        opened(path)
    return str(refused.value)


def test_profiles_and_addresses_are_read(tmp_path: Path) -> None:
    file, _ = opened(put(tmp_path / "providers.yaml"))
    assert file.now.profiles["lab"] == Profile("ssh", {"key_file": "/etc/holdfast/lab_key"})
    assert file.now.profiles["cluster"].settings["time"] == "4h"
    assert file.now.telemetry == ("http://prometheus:9090",)


def test_a_file_that_nobody_named_may_be_missing_and_one_that_somebody_named_may_not(tmp_path: Path) -> None:
    file, _ = opened(tmp_path / "providers.yaml", must_be=False)
    assert file.now == HostFile()
    put(tmp_path / "providers.yaml")
    assert "lab" in file.now.profiles, "it came later"
    assert "there is no such file" in refusal(tmp_path / "other.yaml")


def test_a_change_holds_without_a_restart_and_so_does_the_end_of_it(tmp_path: Path) -> None:
    file, told = opened(put(tmp_path / "providers.yaml", OLDER))
    assert list(file.now.profiles) == ["cluster"]
    put(tmp_path / "providers.yaml")
    assert sorted(file.now.profiles) == ["cluster", "lab"]
    (tmp_path / "providers.yaml").unlink()
    assert file.now == HostFile()
    assert told == []


def test_a_change_that_cannot_be_used_is_told_once_and_what_was_read_before_holds(tmp_path: Path) -> None:
    file, told = opened(put(tmp_path / "providers.yaml"))
    put(tmp_path / "providers.yaml", FILE.replace("slurm", "slorm"))
    assert [sorted(file.now.profiles) for _ in range(3)] == [["cluster", "lab"]] * 3
    (problem,) = told
    assert "profiles.cluster.provider" in str(problem)
    assert "Did you mean: slurm" in str(problem)


@pytest.mark.parametrize("mode", [0o664, 0o646, 0o666])
def test_a_file_that_others_can_write_is_not_used(tmp_path: Path, mode: int) -> None:
    """Whoever can write it can run programs as the control plane's user."""
    path = put(tmp_path / "providers.yaml", mode=mode)
    assert f"got mode {mode:04o}" in refusal(path)
    assert f"chmod go-w {path}" in refusal(path)
    path.chmod(0o644)
    file, told = opened(path)
    path.chmod(mode)
    assert file.now.profiles, "those read before hold"
    assert len(told) == 1


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_a_file_of_another_user_is_not_used(tmp_path: Path) -> None:
    path = put(tmp_path / "providers.yaml")
    os.chown(path, 65_534, 65_534)
    assert "got one of user 65534" in refusal(path)


def test_what_is_no_file_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe", 0o600)
    assert "expected a file" in refusal(tmp_path / "pipe")
    assert "expected a file" in refusal(tmp_path)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "got an empty file"),
        ("- a", "expected fields such as profiles"),
        ("profile: {}", "Did you mean: profiles"),
        ("profiles: { a b: { provider: ssh } }", "a name of letters"),
        ("profiles: { a: {} }", "profiles.a.provider"),
        ("profiles: { a: { provider: slurm, settings: { bin: relative } } }", "profiles.a.settings.bin"),
        ("profiles: { a: { provider: slurm, settings: { bni: /x } } }", "Did you mean: bin"),
        ("profiles: { a: { provider: slurm, settings: { inherit_env: HOLDFAST_TOKEN } } }", "inherit_env"),
        ("telemetry: [prometheus]", "telemetry: expected a list of addresses"),
        (f"{OLDER}---\n{OLDER}", "expected one document, got 2"),
    ],
)
def test_mistakes_are_told_with_their_place(text: str, told: str) -> None:
    with pytest.raises(FileProblem) as wrong:
        parsed(text, "providers.yaml")
    assert told in str(wrong.value)


# what a pool gets of it

PROFILES = parsed(FILE, "providers.yaml").profiles


def pool(provider: str = "slurm", profile: str = "cluster", **settings: str) -> Pool:
    return Pool("p", provider, (), settings=settings, profile=profile)


def test_a_pool_has_its_own_settings_and_those_of_its_profile() -> None:
    assert settled(pool(account="me"), PROFILES).settings == {
        "account": "me",
        "root": "/home/me/holdfast",
        "bin": "/opt/slurm/bin",
        "time": "4h",
    }
    assert settled(pool(profile="", account="me"), PROFILES).settings == {"account": "me"}


def test_what_the_profile_says_holds_and_a_new_pool_may_not_say_it_too() -> None:
    both = pool(time="9h")
    assert settled(both, PROFILES).settings["time"] == "4h"
    with pytest.raises(Denied, match=r"settings\.time: the provider profile cluster says it already"):
        check_free(both, PROFILES)
    check_free(pool(account="me"), PROFILES)
    check_free(pool(profile=""), PROFILES)


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("clusetr", "there is no provider profile clusetr .*did you mean cluster"),
        ("x", "there is: cluster, lab"),
        ("lab", "the provider profile lab is for pools of ssh, not of slurm"),
    ],
)
def test_a_profile_that_a_pool_cannot_have_is_told_with_those_there_are(name: str, told: str) -> None:
    with pytest.raises(Denied, match=told):
        settled(pool(profile=name), PROFILES)


def test_a_file_of_workloads_leaves_to_the_profile_what_only_it_can_say() -> None:
    text = "kind: pool\nname: p\nprovider: slurm\nmax: 1\nsettings: { account: me }\n"
    (read,) = documents(f"{text}profile: cluster\n", "pool.yaml")
    assert isinstance(read, Pool)
    assert read.profile == "cluster"
    with pytest.raises(FileProblem) as wrong:
        documents(text, "pool.yaml")
    assert "settings.root: expected a provider profile that says it" in str(wrong.value)
    assert "providers.yaml" in str(wrong.value)


def test_machines_over_ssh_have_the_key_of_their_profile() -> None:
    text = "kind: pool\nname: p\nprovider: ssh\nprofile: lab\nhosts: [{ name: a }, { name: b }]\n"
    (read,) = documents(text, "pool.yaml")
    assert isinstance(read, Pool)
    hosts = read_hosts(settled(read, PROFILES).settings)
    assert [host.key_file for host in hosts] == ["/etc/holdfast/lab_key"] * 2


@pytest.mark.parametrize("provider", OURS)
def test_each_of_our_providers_declares_what_it_takes(provider: str) -> None:
    """Of one that does not, every setting counts as one of the host."""
    assert found.of_host(provider, {"nothing": "x"}) == {}


# what the guides have their readers write

DOCS = Path(__file__).resolve().parents[2] / "docs"
GUIDES = ("slurm-pool", "burst-from-slurm-to-ec2", "ec2-pool", "three-machines-with-postgresql")


@pytest.mark.parametrize("guide", GUIDES)
def test_the_profiles_of_a_guide_are_what_its_pools_need(guide: str) -> None:
    text = (DOCS / "how-to" / f"{guide}.md").read_text(encoding="utf-8")
    (written,) = re.findall(r"providers\.yaml\) <<'END'[^\n]*\n(.*?)^END$", text, re.DOTALL | re.MULTILINE)
    profiles = parsed(written, "providers.yaml").profiles
    blocks = re.findall(r"^```yaml\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    wanted = [each for block in blocks if "kind: pool" in block for each in documents(block, guide)]
    pools = [each for each in wanted if isinstance(each, Pool)]
    assert {pool.profile for pool in pools} - {""} <= profiles.keys()
    for each in pools:
        check_free(each, profiles)
        assert found.of_host(each.provider, each.settings) == {}
        whole = settled(each, profiles).settings
        assert found.wrong_settings(each.provider, whole, [offer.name for offer in each.offers]) == []


def test_the_reference_has_profiles_that_can_be_read() -> None:
    text = (DOCS / "reference" / "provider-profiles.md").read_text(encoding="utf-8")
    (written,) = re.findall(r"^```yaml\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    assert sorted(parsed(written, "providers.yaml").profiles) == ["cluster", "lab"]
