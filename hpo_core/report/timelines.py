"""Time in pictures: attempts on workers and devices, what devices and pools held, models that hop."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import accumulate
from typing import Any

from hpo_core.model.devices.inventory import memory_words
from hpo_core.model.partition_file import natural_order
from hpo_core.model.trial import Outcome
from hpo_core.report.html_page import Section, table
from hpo_core.report.style import (
    BEST,
    BLUE,
    CANDIDATE,
    FAILED,
    LANES_NAMED,
    LISTED,
    LOST,
    RUNNING,
    SERIES,
    Figure,
    Point,
    Trace,
    axis,
    axis_key,
    bars,
    layout,
    level_color,
    rows,
    text,
    time_axis,
    trace,
)
from hpo_core.views.device_use import Span, mean_occupancy
from hpo_core.views.formatting import byte_count, duration, percent, plural
from hpo_core.views.hop_views import (
    HopUnit,
    hop_units,
    moved_bytes,
    worker_name,
    workers_busy,
)
from hpo_core.views.series import Series
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
    drawn, owners = _attempts(
        series, lambda span: one if together else span.shared.device if span.shared else span.worker, divisor
    )
    workers = {} if together else {owner: text(worker_name(owner), 24) or "no worker named" for owner in owners}
    if "" in workers and any(span.outcome is None for span in series.spans):
        workers[""] = "running"  # its report will say where
    left, lines = _lane_axis(owners, workers)
    if together or len(workers) > LANES_NAMED:
        count = plural(len(owners), one) if together else plural(len(workers), "device" if uses else "worker")
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
    caption = f"{words}{few}{cut}"
    height = 150 + round(min(900, 30 * len(owners)))
    shape = layout(height, barmode="overlay", xaxis=across, yaxis=left, shapes=lines)
    return Figure("jobs", title, caption, drawn, shape)


def _lane_axis(owners: Sequence[str], names: Mapping[str, str]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    # The axis of rows, with one label in the middle of each owner's rows, and lines between owners of several.
    # Args:
    #     owners: by row, those of one owner beside each other.
    #     names: label of each owner.
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


def _attempts(series: Series, owner_of: Callable[[Span], str], divisor: float) -> tuple[list[Trace], list[str]]:
    # Attempts as bars in rows, and the owner of each row.
    # Attempts that overlap are in different rows: a worker or device has several if it runs several attempts at once.
    free: dict[str, list[tuple[float, int]]] = {}
    owners: list[str] = []
    rows: list[tuple[int, Span]] = []
    for span in sorted(series.spans, key=lambda s: (s.start, s.end)):
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
    shown = sorted(rows, key=lambda item: item[1].start - item[1].end)[:BARS]
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
        groups.setdefault((rank, name, color), []).append((moved[row], span.start / divisor, span.end / divisor, words))
    line = {"width": 0.5 if len(shown) < 600 else 0, "color": "#ffffff"}
    drawn = [
        bars(name, group, color, showlegend=rank >= 0 or levels <= LISTED, marker={"color": color, "line": line})
        for (rank, name, color), group in sorted(groups.items())
    ]
    return drawn, [owners[row] for row in order]


UNITS = 3_000
"""Units drawn, the latest ones."""


def hop_figure(series: Series) -> Figure | None:
    """A bar for each unit, a row for each worker; None where models do not hop, or no result is there yet."""
    names = [file.name for file in series.study.spec.partitions]
    units = hop_units(series.study.spec, series.study.state, clock=series.active)
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
    title = f"Units on workers: busy {percent(workers_busy(units))} of the time"
    return Figure("hops", title, caption, data, layout(height, barmode="overlay", xaxis=across, yaxis=left))


def _unit_words(unit: HopUnit, names: Sequence[str]) -> str:
    words = f"trial {unit.trial}, epoch {unit.epoch}<br>{text(names[unit.partition], 60)}, {duration(unit.seconds)}"
    return words + (f"<br>came from {text(worker_name(unit.came_from), 40)}" if unit.changed_worker else "")


DEVICES = 12
"""Devices with a picture of their own; a table has all."""
STEPS = 4_000
"""Moments of one device's curves; of more, every so many-th."""


