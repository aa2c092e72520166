"""How much of a difference between two losses is noise, for promotions that wait for a margin."""

from __future__ import annotations

import statistics
from collections import deque
from typing import Literal

from hpo_core.events import JobCompleted

WINDOW = 200


class NoiseEstimate:
    """Standard deviation of a loss at each level, given, or estimated from the roughness of learning curves.

    Second differences of a smooth curve are small; those of independent noise have variance six times its
    own. The median of their absolute values over recent curves, divided by ``0.6745 * sqrt(6)``, is the estimate:
    robust to the curves that jump. Until a level has three such values, its noise counts as zero.
    """

    def __init__(self, fixed: float | None) -> None:
        self._fixed = fixed
        self._rough: dict[int, deque[float]] = {}
        self._known: dict[int, float] = {}

    @classmethod
    def create(cls, setting: float | Literal["auto"] | None) -> NoiseEstimate | None:
        """None where promotions ignore noise."""
        if setting is None:
            return None
        return cls(None if setting == "auto" else setting)

    @property
    def reads_curves(self) -> bool:
        return self._fixed is None

    def add(self, event: JobCompleted) -> None:
        """Learn from a result's curve."""
        points = event.curve[-5:]
        if self._fixed is not None or len(points) < 3:
            return
        rough = self._rough.setdefault(event.resource, deque(maxlen=WINDOW))
        losses = [loss for _, loss in points]
        for a, b, c in zip(losses, losses[1:], losses[2:], strict=False):
            second = abs(a - 2 * b + c)
            if second < float("inf"):
                rough.append(second)
        if len(rough) >= 3:
            self._known[event.resource] = statistics.median(rough) / (0.6745 * 6**0.5)

    def at(self, level: int) -> float:
        """Standard deviation of a difference-free loss at a level; 0 while unknown."""
        return self._fixed if self._fixed is not None else self._known.get(level, 0.0)
