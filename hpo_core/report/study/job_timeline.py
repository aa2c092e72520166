"""Attempts over time, a group of rows for each worker."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from hpo_core.model.trial import Outcome
from hpo_core.report.series import Series, Span
from hpo_core.report.study.learning_curves import LISTED
from hpo_core.report.style import (
    CANDIDATE,
    FAILED,
    LOST,
    RUNNING,
    Figure,
    axis,
    layout,
    level_color,
    rounded,
    text,
    time_axis,
)
from hpo_core.views.formatting import duration, plural
from hpo_core.views.hop_views import worker_name

BARS = 5_000
LANES_NAMED = 40


def jobs_over_time(series: Series) -> Figure | None:
    """A bar per attempt, a row per worker slot."""
    if not series.spans:
        return None
    hops = series.study.spec.data is not None  # a job runs on many workers, one after the other
    gangs = any(span.slots > 1 for span in series.spans)  # likewise, all at once
    together = hops or gangs
    spans = [replace(span, worker="model" if hops else "job") for span in series.spans] if together else series.spans
    one = "gang" if all(span.slots > 1 for span in series.spans) else "job"
    divisor, across = time_axis(series.wall)
    lanes, owners = lanes_of(spans)
    data = bars(series, spans, lanes, divisor)
    workers = {} if together else short_names(dict.fromkeys(owners))
    if "" in workers and any(span.outcome is None for span in spans):
        workers[""] = "running"  # where, its report will say
    left, lines = lane_axis(owners, workers)
    if together or len(workers) > LANES_NAMED:
        rows = plural(len(owners), "model" if hops else one) if together else plural(len(workers), "worker")
        left |= {"showticklabels": False, "title": {"text": rows, "font": {"size": 13}}}
    few = f" Of {len(series.spans):,} attempts the {BARS:,} longest are drawn." if len(series.spans) > BARS else ""
    cut = f" {duration(series.paused)} in which no controller ran are cut out." if series.paused > 1 else ""
    caption = (
        f"{_rows(series, hops, one if gangs else '')} Pink bars failed, grey ones were lost or preempted.{few}{cut}"
    )
    shape = layout(150 + round(min(900, 30 * len(owners))), barmode="overlay", xaxis=across, yaxis=left, shapes=lines)
    return Figure("jobs", _title(series, hops), caption, data, shape)


def _title(series: Series, hops: bool) -> str:
    share, spec = series.utilization, series.study.spec
    if share is None or spec.packing is not None or hops or spec.share is not None:
        return "Jobs over time"  # with packing, slots are jobs to choose from; in a pool, others use them too
    return f"Jobs over time: workers busy {100 * share:.0f}% of the time"


def _rows(series: Series, hops: bool, gang: str) -> str:
    """What rows, bars and gaps are: a gap is idle time only where nobody else can use the worker."""
    spec = series.study.spec
    if hops:
        return "Each row is a model that trains, each bar one attempt."
    if gang:
        return f"Each row is a {gang}, on as many slots as it has ranks, each bar one attempt."
    if spec.packing is not None:
        return "Each bar is one attempt, each row of a worker one job at a time: as many rows as it ever had at once."
    gaps = "in a gap its worker was idle or not there"
    if spec.share is not None:
        gaps = "in a gap another study of the pool had the worker, or it was idle (Slots of the pool tells which)"
    elif spec.cluster.kind == "address":
        gaps = "in a gap no job of this study ran there; whether others used the worker is not recorded"
    return f"Each row is a worker, each bar one attempt; {gaps}."


def lane_axis(owners: Sequence[str], names: Mapping[str, str]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The axis of rows, with one label in the middle of each owner's rows, and lines between owners of several.

    Args:
        owners: by row, those of one owner beside each other.
        names: by owner: its label.
    """
    rows: dict[str, list[int]] = {}
    for row, owner in enumerate(owners):
        rows.setdefault(owner, []).append(row)
    left = axis(
        range=[len(owners) - 0.4, -0.6],
        showgrid=False,
        fixedrange=True,
        ticks="",
        tickvals=[(own[0] + own[-1]) / 2 for own in rows.values()],
        ticktext=[names.get(owner, "") for owner in rows],
    )
    lines = [
        {"type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": own[0] - 0.5, "y1": own[0] - 0.5,
         "line": {"color": "#c9d1da", "width": 1}}
        for own in rows.values() if own[0] and len(rows) < min(len(owners), LANES_NAMED)
    ]  # fmt: skip
    return left, lines


