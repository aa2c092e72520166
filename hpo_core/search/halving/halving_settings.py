"""What the settings of all searches with rungs have in common."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field

from hpo_core.model.arithmetic import Number, as_written
from hpo_core.search.search_settings import SearchSettings


class HalvingSettings(SearchSettings):
    """Settings of a search that promotes one in eta; the arithmetic of its rules is exact."""

    only_in_files: ClassVar[frozenset[str]] = frozenset({"rules"})
    earlier: ClassVar[Mapping[str, Any]] = {"rules": 1}

    if TYPE_CHECKING:  # each search has a default of its own, in its own place among the settings
        reduction_factor: float

    rules: Literal[1, 2] = Field(
        default=2,
        description="Version of the arithmetic, for studies recorded with older ones. 1: in floating point, where "
        "floor(n / eta) is one short at some exact multiples of a decimal reduction_factor, such as 37 / 3.7.",
    )

    @property
    def eta(self) -> Number:
        """The reduction factor as the rules compute with it."""
        return as_written(self.reduction_factor) if self.rules > 1 else float(self.reduction_factor)
