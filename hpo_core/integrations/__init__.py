"""EpochSteps: advances a trial by the epochs of another library's training loop."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from hpo_core.model.errors import ObjectiveError
from hpo_core.model.trial import real_number
from hpo_core.training.handle import TrialHandle

A_STEP_IS_AN_EPOCH = "a step of a trial is an epoch; drop it."
TO_MAX_RESOURCE = "set it to the study's max_resource."
"""Cures for settings that both libraries have."""


class EpochSteps:
    """Maps epochs of another loop to steps of a trial: one epoch is one step."""

    def __init__(self, trial: TrialHandle) -> None:
        self._trial = trial
        self._steps: Iterator[int] = iter(())
        self._open = False

    def begin(self, objects: Mapping[str, Any]) -> bool:
        """Track and restore what the loop has built; return False if the target was reached before.

        Args:
            objects: to track; those that are tracked already are left out.
        """
        self._trial.track(**{name: item for name, item in objects.items() if not self._trial.is_tracked(item)})
        self._steps = self._trial.steps()
        self._trial.ask = None  # the other library's loop ends with the job
        return self.next()

    def next(self) -> bool:
        """Finish the current epoch; return False after the last one, when the checkpoint is saved."""
        self._open = next(self._steps, None) is not None
        return self._open

    def report(self, metrics: Mapping[str, Any]) -> None:
        """Report the metrics of the current epoch; values that are not one real number are ignored."""
        if self._open and (plain := {name: value for name, value in metrics.items() if real_number(value) is not None}):
            self._trial.report(**plain)


def named_by_class(items: Iterable[Any]) -> dict[str, Any]:
    """Items by the name of their class, with a number where there are several of one."""
    found: dict[str, Any] = {}
    for item in items:
        name = type(item).__name__
        same = sum(type(other) is type(item) for other in found.values())
        found[f"{name}_{same + 1}" if same else name] = item
    return found


def is_of_library(item: Any, *packages: str) -> bool:
    """True if its class comes from one of these packages."""
    return type(item).__module__.partition(".")[0] in packages


def refuse(*rows: tuple[bool, str]) -> None:
    """Refuse settings of a loop that are not supported.

    Args:
        rows: whether a setting is one, and the message: what and cure.

    Raises:
        ObjectiveError: with the message of the first row that is true.
    """
    for wrong, message in rows:
        if wrong:
            raise ObjectiveError(message)
