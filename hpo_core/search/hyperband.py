"""Synchronous Hyperband: successive halving in all brackets, the most aggressive first (Li et al., JMLR 2018)."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from hpo_core.search.brackets import hyperband_size
from hpo_core.search.search_settings import ETA, MAX, MIN, Resource
from hpo_core.search.sha import SynchronousSettings


class HyperbandSearch(SynchronousSettings):
    """Synchronous Hyperband, all brackets (Li et al. 2018); the asynchronous one is asha with several brackets."""

    title: ClassVar[str] = "Hyperband"

    method: Literal["hyperband"] = "hyperband"
    max_resource: Resource = Field(description=MAX)
    min_resource: Resource | None = Field(default=None, description=MIN)
    reduction_factor: float = Field(default=4, ge=1.1, le=1e6, description=ETA)
    rounds: int = Field(default=1, ge=1, le=100_000, description="How often the loop over all brackets runs.")

    def plan(self) -> list[tuple[int, list[int]]]:
        levels = self.levels()
        return [(hyperband_size(s, len(levels), self.eta), levels[s:]) for s in range(len(levels))]
