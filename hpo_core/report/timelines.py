"""Attempts over time on workers and on shared devices; memory and compute of devices."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from hpo_core.model.devices.inventory import memory_words
from hpo_core.model.trial import Outcome
from hpo_core.report.html_page import Section, table
from hpo_core.report.series import Series
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
    Point,
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
from hpo_core.views.device_use import Span, mean_occupancy
from hpo_core.views.formatting import duration, percent, plural
from hpo_core.views.hop_views import hop_units, worker_name
from hpo_core.views.trial_story import usage_words

BARS = 5_000
"""Attempts drawn, the longest ones."""
DEVICES = 12
"""Devices with a picture of their own; a table has all."""
STEPS = 4_000
"""Moments of one device's curves; of more, every so many-th."""
_ONE_AT_A_TIME = "Each row is a worker, each bar one attempt; in a gap"
ROWS = {
    "worker": "Each row is a model that trains, each bar one attempt.",
    "gang": "Each row is a {}, on as many slots as it has ranks, each bar one attempt.",
    "device": (
        "Each bar is one attempt, each row of a device one job at a time: as many rows as it ever had at once. An "
        "attempt whose device was never told, for it was lost, stands at its worker."
    ),
    "pool": (
        f"{_ONE_AT_A_TIME} another study of the pool had the worker, or it was idle (Slots of the pool tells which)."
    ),
    "address": (f"{_ONE_AT_A_TIME} no job of this study ran there; whether others used the worker is not recorded."),
    "slot": f"{_ONE_AT_A_TIME} its worker was idle or not there.",
}
"""Meaning of rows, bars and gaps: a gap is idle time only where nobody else can use the worker."""
ENDS: dict[Outcome | None, tuple[int, str, str]] = {
    None: (0, "running", RUNNING),
    Outcome.DIVERGED: (1, "diverged", CANDIDATE),
    Outcome.LOST: (3, "lost or preempted", LOST),
    Outcome.PREEMPTED: (3, "lost or preempted", LOST),
}
"""Rank in the legend, name and colour of ends but results; all others have failed."""


def jobs_over_time(series: Series) -> Figure | None:
    """A bar per attempt, a row per worker slot; where attempts share devices, rows by device."""
    if not series.spans:
        return None
    spec, uses = series.study.spec, series.uses
    gangs = any(span.slots > 1 for span in series.spans)
    one = "model" if spec.room_word == "worker" else "gang" if all(span.slots > 1 for span in series.spans) else "job"
    together = not uses and (gangs or one == "model")  # one job takes many workers, at once or one after the other
    divisor, across = time_axis(series.wall)
    rows = _row_of_each(
        series.spans, lambda span: one if together else span.shared.device if span.shared else span.worker
    )
    workers = {} if together else short_names(dict.fromkeys(rows.owners))
    if "" in workers and any(span.outcome is None for span in series.spans):
        workers[""] = "running"  # its report will say where
    left, lines = _lane_axis(rows.owners, workers)
    if together or len(workers) > LANES_NAMED:
        count = plural(len(rows.owners), one) if together else plural(len(workers), "device" if uses else "worker")
        left |= {"showticklabels": False, "title": {"text": count, "font": {"size": 13}}}
    few = f" Of {len(series.spans):,} attempts the {BARS:,} longest are drawn." if len(series.spans) > BARS else ""
    cut = f" {duration(series.paused)} in which no controller ran are cut out." if series.paused > 1 else ""
    kind = "gang" if gangs and together and one != "model" else spec.room_word
    if kind == "slot":
        kind = "pool" if spec.pool_name else spec.cluster.kind
    words = ROWS.get(kind, ROWS["slot"]).format(one)
    share, title = series.utilization, "Jobs over time"
    if uses:
        title += f": {percent(mean_occupancy(uses) or 0.0)} of the devices' compute claimed in the mean"
    elif share is not None and spec.room_word == "slot" and not spec.pool_name:  # in a pool, others use slots too
        title += f": workers busy {percent(share)} of the time"
    caption = f"{words} Pink bars failed, grey ones were lost or preempted.{few}{cut}"
    height = 150 + round(min(900, 30 * len(rows.owners)))
    shape = layout(height, barmode="overlay", xaxis=across, yaxis=left, shapes=lines)
    return Figure("jobs", title, caption, _attempts(series, rows, divisor), shape)


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
        rank, name, color = ENDS.get(span.outcome, (2, "failed", FAILED))
        if span.outcome is Outcome.COMPLETED:
            level = series.level(span.target)
            rank, name, color = level - levels, f"to {span.target:,}", level_color(level, levels)
        groups.setdefault((rank, name, color), []).append((row, span.start / divisor, span.end / divisor, words))
    line = {"width": 0.5 if len(shown) < 600 else 0, "color": "#ffffff"}
    return [
        bars(name, group, color, showlegend=rank >= 0 or levels <= LISTED, marker={"color": color, "line": line})
        for (rank, name, color), group in sorted(groups.items())
    ]


def device_loads(series: Series) -> Figure | None:
    uses = series.uses
    if not uses:
        return None
    kept = sorted(uses, key=lambda use: -use.jobs)[:DEVICES]
    left_out = f" Of {len(uses):,} devices the {DEVICES} with most jobs are drawn." if len(uses) > DEVICES else ""
    shown = [use for use in uses if use in kept]
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
    uses = series.uses
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


BINS = 1_500
"""Times of which means are drawn where there are more changes."""

