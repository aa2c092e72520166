"""Time in pictures: attempts on workers and devices, what devices and pools held, models that hop."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from hpo_core.model.devices.inventory import memory_words
from hpo_core.model.partition_file import natural_order
from hpo_core.model.trial import Outcome
from hpo_core.report.series import Series
from hpo_core.report.style import (
    CANDIDATE,
    FAILED,
    LANES_NAMED,
    LISTED,
    LOST,
    RUNNING,
    SERIES,
    Figure,
    Trace,
    axis,
    bars,
    layout,
    level_color,
    text,
    time_axis,
)
from hpo_core.views.device_use import Span, mean_occupancy
from hpo_core.views.formatting import byte_count, duration, percent, plural
from hpo_core.views.hop_views import (
    HopUnit,
    hop_units,
    mean_utilization,
    moved_bytes,
    worker_name,
    worker_uses,
)
from hpo_core.views.states import attempt_state, usage_words

BARS = 5_000
"""Attempts drawn, the longest ones."""
ROWS = {
    "worker": "Each row is a model that trains, each bar one attempt.",
    "gang": "Each row is a {}, on as many slots as it has ranks, each bar one attempt.",
    "device": (
        "Each bar is one attempt, each row of a device one job at a time: as many rows as it ever had at once. An "
        "attempt whose device was never told, for it was lost, stands at its worker."
    ),
    "slot": "Each row is a worker, each bar one attempt; in a gap the worker was idle, or not there.",
    "pool": "Each row is a worker, each bar one attempt; in a gap it was idle, or another study of the pool had it.",
}
"""Meaning of rows, bars and gaps."""


COLORS = {"running": RUNNING, "diverged": CANDIDATE, "failed": FAILED, "lost or preempted": LOST}
"""Colours of attempts without a result, in the order of the legend."""


def jobs_over_time(series: Series) -> Figure | None:
    """A bar per attempt, a row per worker slot; where attempts share devices, rows by device."""
    if not series.spans:
        return None
    spec, uses = series.study.spec, series.uses
    gangs = any(span.slots > 1 for span in series.spans)
    one = "model" if spec.room_word == "worker" else "gang" if all(span.slots > 1 for span in series.spans) else "job"
    together = not uses and (gangs or one == "model")  # one job takes many workers, at once or one after the other
    divisor, across = time_axis(series.wall)
    lanes = _row_of_each(
        series.spans, lambda span: one if together else span.shared.device if span.shared else span.worker
    )
    workers = {} if together else {owner: text(worker_name(owner), 24) or "no worker named" for owner in lanes.owners}
    if "" in workers and any(span.outcome is None for span in series.spans):
        workers[""] = "running"  # its report will say where
    left, lines = _lane_axis(lanes.owners, workers)
    if together or len(workers) > LANES_NAMED:
        count = plural(len(lanes.owners), one) if together else plural(len(workers), "device" if uses else "worker")
        left |= {"showticklabels": False, "title": {"text": count, "font": {"size": 13}}}
    few = f" Of {len(series.spans):,} attempts the {BARS:,} longest are drawn." if len(series.spans) > BARS else ""
    cut = f" {duration(series.paused)} in which no controller ran are cut out." if series.paused > 1 else ""
    kind = "gang" if gangs and together and one != "model" else spec.room_word
    words = ROWS["pool" if kind == "slot" and spec.pool_name else kind].format(one)
    share, title = series.utilization, "Jobs over time"
    if uses:
        title += f": {percent(mean_occupancy(uses) or 0.0)} of the devices' compute claimed in the mean"
    elif share is not None and spec.room_word == "slot" and not spec.pool_name:  # in a pool, others use slots too
        title += f": workers busy {percent(share)} of the time"
    caption = f"{words} Pink bars failed, grey ones were lost or preempted.{few}{cut}"
    height = 150 + round(min(900, 30 * len(lanes.owners)))
    shape = layout(height, barmode="overlay", xaxis=across, yaxis=left, shapes=lines)
    return Figure("jobs", title, caption, _attempts(series, lanes, divisor), shape)


def _lane_axis(owners: Sequence[str], names: Mapping[str, str]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The axis of rows, with one label in the middle of each owner's rows, and lines between owners of several.

    Args:
        owners: by row, those of one owner beside each other.
        names: label of each owner.
    """
    rows: dict[str, list[int]] = {}
    for row, owner in enumerate(owners):
        rows.setdefault(owner, []).append(row)
    left = axis(
        range=[len(owners) - 0.4, -0.6],
        showgrid=False,
        fixedrange=True,
        tickvals=[(own[0] + own[-1]) / 2 for own in rows.values()],
        ticktext=[names.get(owner, "") for owner in rows],
    ) | {"ticks": ""}
    lines = [
        {"type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": own[0] - 0.5, "y1": own[0] - 0.5,
         "line": {"color": "#c9d1da", "width": 1}}
        for own in rows.values() if own[0] and len(rows) < min(len(owners), LANES_NAMED)
    ]  # fmt: skip
    return left, lines


class _Rows(NamedTuple):
    """Attempts in rows: those that overlap are in different ones."""

    row_of: list[tuple[int, Span]]
    owners: list[str]
    """By row: name of its worker or device, which has several rows if it runs several attempts at once."""


