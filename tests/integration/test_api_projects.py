"""Projects: what a token with a project sees and may do, and what is not its own is not there."""

from typing import Any

import pytest

from holdfast.api import projects
from holdfast.api.access import Access
from holdfast.api.app import ROUTERS
from holdfast.api.gate import Open
from holdfast.api.problems import Refused
from holdfast.api.projects import Projects
from holdfast.core.state import index
from holdfast.core.workloads import ceilings
from holdfast.model.project import Project
from holdfast.model.replica import Slot
from holdfast.model.resources import Resources
from holdfast.model.workload import Needs, Service, Sweep, Workload
from holdfast.model.world import World
from holdfast.ports.registry import Role, Token
from holdfast.wire.identity import hashed
from tests.planes import until, within
from tests.served import WEB, YAML, Served, answered, bearer, served

THEIRS = "kind: service\nname: secret-thing\nreplicas: 2\ncommand: [serve, theirs]\n"
MINE = "kind: service\nname: web\nreplicas: 1\ncommand: [serve, mine]\n"
JOB = "kind: job\nname: once\ncommand: [run]\n"


async def member(api: Served, project: str, role: Role = Role.OPERATOR) -> dict[str, str]:
    secret = f"{project}-{role}"
    token = Token(f"t-{project}-{role}", hashed(secret), role, note=project, project=project)
    await api.world.registry.add(token)
    return bearer(secret)


async def apply(api: Served, text: str, headers: dict[str, str], status: int = 200) -> Any:
    return answered(await api.client.post("/v1/apply", content=text, headers={**YAML, **headers}), status)


async def two_projects(api: Served) -> tuple[dict[str, str], dict[str, str], dict[str, str]]:
    """An admin; a member of vision, with `web`; and one of sound, with `secret-thing`."""
    admin = await api.token(Role.ADMIN)
    vision, sound = await member(api, "vision"), await member(api, "sound")
    await apply(api, MINE, vision)
    await apply(api, THEIRS, sound)
    world = api.plane.world
    await until(lambda: {r.workload for r in world.replicas.values()} == {"web", "secret-thing"})
    return admin, vision, sound


async def test_a_workload_is_of_the_project_of_the_token_that_applied_it() -> None:
    async with served("n1", access=Access()) as api:
        admin, vision, _ = await two_projects(api)
        found = await api.get("/v1/workloads", headers=admin)
        assert {one["name"]: one["project"] for one in found} == {"web": "vision", "secret-thing": "sound"}
        assert [one["name"] for one in await api.get("/v1/workloads", headers=vision)] == ["web"]
        chosen = {**admin, projects.HEADER: "sound"}
        assert [one["name"] for one in await api.get("/v1/workloads", headers=chosen)] == ["secret-thing"]
        await apply(api, JOB, admin)
        assert api.plane.world.workloads["once"].project == "default"


async def test_a_token_with_a_project_reads_nothing_of_another() -> None:
    async with served("n1", access=Access()) as api:
        _, vision, _ = await two_projects(api)
        replica = next(id for id, r in api.plane.world.replicas.items() if r.workload == "secret-thing")
        for path in (
            *("/v1/status", "/v1/nodes", "/v1/nodes/n1", "/v1/workloads", "/v1/replicas"),
            *("/v1/replicas?node=n1", "/v1/findings", "/v1/events", "/v1/events?since=0", "/v1/pools"),
            *("/v1/events?workload=secret-thing", "/v1/events?node=n1", "/v1/explain/workload?name=web"),
        ):
            answer = await api.client.get(path, headers=vision)
            assert answer.status_code == 200, path
            assert "secret" not in answer.text, path
        for path in (
            "/v1/workloads/secret-thing",
            "/v1/workloads/secret-thing/versions",
            "/v1/workloads/secret-thing/spec",
            "/v1/explain/workload?name=secret-thing",
            f"/v1/explain/replica?name={replica}",
            f"/v1/log?replica={replica}",
        ):
            problem = await api.get(path, 404, headers=vision)
            assert problem["hint"] in ("There is: web", "Did you mean: web") or "web/0" in problem["hint"], (
                path
            )
        assert [one["name"] for one in (await api.get("/v1/status", headers=vision))["nodes"]] == ["n1"]


