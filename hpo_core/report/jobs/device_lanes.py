"""The devices of a packed study: a timeline of each, and a table."""

from __future__ import annotations

from dataclasses import replace
from html import escape

from hpo_core.model.devices.memory_words import memory_words
from hpo_core.model.trial import RESULTS
from hpo_core.report.jobs.device_loads import busiest, device_loads, left_out, percent
from hpo_core.report.series import Series, Span
from hpo_core.report.study.job_timeline import bars, lane_axis, lanes_of
from hpo_core.report.study_page import table
from hpo_core.report.style import Figure, layout, text, time_axis
from hpo_core.views.device_use import DeviceUse, device_job, device_uses, mean_occupancy, running_job
from hpo_core.views.trial_story import usage_words


def uses_of(series: Series) -> list[DeviceUse]:
    """The devices that attempts shared; times are active ones."""
    jobs = (
        device_job(
            span.trial,
            span.attempt,
            span.usage,
            begin=span.start,
            end=span.end,
            failed=span.outcome not in RESULTS,
        )
        if span.placed is None
        else running_job(span.placed, begin=span.start, end=span.end)
        for span in series.spans
    )
    packing = series.study.spec.packing
    found = [job for job in jobs if job is not None]
    return device_uses(found, packing.ratio) if packing is not None else device_uses(found)


def device_figures(series: Series) -> list[Figure | None]:
    """Jobs on each device over time, and what they claimed and used of it."""
    uses = uses_of(series)
    return [_timelines(series, uses), device_loads(series, uses)] if uses else []


def _timelines(series: Series, uses: list[DeviceUse]) -> Figure:
    """A bar per attempt, a group of rows per device."""
    shown = {use.name for use in busiest(uses)}
    spans = [replace(span, worker=name) for span in series.spans if (name := device_of(span)) in shown]
    divisor, across = time_axis(series.wall)
    lanes, names = lanes_of(spans)
    left, lines = lane_axis(names, {name: text(name, 18) for name in names})
    mean = mean_occupancy(uses) or 0.0
    most = max(use.most_at_once for use in uses)
    caption = (
        "Each bar is one attempt, each row of a device one job at a time: as many rows as it ever had at once, at most "
        f"{most} here. Attempts that were lost are not on it.{left_out(uses)}"
    )
    height = 120 + round(min(900, max(22, 150 / len(names)) * len(names)))
    shape = layout(height, barmode="overlay", xaxis=across, yaxis=left, shapes=lines)
    return Figure("devices", f"Devices: {percent(mean)} of their compute claimed in the mean", caption,
                  bars(series, spans, lanes, divisor, more=_words), shape)  # fmt: skip


def device_of(span: Span) -> str:
    """Of those that jobs share; empty: none, or it was never told."""
    if span.placed is not None:
        return span.placed.device
    return span.usage.device if span.usage is not None and span.usage.share is not None else ""


def _words(span: Span) -> str:
    """What it was given, and what it took."""
    if span.placed is not None:
        return f"<br>share: {_share(span.placed.share)}"
    usage = span.usage
    if usage is None or usage.share is None:
        return ""
    return f"<br>share: {_share(usage.share)}<br>used: {text(usage_words(usage), 120)}"


def _share(amounts: tuple[int, int, int]) -> str:
    compute, memory, cores = amounts
    return f"{compute / 10:.3g}% of the compute, {memory_words(memory)}, {cores / 1000:.3g} cores"


def device_table(series: Series) -> str:
    """A line per device, and a button that saves it as CSV; empty where none was shared."""
    uses = uses_of(series)
    if not uses:
        return ""
    head = (
        "device",
        "kind",
        "jobs",
        "running",
        "failed",
        "at once",
        "memory claimed",
        "memory used",
        "in use",
        "compute claimed",
    )
    rows = [
        (
            use.name,
            use.architecture,
            use.jobs,
            use.running,
            use.failed,
            use.most_at_once,
            memory_words(use.claimed),
            memory_words(use.used) if use.used else "",
            percent(use.busy),
            percent(use.occupancy),
        )
        for use in uses
    ]
    caption = (
        "Most jobs at once, most memory claimed and used at once; the share of the time with a job on it, and the mean "
        "share of its compute that jobs claimed."
    )
    name = escape(series.study.name)
    return (
        f'<section class="card"><h2>Devices in numbers</h2><p class="caption">{caption}</p>'
        f'<div class="bar"><button data-csv="{name}-devices.csv">Download CSV</button></div>'
        f"{table(head, rows)}</section>"
    )
