"""Devices that attempts share: memory and compute, in numbers; slots of a pool over time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from itertools import accumulate
from typing import Any

from hpo_core.model.devices.inventory import memory_words
from hpo_core.report.html_page import Section, table
from hpo_core.report.series import Series
from hpo_core.report.style import (
    BEST,
    BLUE,
    RUNNING,
    Figure,
    Point,
    Trace,
    axis,
    axis_key,
    layout,
    rows,
    text,
    time_axis,
    trace,
)
from hpo_core.views.formatting import duration, percent

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
