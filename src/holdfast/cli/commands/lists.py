"""`holdfast nodes`, `workloads`, `replicas`, `pools`, `offers` and `spend`: what there is and what it costs,
in tables; one of them in detail."""

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from holdfast.cli import completion, output
from holdfast.cli.client.with_client import talks
from holdfast.cli.options import Json

if TYPE_CHECKING:
    from rich.console import RenderableType

    from holdfast.cli.client.http import Client

NodeName = Annotated[
    str, typer.Argument(metavar="[NAME]", help="Only this one, in detail.", autocompletion=completion.nodes)
]
WorkloadName = Annotated[
    str,
    typer.Argument(metavar="[NAME]", help="Only this one, in detail.", autocompletion=completion.workloads),
]
OfWorkload = Annotated[
    str,
    typer.Option(
        "--workload", metavar="NAME", help="Only of this workload.", autocompletion=completion.workloads
    ),
]
OnNode = Annotated[
    str, typer.Option("--node", metavar="NAME", help="Only on this node.", autocompletion=completion.nodes)
]


@talks
def nodes(api: "Client", name: NodeName = "", json: Json = False) -> None:
    """List the nodes, or show one."""
    body = api.get(f"/v1/nodes/{_path(name)}" if name else "/v1/nodes")
    if json:
        output.raw(body)
        return
    from holdfast.api.shapes import Node
    from holdfast.cli.client import http
    from holdfast.cli.render import theme
    from holdfast.cli.render.tables import fleet

    if name:
        theme.show(fleet.node_facts(http.read(body, Node)))
        return
    found = sorted(http.read(body, list[Node]), key=lambda node: theme.natural(node.name))
    theme.show(fleet.nodes(found, bars=sys.stdout.isatty()) if found else "no nodes")


@talks
def workloads(api: "Client", name: WorkloadName = "", json: Json = False) -> None:
    """List the workloads, or show one with its slots."""
    body = api.get(f"/v1/workloads/{_path(name)}" if name else "/v1/workloads")
    if json:
        output.raw(body)
        return
    from rich.console import Group

    from holdfast.api.shapes import Workload
    from holdfast.cli.client import http
    from holdfast.cli.render import theme
    from holdfast.cli.render.tables import fleet

    if name:
        one = http.read(body, Workload)
        theme.show(Group(fleet.workload_facts(one), "", fleet.seat_rows(one)))
        return
    found = http.read(body, list[Workload])
    theme.show(fleet.workloads(found) if found else "no workloads")


@talks
def replicas(api: "Client", workload: OfWorkload = "", node: OnNode = "", json: Json = False) -> None:
    """List the replicas: what runs where."""
    from holdfast.api.shapes import Replica
    from holdfast.cli.client import http
    from holdfast.cli.render import theme
    from holdfast.cli.render.tables import fleet

    body = api.get("/v1/replicas", workload=workload, node=node)
    found = sorted(http.read(body, list[Replica]), key=lambda replica: theme.natural(replica.id))
    if not found:
        _must_exist(api, workloads=workload, nodes=node)
    if json:
        output.raw(body)
        return
    theme.show(fleet.replicas(found) if found else "no replicas")


def _must_exist(api: "Client", **names: str) -> None:
    """None of something that does not exist is no answer but a mistake."""
    for kind, name in names.items():
        if name:
            api.get(f"/v1/{kind}/{_path(name)}")


@talks
def pools(api: "Client", json: Json = False) -> None:
    """List the pools: where nodes come from."""
    body = api.get("/v1/pools")
    if json:
        output.raw(body)
        return
    from holdfast.api.shapes import Pool
    from holdfast.cli.client import http
    from holdfast.cli.render import theme
    from holdfast.cli.render.tables import fleet

    found = http.read(body, list[Pool])
    theme.show(fleet.pools(found) if found else "no pools")


@talks
def offers(
    api: "Client",
    pool: Annotated[
        str,
        typer.Argument(metavar="[POOL]", help="Only of this pool.", autocompletion=completion.pools),
    ] = "",
    json: Json = False,
) -> None:
    """List the offers: what can be had, and what to expect of it. The price of an hour, and of a useful one
    with failures and losses counted; the chance that a launch now comes up, how soon, and that it lasts a
    day. Launches are decided by these; `holdfast explain offer POOL/OFFER` says why."""
    import msgspec

    from holdfast.api.shapes import OfferListed, Pool
    from holdfast.cli.client import http
    from holdfast.cli.render import theme
    from holdfast.cli.render.tables import market

    body = api.get("/v1/offers")
    found = [one for one in http.read(body, list[OfferListed]) if pool in ("", one.pool)]
    if pool and not found:
        known = [one.name for one in http.read(api.get("/v1/pools"), list[Pool])]
        if pool not in known:
            from holdfast.core.spelling import did_you_mean

            output.fail([f"there is no pool called {pool}"], did_you_mean(pool, known))
    if json:
        output.raw(body if not pool else msgspec.json.encode(found))
        return
    theme.show(market.offers(found) if found else "no offers")


@talks
def spend(api: "Client", json: Json = False) -> None:
    """Say what the fleet costs. Now, this month and since ever; the budgets, and how long the money lasts."""
    body = api.get("/v1/spend")
    if json:
        output.raw(body)
        return
    from rich.console import Group
    from rich.text import Text

    from holdfast.api.shapes import Spending
    from holdfast.cli.client import http
    from holdfast.cli.render import theme
    from holdfast.cli.render.tables import market

    found = http.read(body, Spending)
    parts: list[RenderableType] = [market.spend(found), *([""] if found.told else [])]
    parts += [Text(theme.hanging("- ", text, theme.width())) for text in found.told]
    theme.show(Group(*parts))


@talks
def projects(api: "Client", json: Json = False) -> None:
    """List the projects: what they take, and their quotas."""
    body = api.get("/v1/projects")
    if json:
        output.raw(body)
        return
    from holdfast.api.shapes import Project
    from holdfast.cli.client import http
    from holdfast.cli.render import theme
    from holdfast.cli.render.tables import fleet

    found = http.read(body, list[Project])
    theme.show(fleet.projects(found) if found else "no projects")


def _path(name: str) -> str:
    from urllib.parse import quote

    return quote(name, safe="")
