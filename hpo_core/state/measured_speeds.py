"""MeasuredSpeeds: seconds per unit of training of gangs of each size, from the results in the journal."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from types import MappingProxyType

from hpo_core.model.devices.measurement import Usage
from hpo_core.model.events import JobCompleted, JobGranted

KEPT = 64
"""Results of each size that count: the first ones, so that what they say comes to rest."""
REMEMBERED = 10_000
"""Trials whose seconds on one slot are known, for when they train in a gang: the latest ones."""


class MeasuredSpeeds:
    """Seconds per unit of training by slots, relative to one slot.

    A trial that trained in a gang is compared with itself on one slot where that is known, for parameters make
    some trials slower than others; only where no trial is known with both, medians over all trials are compared.

    >>> speeds = MeasuredSpeeds()
    >>> speeds.count(0, slots=1, seconds=10.0)
    >>> speeds.count(1, slots=1, seconds=40.0)
    >>> speeds.count(1, slots=2, seconds=22.0)
    >>> dict(speeds.relative)
    {1: 1.0, 2: 0.55}
    """

    def __init__(self) -> None:
        self._alone: dict[int, float] = {}
        """By trial: seconds per unit on one slot."""
        self._seconds: dict[int, list[float]] = {}
        """By slots: seconds per unit of the first trials."""
        self._ratios: dict[int, list[float]] = {}
        """By slots: seconds per unit, relative to the same trial's on one slot."""
        self.relative: Mapping[int, float] = MappingProxyType({})
        """Median seconds per unit by slots; one slot is 1. Empty where nothing on one slot was measured."""
        self.has_gangs = False
        """True if a gang was granted, measured or not."""

    def knows(self, trial: int) -> bool:
        return trial in self._alone

    def measure(self, event: JobCompleted, grant: JobGranted) -> None:
        """Count a result's seconds per unit of training, where it says any.

        What the attempt measured itself is without start-up and checkpoints. Else they count as training, which makes
        gangs look slower than they are.
        """
        units = event.resource - (0 if grant.checkpoint is None else grant.checkpoint.resource)
        seconds = (event.ended - event.started) / units if units > 0 else 0.0
        if isinstance(event.usage, Usage) and event.usage.unit_seconds > 0:
            seconds = event.usage.unit_seconds
        if seconds > 0:
            self.count(event.trial, slots=grant.demand.slots, seconds=seconds)

    def count(self, trial: int, *, slots: int, seconds: float) -> None:
        if slots == 1:
            self._alone.pop(trial, None)
            self._alone[trial] = seconds
            if len(self._alone) > REMEMBERED:
                del self._alone[next(iter(self._alone))]
        elif trial in self._alone:
            _keep(self._ratios, slots, seconds / self._alone[trial])
        if _keep(self._seconds, slots, seconds) or slots > 1:
            self.relative = MappingProxyType(self._relative())

    def _relative(self) -> dict[int, float]:
        if 1 not in self._seconds:
            return {}
        alone = statistics.median(self._seconds[1])
        found = {1: 1.0}
        for slots in sorted(self._seconds.keys() - {1}):
            ratios = self._ratios.get(slots)
            found[slots] = statistics.median(ratios or [statistics.median(self._seconds[slots]) / alone])
        return found


def _keep(found: dict[int, list[float]], slots: int, value: float) -> bool:
    values = found.setdefault(slots, [])
    if len(values) < KEPT:
        values.append(value)
        return True
    return False
