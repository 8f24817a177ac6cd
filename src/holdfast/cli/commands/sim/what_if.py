"""`holdfast sim what-if FILE`: the same fleet under several seeds, and what to expect of it."""

from typing import Annotated

import typer

from holdfast.cli import output
from holdfast.cli.options import File, Jobs, Json, Picture, PolicyFile


def what_if(
    file: File,
    seeds: Annotated[
        int, typer.Option(metavar="N", min=1, max=100_000, help="How many times, each with its own luck.")
    ] = 5,
    policy: PolicyFile = None,
    picture: Picture = None,
    jobs: Jobs = 0,
    json: Json = False,
) -> None:
    """Run a scenario under several seeds: what to expect of it. Exit 1 when a run ended badly."""
    from functools import partial

    from msgspec.structs import replace

    from holdfast.cli.render.progress import progress

    scenario = output.read_scenario(file, json_too=json)
    numbers = output.read_policy(policy, json_too=json)
    scenario = replace(scenario, policy=numbers) if numbers else scenario
    if picture is not None:
        from holdfast.cli.render import plot as drawing

        drawing.ready(picture)

    from holdfast.cli.render import what_if_report
    from holdfast.cli.render.plot_samples import Samples
    from holdfast.sim.advice import advice
    from holdfast.sim.run import Simulation

    first = Simulation(scenario)
    samples = Samples(first)
    done = [0]
    with progress(lambda: done[0], seeds, "runs"):
        results = what_if_report.run_all(first, seeds, jobs, partial(done.__setitem__, 0))
    told = what_if_report.forecast(scenario, results, advice(first, results))
    if json:
        output.as_json(told)
    else:
        print(what_if_report.tell(told))
    if picture is not None:
        drawing.draw(first, results[0], samples, picture)
    if told.failed_seeds:
        raise typer.Exit(output.FAILED)
