"""`holdfast sim`: the group of commands that simulate."""

import typer

from holdfast.cli.commands.sim.run import run
from holdfast.cli.commands.sim.scenarios import list_scenarios
from holdfast.cli.commands.sim.sweep import sweep
from holdfast.cli.commands.sim.what_if import what_if

app = typer.Typer(help="Simulate: fault stories, random ones, and what if.", rich_markup_mode=None)
app.command("run")(run)
app.command("sweep")(sweep)
app.command("what-if")(what_if)
app.command("list")(list_scenarios)


@app.callback(invoke_without_command=True)
def sim(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        print(context.get_help())
