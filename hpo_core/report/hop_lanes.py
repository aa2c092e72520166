"""Models that hop: their units on workers over time, workers and partitions in numbers."""

from __future__ import annotations

import colorsys
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hpo_core.model.partition_file import natural_order
from hpo_core.report.html_page import Section, table
from hpo_core.report.series import Series
from hpo_core.report.style import (
    LANES_NAMED,
    LISTED,
    Figure,
    Trace,
    axis,
    bars,
    layout,
    rounded,
    text,
    time_axis,
    trace,
)
from hpo_core.report.timelines import short_names
from hpo_core.views.formatting import byte_count, duration, listed, percent, plural
from hpo_core.views.hop_views import (
    HopUnit,
    PartitionNames,
    hop_units,
    mean_utilization,
    moved_bytes,
    partition_uses,
    worker_name,
    worker_uses,
)

BARS = 2_000
"""Units drawn as bars; of more a browser draws one filled path for each trial."""
RECTANGLES = 30_000
"""Rectangles of all these paths together, about."""
PIXELS = 1_500
"""Pixels of a row on a wide screen: narrower units are drawn together where units are no bars."""
_HALF = 0.36
"""Half the height of a bar, in rows."""


@dataclass(frozen=True, slots=True)
class _Block:
    """A unit that is drawn, or several that cannot be told apart."""

    trial: int
    row: int
    start: float
    end: float
    trains: bool
    words: str


def units_of(series: Series) -> list[HopUnit]:
    """The units behind all results; times are active ones."""
    return hop_units(series.study.spec, series.study.state, clock=series.active)


def hop_figure(series: Series) -> Figure | None:
    """A bar for each unit, a row for each worker; None where models do not hop, or no result is there yet."""
    units, names = units_of(series), PartitionNames.of(series.study.spec)
    if not units or names is None:
        return None
    workers = sorted({unit.worker for unit in units}, key=natural_order)
    divisor, across = time_axis(series.wall)
    as_bars = len(units) <= BARS
    blocks = _blocks(units, workers, names, 0.0 if as_bars else series.wall)
    own = defaultdict(list)
    for block in blocks:
        own[block.trial].append(block)
    data = [(_bars if as_bars else _area)(trial, blocks, divisor) for trial, blocks in sorted(own.items())]
    for drawn in data:
        drawn["showlegend"] = len(own) <= LISTED
    if not as_bars:  # areas show no words: points in the middle of each rectangle do, which are not drawn
        points = [((block.start + block.end) / 2 / divisor, block.row, block.words) for block in blocks]
        data.append(trace("units", points, "", mode="none", hoverlabel={"bgcolor": "#ffffff"}, showlegend=False))
    left = axis("", range=[len(workers) - 0.4, -0.6], showgrid=False, fixedrange=True) | {"ticks": ""}
    if len(workers) <= LANES_NAMED:
        left |= {"tickvals": list(range(len(workers))), "ticktext": list(short_names(workers).values())}
    else:
        left |= {"showticklabels": False, "title": {"text": f"{len(workers)} workers", "font": {"size": 13}}}
    height = 130 + round(min(900, max(24, 150 / len(workers)) * len(workers)))
    shape = layout(height, barmode="overlay", hoverdistance=30, xaxis=across, yaxis=left)
    pale = " Pale ones evaluate a model." if as_bars and any(not unit.trains for unit in units) else ""
    few = "" if as_bars else " Units narrower than a pixel are drawn together."
    caption = (
        f"Each row is a worker, each bar a unit: one model on one partition, in the colour of its trial.{pale}{few} "
        "Units of jobs that run or failed are not in the journal."
    )
    title = f"Units on workers: busy {percent(mean_utilization(worker_uses(units)))} of the time"
    return Figure("hops", title, caption, data, shape)


def _blocks(units: Sequence[HopUnit], workers: Sequence[str], names: PartitionNames, wall: float) -> list[_Block]:
    # Units by worker and time; `wall`: seconds of the study where narrow ones are joined, else 0.
    pixel = wall / min(PIXELS, RECTANGLES / len(workers))
    found = []
    for row, worker in enumerate(workers):
        joined: list[HopUnit] = []
        for unit in sorted((unit for unit in units if unit.worker == worker), key=lambda unit: unit.started):
            if joined and unit.ended - joined[0].started > pixel:
                found.append(_block(row, joined, names))
                joined = []
            joined.append(unit)
        found.append(_block(row, joined, names))
    return found


