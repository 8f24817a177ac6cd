"""Work that is started again, or as it was, over real HTTP; and what is applied, as a file says it."""

from holdfast.api.access import Access
from holdfast.files.workload import workload_file as workload_file
from holdfast.ports.registry import Role
from tests.served import TESTER, WEB, YAML, answered, served

SECRET = WEB + "env: { PASSWORD: 'a: secret' }\n"


async def test_what_is_applied_is_given_as_a_file_that_changes_nothing() -> None:
    async with served("n1") as api:
        await api.apply(SECRET)
        spec = await api.get("/v1/workloads/web/spec")
        (wanted,) = workload_file.documents(spec["file"], "it")
        assert wanted == api.plane.world.workloads["web"]
        assert (await api.apply(spec["file"]))[0]["outcome"] == "unchanged"
        again = await api.client.post("/v1/apply", json=spec["fields"])
        assert again.json()[0]["outcome"] == "unchanged"
        assert spec["fields"]["env"] == {"PASSWORD": "a: secret"}
        missing = await api.client.get("/v1/workloads/wbe/spec")
        assert (missing.status_code, missing.json()["hint"]) == (404, "Did you mean: web")


async def test_the_values_of_an_environment_take_an_operator() -> None:
    async with served(access=Access()) as api:
        await api.client.post("/v1/apply", content=SECRET, headers={**YAML, **await api.token(Role.ADMIN)})
        path = "/v1/workloads/web"
        reader, operator = await api.token(Role.READ), await api.token(Role.OPERATOR)
        assert (await api.client.get(f"{path}/spec", headers=reader)).status_code == 403
        for open_to_all in (path, f"{path}/versions", "/v1/events"):
            answer = await api.client.get(open_to_all, headers=reader)
            assert (answer.status_code, "secret" in answer.text) == (200, False)
        assert (await api.client.get(f"{path}/spec", headers=operator)).status_code == 200


async def test_a_rollback_is_a_new_version_and_history_says_of_whom() -> None:
    async with served("n1") as api:
        await api.apply(WEB)
        nothing = await api.client.post("/v1/workloads/web/rollback")
        assert answered(nothing, 409)["detail"] == "web has no earlier version"
        await api.apply(WEB + "env: { MODE: new }\n")
        answer = (await api.client.post("/v1/workloads/web/rollback", json={"version": 1})).json()
        assert (answer["version"], answer["outcome"]) == (3, "changed")
        assert answer["changes"] == ["rolled back to version 1", "environment variable MODE removed"]
        same = (await api.client.post("/v1/workloads/web/rollback", json={"version": 3})).json()
        assert (same["outcome"], same["changes"]) == ("unchanged", [])
        versions = await api.get("/v1/workloads/web/versions")
        assert [(v["version"], v["changes"]) for v in versions] == [
            (1, []),
            (2, ["environment variable MODE added"]),
            (3, ["environment variable MODE removed"]),
        ]
        assert [v["until_ms"] is None for v in versions] == [False, False, True]
        lines = [line for line in await api.get("/v1/events?workload=web") if line["kind"] == "user"]
        assert lines[-1]["text"].startswith("applied, version 3: rolled back to version 1, ")
        assert lines[-1]["actor"] == TESTER


async def test_a_restart_and_a_retry_are_told_and_refused_where_there_is_nothing_to_do() -> None:
    async with served("n1") as api:
        await api.apply(WEB)
        retried = await api.client.post("/v1/workloads/web/retry")
        assert answered(retried, 409)["detail"] == "nothing of web has failed"
        assert retried.json()["hint"] == "to run it once more: holdfast restart web"
        restarted = (await api.client.post("/v1/workloads/web/restart")).json()
        assert (restarted["version"], restarted["changes"]) == (2, ["restarted"])
        lines = [line for line in await api.get("/v1/events?workload=web") if line["kind"] == "user"]
        assert (lines[-1]["text"], lines[-1]["actor"]) == ("restarted", TESTER)
        await api.client.post("/v1/workloads/web/pause")
        for order in ("retry", "restart"):
            refused = await api.client.post(f"/v1/workloads/web/{order}")
            assert answered(refused, 409)["hint"] == "holdfast resume web"
            assert (await api.client.post(f"/v1/workloads/nobody/{order}")).status_code == 404
