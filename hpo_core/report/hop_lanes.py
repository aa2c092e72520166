"""The units of a study on its workers over time, a colour for each trial."""

from __future__ import annotations

import colorsys
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from hpo_core.model.partition_file import natural_order
from hpo_core.report.series import Series
from hpo_core.report.study.job_timeline import LANES_NAMED, short_names
from hpo_core.report.study.learning_curves import LISTED
from hpo_core.report.study_page import table
from hpo_core.report.style import Figure, axis, layout, rounded, text, time_axis
from hpo_core.views.formatting import byte_count, duration, listed, plural
from hpo_core.views.hop_views import (
    HopUnit,
    MovedBytes,
    PartitionNames,
    WorkerUse,
    hop_units,
    mean_utilization,
    moved_bytes,
    partition_uses,
    worker_name,
    worker_uses,
)

BARS = 2_000
"""With more units a browser draws one filled path for each trial, not one shape for each unit."""
RECTANGLES = 30_000
"""Of all these paths together, about."""
PIXELS = 1_500
"""Of a row on a wide screen: what is narrower is drawn together with its neighbours where units are no bars."""
_HALF = 0.36
"""Of the height of a bar, in rows."""
_GOLDEN = 0.618034


def units_of(series: Series) -> list[HopUnit]:
    """The units behind all results; times are active ones."""
    return hop_units(series.study.spec, series.study.state, clock=series.active)


def hop_figure(series: Series) -> Figure | None:
    """A bar for each unit, a row for each worker; None where models do not hop, or no result is there yet."""
    units, names = units_of(series), PartitionNames.of(series.study.spec)
    if not units or names is None:
        return None
    workers = sorted({unit.worker for unit in units}, key=natural_order)
    rows = {worker: row for row, worker in enumerate(workers)}
    divisor, across = time_axis(series.wall)
    height = 130 + round(min(900, max(24, 150 / len(rows)) * len(rows)))
    as_bars = len(units) <= BARS
    own = defaultdict(list)
    blocks = _blocks(units, names, series.wall if not as_bars else 0.0)
    for block in blocks:
        own[block.trial].append(block)
    draw = _bars if as_bars else _area
    data = [draw(trial, blocks, rows, divisor) for trial, blocks in sorted(own.items())]
    for trace in data:
        trace["showlegend"] = len(own) <= LISTED
    if not as_bars:
        data.append(_words_of(blocks, rows, divisor) | {"showlegend": False})
    left = axis("", range=[len(rows) - 0.4, -0.6], showgrid=False, fixedrange=True, ticks="")
    if len(rows) <= LANES_NAMED:
        left |= {"tickvals": list(rows.values()), "ticktext": list(short_names(rows).values())}
    else:
        left |= {"showticklabels": False, "title": {"text": f"{len(rows)} workers", "font": {"size": 13}}}
    shape = layout(height, barmode="overlay", hoverdistance=30, xaxis=across, yaxis=left)
    busy = 100 * (mean_utilization(worker_uses(units)) or 0.0)
    pale = " Pale ones evaluate a model." if as_bars and any(not unit.trains for unit in units) else ""
    few = "" if as_bars else " Units narrower than a pixel are drawn together."
    caption = (
        f"Each row is a worker, each bar a unit: one model on one partition, in the colour of its trial.{pale}{few} "
        "Units of jobs that run or failed are not in the journal."
    )
    return Figure("hops", f"Units on workers: busy {busy:.0f}% of the time", caption, data, shape)


@dataclass(frozen=True, slots=True)
class _Block:
    """What is drawn as one: a unit, or several that cannot be told apart."""

    trial: int
    worker: str
    start: float
    end: float
    trains: bool
    words: str


def _blocks(units: Sequence[HopUnit], names: PartitionNames, wall: float) -> list[_Block]:
    """Units by worker and time; ``wall``: of the study, where narrow ones are joined, else 0."""
    by_worker = defaultdict(list)
    for unit in units:
        by_worker[unit.worker].append(unit)
    pixel = wall / min(PIXELS, RECTANGLES / len(by_worker))
    found = []
    for worker, own in by_worker.items():
        joined: list[HopUnit] = []
        for unit in sorted(own, key=lambda unit: unit.started):
            if joined and unit.ended - joined[0].started > pixel:
                found.append(_block(worker, joined, names))
                joined = []
            joined.append(unit)
        found.append(_block(worker, joined, names))
    return found


def _block(worker: str, joined: Sequence[HopUnit], names: PartitionNames) -> _Block:
    first, last = joined[0], joined[-1]
    if len(joined) == 1:
        words = (
            f"trial {first.trial}, epoch {first.epoch}<br>{text(names.all[first.partition], 60)}, "
            f"{duration(first.seconds)}"
        )
        words += f"<br>rank {first.rank} of {first.ranks}, which train together" if first.ranks > 1 else ""
        words += f"<br>came from {text(worker_name(first.came_from), 40)}" if first.changed_worker else ""
    else:
        longest = max(joined, key=lambda unit: unit.seconds)
        trials = {unit.trial for unit in joined}
        words = f"trial {longest.trial}" if len(trials) == 1 else f"{len(trials)} trials"
        words += f"<br>{len(joined)} units, {duration(last.ended - first.started)}"
        first = longest
    return _Block(first.trial, worker, joined[0].started, last.ended, first.trains, words)


