"""What pools may have of the control plane's own host: real control planes, and those who would have it run
their program, send its credentials to them, or be a node."""

import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from holdfast import wiring
from holdfast.ports.registry import Role, Token
from holdfast.wire.identity import hashed
from holdfast.wiring import CannotStart, Settings
from tests import planes
from tests.planes import PATIENCE_S, until
from tests.prometheus_twin import PrometheusTwin

LOCAL = "kind: pool\nname: mine\nprovider: local\nmax: 1\ncpus: 1\nmemory: 1GiB\n"
EVIL = '#!/bin/sh\necho "$0 $AWS_SECRET_ACCESS_KEY" >> {marker}\n'


class Host:
    """A control plane with tokens, and a client for each role."""

    def __init__(self, url: str, stack: dict[Role, httpx.AsyncClient]) -> None:
        self.url, self.clients = url, stack

    async def send(self, role: Role, path: str, text: str, status: int) -> Any:
        answer = await self.clients[role].post(
            path, content=text, headers={"content-type": "application/yaml"}
        )
        assert answer.status_code == status, answer.text
        return answer.json()


@asynccontextmanager
async def host(state: Path, **settings: Any) -> AsyncIterator[Host]:
    made = Settings(state, port=0, leader_ttl_ms=planes.LEADER_TTL_MS, **settings)
    async with wiring.control_plane(made) as plane:
        await until(lambda: plane.leading)
        clients = {}
        for role in (Role.READ, Role.OPERATOR, Role.ADMIN):
            await plane.registry.add(Token(f"id-{role}", hashed(f"a {role}"), role))
            headers = {"authorization": f"Bearer a {role}"}
            clients[role] = httpx.AsyncClient(base_url=plane.url, headers=headers, timeout=60)
        try:
            yield Host(plane.url, clients)
        finally:
            for client in clients.values():
                await client.aclose()


def script(folder: Path, marker: Path) -> Path:
    """Slurm's commands, as somebody of the same machine would put them down."""
    folder.mkdir()
    for name in ("sinfo", "squeue", "sbatch", "scancel"):
        (folder / name).write_text(EVIL.format(marker=marker))
        (folder / name).chmod(0o755)
    return folder


def slurm(root: Path, **settings: str) -> str:
    text = json.dumps({"root": str(root), **settings})
    return f"kind: pool\nname: theirs\nprovider: slurm\nmax: 1\nsettings: {text}\n"


async def test_nobody_has_the_host_run_a_program_by_a_plan_or_a_pool(tmp_path: Path) -> None:
    """A read token did."""
    marker = tmp_path / "ran"
    text = slurm(tmp_path, bin=str(script(tmp_path / "evil", marker)))
    async with host(tmp_path / "state") as there:
        for path in ("/v1/plan", "/v1/apply"):
            for role in (Role.READ, Role.OPERATOR):
                await there.send(role, path, text, 403)
        planned = await there.send(Role.ADMIN, "/v1/plan", text, 200)
        assert "would be refused: settings.root names something" in planned["changes"][0]
        refused = await there.send(Role.ADMIN, "/v1/apply", text, 409)
        assert "settings.bin names something of the control plane's host" in str(refused["problems"])
    assert not marker.exists()


async def test_a_profile_that_is_written_while_it_runs_is_used_by_the_next_pool(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And what it has run finds no secret of the control plane."""
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret-of-the-cloud")
    marker = tmp_path / "ran"
    settings = {"root": str(tmp_path / "shared"), "bin": str(script(tmp_path / "bin", marker))}
    text = "kind: pool\nname: ours\nprovider: slurm\nprofile: cluster\nmax: 1\n"
    async with host(tmp_path / "state") as there:
        refused = await there.send(Role.ADMIN, "/v1/apply", text, 409)
        assert "there is no provider profile cluster" in refused["problems"][0]
        file = tmp_path / "state" / "providers.yaml"
        file.write_text(json.dumps({"profiles": {"cluster": {"provider": "slurm", "settings": settings}}}))
        file.chmod(0o600)
        again = text + "settings: { bin: /x }\n"
        assert "settings.bin" in str(await there.send(Role.ADMIN, "/v1/apply", again, 409))
        planned = await there.send(Role.ADMIN, "/v1/plan", text, 200)
        assert "its provider was not contacted" in planned["changes"][0]
        assert not marker.exists()
        await there.send(Role.ADMIN, "/v1/apply", text, 200)
        await until(marker.exists, PATIENCE_S)
    ran = marker.read_text()
    assert f"{tmp_path}/bin/sinfo" in ran
    assert "secret-of-the-cloud" not in ran


async def test_nobody_has_the_host_send_its_credentials_to_an_address_of_theirs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIATEST")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret-of-the-cloud")
    monkeypatch.setenv("AWS_SESSION_TOKEN", "canary")
    async with PrometheusTwin().serving() as theirs, host(tmp_path / "state") as there:
        settings = f"regions: us-east-1, image: ami-1, install: x, endpoint_url: '{theirs.url}/internal'"
        text = f"kind: pool\nname: theirs\nprovider: ec2\nmax: 1\nsettings: {{ {settings} }}\n"
        for path in ("/v1/plan", "/v1/apply"):
            for role in (Role.READ, Role.OPERATOR):
                await there.send(role, path, text, 403)
        await there.send(Role.ADMIN, "/v1/plan", text, 200)
        refused = await there.send(Role.ADMIN, "/v1/apply", text, 409)
        assert "settings.endpoint_url names something of the control plane's host" in refused["problems"][0]
        assert theirs.connections == 0


async def test_a_host_is_no_node_of_its_own_unless_it_was_told_to_be(tmp_path: Path) -> None:
    async with host(tmp_path / "state") as there:
        await there.send(Role.OPERATOR, "/v1/apply", LOCAL, 403)
        refused = await there.send(Role.ADMIN, "/v1/apply", LOCAL, 409)
        assert "holdfast serve --allow-local" in refused["problems"][0]
        planned = await there.send(Role.ADMIN, "/v1/plan", LOCAL, 200)
        assert "would be refused: local nodes run on the control plane's own host" in planned["changes"][0]
    async with host(tmp_path / "other", allow_local=True) as there:
        await there.send(Role.OPERATOR, "/v1/apply", LOCAL, 403)
        await there.send(Role.ADMIN, "/v1/apply", LOCAL, 200)
    async with host(tmp_path / "other") as there:
        one = LOCAL.replace("max: 1", "min: 1\nmax: 1")
        assert (await there.send(Role.ADMIN, "/v1/apply", LOCAL, 200))[0]["outcome"] == "unchanged"
        await there.send(Role.ADMIN, "/v1/apply", one, 409)


@pytest.mark.parametrize("mode", [0o666, 0o620])
async def test_a_control_plane_does_not_start_with_profiles_that_others_can_write(
    tmp_path: Path, mode: int
) -> None:
    file = tmp_path / "profiles.yaml"
    file.write_text("profiles: {}\n")
    os.chmod(file, mode)
    with pytest.raises(CannotStart, match="only its owner can write"):
        async with host(tmp_path / "state", provider_profiles=file):
            pass
    with pytest.raises(CannotStart, match="there is no such file"):
        async with host(tmp_path / "state", provider_profiles=tmp_path / "none.yaml"):
            pass