async def test_a_token_with_a_project_changes_nothing_of_another() -> None:
    async with served("n1", access=Access()) as api:
        _, vision, _ = await two_projects(api)
        before = api.plane.world.workloads["secret-thing"]
        for order in ("pause", "resume", "retry", "restart", "rollback"):
            await api.post(f"/v1/workloads/secret-thing/{order}", status=404, headers=vision)
        await api.post("/v1/workloads/secret-thing/scale", {"count": 0}, 404, headers=vision)
        await api.post("/v1/workloads/secret-thing/signals", {"signals": {"queue": 1}}, 404, headers=vision)
        answered(await api.client.delete("/v1/workloads/secret-thing", headers=vision), 404)
        taken = await apply(api, THEIRS, vision, 409)
        assert taken["detail"] == "the name secret-thing is taken"
        assert "sound" not in str(taken)
        await apply(api, THEIRS + "project: sound\n", vision, 403)
        waits = await apply(api, JOB + "after: [secret-thing]\n", vision, 422)
        assert waits["problems"] == ["once.after: there is no workload secret-thing. There is: web"]
        assert api.plane.world.workloads["secret-thing"] is before


async def test_a_token_with_a_project_orders_nothing_of_the_whole_fleet() -> None:
    async with served("n1", access=Access()) as api:
        _, vision, _ = await two_projects(api)
        for document in ("kind: policy\nleases:\n  lease: 45s\n", "kind: pool\nname: p\nprovider: join\n"):
            answered(await api.client.post("/v1/apply", content=document, headers={**YAML, **vision}), 403)
            answered(await api.client.post("/v1/plan", content=document, headers={**YAML, **vision}), 403)
        for path in ("/v1/spend", "/v1/capacity", "/v1/keys", "/v1/limits", "/metrics", "/v1/keys/report"):
            answered(await api.client.get(path, headers=vision), 403)
        for kind, name in (("node", "n1"), ("pool", "fleet")):
            await api.get(f"/v1/explain/{kind}?name={name}", 403, headers=vision)
        for path in ("/v1/nodes/n1/drain", "/v1/nodes/n1/cordon", "/v1/brake/release"):
            await api.post(path, status=403, headers=vision)
        await api.get("/v1/workloads", 403, headers={**vision, projects.HEADER: "sound"})
        await api.get("/v1/workloads", 422, headers={**vision, projects.HEADER: "no spaces"})


def test_a_new_route_is_closed_to_tokens_with_a_project() -> None:
    names = {route.name for router in ROUTERS for route in router.routes if isinstance(route, Open)}
    assert names >= projects.OPEN, "renamed: it would be closed"


async def test_a_plan_shows_the_steps_of_its_own_project_alone() -> None:
    async with served("n1", access=Access()) as api:
        _, vision, _ = await two_projects(api)
        big = THEIRS.replace("secret-thing", "web").replace("replicas: 2", "replicas: 90")
        found = answered(await api.client.post("/v1/plan", content=big, headers={**YAML, **vision}), 200)
        assert found["steps"]
        assert found["pending"]
        assert "secret" not in str(found)


async def test_the_stream_of_a_project_has_its_own_lines_also_those_after_the_end() -> None:
    async with served("n1", access=Access()) as api:
        _, vision, sound = await two_projects(api)
        stream = {**vision, "accept": "text/event-stream"}
        async with api.client.stream("GET", "/v1/events?since=0", headers=stream) as response:
            text = response.aiter_text()
            seen = ""
            answered(await api.client.delete("/v1/workloads/secret-thing", headers=sound), 200)
            answered(await api.client.delete("/v1/workloads/web", headers=vision), 200)
            while "deleted" not in seen:
                seen += await within(anext(text))
        assert '"subject":"web"' in seen
        assert "secret" not in seen


async def test_a_name_that_another_project_takes_over_does_not_show_what_was_before() -> None:
    async with served("n1", access=Access()) as api:
        _, vision, sound = await two_projects(api)
        answered(await api.client.delete("/v1/workloads/secret-thing", headers=sound), 200)
        await until(lambda: not api.plane.world.held.get("secret-thing"))
        await apply(api, THEIRS.replace("theirs", "mine now"), vision)
        lines = await api.get("/v1/events?workload=secret-thing&limit=1000", headers=vision)
        assert {line["actor"] for line in lines if line["kind"] == "user"} == {"vision"}
        assert sum(line["text"] == "applied, version 1" for line in lines) == 1


async def test_history_of_before_is_of_the_default_project() -> None:
    async with served("n1", access=Access()) as api:
        admin, default = await api.token(Role.ADMIN), await member(api, "default", Role.READ)
        await apply(api, WEB, admin)
        lines = await api.get("/v1/events?limit=1000", headers=default)
        assert {line["workload"] for line in lines if line["kind"] == "user"} == {"web"}