def _row_of_each(spans: Iterable[Span], owner_of: Callable[[Span], str]) -> _Rows:
    free: dict[str, list[tuple[float, int]]] = {}
    owners: list[str] = []
    rows: list[tuple[int, Span]] = []
    for span in sorted(spans, key=lambda s: (s.start, s.end)):
        own = free.setdefault(owner_of(span), [])
        at = next((i for i, (end, _) in enumerate(own) if end <= span.start + 1e-6), None)
        if at is None:
            at = len(own)
            own.append((span.end, len(owners)))
            owners.append(owner_of(span))
        own[at] = (span.end, own[at][1])
        rows.append((own[at][1], span))
    order = sorted(range(len(owners)), key=lambda row: (owners[row] == "", owners[row], row))
    moved = {row: place for place, row in enumerate(order)}
    return _Rows([(moved[row], span) for row, span in rows], [owners[row] for row in order])


def _attempts(series: Series, rows: _Rows, divisor: float) -> list[Trace]:
    shown = sorted(rows.row_of, key=lambda item: item[1].start - item[1].end)[:BARS]
    levels = len(series.levels)
    groups: dict[tuple[int, str, str], list[tuple[float, float, float, str]]] = {}
    for row, span in shown:
        words = (
            f"trial {span.trial}, attempt {span.attempt}, to {span.target:,}<br>"
            f"{span.outcome or 'running'} after {duration(span.end - span.start)}"
        )
        words += f", {span.slots} ranks" if span.slots > 1 else ""
        words += f"<br>on {text(worker_name(span.worker), 60)}" if "://" in span.worker else ""
        if (on := span.shared) is not None and on.share is not None:
            compute, memory, cores = on.share
            words += f"<br>share: {compute / 10:.3g}% of the compute, {memory_words(memory)}, {cores / 1000:.3g} cores"
            words += "" if span.usage is None else f"<br>used: {text(usage_words(span.usage), 120)}"
        name = attempt_state(span.outcome).word
        if span.outcome is Outcome.COMPLETED:
            level = series.level(span.target)
            rank, name, color = level - levels, f"to {span.target:,}", level_color(level, levels)
        else:
            rank, color = list(COLORS).index(name), COLORS[name]
        groups.setdefault((rank, name, color), []).append((row, span.start / divisor, span.end / divisor, words))
    line = {"width": 0.5 if len(shown) < 600 else 0, "color": "#ffffff"}
    return [
        bars(name, group, color, showlegend=rank >= 0 or levels <= LISTED, marker={"color": color, "line": line})
        for (rank, name, color), group in sorted(groups.items())
    ]


UNITS = 3_000
"""Units drawn, the latest ones."""


def units_of(series: Series) -> list[HopUnit]:
    """The units behind all results; times are active ones."""
    return hop_units(series.study.spec, series.study.state, clock=series.active)


def hop_figure(series: Series) -> Figure | None:
    """A bar for each unit, a row for each worker; None where models do not hop, or no result is there yet."""
    units, names = units_of(series), [file.name for file in series.study.spec.partitions]
    moved = moved_bytes(units)
    if moved is None or not names:
        return None
    workers = sorted({unit.worker for unit in units}, key=natural_order)
    shown = sorted(units, key=lambda unit: unit.started)[-UNITS:]
    divisor, across = time_axis(series.wall)
    by_trial: dict[int, list[HopUnit]] = {}
    for unit in shown:
        by_trial.setdefault(unit.trial, []).append(unit)
    data = []
    for trial, own in sorted(by_trial.items()):
        rows = [
            (workers.index(one.worker), one.started / divisor, one.ended / divisor, _unit_words(one, names))
            for one in own
        ]
        color = SERIES[trial % len(SERIES)]
        opacity = [1 if unit.trains else 0.45 for unit in own]
        marker = {"color": color, "line": {"width": 0.5, "color": "#ffffff"}, "opacity": opacity}
        data.append(bars(f"trial {trial}", rows, color, marker=marker, showlegend=len(by_trial) <= LISTED))
    left, _ = _lane_axis(workers, {worker: text(worker_name(worker), 24) for worker in workers})
    if len(workers) > LANES_NAMED:
        left |= axis(f"{len(workers)} workers", showticklabels=False)
    height = 150 + round(min(900, max(24, 150 / len(workers)) * len(workers)))
    if few := len(units) > len(shown):
        across["range"][0] = shown[0].started / divisor
    caption = (
        "Each row is a worker, each bar a unit: one model on one partition, in the colour of its trial. Pale ones "
        f"evaluate a model.{f' Of {len(units):,} units the latest {UNITS:,} are drawn.' if few else ''} "
        "Units of jobs that run or failed are not in the journal. "
        f"{plural(moved.hops, 'hop')} moved {byte_count(moved.moved)}, {byte_count(moved.moved_to_others)} of that to "
        "another worker."
    )
    title = f"Units on workers: busy {percent(mean_utilization(worker_uses(units)))} of the time"
    return Figure("hops", title, caption, data, layout(height, barmode="overlay", xaxis=across, yaxis=left))


def _unit_words(unit: HopUnit, names: Sequence[str]) -> str:
    words = f"trial {unit.trial}, epoch {unit.epoch}<br>{text(names[unit.partition], 60)}, {duration(unit.seconds)}"
    return words + (f"<br>came from {text(worker_name(unit.came_from), 40)}" if unit.changed_worker else "")
