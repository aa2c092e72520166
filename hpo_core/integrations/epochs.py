"""The steps of a trial, driven from the outside by another loop's epochs."""

from __future__ import annotations

import numbers
from collections.abc import Iterator, Mapping
from typing import Any

from hpo_core.model.errors import ObjectiveError
from hpo_core.training.handle import TrialHandle


class Epochs:
    """One step of the trial is one epoch of somebody else's loop."""

    def __init__(self, trial: TrialHandle) -> None:
        self._trial = trial
        self._steps: Iterator[int] = iter(())
        self._open = False

    def begin(self, **objects: Any) -> bool:
        """Track what the loop has built, restore it; False where the target was reached before."""
        self._trial.track(**objects)
        self._steps = self._trial.steps()
        return self.next()

    def next(self) -> bool:
        """The present epoch is done, its schedules included; False after the last one, when all has been saved."""
        self._open = next(self._steps, None) is not None
        return self._open

    def report(self, metrics: Mapping[str, Any]) -> None:
        """Note those of the present epoch that are one real number each."""
        plain = {name: value for name, value in metrics.items() if _is_number(value)}
        if plain and self._open:
            self._trial.report(**plain)


def refuse(condition: bool, what: str, cure: str) -> None:
    """Raise ObjectiveError for a loop that cannot be followed."""
    if condition:
        raise ObjectiveError(f"{what} {cure}")


def _is_number(value: Any) -> bool:
    if isinstance(value, bool):
        return False
    return isinstance(value, numbers.Real) or (getattr(value, "ndim", None) == 0 and hasattr(value, "item"))