def device_loads(series: Series) -> Figure | None:
    uses = series.uses
    if not uses:
        return None
    kept = sorted(uses, key=lambda use: -use.jobs)[:DEVICES]
    left_out = f" Of {len(uses):,} devices the {DEVICES} with most jobs are drawn." if len(uses) > DEVICES else ""
    shown = [use for use in uses if use in kept]
    divisor, across = time_axis(series.wall)
    titles = [f"<b>{text(use.name, 28)}</b> {text(use.architecture, 20)}" for use in shown]
    shape = rows(len(shown), height=150, gap=48, titles=titles, right=True)
    data: list[Trace] = []
    for row, use in enumerate(shown):
        unit, unit_name = (1e9, "GB") if max(use.claimed, use.used) >= 10**9 else (1e6, "MB")
        left, right = axis_key(2 * row), f"{2 * row + 2}"
        most = max(1000, *(load.compute for load in use.load)) / 10
        shape[f"xaxis{axis_key(row)}"] |= across if row == len(shown) - 1 else {"range": across["range"]}
        shape[f"yaxis{left}"] |= axis(unit_name, rangemode="tozero", nticks=5)
        up = axis(range=[0, 1.06 * most], showgrid=False, tickmode="auto", nticks=4, ticksuffix="%")
        shape[f"yaxis{right}"] |= up
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
    made = layout(shape.pop("height") + 110, **shape)
    made["margin"] |= {"t": 40, "r": 54}
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
    return Section("Devices in numbers", caption, table(head, rows))


MOMENTS = 3_000
"""Points of a line of slots over time; of more, every so many-th."""
POOL_USED = (
    "The line is what this study might use of pool {}: it falls where other studies take their part, and rises where "
    "they leave theirs. The area is what its jobs used; above the line they had begun before, and ran on. Where the "
    "area is below the line, some were idle: they changed hands, or the search had no job for them."
)
WORKERS_THERE = (
    "The line is the number of workers that were there: they come while configurations wait, and go when idle. The "
    "area is what jobs used; between the two, workers waited for a job, or to be given back."
)

Steps = list[tuple[float, float]]
"""A step function: (time, value from then on)."""


def pool_slots(series: Series) -> Figure | None:
    """Slots held and used over time; None where their number was fixed, jobs take parts of them, or there was none."""
    spec, wall = series.study.spec, series.wall
    if not (spec.pool_name or spec.cluster.scales) or series.uses or spec.partitions:
        return None
    if not series.capacities or not series.spans or wall <= 0:
        return None
    unit, there, where, caption = "slot", "slots that it might use", " of the pool", POOL_USED
    if spec.cluster.scales is not None:
        unit, there, where, caption = "worker", "workers there", "", WORKERS_THERE
    divisor, across = time_axis(wall)
    used = in_use((span.start, span.end, span.slots) for span in series.spans)
    held = [(time, float(inventory.slots)) for time, inventory in series.capacities]

    def points(steps: Steps) -> list[Point]:
        drawn = [*steps[:: -(-len(steps) // MOMENTS) or 1], (wall, steps[-1][1] if steps else 0.0)]
        return [(time / divisor, value, f"{value:.3g} {unit}s") for time, value in drawn]

    area = {"fill": "tozeroy", "fillcolor": RUNNING}
    data = [
        trace(f"{unit}s in use", points(used), BLUE, mode="lines", width=1, shape="hv", **area),
        trace(there, points(held), BEST, mode="lines", shape="hv"),
    ]
    means = f"{mean_of(used, wall):.2f} in use in the mean, of {mean_of(held, wall):.2f}"
    title = f"{unit.capitalize()}s{where} over time: {means}"
    shape = layout(330, xaxis=across, yaxis=axis(f"{unit}s", rangemode="tozero", nticks=10, tickformat="~g"))
    return Figure("pool", title, caption.format(text(spec.pool_name, 60)), data, shape)


def in_use(busy: Iterable[tuple[float, float, int]]) -> Steps:
    """Slots in use over time, from (start, end, slots) of each attempt."""
    changes: Counter[float] = Counter()
    for start, end, slots in busy:
        changes.update({start: slots})
        changes.subtract({end: slots})
    times = sorted(changes)
    return list(zip(times, accumulate(float(changes[time]) for time in times), strict=True))


def mean_of(steps: Steps, until: float) -> float:
    ends = [*(time for time, _ in steps[1:]), until]
    return sum(value * (end - time) for (time, value), end in zip(steps, ends, strict=True)) / until
