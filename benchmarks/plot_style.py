"""One look for the figures of these benchmarks, drawn with matplotlib (which mlflow brings along)."""

from __future__ import annotations

from pathlib import Path

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

INK, MUTED, GRID = "#1f2933", "#64707d", "#e3e8ee"
BLUE, RUST, GREEN, PURPLE, GOLD, PINK, GREY = (
    "#0b6e99", "#b5541c", "#2e8540", "#6b4ba1", "#c99700", "#c2417c", "#64707d",
)  # fmt: skip

matplotlib.rcParams.update(
    {
        "font.family": "DejaVu Sans",
        "font.size": 10,
        "axes.titlesize": 11,
        "axes.titlelocation": "left",
        "axes.edgecolor": MUTED,
        "axes.labelcolor": INK,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.grid": True,
        "axes.axisbelow": True,
        "grid.color": GRID,
        "xtick.color": MUTED,
        "ytick.color": MUTED,
        "text.color": INK,
        "legend.frameon": False,
        "lines.linewidth": 1.8,
        "lines.markersize": 4.5,
        "svg.hashsalt": "benchmarks",
    }
)


def blank(width: float, height: float) -> Figure:
    """A figure without panels; width and height in inches."""
    return pyplot.figure(figsize=(width, height), layout="constrained")


def panels(rows: int, columns: int, width: float, height: float, **more: object) -> tuple[Figure, list[list[Axes]]]:
    """A figure of ``rows`` times ``columns`` panels; width and height in inches."""
    figure, axes = pyplot.subplots(rows, columns, figsize=(width, height), squeeze=False, layout="constrained", **more)  # type: ignore[call-overload]
    return figure, [list(row) for row in axes]


def log_axis(axis: Axis, subs: tuple[int, ...] = (1, 2, 5)) -> None:
    """A logarithmic axis with plain numbers at ``subs`` times powers of ten."""
    panel = axis.axes
    (panel.set_xscale if axis is panel.xaxis else panel.set_yscale)("log")
    axis.set_major_locator(LogLocator(subs=subs))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}" if value >= 1 else f"{value:g}"))
    axis.set_minor_formatter(NullFormatter())


def few_ticks(axis: Axis) -> None:
    """Three or so numbers, for narrow panels."""
    axis.set_major_locator(MaxNLocator(2, steps=[1, 5, 10]))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))


def keep(figure: Figure, path: Path) -> None:
    """Write the picture beside its figures; the same figures give the same bytes."""
    figure.savefig(path, dpi=110, facecolor="white", metadata={"Software": None})
    pyplot.close(figure)
    print(f"drawn: {path.name}")
