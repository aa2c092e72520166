"""What a study had of the slots that it shared with other studies, over time, and what its jobs used of it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise, zip_longest
from typing import Any, NamedTuple

from hpo_core.report.hop_lanes import units_of
from hpo_core.report.jobs.device_lanes import device_of
from hpo_core.report.series import Series
from hpo_core.report.style import Figure, axis, layout, rounded, text, time_axis

BINS = 1_500
"""Of more changes the mean of so many equal times is drawn."""
_USED, _AREA, _HELD = "#1c6dd0", "#d0ebff", "#e8590c"


class Busy(NamedTuple):
    """A stretch in which something of the pool was used."""

    start: float
    end: float
    name: str
    """Of the device or worker, which counts once whatever runs there; empty: slots without names."""
    slots: int = 1


def pool_slots(series: Series) -> Figure | None:
    """Held and used over time; None where the study shared nothing, or had no job."""
    spec = series.study.spec
    if spec.share is None or not series.spans or series.wall <= 0:
        return None
    if spec.data is not None:
        unit, busy = "worker", [Busy(one.started, one.ended, one.worker) for one in units_of(series)]
    elif spec.packing is not None:
        unit, busy = "device", [Busy(one.start, one.end, name) for one in series.spans if (name := device_of(one))]
    else:
        unit, busy = "slot", [Busy(span.start, span.end, "", span.slots) for span in series.spans]
    used = in_use(busy)
    held = None if spec.data is not None else _held(series, used)
    divisor, across = time_axis(series.wall)
    data = [_curve(f"{unit}s in use", used, series.wall, divisor, color=_USED, area=True)]
    said = f"{mean_of(used, series.wall):.2f} in use"
    if held is not None:
        data.append(_curve(f"{unit}s that it might use", held, series.wall, divisor, color=_HELD, area=False))
        said += f" and {mean_of(idle(held, used), series.wall):.2f} idle"
    most = max([*(value for _, value in used), *(value for _, value in held or ()), 1.0])
    steps = {"dtick": 1} if most <= 10 else {}
    shape = layout(330, xaxis=across, yaxis=axis(f"{unit}s", range=[0, 1.06 * most], **steps))
    pool = text(spec.share.pool or spec.cluster.place, 60)
    return Figure(
        "pool", f"{unit.capitalize()}s of the pool over time: {said} in the mean", _words(unit, pool), data, shape
    )


def _words(unit: str, pool: str) -> str:
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
    """(time, in use from then on); what has a name counts once."""
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


def _held(series: Series, used: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Slots as recorded; devices on which jobs might begin, or where they ran until the device changed hands."""
    if series.study.spec.packing is None:
        return [(time, float(inventory.slots)) for time, inventory in series.capacities]
    begin = [(time, float(inventory.shared_devices)) for time, inventory in series.capacities]
    return [(time, max(both)) for time, *both in _beside(begin, used)]


def idle(held: Sequence[tuple[float, float]], used: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """What might have been used, and was not."""
    return [(time, max(0.0, may - does)) for time, may, does in _beside(held, used)]


def _beside(
    one: Sequence[tuple[float, float]], other: Sequence[tuple[float, float]]
) -> Iterator[tuple[float, float, float]]:
    """Two step functions as one: at each change of either, both values from then on."""
    now = [0.0, 0.0]
    changes = sorted([(time, place, value) for place, steps in enumerate((one, other)) for time, value in steps])
    for (time, place, value), after in zip_longest(changes, changes[1:]):
        now[place] = value
        if after is None or after[0] > time:
            yield time, now[0], now[1]


def mean_of(steps: Sequence[tuple[float, float]], until: float) -> float:
    """Of a step function from 0 on; before its first step it is 0."""
    ended = [*steps, (until, 0.0)]
    return (
        math.fsum(value * max(0.0, min(after, until) - time) for (time, value), (after, _) in pairwise(ended)) / until
    )


def _curve(
    name: str, steps: Sequence[tuple[float, float]], wall: float, divisor: float, *, color: str, area: bool
) -> dict[str, Any]:
    drawn = _thinned(steps, wall)
    drawn = [*drawn, (wall, drawn[-1][1] if drawn else 0.0)]
    return {
        "type": "scatter",
        "mode": "lines",
        "name": name,
        "x": [rounded(time / divisor) for time, _ in drawn],
        "y": [rounded(value) for _, value in drawn],
        "line": {"shape": "hv", "width": 1 if area else 2, "color": color},
        **({"fill": "tozeroy", "fillcolor": _AREA} if area else {}),
        "hovertemplate": f"%{{y:.3g}} {name}<extra></extra>",
    }


def _thinned(steps: Sequence[tuple[float, float]], wall: float) -> list[tuple[float, float]]:
    if len(steps) <= BINS:
        return list(steps)
    width = wall / BINS
    sums = [0.0] * BINS
    for (time, value), (after, _) in pairwise([*steps, (wall, 0.0)]):
        at, end = max(0.0, time), min(after, wall)
        while at < end:
            place = min(int(at / width), BINS - 1)
            until = end if place == BINS - 1 else min(end, (place + 1) * width)
            sums[place] += value * (until - at)
            at = until if until > at else math.nextafter(at, math.inf)
    return [(place * width, total / width) for place, total in enumerate(sums)]
