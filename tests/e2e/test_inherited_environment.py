"""Jobs on local nodes look for the secrets of the control plane that started their node."""

from tests.e2e.live import Ground, until

LOOK = """
kind: job
name: look
command: env > {said}.new; mv {said}.new {said}
cpus: 0.1
memory: 64MiB
"""


def test_a_job_on_a_local_node_finds_no_credentials_of_the_control_plane(ground: Ground) -> None:
    ground.environment |= {"AWS_SECRET_ACCESS_KEY": "secret-1", "PGPASSWORD": "secret-2", "LICENSE": "there"}
    up = ground.up("--nodes", "1", "--inherit-env", "LICENSE")
    said = ground.folder / "environment"
    up.apply_when_led(LOOK.format(said=said))
    found = until(lambda: said.read_text().splitlines() if said.exists() else [], "the job has looked")
    assert not [line for line in found if "secret-" in line]
    assert "LICENSE=there" in found
    assert any(line.startswith("PATH=") for line in found)


def test_a_variable_that_is_none_to_pass_on_is_refused_before_anything_starts(ground: Ground) -> None:
    for name in ("HOLDFAST_TOKEN", "A=b"):
        refused = ground.cli("up", "--inherit-env", name, "--dir", str(ground.folder / "state"))
        assert refused.returncode == 2
        assert f"--inherit-env: {name} is no variable to pass on" in refused.stderr
    assert not (ground.folder / "state").exists()
