"""`holdfast sim run FILE`: tell one story, and say whether it ended well."""

from typing import TYPE_CHECKING, Annotated

import typer

from holdfast.cli import output
from holdfast.cli.options import File, Json, Picture, PolicyFile

if TYPE_CHECKING:
    from holdfast.sim.result import Result
    from holdfast.sim.run import Simulation


def run(
    file: File,
    seed: Annotated[
        int | None, typer.Option(metavar="N", min=0, max=2**53, help="Another seed than the file's.")
    ] = None,
    policy: PolicyFile = None,
    picture: Picture = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="Only the summary, not the story.")] = False,
    json: Json = False,
) -> None:
    """Run a scenario: print its story, then what it came to. Exit 1 when safety or liveness failed."""
    from msgspec.structs import replace

    scenario = output.read_scenario(file, json_too=json)
    numbers = output.read_policy(policy, json_too=json)
    if picture is not None:
        from holdfast.cli.render import plot as drawing

        drawing.ready(picture)

    from holdfast.cli.render.plot_samples import Samples
    from holdfast.cli.render.progress import progress
    from holdfast.model.units import HOUR
    from holdfast.sim.run import Simulation

    sim = Simulation(replace(scenario, policy=numbers) if numbers else scenario, seed)
    samples = Samples(sim)
    with progress(lambda: sim.kernel.now / HOUR, sim.scenario.lasts_ms / HOUR, "hours"):
        result = sim.run()
    _print(sim, result, quiet=quiet, json=json)
    if picture is not None:
        drawing.draw(sim, result, samples, picture)
    if not result.fine:
        raise typer.Exit(output.FAILED)


def _print(sim: "Simulation", result: "Result", *, quiet: bool, json: bool) -> None:
    from msgspec import to_builtins

    from holdfast.sim.result import tell

    assert sim.story is not None
    if json:
        lines = [] if quiet else [str(line) for line in sim.story.lines]
        output.as_json({**to_builtins(result), "fine": result.fine, "story": lines})
        return
    if not quiet:
        print(sim.story.text(), end="")
    print(tell(result), end="")
