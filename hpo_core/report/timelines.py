"""Attempts over time on workers and on shared devices; memory and compute of devices."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from hpo_core.model.devices.inventory import memory_words
from hpo_core.model.trial import RESULTS, Outcome
from hpo_core.report.html_page import Section, table
from hpo_core.report.series import Series, Span
from hpo_core.report.style import (
    BEST,
    BLUE,
    CANDIDATE,
    FAILED,
    LANES_NAMED,
    LISTED,
    LOST,
    RUNNING,
    Figure,
    Trace,
    axis,
    axis_key,
    bars,
    layout,
    level_color,
    panels,
    text,
    time_axis,
    trace,
)
from hpo_core.views.device_use import DeviceUse, device_job, device_uses, mean_occupancy
from hpo_core.views.formatting import duration, percent, plural
from hpo_core.views.hop_views import worker_name
from hpo_core.views.trial_story import usage_words

BARS = 5_000
"""Attempts drawn, the longest ones."""
DEVICES = 12
"""Devices with a picture of their own; a table has all."""
STEPS = 4_000
"""Moments of one device's curves; of more, every so many-th."""


def jobs_over_time(series: Series) -> Figure | None:
    """A bar per attempt, a row per worker slot."""
    if not series.spans:
        return None
    spec = series.study.spec
    hops = spec.hops  # a job runs on many workers, one after the other
    gangs = any(span.slots > 1 for span in series.spans)  # likewise, all at once
    together = hops or gangs
    spans = [replace(span, worker="model" if hops else "job") for span in series.spans] if together else series.spans
    one = "gang" if all(span.slots > 1 for span in series.spans) else "job"
    divisor, across = time_axis(series.wall)
    lanes, owners = _lanes_of(spans)
    workers = {} if together else short_names(dict.fromkeys(owners))
    if "" in workers and any(span.outcome is None for span in spans):
        workers[""] = "running"  # its report will say where
    left, lines = _lane_axis(owners, workers)
    if together or len(workers) > LANES_NAMED:
        rows = plural(len(owners), "model" if hops else one) if together else plural(len(workers), "worker")
        left |= {"showticklabels": False, "title": {"text": rows, "font": {"size": 13}}}
    few = f" Of {len(series.spans):,} attempts the {BARS:,} longest are drawn." if len(series.spans) > BARS else ""
    cut = f" {duration(series.paused)} in which no controller ran are cut out." if series.paused > 1 else ""
    caption = (
        f"{_rows(series, hops, one if gangs else '')} Pink bars failed, grey ones were lost or preempted.{few}{cut}"
    )
    share, title = series.utilization, "Jobs over time"
    if share is not None and not spec.packs and not hops and not spec.shares:
        # With packing, slots are jobs to choose from; in a pool, others use them too.
        title += f": workers busy {percent(share)} of the time"
    shape = layout(150 + round(min(900, 30 * len(owners))), barmode="overlay", xaxis=across, yaxis=left, shapes=lines)
    return Figure("jobs", title, caption, _attempts(series, spans, lanes, divisor), shape)


def _rows(series: Series, hops: bool, gang: str) -> str:
    """Meaning of rows, bars and gaps: a gap is idle time only where nobody else can use the worker."""
    spec = series.study.spec
    if hops:
        return "Each row is a model that trains, each bar one attempt."
    if gang:
        return f"Each row is a {gang}, on as many slots as it has ranks, each bar one attempt."
    if spec.packs:
        return "Each bar is one attempt, each row of a worker one job at a time: as many rows as it ever had at once."
    gaps = "in a gap its worker was idle or not there"
    if spec.shares:
        gaps = "in a gap another study of the pool had the worker, or it was idle (Slots of the pool tells which)"
    elif spec.cluster.kind == "address":
        gaps = "in a gap no job of this study ran there; whether others used the worker is not recorded"
    return f"Each row is a worker, each bar one attempt; {gaps}."


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


def short_names(workers: Iterable[str]) -> dict[str, str]:
    """Label of each address: its host or port where that alone tells the workers apart, else both.

    >>> short_names(["tcp://10.0.0.5:40001", "tcp://10.0.0.5:40002"])
    {'tcp://10.0.0.5:40001': 'port 40001', 'tcp://10.0.0.5:40002': 'port 40002'}
    >>> short_names(["tcp://10.0.0.5:40001", "tcp://10.0.0.6:40001"])["tcp://10.0.0.6:40001"]
    '10.0.0.6'
    """
    found = {worker: worker_name(worker) for worker in workers}
    parts = {worker: name.rpartition(":") for worker, name in found.items() if worker}
    if all(host and port.isdecimal() for host, _, port in parts.values()):
        hosts, ports = ({part[k] for part in parts.values()} for k in (0, 2))
        if len(hosts) == len(parts) > 1:
            found |= {worker: host for worker, (host, _, _) in parts.items()}
        elif len(ports) == len(parts) and len(hosts) == 1:
            found |= {worker: f"port {port}" for worker, (_, _, port) in parts.items()}
    return {worker: text(name, 24) if worker else "no worker named" for worker, name in found.items()}