def _bars(trial: int, blocks: Sequence[_Block], rows: dict[str, int], divisor: float) -> dict[str, Any]:
    opacity = {} if all(block.trains for block in blocks) else {"opacity": [1 if b.trains else 0.45 for b in blocks]}
    return {
        "type": "bar",
        "orientation": "h",
        "name": f"trial {trial}",
        "width": 2 * _HALF,
        "hoverinfo": "text",
        "textposition": "none",
        "base": [rounded(block.start / divisor) for block in blocks],
        "x": [rounded((block.end - block.start) / divisor) for block in blocks],
        "y": [rows[block.worker] for block in blocks],
        "text": [block.words for block in blocks],
        "marker": {"color": trial_color(trial), "line": {"width": 0.5, "color": "#ffffff"}, **opacity},
    }


def _area(trial: int, blocks: Sequence[_Block], rows: dict[str, int], divisor: float) -> dict[str, Any]:
    """All rectangles as one filled path."""
    across: list[float | None] = []
    down: list[float | None] = []
    for block in blocks:
        start, end, row = rounded(block.start / divisor), rounded(block.end / divisor), rows[block.worker]
        across += [start, end, end, start, None]
        down += [row - _HALF, row - _HALF, row + _HALF, row + _HALF, None]
    return {
        "type": "scatter",
        "mode": "none",
        "fill": "toself",
        "name": f"trial {trial}",
        "hoverinfo": "skip",
        "x": across,
        "y": down,
        "fillcolor": trial_color(trial),
    }


def _words_of(blocks: Sequence[_Block], rows: dict[str, int], divisor: float) -> dict[str, Any]:
    """What the mouse shows of areas: a point in the middle of each rectangle, which is not drawn."""
    return {
        "type": "scatter",
        "mode": "none",
        "name": "units",
        "hoverinfo": "text",
        "hoverlabel": {"bgcolor": "#ffffff"},
        "x": [rounded((block.start + block.end) / 2 / divisor) for block in blocks],
        "y": [rows[block.worker] for block in blocks],
        "text": [block.words for block in blocks],
    }


def trial_color(trial: int) -> str:
    """Neighbours differ in hue by most of a circle, and in lightness.

    >>> trial_color(0), trial_color(1)
    ('#c84c4c', '#7e98d7')
    """
    hue, light = (trial * _GOLDEN) % 1.0, (0.54, 0.67, 0.44)[trial % 3]
    return "#" + "".join(f"{round(255 * part):02x}" for part in colorsys.hls_to_rgb(hue, light, 0.53))


_WORKERS_NAMED = 8
"""In the row of a partition."""


def hop_tables(series: Series) -> str:
    """Three tables; empty where models do not hop, or no result is there yet."""
    data = series.study.spec.data
    units = units_of(series)
    moved = moved_bytes(series.study.spec, series.study.state, units)
    if data is None or moved is None:
        return ""
    name = escape(series.study.name)
    uses = worker_uses(units)
    files = [*data.files, *data.validation_files]
    partitions = [
        (
            use.name,
            "training" if use.trains else "validation",
            "" if use.count is None else f"{use.count:,}",
            "" if use.bytes is None else byte_count(use.bytes),
            use.units,
            duration(use.seconds),
            listed([worker_name(worker) for worker in use.workers], _WORKERS_NAMED),
        )
        for use in partition_uses(files, len(data.files), units)
    ]
    of_partitions = _card(
        "Partitions",
        "Where models visited them. Who else holds a copy is not in the journal.",
        table(("partition", "for", "examples", "size", "units", "time", "workers"), partitions),
        f"{name}-partitions.csv",
    )
    return _moved_card(moved, f"{name}-bytes.csv") + _workers_card(uses, f"{name}-workers.csv") + of_partitions


def _moved_card(moved: MovedBytes, file: str) -> str:
    unknown = "sizes of partitions are not known"
    model = byte_count(moved.model) if moved.model else "not known yet"
    known = bool(moved.model)
    rows = [
        ("moved here", byte_count(moved.moved), f"{plural(moved.hops, 'hop')}: a model comes with its state"),
        ("of that to another worker", byte_count(moved.moved_to_others), plural(moved.changed_worker, "hop")),
        ("model hopping", byte_count(moved.hopping) if known else "", "k m p |S| + m |S|"),
        (
            "data copied to each worker",
            unknown if moved.replication is None else byte_count(moved.replication),
            "w D + m |S|",
        ),
        (
            "data read anew each epoch",
            unknown if moved.remote_reads is None else byte_count(moved.remote_reads),
            "k |S| D + m |S|",
        ),
    ]
    each = f"k |S| = {moved.epochs:,} epochs of all trials, p = {moved.units // max(1, moved.epochs):,} partitions"
    data = "not known" if moved.data is None else byte_count(moved.data)
    caption = (
        f"What models moved, beside the formulas of Cerebro's Table 2: m = {model} (a model's state, in the mean), "
        f"{each}, w = {plural(moved.workers, 'worker')}, D = {data} (all partitions)."
    )
    return _card("Bytes moved", caption, table(("what", "bytes", "how"), rows), file)


def _workers_card(uses: list[WorkerUse], file: str) -> str:
    rows = [
        (
            worker_name(use.worker),
            use.units,
            use.partitions,
            duration(use.seconds),
            f"{100 * use.utilization:.0f}%",
            use.models,
            byte_count(use.received) if use.received else "",
        )
        for use in uses
    ]
    caption = (
        "Utilization is the share of the time from the first unit of any worker to the end of the last one. Models "
        "came from another worker."
    )
    head = ("worker", "units", "partitions", "time", "utilization", "models that came", "with")
    return _card("Workers", caption, table(head, rows), file)


def _card(title: str, caption: str, shown: str, file: str) -> str:
    return (
        f'<section class="card"><h2>{title}</h2><p class="caption">{caption}</p>'
        f'<div class="bar"><button data-csv="{file}">Download CSV</button></div>{shown}</section>'
    )
