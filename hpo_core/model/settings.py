"""The base of all settings of a study, and the metric."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo

RECORDED: dict[str, bool] = {"recorded": True}
"""Validation context of a description that a journal holds: it was accepted when it was new."""


def is_recorded(info: ValidationInfo) -> bool:
    """Whether a journal's description is validated."""
    return bool(info.context and info.context.get("recorded"))


class Part(BaseModel):
    """Base of all settings: immutable; unknown keys, NaN and infinities are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class MetricSpec(Part):
    name: str = Field(min_length=1, description="The metric the training function reports and the study optimizes.")
    mode: Literal["min", "max"] = Field(default="min", description="Whether smaller or larger is better.")

    @property
    def sign(self) -> float:
        """Factor that turns the metric into a loss (smaller is better)."""
        return 1.0 if self.mode == "min" else -1.0
