"""`holdfast sim sweep`: many random stories, in search of one that ends badly."""

from typing import TYPE_CHECKING, Annotated

import typer

from holdfast.cli import output
from holdfast.cli.options import Jobs, Json, PolicyFile

if TYPE_CHECKING:
    from holdfast.sim.random.sweep import Range, SweepResult


def sweep(
    seeds: Annotated[int, typer.Option(metavar="N", min=1, max=10_000_000, help="How many stories.")] = 20,
    first_seed: Annotated[
        int, typer.Option(metavar="N", min=0, max=2**53, help="The seed of the first.")
    ] = 1,
    nodes: Annotated[str, typer.Option(metavar="N[..N]", help="Nodes in each; 3..200: it differs.")] = "50",
    hours: Annotated[
        str, typer.Option(metavar="H[..H]", help="Simulated hours of each; 0.5..6: it differs.")
    ] = "2",
    jobs: Jobs = 0,
    policy: PolicyFile = None,
    json: Json = False,
) -> None:
    """Run many random stories. Exit 1 when one of them broke safety or liveness.

    For a night: --seeds 3000 --nodes 3..200 --hours 0.5..6, with a --first-seed of its own."""
    from functools import partial

    from holdfast.cli.render.progress import progress
    from holdfast.sim.random.sweep import sweep as run_all

    sizes, lengths = between("--nodes", nodes, 1, 20_000, whole=True), between("--hours", hours, 0.1, 10_000)
    numbers = output.read_policy(policy, json_too=json)
    done = [0]
    with progress(lambda: done[0], seeds, "stories"):
        result = run_all(seeds, first_seed, sizes, lengths, jobs, numbers, partial(done.__setitem__, 0))
    if json:
        from msgspec import to_builtins

        output.as_json({**to_builtins(result), "fine": result.fine})
    else:
        print(tell(result, f" --policy {policy}" if policy else ""))
    if not result.fine:
        raise typer.Exit(output.FAILED)


def between(option: str, told: str, least: float, most: float, *, whole: bool = False) -> "Range":
    """`50`, or `3..200`."""
    from holdfast.sim.random.sweep import Range

    first, dots, last = told.partition("..")
    number = int if whole else float
    try:
        low, high = number(first), number(last if dots else first)
    except ValueError:
        low = high = number(0)
    if not least <= low <= high <= most:  # nor is what is no number
        raise typer.BadParameter(
            f"expected a number from {least:g} to {most:,g}, or two such as 3..200, got {told!r}",
            param_hint=option,
        )
    return Range(low, high)


def tell(result: "SweepResult", options: str = "") -> str:
    lines = [
        f"{result.seeds} stories, {result.sim_node_hours:,.0f} node-hours simulated in {result.seconds:g} s",
        f"nodes called dead wrongly: {result.false_failovers}",
        "safety    " + (f"BROKEN {result.violations} times" if result.violations else "kept"),
        "liveness  " + (f"NOT MET in {result.failed_liveness} stories" if result.failed_liveness else "met"),
    ]
    if result.unsettled:
        lines.append(f"{result.unsettled} stories ended too soon to ask for liveness: give them more --hours")
    for failure in result.failures:
        size = f"--nodes {failure.nodes} --hours {failure.hours:g}{options}"
        lines += ["", f"seed {failure.seed} failed:", *(f"  {what}" for what in failure.what)]
        lines.append(f"again: holdfast sim sweep --seeds 1 --first-seed {failure.seed} {size}")
        if failure.story:
            lines += ["the smallest story found that still fails:", failure.story.rstrip()]
    return "\n".join(lines)