def _attempts(
    series: Series,
    spans: Sequence[Span],
    lanes: Mapping[tuple[int, int], int],
    divisor: float,
    more: Callable[[Span], str] = lambda span: "",
) -> list[Trace]:
    """A bar per attempt, a trace for each way to end; ``more``: further lines of what the mouse shows."""
    shown = sorted(spans, key=lambda span: span.start - span.end)[:BARS]
    levels = len(series.levels)
    groups: dict[tuple[int, str, str], list[tuple[float, float, float, str]]] = {}
    for span in shown:
        where = f"<br>on {text(worker_name(span.worker), 60)}" if "://" in span.worker else ""
        words = (
            f"trial {span.trial}, attempt {span.attempt}, to {series.levels[span.level]:,}<br>"
            f"{span.outcome or 'running'} after {duration(span.end - span.start)}"
            f"{f', {span.slots} ranks' if span.slots > 1 else ''}{where}{more(span)}"
        )
        row = lanes[span.trial, span.attempt]
        groups.setdefault(_kind(series, span), []).append((row, span.start / divisor, span.end / divisor, words))
    line = {"width": 0.5 if len(shown) < 600 else 0, "color": "#ffffff"}
    return [
        bars(name, group, color, showlegend=rank >= levels or levels <= LISTED, marker={"color": color, "line": line})
        for (rank, name, color), group in sorted(groups.items())
    ]


def _kind(series: Series, span: Span) -> tuple[int, str, str]:
    """Rank in the legend, name and colour of an attempt's end."""
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


def _lanes_of(spans: Sequence[Span]) -> tuple[dict[tuple[int, int], int], list[str]]:
    """Row of each (trial, attempt), and the worker of each row; one that runs several at once has several."""
    free: dict[str, list[tuple[float, int]]] = {}
    owners: list[str] = []
    rows: dict[tuple[int, int], int] = {}
    for span in sorted(spans, key=lambda s: (s.start, s.end)):
        own = free.setdefault(span.worker, [])
        at = next((i for i, (end, _) in enumerate(own) if end <= span.start + 1e-6), None)
        if at is None:
            at = len(own)
            own.append((span.end, len(owners)))
            owners.append(span.worker)
        own[at] = (span.end, own[at][1])
        rows[span.trial, span.attempt] = own[at][1]
    order = sorted(range(len(owners)), key=lambda row: (owners[row] == "", owners[row], row))
    moved = {row: place for place, row in enumerate(order)}
    return {key: moved[row] for key, row in rows.items()}, [owners[row] for row in order]


def uses_of(series: Series) -> list[DeviceUse]:
    """The devices that attempts shared; times are active ones."""
    jobs = (
        device_job(
            span.placed or span.usage, begin=span.start, end=span.end, failed=span.outcome not in (None, *RESULTS)
        )
        for span in series.spans
    )
    packing = series.study.spec.packing
    found = [job for job in jobs if job is not None]
    return device_uses(found, packing.ratio) if packing is not None else device_uses(found)


def device_of(span: Span) -> str:
    """Name of the shared device that an attempt ran on; empty: there was none, or it was never told."""
    if span.placed is not None:
        return span.placed.device
    return span.usage.device if span.usage is not None and span.usage.share is not None else ""


def device_figures(series: Series) -> list[Figure | None]:
    """Jobs on each device over time, and what they claimed and used of it."""
    uses = uses_of(series)
    return [_device_lanes(series, uses), _device_loads(series, uses)] if uses else []


def _busiest(uses: Sequence[DeviceUse]) -> tuple[list[DeviceUse], str]:
    """The devices that are drawn, and words about those that are not."""
    kept = sorted(uses, key=lambda use: -use.jobs)[:DEVICES]
    left_out = f" Of {len(uses):,} devices the {DEVICES} with most jobs are drawn." if len(uses) > DEVICES else ""
    return [use for use in uses if use in kept], left_out


def _device_lanes(series: Series, uses: list[DeviceUse]) -> Figure:
    """A bar per attempt, a group of rows per device."""
    shown, left_out = _busiest(uses)
    drawn = {use.name for use in shown}
    spans = [replace(span, worker=name) for span in series.spans if (name := device_of(span)) in drawn]
    divisor, across = time_axis(series.wall)
    lanes, names = _lanes_of(spans)
    left, lines = _lane_axis(names, {name: text(name, 18) for name in names})
    most = max(use.most_at_once for use in uses)
    caption = (
        "Each bar is one attempt, each row of a device one job at a time: as many rows as it ever had at once, at most "
        f"{most} here. Attempts that were lost are not on it.{left_out}"
    )
    height = 120 + round(min(900, max(22, 150 / len(names)) * len(names)))
    shape = layout(height, barmode="overlay", xaxis=across, yaxis=left, shapes=lines)
    title = f"Devices: {percent(mean_occupancy(uses) or 0.0)} of their compute claimed in the mean"
    return Figure("devices", title, caption, _attempts(series, spans, lanes, divisor, _shares), shape)