async def test_tokens_of_roles_for_the_whole_fleet_have_no_project() -> None:
    async with served(access=Access()) as api:
        admin = await api.token(Role.ADMIN)
        for role in ("admin", "gateway", "join"):
            await api.post("/v1/tokens", {"role": role, "project": "vision"}, 422, headers=admin)
        made = await api.post("/v1/tokens", {"role": "read", "project": "vision"}, headers=admin)
        (shown,) = [one for one in await api.get("/v1/tokens", headers=admin) if one["id"] == made["id"]]
        assert shown["project"] == "vision"


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        ("preempts db/1.4 of lower priority", "preempts another workload of lower priority"),
        ("waits for db, which failed", "waits for another workload, which failed"),
        ("web/0.1 and db/0", "web/0.1 and another workload"),
        ("db-2 is no workload", "db-2 is no workload"),
        (
            "its room went to gone, and to old/0.3",
            "its room went to another workload, and to another workload",
        ),
        ("left by mine/0.3, of 3/4", "left by mine/0.3, of 3/4"),
    ],
)
def test_names_of_other_projects_are_veiled_in_reasons(text: str, seen: str) -> None:
    world = World()
    for name, project in (("web", "vision"), ("db", "sound")):
        world.workloads[name] = Workload(name, Service(), project=project)
    world.project_of = {"gone": "sound", "mine": "vision"}  # and `old` was of the default project
    assert Projects(world, "vision").veiled(text) == seen
    assert Projects(world, "").veiled(text) == text


QUOTA = "kind: project\nname: vision\ncpus: 2\n"


async def test_a_quota_is_an_admins_and_what_is_beyond_it_waits_and_says_so() -> None:
    async with served("n1", access=Access()) as api:
        admin, operator = await api.token(Role.ADMIN), await api.token(Role.OPERATOR)
        vision = await member(api, "vision")
        for headers in (operator, vision):
            await apply(api, QUOTA, headers, 403)
        (made,) = await apply(api, QUOTA, admin)
        assert (made["kind"], made["outcome"]) == ("project", "created")
        (again,) = await apply(api, QUOTA, admin)
        assert again["outcome"] == "unchanged"
        four = MINE.replace("replicas: 1", "replicas: 4")
        planned = answered(await api.client.post("/v1/plan", content=four, headers={**YAML, **vision}), 200)
        assert len([step for step in planned["steps"] if step["action"] == "PlaceReplica"]) == 2
        assert "the quota of project vision: 2 of 2 cpus are taken" in planned["pending"][0]
        await apply(api, four, vision)
        await until(lambda: len(api.plane.world.replicas) == 2)
        told = await api.get("/v1/explain/workload?name=web", headers=vision)
        assert "quota of project vision" in str(told["because"])
        (shown,) = await api.get("/v1/projects", headers=vision)
        assert (shown["cpu_milli"], shown["cpu_milli_max"], shown["nodes"]) == (2_000, 2_000, 1)
        await apply(api, QUOTA.replace("cpus: 2", "gpus: 8"), admin)
        await until(lambda: len(api.plane.world.replicas) == 4)


async def test_projects_are_listed_with_what_they_take_and_a_member_sees_its_own() -> None:
    async with served("n1", access=Access()) as api:
        admin, vision, _ = await two_projects(api)
        assert [one["name"] for one in await api.get("/v1/projects", headers=admin)] == ["sound", "vision"]
        assert [one["name"] for one in await api.get("/v1/projects", headers=vision)] == ["vision"]


async def test_a_service_takes_no_requests_of_one_of_another_project() -> None:
    """The more specific name wins at the gateways: whoever takes it reads what is asked there."""
    service = "kind: service\nname: {}\ncommand: [serve]\nserves:\n  models: [{}]\n"
    async with served("n1", access=Access()) as api:
        vision, sound = await member(api, "vision"), await member(api, "sound")
        admin = await api.token(Role.ADMIN)
        await apply(api, service.format("chat", '"llama-*"'), sound)
        for headers in (vision, {**admin, projects.HEADER: "vision"}):
            refused = await apply(api, service.format("mine", "llama-70b"), headers, 409)
            assert "chat" not in str(refused)
            assert refused["problems"] == [
                "mine.serves.models: llama-70b is another project's, or a part of what is"
            ]
        await apply(api, service.format("mine", "qwen"), vision)
        changed = service.format("mine", "llama-70b")
        answered(await api.client.post("/v1/plan", content=changed, headers={**YAML, **vision}), 409)
        await apply(api, service.format("chat2", "llama-70b"), sound)


def test_a_name_is_another_projects_until_nothing_of_it_runs() -> None:
    """Else its last lines, and by them its logs, would be of whoever takes the name over."""
    world = World()
    world.project_of, world.held["db"] = {"db": "sound"}, {"db/0": None}
    mine = Workload("db", Service(), project="vision")
    for project, said in (("vision", "the name db is taken"), ("", "still being stopped")):
        with pytest.raises(Refused, match=said):
            projects.check_name(project, world, mine)
    projects.check_name("sound", world, Workload("db", Service(), project="sound"))
    world.held["db"] = {}
    projects.check_name("vision", world, mine)


