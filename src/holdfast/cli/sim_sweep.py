"""`holdfast sim sweep`: many random stories, in search of one that ends badly."""

from typing import TYPE_CHECKING, Annotated

import typer

from holdfast.cli import say
from holdfast.cli.options import Jobs, Json, PolicyFile

if TYPE_CHECKING:
    from holdfast.sim.sweep import SweepResult


def sweep(
    seeds: Annotated[int, typer.Option(metavar="N", min=1, max=10_000_000, help="How many stories.")] = 20,
    first_seed: Annotated[
        int, typer.Option(metavar="N", min=0, max=2**53, help="The seed of the first.")
    ] = 1,
    nodes: Annotated[int, typer.Option(metavar="N", min=1, max=20_000, help="Nodes in each.")] = 50,
    hours: Annotated[
        float, typer.Option(metavar="H", min=0.1, max=10_000, help="Simulated hours of each.")
    ] = 2.0,
    jobs: Jobs = 0,
    policy: PolicyFile = None,
    json: Json = False,
) -> None:
    """Run many random stories. Exit 1 when one of them broke safety or liveness."""
    from functools import partial

    from holdfast.cli.progress import progress
    from holdfast.sim.sweep import sweep as run_all

    numbers = say.read_policy(policy, json_too=json)
    done = [0]
    with progress(lambda: done[0], seeds, "stories"):
        result = run_all(seeds, first_seed, nodes, hours, jobs, numbers, partial(done.__setitem__, 0))
    if json:
        from msgspec import to_builtins

        say.as_json({**to_builtins(result), "fine": result.fine})
    else:
        print(tell(result, f"--nodes {nodes} --hours {hours:g}" + (f" --policy {policy}" if policy else "")))
    if not result.fine:
        raise typer.Exit(say.FAILED)


def tell(result: "SweepResult", options: str) -> str:
    lines = [
        f"{result.seeds} stories, {result.sim_node_hours:,.0f} node-hours simulated in {result.seconds:g} s",
        f"nodes called dead wrongly: {result.false_failovers}",
        "safety    " + (f"BROKEN {result.violations} times" if result.violations else "kept"),
        "liveness  " + (f"NOT MET in {result.failed_liveness} stories" if result.failed_liveness else "met"),
    ]
    if result.unsettled:
        lines.append(f"{result.unsettled} stories ended too soon to ask for liveness: give them more --hours")
    for failure in result.failures:
        lines += ["", f"seed {failure.seed} failed:", *(f"  {what}" for what in failure.what)]
        lines.append(f"again: holdfast sim sweep --seeds 1 --first-seed {failure.seed} {options}")
        if failure.story:
            lines += ["the smallest story found that still fails:", failure.story.rstrip()]
    return "\n".join(lines)
