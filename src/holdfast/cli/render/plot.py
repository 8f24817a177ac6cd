"""A picture of a simulation over time: what was up against what was wanted, the nodes there were, the cost.

One row a workload with a promise (services and trainings), so that an outage is a gap that can be seen; below
them the fleet. Faults are marked in every row, because the question is always what one did to the rest.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.cli import output
from holdfast.model.units import many, seconds

if TYPE_CHECKING:
    from holdfast.cli.render.plot_samples import Samples
    from holdfast.sim.result import Result
    from holdfast.sim.run import Simulation

SUFFIXES = (".svg", ".png")
READY, WANTED, OUTAGE, FAULT, NODES, COST = "#1b7f79", "#8a8f98", "#d1495b", "#e09f3e", "#33658a", "#6d597a"
MARKS_MAX = 40  # more faults than this are drawn as thin lines
LABELS_MAX = 9  # and more than this without their names
UNITS = (
    (48 * 3_600_000, 86_400_000, "days"),
    (2 * 3_600_000, 3_600_000, "hours"),
    (180_000, 60_000, "minutes"),
)
STYLE: Any = {
    "svg.hashsalt": "holdfast",
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#b8bcc4",
    "axes.labelcolor": "#3a3f47",
    "text.color": "#22262b",
    "xtick.color": "#5b616b",
    "ytick.color": "#5b616b",
    "axes.grid": True,
    "grid.color": "#eceef1",
    "axes.axisbelow": True,
}


def ready(out: Path) -> None:
    """Complains before the simulation, not after it."""
    if out.suffix not in SUFFIXES:
        output.fail(
            [f"{out}: expected a picture that ends in .svg or .png"], f"--picture {out.stem or 'out'}.svg"
        )
    if not out.parent.is_dir():
        output.fail([f"{out}: expected a folder that exists, got {out.parent}"], f"mkdir -p {out.parent}")
    try:
        import matplotlib
    except ImportError:
        output.fail(["a picture needs matplotlib"], "pip install 'holdfast[plot]'")
    matplotlib.use("Agg")


def draw(sim: "Simulation", result: "Result", samples: "Samples", out: Path) -> None:
    import matplotlib.pyplot as plt
    from matplotlib.ticker import MaxNLocator

    names = [name for name in sim.fleet.workloads if name in sim.truth.stretches]
    unit_ms, unit = _unit(sim.kernel.now)
    with plt.rc_context(STYLE):
        heights = [1.0] * len(names) + [1.1, 0.9]
        figure, axes = plt.subplots(
            len(heights),
            1,
            sharex=True,
            figsize=(10, 1.4 + 1.35 * len(heights)),
            height_ratios=heights,
            layout="constrained",
        )
        for name, axis in zip(names, axes, strict=False):
            _workload(sim, result, name, axis, unit_ms)
        _nodes(sim, samples, axes[-2], unit_ms)
        _cost(result, samples, axes[-1], unit_ms)
        _faults(sim, axes, unit_ms)
        axes[-1].set_xlim(0, sim.kernel.now / unit_ms)
        axes[-1].set_xlabel(unit)
        axes[-1].xaxis.set_major_locator(MaxNLocator(nbins=12, steps=[1, 2, 5, 10]))
        figure.suptitle(
            sim.scenario.title or sim.scenario.name, x=0.01, ha="left", fontsize=13, weight="bold"
        )
        _legend(figure)
        try:
            _save(figure, out)
        except OSError as error:
            output.fail([f"{out}: cannot be written: {error.strerror}"])
        finally:
            plt.close(figure)


def _save(figure: Any, out: Path) -> None:
    # no date inside, so that the same run gives the same bytes
    metadata = {"Date": None, "Creator": None} if out.suffix == ".svg" else {"Software": None}
    figure.savefig(out, dpi=150, metadata=metadata)


def _unit(ms: int) -> tuple[int, str]:
    return next(((size, name) for least, size, name in UNITS if ms >= least), (1000, "seconds"))


def _steps(points: Sequence[tuple[int, float]], end: int, unit_ms: int) -> tuple[list[float], list[float]]:
    """As the corners of a staircase that starts at nothing and goes on to the end."""
    points = points or [(0, 0)]
    times = [at / unit_ms for at, _ in points] + [end / unit_ms]
    return times, [count for _, count in points] + [points[-1][1]]


def _workload(sim: "Simulation", result: "Result", name: str, axis: Any, unit_ms: int) -> None:
    stretch, workload = sim.truth.stretches[name], sim.fleet.workloads[name]
    wanted = sim.truth.needed(workload)
    done_at = _done_at(sim, result, name)
    outages = [outage for outage in stretch.outages if outage[0] < done_at]
    times, counts = _steps(stretch.ready, sim.kernel.now, unit_ms)
    axis.fill_between(times, counts, step="post", color=READY, alpha=0.15, linewidth=0)
    axis.step(times, counts, where="post", color=READY, linewidth=1.6)
    axis.plot([0, done_at / unit_ms], [wanted, wanted], color=WANTED, linestyle=(0, (4, 3)), linewidth=1.0)
    for begin, end in outages:
        axis.axvspan(begin / unit_ms, max(end, begin + 1) / unit_ms, color=OUTAGE, alpha=0.35, linewidth=0.8)
    axis.set_ylim(0, max([*counts, wanted]) * 1.6)
    axis.set_ylabel("replicas")
    _whole_ticks(axis)
    note = many(len(outages), "outage") if outages else "never down"
    _head(axis, name, note + (f", done after {seconds(done_at)}" if done_at < sim.kernel.now else ""))


def _done_at(sim: "Simulation", result: "Result", name: str) -> int:
    """When it had done its work and left, which is no outage; the end of the story, if it never did."""
    row = next(row for row in result.workloads if row.name == name)
    outages = sim.truth.stretches[name].outages
    if row.slots_done and outages and outages[-1][1] >= sim.kernel.now:
        return outages[-1][0]
    return sim.kernel.now


def _nodes(sim: "Simulation", samples: "Samples", axis: Any, unit_ms: int) -> None:
    times, counts = _steps(samples.nodes, sim.kernel.now, unit_ms)
    axis.fill_between(times, counts, step="post", color=NODES, alpha=0.12, linewidth=0)
    axis.step(times, counts, where="post", color=NODES, linewidth=1.6)
    axis.set_ylim(0, max(counts) * 1.2 + 0.5)
    axis.set_ylabel("nodes")
    _whole_ticks(axis)
    _head(axis, "nodes with power", many(len(sim.deaths), "node") + " called dead")


def _cost(result: "Result", samples: "Samples", axis: Any, unit_ms: int) -> None:
    spent = [*samples.spent, (result.sim_ms, round(result.cost_usd * 1e6))]
    axis.plot(
        [at / unit_ms for at, _ in spent], [micro / 1e6 for _, micro in spent], color=COST, linewidth=1.6
    )
    axis.set_ylim(0, max(result.cost_usd * 1.15, 0.01))
    axis.set_ylabel("dollars")
    _head(axis, "cost", f"${result.cost_usd:,.2f} in all")


def _faults(sim: "Simulation", axes: Sequence[Any], unit_ms: int) -> None:
    assert sim.story is not None
    told: dict[int, list[str]] = {}
    for line in sim.story.lines:
        if line.kind == "fault":
            told.setdefault(line.at, []).append(f"{line.subject} {line.text.partition(':')[0]}")
    few = len(told) <= MARKS_MAX
    look = {"linewidth": 1.0 if few else 0.5, "alpha": 0.8 if few else 0.35}
    for axis in axes:
        for at in told:
            axis.axvline(at / unit_ms, color=FAULT, zorder=0.5, **look)
    if len(told) <= LABELS_MAX:
        for number, (at, texts) in enumerate(told.items()):
            _label(axes[0], at / unit_ms, texts, number, late=at > 0.7 * sim.kernel.now)


def _label(axis: Any, at: float, texts: list[str], number: int, *, late: bool) -> None:
    """Beside its line, on one of three levels so that neighbours do not run into one another."""
    axis.annotate(
        texts[0] + (f" (and {len(texts) - 1} more)" if len(texts) > 1 else ""),
        (at, 1.0),
        xycoords=("data", "axes fraction"),
        xytext=(-4 if late else 4, -3 - 9 * (number % 3)),
        textcoords="offset points",
        ha="right" if late else "left",
        va="top",
        fontsize=7.5,
        color="#9a6412",
    )


def _legend(figure: Any) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    handles = [
        Line2D([], [], color=READY, linewidth=1.6, label="ready"),
        Line2D([], [], color=WANTED, linestyle=(0, (4, 3)), linewidth=1.0, label="wanted"),
        Patch(color=OUTAGE, alpha=0.35, linewidth=0, label="down"),
        Line2D([], [], color=FAULT, linewidth=1.2, label="fault"),
    ]
    figure.legend(handles=handles, loc="upper right", ncols=4, frameon=False, fontsize=8.5)


def _head(axis: Any, name: str, note: str) -> None:
    axis.set_title(name, loc="left", fontsize=10, weight="bold", pad=4)
    axis.set_title(note, loc="right", fontsize=9, color="#5b616b", pad=4)


def _whole_ticks(axis: Any) -> None:
    from matplotlib.ticker import MaxNLocator

    axis.yaxis.set_major_locator(MaxNLocator(nbins=4, integer=True))
