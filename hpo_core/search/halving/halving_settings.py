"""What the settings of all searches with rungs have in common."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpo_core.model.arithmetic import Number, as_written
from hpo_core.search.search_settings import SearchSettings


class HalvingSettings(SearchSettings):
    """Settings of a search that promotes one in eta."""

    if TYPE_CHECKING:  # each search has a default of its own, in its own place among the settings
        reduction_factor: float

    @property
    def eta(self) -> Number:
        """The reduction factor as the rules compute with it: exactly as it was written."""
        return as_written(self.reduction_factor)
