"""Configurations that the search method says itself (a grid, a record)."""

from __future__ import annotations

from collections.abc import Callable

from hpo_core.model.events import Event
from hpo_core.model.trial import Params


class ListedSampler:
    """Asks a function of the trial's number."""

    def __init__(self, configurations: Callable[[int], Params]) -> None:
        self._configurations = configurations

    def propose(self, number: int) -> Params:
        return self._configurations(number)

    def apply(self, event: Event) -> None:
        """A list learns nothing."""