def _shares(span: Span) -> str:
    """Lines about what an attempt was given of its device, and what it took."""
    usage = span.usage
    share = span.placed.share if span.placed is not None else usage.share if usage is not None else None
    if not isinstance(share, tuple):
        return ""
    compute, memory, cores = share
    given = f"<br>share: {compute / 10:.3g}% of the compute, {memory_words(memory)}, {cores / 1000:.3g} cores"
    return given if span.placed is not None else f"{given}<br>used: {text(usage_words(usage), 120)}"


def _device_loads(series: Series, uses: Sequence[DeviceUse]) -> Figure:
    """Memory from the left axis of each device's panel, compute from the right one."""
    shown, left_out = _busiest(uses)
    divisor, across = time_axis(series.wall)
    titles = [f"<b>{text(use.name, 28)}</b> {text(use.architecture, 20)}" for use in shown]
    shape = panels(len(shown), 1, height=150, gap=48, titles=titles, right=True)
    data: list[Trace] = []
    for row, use in enumerate(shown):
        unit, unit_name = (1e9, "GB") if max(use.claimed, use.used) >= 10**9 else (1e6, "MB")
        left, right, last = axis_key(2 * row), f"{2 * row + 2}", row == len(shown) - 1
        most = max(1000, *(load.compute for load in use.load)) / 10
        percents = [50 * k for k in range(1 + int(most // 50))][:: -(-int(most // 50 + 1) // 5)]
        shape[f"xaxis{axis_key(row)}"] |= across | ({} if last else {"title": {"text": ""}, "showticklabels": False})
        shape[f"yaxis{left}"] |= axis(unit_name, rangemode="tozero", nticks=5)
        ticks = {"tickvals": percents, "ticktext": [f"{x}%" for x in percents]}
        shape[f"yaxis{right}"] |= axis("", range=[0, 1.06 * most], showgrid=False, **ticks)
        load = list(use.load[:: -(-len(use.load) // STEPS)])
        load += [use.load[-1]] if load[-1] is not use.load[-1] else []
        words = [
            f"{duration(now.time)}: {now.jobs} jobs<br>memory: {memory_words(now.claimed)} claimed, "
            f"{memory_words(now.used)} used<br>compute: {percent(now.compute / 1000)} claimed"
            for now in load
        ]
        curves: list[tuple[str, list[float], str, str, dict[str, Any]]] = [
            (
                "memory claimed",
                [now.claimed / unit for now in load],
                left,
                "#a5c8f0",
                {"fill": "tozeroy", "fillcolor": "rgba(116,172,223,0.30)"},
            ),
            ("memory used", [now.used / unit for now in load], left, BLUE, {"width": 2}),
            ("compute claimed", [now.compute / 10 for now in load], right, BEST, {}),
        ]
        for name, values, key, color, more in curves:
            points = [(now.time / divisor, value, line) for now, value, line in zip(load, values, words, strict=True)]
            where = {"xaxis": f"x{axis_key(row)}", "yaxis": f"y{key}", "legendgroup": name, "showlegend": row == 0}
            data.append(trace(name, points, color, mode="lines", shape="hv", **{"width": 1.5, **where, **more}))
        data[-1]["line"]["dash"] = "dot"
    unknown = " Of jobs that run, what they use is not known yet." if any(use.running for use in uses) else ""
    caption = (
        "What the jobs of a device claimed together, and the sum of their peaks of memory, which they need not have "
        f"reached at the same time.{unknown} Compute is on the right axis; above 100% it is "
        f"oversubscribed.{left_out}"
    )
    plot = shape.pop("height")
    made = layout(plot + 92, **shape)
    made["margin"] |= {"t": 40, "r": 54}
    made["legend"] |= {"y": 1 + 24 / plot}  # above the first panel's name
    return Figure("device-load", "Memory and compute of devices", caption, data, made)


def device_table(series: Series) -> Section | None:
    """A line per device; None where none was shared."""
    uses = uses_of(series)
    if not uses:
        return None
    head = (
        *("device", "kind", "jobs", "running", "failed", "at once"),
        *("memory claimed", "memory used", "in use", "compute claimed"),
    )
    rows = [
        (
            *(use.name, use.architecture, use.jobs, use.running, use.failed, use.most_at_once),
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
    return Section("Devices in numbers", caption, table(head, rows), f"{series.study.name}-devices.csv")
