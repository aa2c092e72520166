"""Attempts over time, one row for each worker."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from hpo_core.model.trial import Outcome
from hpo_core.report.study.learning_curves import LISTED
from hpo_core.report.study.series import Series, Span
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
    names = [text(owner.removeprefix("tcp://"), 24) or "no worker named" for owner in owners]
    left = axis("", range=[len(names) - 0.4, -0.6], showgrid=False, fixedrange=True, ticks="")
    if len(names) <= LANES_NAMED and not together:
        left |= {"tickvals": list(range(len(names))), "ticktext": names}
    else:
        rows = plural(len(names), "model" if hops else one) if together else f"{len(names)} rows"
        left |= {"showticklabels": False, "title": {"text": rows, "font": {"size": 13}}}
    share = series.utilization
    slots_are_workers = series.study.spec.packing is None and not hops  # with packing they are jobs to choose from
    is_share = share is not None and slots_are_workers
    title = f"Jobs over time: workers busy {100 * (share or 0):.0f}% of the time" if is_share else "Jobs over time"
    few = f" Of {len(series.spans):,} attempts the {BARS:,} longest are drawn." if len(series.spans) > BARS else ""
    cut = f" {duration(series.paused)} in which no controller ran are cut out." if series.paused > 1 else ""
    caption = (
        f"Each row is a {_row(hops, one if gangs else '')}, each bar one attempt; gaps are idle time, pink "
        f"bars failed, grey ones were lost.{few}{cut}"
    )
    shape = layout(150 + round(min(900, 30 * len(names))), barmode="overlay", xaxis=across, yaxis=left)
    return Figure("jobs", title, caption, data, shape)


def _row(hops: bool, gang: str) -> str:
    if hops:
        return "model that trains"
    return f"{gang}, on as many slots as it has ranks" if gang else "worker"


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
                f"{f', {span.slots} ranks' if span.slots > 1 else ''}{more(span)}"
                for span in group
            ],
            "marker": {"color": color, "line": {"width": 0.5 if len(shown) < 600 else 0, "color": "#ffffff"}},
        }
        for (rank, name, color), group in sorted(groups.items())
    ]


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
