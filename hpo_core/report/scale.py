"""The axis a metric is drawn on, and round numbers along an axis."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from hpo_core.report.style import axis
from hpo_core.views.formatting import number, quantile, spans_decades


@dataclass(frozen=True, slots=True)
class Scale:
    """How values of the metric are laid out on an axis."""

    log: bool
    low: float
    high: float
    cut: bool
    """Whether some values lie outside [low, high]."""

    def place(self, value: float) -> float:
        """Position on the (possibly logarithmic) axis."""
        return math.log10(value) if self.log else value

    def ticks(self, low: float, high: float) -> list[float]:
        """Round values between two positions."""
        return log_ticks(low, high) if self.log else round_ticks(low, high)

    def axis(self, title: str) -> dict[str, Any]:
        """The axis as Plotly wants it."""
        low, high = self.place(self.low), self.place(self.high)
        pad = 0.04 * (high - low) or abs(high) * 0.05 or 0.5
        drawn = axis(title, range=[low - pad, high + pad])
        if self.log:
            ticks = log_ticks(low - pad, high + pad)
            drawn |= {"type": "log", "tickvals": ticks, "ticktext": [number(tick) for tick in ticks]}
        return drawn


WIDEST = 1e100
"""Beyond it the length of an axis may overflow."""


def scale(values: Iterable[float | None], *, maximize: bool) -> Scale:
    """Axis for a metric: logarithmic past two decades; hopeless values do not squeeze the others."""
    finite = sorted(min(max(v, -WIDEST), WIDEST) for v in values if v is not None and math.isfinite(v))
    if not finite:
        return Scale(False, 0.0, 1.0, False)
    low, high = finite[0], finite[-1]
    log = spans_decades(low, high, maximize=maximize)
    place = math.log10 if log else float
    if maximize:
        kept = quantile(finite, 0.05)
        cut = place(high) - place(low) > 4 * (place(high) - place(kept)) > 0
        return Scale(log, kept if cut else low, high, cut)
    kept = quantile(finite, 0.95)
    cut = place(high) - place(low) > 4 * (place(kept) - place(low)) > 0
    return Scale(log, low, kept if cut else high, cut)


def round_ticks(low: float, high: float) -> list[float]:
    """Four to eight round numbers from ``low`` to ``high``.

    >>> round_ticks(0.0, 0.99), round_ticks(1, 6)
    ([0.0, 0.2, 0.4, 0.6, 0.8], [1.0, 2.0, 3.0, 4.0, 5.0, 6.0])
    """
    if not high > low:
        return [low]
    power = 10.0 ** math.floor(math.log10((high - low) / 4))
    step = next(size * power for size in (10, 5, 2.5, 2, 1) if (high - low) / (size * power) >= 4 - 1e-9)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [float(f"{k * step:.10g}") for k in range(first, last + 1)]


def ticks_with_ends(low: float, high: float, places: Sequence[float]) -> list[float]:
    """``places`` and both ends, without those that would touch an end."""
    room = 0.06 * (high - low)
    return sorted({low, high, *(at for at in places if low + room < at < high - room)})


def log_ticks(low: float, high: float) -> list[float]:
    """Round numbers from ``10**low`` to ``10**high``, about six of them."""
    decades = high - low
    steps = (1, 2, 3, 5, 7) if decades < 1.2 else (1, 2, 5) if decades < 2.2 else (1, 3) if decades < 4 else (1,)
    every = max(1, round(decades / 7))
    powers = range(math.floor(low) // every * every, math.ceil(high) + 1, every)
    found = [float(f"{step}e{power}") for power in powers for step in steps]
    return [tick for tick in found if 0 < tick < math.inf and low <= math.log10(tick) <= high]