async def test_a_project_pushes_out_others_no_further_than_its_priority() -> None:
    async with served("n1", access=Access()) as api:
        admin, vision, _ = await two_projects(api)
        await apply(api, "kind: project\nname: vision\npriority: 10\n", admin)
        for headers in (vision, {**admin, projects.HEADER: "vision"}):
            refused = await apply(api, MINE + "priority: 11\n", headers, 403)
            assert "has at most 10" in refused["detail"]
        await apply(api, MINE + "priority: 10\n", vision)
        await apply(api, "kind: project\nname: vision\npriority: 5\n", admin)
        await apply(api, MINE.replace("replicas: 1", "replicas: 2") + "priority: 10\n", vision)
        (shown,) = await api.get("/v1/projects", headers=vision)
        assert shown["priority_max"] == 5


def services(count: int, replicas: int, first: int = 0) -> str:
    made = (f"kind: service\nname: s{first + n}\nreplicas: {replicas}\ncommand: [x]\n" for n in range(count))
    return "---\n".join(made)


async def test_what_would_bring_a_project_over_its_ceiling_is_refused_and_nothing_of_it_is_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ceilings, "USUAL", ceilings.Ceiling(40, 5))
    async with served("n1", access=Access()) as api:
        admin, vision = await api.token(Role.ADMIN), await member(api, "vision")
        problem = await apply(api, services(2, 30), vision, 409)
        assert problem["detail"] == "project vision would have 60 slots, and may have 40"
        assert "kind: project, name: vision, replicas" in problem["hint"]
        answered(await api.client.post("/v1/plan", content=services(2, 30), headers={**YAML, **vision}), 409)
        assert not api.plane.world.workloads
        await apply(api, services(2, 18), vision)
        await api.post("/v1/workloads/s0/scale", {"count": 23}, 409, headers=vision)
        scaled = f"{services(1, 1)}scale: {{max: 30, per_replica: {{queue: 2}}}}\n"
        await apply(api, scaled, vision, 409)
        problem = await apply(api, services(4, 1, first=2), vision, 409)
        assert problem["detail"] == "project vision would have 6 workloads, and may have 5"
        await api.post("/v1/workloads/s0/scale", {"count": 17}, headers=vision)
        await apply(api, "kind: project\nname: vision\nreplicas: 10\nworkloads: 1\n", admin)
        await api.post("/v1/workloads/s0/scale", {"count": 16}, headers=vision)
        for order in ("pause", "resume", "restart"):
            await api.post(f"/v1/workloads/s0/{order}", headers=vision)
        await apply(api, services(1, 17), vision, 409)
        (found,) = [one for one in await api.get("/v1/projects", headers=vision) if one["name"] == "vision"]
        assert (found["replicas"], found["replicas_max"], found["workloads_max"]) == (34, 10, 1)


async def test_seats_of_what_was_deleted_count_until_they_are_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ceilings, "USUAL", ceilings.Ceiling(40, 5))
    async with served(access=Access()) as api:
        vision, world = await member(api, "vision"), api.plane.world
        world.project_of = {"left": "vision"}
        for number in range(30):
            index.put_slot(world, Slot(f"left/{number}", "left", number))
        assert ceilings.Taken(world).seats["vision"] == 30
        await apply(api, services(1, 20), vision, 409)
        world.agenda.note("workload", "left")
        await until(lambda: not world.slots)
        await apply(api, services(1, 20), vision)


async def test_the_fleet_has_a_ceiling_too_and_other_projects_have_their_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ceilings, "USUAL", ceilings.Ceiling(40, 5))
    monkeypatch.setattr(ceilings, "FLEET", ceilings.Ceiling(70, 100))
    async with served(access=Access()) as api:
        vision, sound = await member(api, "vision"), await member(api, "sound")
        await apply(api, services(1, 40), vision)
        problem = await apply(api, services(1, 40, first=1), sound, 409)
        assert problem["detail"] == "the fleet would have 80 slots, and may have 70"
        await apply(api, services(1, 30, first=1), sound)


def test_one_sweep_of_as_many_tasks_as_there_may_be_has_room_in_the_default_project() -> None:
    sweeps = [Workload(name, Sweep(100_000), Needs(Resources())) for name in ("one", "two")]
    ceilings.check(World(), sweeps[:1], {})
    with pytest.raises(ceilings.TooMany):
        ceilings.check(World(), sweeps, {})
    most = Project("default", replicas=250_000)
    ceilings.check(World(), sweeps, {"default": most})
