"""Synchronous Hyperband: successive halving in all brackets, the most aggressive first (Li et al., JMLR 2018)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

from pydantic import Field

from hpo_core.model import limits
from hpo_core.model.short_text import as_number, at_most
from hpo_core.model.space import ParameterType
from hpo_core.search.brackets import hyperband_size
from hpo_core.search.search_settings import (
    ETA,
    MAX,
    MIN,
    HalvingSettings,
    Outline,
    Resource,
    SearchContext,
    SearchProgress,
)
from hpo_core.search.sha import Halving


class HyperbandSearch(HalvingSettings):
    """Synchronous Hyperband, all brackets (Li et al. 2018); the asynchronous one is asha with several brackets."""

    title: ClassVar[str] = "Hyperband"

    method: Literal["hyperband"] = "hyperband"
    max_resource: Resource = Field(description=MAX)
    min_resource: Resource | None = Field(default=None, description=MIN)
    reduction_factor: float = Field(default=4, ge=1.1, le=1e6, description=ETA)
    rounds: int = Field(default=1, ge=1, le=100_000, description="How often the loop over all brackets runs.")

    def create(self, context: SearchContext) -> Halving:
        levels = self.levels()
        plan = [(size, levels[s:]) for s, size in enumerate(self._sizes())]
        width = sum(size for size, _ in plan) * self.rounds
        return Halving(plan, width, self.eta, context.objectives)

    def _sizes(self) -> list[int]:
        rungs = len(self.levels())
        return [hyperband_size(s, rungs, self.eta) for s in range(rungs)]

    def outline(self) -> Outline:
        several = len(self.levels()) * self.rounds > 1
        return Outline(
            max_resource=self.max_resource,
            reduction_factor=self.reduction_factor,
            several_brackets=several,
            barriers=True,
        )

    def summary(self, progress: SearchProgress) -> str:
        return f"{self.method}, {progress.brackets} bracket{'' if progress.brackets == 1 else 's'}"

    def sampled(self) -> int:
        return self.rounds * sum(self._sizes())

    def check_sizes(self, space: Mapping[str, ParameterType]) -> None:
        super().check_sizes(space)
        rungs = len(self.levels())
        planned = rungs * (rungs + 1) // 2
        most = limits.PLANNED_RUNGS // planned
        at_most("search.rounds", self.rounds, most, f"rounds of {planned:,} rungs each; lower it")
        configs = self.rounds * sum(self._sizes())
        if configs > limits.CONFIGS:
            raise ValueError(
                f"search: {rungs} brackets in {self.rounds:,} rounds plan {as_number(configs)} configurations, and "
                f"there may be {limits.CONFIGS:,}; raise min_resource, or lower max_resource or rounds"
            )