def _block(row: int, joined: Sequence[HopUnit], names: PartitionNames) -> _Block:
    longest, end = max(joined, key=lambda unit: unit.seconds), joined[-1].ended
    if len(joined) == 1:
        words = f"trial {longest.trial}, epoch {longest.epoch}<br>{text(names.all[longest.partition], 60)}, "
        words += duration(longest.seconds)
        words += f"<br>came from {text(worker_name(longest.came_from), 40)}" if longest.changed_worker else ""
    else:
        trials = {unit.trial for unit in joined}
        words = f"trial {longest.trial}" if len(trials) == 1 else f"{len(trials)} trials"
        words += f"<br>{len(joined)} units, {duration(end - joined[0].started)}"
    return _Block(longest.trial, row, joined[0].started, end, longest.trains, words)


def _bars(trial: int, blocks: Sequence[_Block], divisor: float) -> Trace:
    rows = [(block.row, block.start / divisor, block.end / divisor, block.words) for block in blocks]
    marker: dict[str, Any] = {"color": trial_color(trial), "line": {"width": 0.5, "color": "#ffffff"}}
    if not all(block.trains for block in blocks):
        marker["opacity"] = [1 if block.trains else 0.45 for block in blocks]
    return bars(f"trial {trial}", rows, trial_color(trial), width=2 * _HALF, marker=marker)


def _area(trial: int, blocks: Sequence[_Block], divisor: float) -> Trace:
    across: list[float | None] = []
    down: list[float | None] = []
    for block in blocks:
        start, end, row = rounded(block.start / divisor), rounded(block.end / divisor), block.row
        across += [start, end, end, start, None]
        down += [row - _HALF, row - _HALF, row + _HALF, row + _HALF, None]
    shape = {"type": "scatter", "mode": "none", "fill": "toself", "fillcolor": trial_color(trial)}
    return {**shape, "name": f"trial {trial}", "hoverinfo": "skip", "x": across, "y": down}


def trial_color(trial: int) -> str:
    """Colour of a trial: neighbours differ in hue by most of a circle, and in lightness.

    >>> trial_color(0), trial_color(1)
    ('#c84c4c', '#7e98d7')
    """
    hue, light = (trial * 0.618034) % 1.0, (0.54, 0.67, 0.44)[trial % 3]
    return "#" + "".join(f"{round(255 * part):02x}" for part in colorsys.hls_to_rgb(hue, light, 0.53))


def hop_tables(series: Series) -> list[Section]:
    """Workers, with the bytes that models moved, and partitions; none before there is a result."""
    spec, name = series.study.spec, series.study.name
    units = units_of(series)
    moved = moved_bytes(units)
    if moved is None:
        return []
    workers = [
        (
            *(worker_name(use.worker), use.units, use.partitions, duration(use.seconds), percent(use.utilization)),
            *(use.models, byte_count(use.received) if use.received else ""),
        )
        for use in worker_uses(units)
    ]
    partitions = [
        (
            *(use.name, "training" if use.trains else "validation", "" if use.count is None else f"{use.count:,}"),
            *("" if use.bytes is None else byte_count(use.bytes), use.units, duration(use.seconds)),
            listed([worker_name(worker) for worker in use.workers], 8),
        )
        for use in partition_uses(spec.partitions, spec.trained_partitions, units)
    ]
    return [
        Section(
            "Workers",
            "Utilization is the share of the time from the first unit of any worker to the end of the last one. Models "
            f"that came are those of another worker. {plural(moved.hops, 'hop')} moved {byte_count(moved.moved)}, "
            f"{byte_count(moved.moved_to_others)} of that to another worker.",
            table(("worker", "units", "partitions", "time", "utilization", "models that came", "with"), workers),
            f"{name}-workers.csv",
        ),
        Section(
            "Partitions",
            "Where models visited them. Who else holds a copy is not in the journal.",
            table(("partition", "for", "examples", "size", "units", "time", "workers"), partitions),
            f"{name}-partitions.csv",
        ),
    ]
