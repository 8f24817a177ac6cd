"""Services of different projects claim no requests of one another."""

from typing import Any

import pytest

from holdfast.core.gateway.routing import route_claims
from holdfast.core.state import index
from holdfast.model.workload import Serves, Service, Workload
from holdfast.model.world import World


def service(name: str, project: str, **serves: Any) -> Workload:
    return Workload(name, Service(serves=Serves(**serves)), project=project)


def world_of(*workloads: Workload) -> World:
    world = World()
    for workload in workloads:
        index.put_workload(world, workload)
    return world


def told(there: Workload, new: Workload, *, of_project: bool = True) -> list[str]:
    return list(route_claims.problems(world_of(there), [new], of_project=of_project))


@pytest.mark.parametrize(
    ("theirs", "mine"),
    [
        ({"models": ("llama",)}, {"models": ("llama",)}),
        ({"models": ("llama*",)}, {"models": ("llama-70b",)}),
        ({"models": ("llama-70b",)}, {"models": ("llama*",)}),
        ({"models": ("llama*",)}, {"models": ("llama-70*",)}),
        ({"models": ("llama",)}, {"models": ("*",)}),
        ({"hosts": ("api.example",)}, {"hosts": ("API.example",)}),
        ({"hosts": ("api.example",)}, {"hosts": ("api.example:8443",)}),
        ({"prefixes": ("/api",)}, {"prefixes": ("/api",)}),
        ({"prefixes": ("/api",)}, {"prefixes": ("/api/v1",)}),
        ({"prefixes": ("/api/v1",)}, {"prefixes": ("/api/",)}),
        ({"prefixes": ("/api",)}, {"prefixes": ("/",)}),
        ({"prefixes": ("/api",)}, {"hosts": ("api.example",)}),
        ({"hosts": ("api.example",)}, {"prefixes": ("/api",)}),
    ],
)
def test_what_overlaps_with_the_service_of_another_project_is_refused(
    theirs: dict[str, tuple[str, ...]], mine: dict[str, tuple[str, ...]]
) -> None:
    there = service("secret-name", "a", **theirs)
    found = told(there, service("mine", "b", **mine))
    assert found
    assert "secret-name" not in "".join(found), "and not by whom"
    assert not told(there, service("mine", "a", **mine)), "within a project the more specific one wins"


@pytest.mark.parametrize(
    "mine",
    [
        {"models": ("qwen",)},
        {"models": ("llama-7",)},
        {"prefixes": ("/apis",)},
        {"models": ("lla",)},
    ],
)
def test_what_does_not_overlap_is_let_in(mine: dict[str, tuple[str, ...]]) -> None:
    there = service("chat", "a", models=("llama-70*",), prefixes=("/api",))
    assert not told(there, service("mine", "b", **mine))


def test_the_name_of_a_service_without_models_is_its_model() -> None:
    there = service("chat", "a", models=("llama*",))
    assert told(there, service("llama-70b", "b"))
    assert told(service("chat", "a"), service("mine", "b", models=("chat",)))


def test_hosts_beside_prefixes_are_arranged_by_those_without_a_project() -> None:
    there = service("chat", "a", prefixes=("/api",))
    assert not told(there, service("mine", "b", hosts=("b.example",)), of_project=False)
    assert told(there, service("mine", "b", prefixes=("/api",)), of_project=False)


def test_what_stays_as_it_was_is_let_in_and_two_that_come_together_are_compared() -> None:
    a, b = service("chat", "a", models=("llama",)), service("mine", "b", models=("llama",))
    assert not list(route_claims.problems(world_of(a, b), [b], of_project=True))
    assert list(route_claims.problems(world_of(), [a, b], of_project=False))


def test_a_long_list_is_compared_with_all_others_at_once() -> None:
    """It is done where nodes are heard, so it must not take long."""
    theirs = [service(f"s{n}", "a", models=tuple(f"m{n}-{m}" for m in range(100))) for n in range(100)]
    mine = service("mine", "b", models=tuple(f"x{n}" for n in range(50_000)))
    world = world_of(*theirs)
    compared = 0
    real = route_claims.Claims.have_model

    def counting(claims: route_claims.Claims, model: str) -> bool:
        nonlocal compared
        compared += 1
        return real(claims, model)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(route_claims.Claims, "have_model", counting)
        assert not list(route_claims.problems(world, [mine], of_project=True))
    assert compared == 50_000, "each once, and not with each service"