def short_names(workers: Iterable[str]) -> dict[str, str]:
    """By address: its host or port where that alone tells the workers apart, else both.

    >>> short_names(["tcp://10.0.0.5:40001", "tcp://10.0.0.5:40002"])
    {'tcp://10.0.0.5:40001': 'port 40001', 'tcp://10.0.0.5:40002': 'port 40002'}
    >>> short_names(["tcp://10.0.0.5:40001", "tcp://10.0.0.6:40001"])["tcp://10.0.0.6:40001"]
    '10.0.0.6'
    """
    plain = {worker: worker_name(worker) for worker in workers}
    parts = {worker: name.rpartition(":") for worker, name in plain.items() if worker}
    hosts = {host for host, _, _ in parts.values()}
    ports = {port for _, _, port in parts.values()}
    found = plain
    if not all(host and port.isdecimal() for host, _, port in parts.values()):
        pass
    elif len(hosts) == len(parts) > 1:
        found = {worker: host for worker, (host, _, _) in parts.items()}
    elif len(ports) == len(parts) and len(hosts) == 1:
        found = {worker: f"port {port}" for worker, (_, _, port) in parts.items()}
    return {worker: text(found[worker], 24) if worker else "no worker named" for worker in plain}


def bars(
    series: Series,
    spans: Sequence[Span],
    lanes: Mapping[tuple[int, int], int],
    divisor: float,
    *,
    more: Callable[[Span], str] = lambda span: "",
) -> list[dict[str, Any]]:
    """A bar per attempt, a trace for each way to end; ``more``: further lines of what the mouse shows."""
    shown = sorted(spans, key=lambda span: span.start - span.end)[:BARS]
    groups: dict[tuple[int, str, str], list[Span]] = {}
    for span in shown:
        groups.setdefault(_kind(series, span), []).append(span)
    return [
        {
            "type": "bar",
            "orientation": "h",
            "name": name,
            "width": 0.76,
            "showlegend": rank >= len(series.levels) or len(series.levels) <= LISTED,
            "hoverinfo": "text",
            "textposition": "none",
            "base": [rounded(span.start / divisor) for span in group],
            "x": [rounded((span.end - span.start) / divisor) for span in group],
            "y": [lanes[span.trial, span.attempt] for span in group],
            "text": [
                f"trial {span.trial}, attempt {span.attempt}, to {series.levels[span.level]:,}<br>"
                f"{span.outcome or 'running'} after {duration(span.end - span.start)}"
                f"{f', {span.slots} ranks' if span.slots > 1 else ''}{_where(span)}{more(span)}"
                for span in group
            ],
            "marker": {"color": color, "line": {"width": 0.5 if len(shown) < 600 else 0, "color": "#ffffff"}},
        }
        for (rank, name, color), group in sorted(groups.items())
    ]


def _where(span: Span) -> str:
    return f"<br>on {text(worker_name(span.worker), 60)}" if "://" in span.worker else ""


def _kind(series: Series, span: Span) -> tuple[int, str, str]:
    levels = len(series.levels)
    if span.outcome is Outcome.COMPLETED:
        return span.level, f"to {series.levels[span.level]:,}", level_color(span.level, levels)
    if span.outcome is None:
        return levels, "running", RUNNING
    if span.outcome is Outcome.DIVERGED:
        return levels + 1, "diverged", CANDIDATE
    if span.outcome in (Outcome.LOST, Outcome.PREEMPTED):
        return levels + 3, "lost or preempted", LOST
    return levels + 2, "failed", FAILED


def lanes_of(spans: list[Span]) -> tuple[dict[tuple[int, int], int], list[str]]:
    """Row of each (trial, attempt), and the worker of each row; one that runs several at once has several."""
    free: dict[str, list[tuple[float, int]]] = {}
    owners: list[str] = []
    rows: dict[tuple[int, int], int] = {}
    for span in sorted(spans, key=lambda s: (s.start, s.end)):
        own = free.setdefault(span.worker, [])
        at = next((i for i, (end, _) in enumerate(own) if end <= span.start + 1e-6), None)
        if at is None:
            own.append((span.end, len(owners)))
            rows[span.trial, span.attempt] = len(owners)
            owners.append(span.worker)
        else:
            rows[span.trial, span.attempt] = own[at][1]
            own[at] = (span.end, own[at][1])
    order = sorted(range(len(owners)), key=lambda row: (owners[row] == "", owners[row], row))
    moved = {row: place for place, row in enumerate(order)}
    return {key: moved[row] for key, row in rows.items()}, [owners[row] for row in order]
