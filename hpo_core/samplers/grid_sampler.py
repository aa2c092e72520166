"""All points of a grid, one after the other."""

from __future__ import annotations

from hpo_core.model.events import Event
from hpo_core.model.trial import Params
from hpo_core.search.grid_order import Grid
from hpo_core.spec import StudySpec


class GridSampler:
    """Trial ``n`` gets point ``n`` of the grid, modulo its size."""

    def __init__(self, spec: StudySpec) -> None:
        self.grid = Grid(spec)

    def propose(self, number: int) -> Params:
        return self.grid.at(number)

    def apply(self, event: Event) -> None:
        """A grid learns nothing."""
