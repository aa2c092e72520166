"""Slots that a study had of those it shared with other studies, over time, and what its jobs used of them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise, zip_longest
from typing import NamedTuple

import numpy as np

from hpo_core.report.hop_lanes import units_of
from hpo_core.report.series import Series
from hpo_core.report.style import BEST, BLUE, RUNNING, Figure, Point, axis, layout, text, time_axis, trace

BINS = 1_500
"""Times of which means are drawn where there are more changes."""

Steps = Sequence[tuple[float, float]]
"""A step function: (time, value from then on)."""


class Busy(NamedTuple):
    """A stretch in which something of the pool was used."""

    start: float
    end: float
    name: str
    """Device or worker, which counts once whatever runs there; empty: slots without names."""
    slots: int = 1


def pool_slots(series: Series) -> Figure | None:
    """Slots held and used over time; None where the study shared nothing, or had no job."""
    spec, unit = series.study.spec, series.study.spec.room_word
    if not spec.pool_name or not series.spans or series.wall <= 0:
        return None
    busy = {
        "worker": lambda: [Busy(one.started, one.ended, one.worker) for one in units_of(series)],
        "device": lambda: [Busy(one.start, one.end, one.device) for one in series.spans if one.device],
        "slot": lambda: [Busy(one.start, one.end, "", one.slots) for one in series.spans],
    }[unit]()
    used = in_use(busy)
    held: Steps | None = None
    if unit == "slot":
        held = [(time, float(inventory.slots)) for time, inventory in series.capacities]
    elif unit == "device":  # those on which jobs might begin, or where they ran until the device changed hands
        begin = [(time, float(inventory.shared_devices)) for time, inventory in series.capacities]
        held = [(time, max(both)) for time, *both in _beside(begin, used)]
    divisor, across = time_axis(series.wall)

    def points(steps: Steps) -> list[Point]:
        drawn = _thinned(steps, series.wall)
        drawn = [*drawn, (series.wall, drawn[-1][1] if drawn else 0.0)]
        return [(time / divisor, value, f"{value:.3g} {unit}s") for time, value in drawn]

    area = {"fill": "tozeroy", "fillcolor": RUNNING}
    data = [trace(f"{unit}s in use", points(used), BLUE, mode="lines", width=1, shape="hv", **area)]
    said = f"{mean_of(used, series.wall):.2f} in use"
    if held is not None:
        data.append(trace(f"{unit}s that it might use", points(held), BEST, mode="lines", shape="hv"))
        said += f" and {mean_of(idle(held, used), series.wall):.2f} idle"
    most = max([*(value for _, value in used), *(value for _, value in held or ()), 1.0])
    steps = {"dtick": 1} if most <= 10 else {}
    shape = layout(330, xaxis=across, yaxis=axis(f"{unit}s", range=[0, 1.06 * most], **steps))
    title = f"{unit.capitalize()}s of the pool over time: {said} in the mean"
    return Figure("pool", title, _caption(unit, text(spec.pool_name, 60)), data, shape)


def _caption(unit: str, pool: str) -> str:
    if unit == "worker":
        return (
            f"Workers of pool {pool} on which a unit of this study ran. Which ones it held is not in its journal: "
            "above the area, workers were other studies', or idle. Units of jobs that run or failed are not in it."
        )
    return (
        f"The line is what this study might use of pool {pool}: it falls where other studies take their part, and "
        "rises where they leave theirs. The area is what its jobs used; above the line they had begun before, and ran "
        f"on. Where the area is below the line, {unit}s were idle: they changed hands, or the search had no job for "
        "them. What is above both was other studies', or nobody's."
    )


def in_use(busy: Iterable[Busy]) -> list[tuple[float, float]]:
    """Amount in use over time; what has a name counts once."""
    changes: dict[float, Counter[str]] = {}
    for one in busy:
        if one.end > one.start:
            changes.setdefault(one.start, Counter())[one.name] += one.slots
            changes.setdefault(one.end, Counter())[one.name] -= one.slots
    now: Counter[str] = Counter()
    total = 0
    found: list[tuple[float, float]] = []
    for time in sorted(changes):
        for name, change in changes[time].items():
            before = now[name]
            now[name] += change
            total += change if not name else (now[name] > 0) - (before > 0)
        found.append((time, float(total)))
    return found


def idle(held: Steps, used: Steps) -> list[tuple[float, float]]:
    """Amount that might have been used over time, and was not."""
    return [(time, max(0.0, may - does)) for time, may, does in _beside(held, used)]


def _beside(one: Steps, other: Steps) -> Iterator[tuple[float, float, float]]:
    """Two step functions as one: at each change of either, both values from then on."""
    now = [0.0, 0.0]
    changes = sorted([(time, place, value) for place, steps in enumerate((one, other)) for time, value in steps])
    for (time, place, value), after in zip_longest(changes, changes[1:]):
        now[place] = value
        if after is None or after[0] > time:
            yield time, now[0], now[1]


def mean_of(steps: Steps, until: float) -> float:
    """Mean of a step function from 0 to ``until``; before its first step it is 0."""
    ended = [*steps, (until, 0.0)]
    areas = (value * max(0.0, min(after, until) - time) for (time, value), (after, _) in pairwise(ended))
    return math.fsum(areas) / until


def _thinned(steps: Steps, wall: float) -> Steps:
    """Means of equal times, where there are more changes than that."""
    if len(steps) <= BINS:
        return steps
    times = np.array([0.0, *(time for time, _ in steps), wall])
    values = np.array([0.0, *(value for _, value in steps)])
    edges = np.linspace(0.0, wall, BINS + 1)
    sums = np.interp(edges, times, np.concatenate([[0.0], np.cumsum(values * np.diff(times))]))
    return list(zip(edges[:-1].tolist(), (np.diff(sums) / (wall / BINS)).tolist(), strict=True))