Steps = Sequence[tuple[float, float]]
"""A step function: (time, value from then on)."""
PoolUse = tuple[Steps, Steps | None, str]
"""What a study used of its pool and what it might have used (None: not known), over time, and the figure's caption."""
WORKERS_USED = (
    "Workers of pool {} on which a unit of this study ran. Which ones it held is not in its journal: above the area, "
    "workers were other studies', or idle. Units of jobs that run or failed are not in it."
)
POOL_USED = (
    "The line is what this study might use of pool {}: it falls where other studies take their part, and rises where "
    "they leave theirs. The area is what its jobs used; above the line they had begun before, and ran on. Where the "
    "area is below the line, {} were idle: they changed hands, or the search had no job for them. What is above both "
    "was other studies', or nobody's."
)

WORKERS_THERE = (
    "The line is the number of workers that were there: they come while configurations wait, and go when idle. The "
    "area is what jobs used; between the two, workers waited for a job, or to be given back."
)


class Busy(NamedTuple):
    """A stretch in which something of the pool was used."""

    start: float
    end: float
    name: str
    """Device or worker, which counts once whatever runs there; empty: slots without names."""
    slots: int = 1


def pool_slots(series: Series) -> Figure | None:
    """Slots held and used over time; None where their number was fixed, or there was no job."""
    spec, unit = series.study.spec, series.study.spec.room_word
    if not (spec.pool_name or spec.cluster.scales) or not series.spans or series.wall <= 0:
        return None
    used, held, caption = _POOL_USE[unit](series)
    there, of_what = f"{unit}s that it might use", " of the pool"
    if spec.cluster.scales is not None:
        unit, there, of_what, caption = "worker", "workers there", "", WORKERS_THERE
    divisor, across = time_axis(series.wall)

    def points(steps: Steps) -> list[Point]:
        drawn = steps if len(steps) <= BINS else _means(steps, np.linspace(0.0, series.wall, BINS + 1).tolist())
        drawn = [*drawn, (series.wall, drawn[-1][1] if drawn else 0.0)]
        return [(time / divisor, value, f"{value:.3g} {unit}s") for time, value in drawn]

    area = {"fill": "tozeroy", "fillcolor": RUNNING}
    data = [trace(f"{unit}s in use", points(used), BLUE, mode="lines", width=1, shape="hv", **area)]
    said = f"{mean_of(used, series.wall):.2f} in use"
    if held is not None:
        data.append(trace(there, points(held), BEST, mode="lines", shape="hv"))
        said += f" and {mean_of(idle(held, used), series.wall):.2f} idle"
    most = max([*(value for _, value in used), *(value for _, value in held or ()), 1.0])
    steps = {"dtick": 1} if most <= 10 else {}
    shape = layout(330, xaxis=across, yaxis=axis(f"{unit}s", range=[0, 1.06 * most], **steps))
    title = f"{unit.capitalize()}s{of_what} over time: {said} in the mean"
    return Figure("pool", title, caption.format(text(spec.pool_name, 60)), data, shape)


def _workers_used(series: Series) -> PoolUse:
    units = hop_units(series.study.spec, series.study.state, clock=series.active)
    return in_use(Busy(one.started, one.ended, one.worker) for one in units), None, WORKERS_USED


def _devices_used(series: Series) -> PoolUse:
    used = in_use(Busy(one.start, one.end, one.shared.device) for one in series.spans if one.shared)
    begin = [(time, float(inventory.shared_devices)) for time, inventory in series.capacities]
    held = [(time, max(both)) for time, *both in _beside(begin, used)]  # where jobs might begin, or still ran
    return used, held, POOL_USED.format("{}", "devices")


def _slots_used(series: Series) -> PoolUse:
    used = in_use(Busy(one.start, one.end, "", one.slots) for one in series.spans)
    return (
        used,
        [(time, float(inventory.slots)) for time, inventory in series.capacities],
        POOL_USED.format("{}", "slots"),
    )


_POOL_USE = {"worker": _workers_used, "device": _devices_used, "slot": _slots_used}


def in_use(busy: Iterable[Busy]) -> list[tuple[float, float]]:
    changes: dict[float, Counter[str]] = {}
    for one in busy:
        if one.end > one.start:
            changes.setdefault(one.start, Counter())[one.name] += one.slots
            changes.setdefault(one.end, Counter())[one.name] -= one.slots
    now: Counter[str] = Counter()
    found: list[tuple[float, float]] = []
    total = 0
    for time in sorted(changes):
        for name, change in changes[time].items():
            before = now[name]
            now[name] += change
            total += (now[name] > 0) - (before > 0) if name else change
        found.append((time, float(total)))
    return found


def idle(held: Steps, used: Steps) -> list[tuple[float, float]]:
    """Amount that might have been used over time, and was not."""
    return [(time, max(0.0, may - does)) for time, may, does in _beside(held, used)]


def _beside(one: Steps, other: Steps) -> list[tuple[float, float, float]]:
    times = sorted({time for steps in (one, other) for time, _ in steps})
    columns = [[_value_at(steps, time) for time in times] for steps in (one, other)]
    return list(zip(times, *columns, strict=True))


def _value_at(steps: Steps, time: float) -> float:
    at = bisect_right(steps, time, key=lambda step: step[0])
    return steps[at - 1][1] if at else 0.0


def mean_of(steps: Steps, until: float) -> float:
    return _means(steps, [0.0, until])[0][1]


def _means(steps: Steps, edges: Sequence[float]) -> list[tuple[float, float]]:
    times = np.array([0.0, *(min(time, edges[-1]) for time, _ in steps), edges[-1]])
    values = np.array([0.0, *(value for _, value in steps)])
    sums = np.interp(edges, times, np.concatenate([[0.0], np.cumsum(values * np.diff(times))]))
    return list(zip(edges[:-1], (np.diff(sums) / np.diff(edges)).tolist(), strict=True))
