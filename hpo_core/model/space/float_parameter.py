"""Real numbers in a range."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Literal, Self

from pydantic import Field, model_validator

from hpo_core.model import limits
from hpo_core.model.rng import Stream
from hpo_core.model.space.number import NumberParameter, check_range

if TYPE_CHECKING:
    from optuna import Trial
    from optuna.distributions import BaseDistribution


class FloatParameter(NumberParameter):
    """A real number in [low, high], uniform, or uniform in its logarithm, or on a grid of ``step``."""

    type: Literal["float"]
    low: float
    high: float
    log: bool = False
    step: float | None = Field(default=None, gt=0)

    @model_validator(mode="after")
    def _check(self) -> FloatParameter:
        check_range(self.low, self.high, self.log)
        if not math.isfinite(self.high - self.low):
            raise ValueError(f"high - low = {self.high} - {self.low} is not finite; narrow the range")
        if self.log and self.step is not None:
            raise ValueError("log and step exclude each other; drop one of them")
        return self

    def draw(self, stream: Stream) -> float:
        if self.step is not None:
            count = math.floor((self.high - self.low) / self.step + 1e-9) + 1
            return min(self.high, self.low + self.step * stream.below(count))
        if self.log:
            low, high = math.log(self.low), math.log(self.high)
            return min(self.high, max(self.low, math.exp(low + (high - low) * stream.uniform())))
        return self.low + (self.high - self.low) * stream.uniform()

    def contains(self, value: Any) -> bool:
        return isinstance(value, float | int) and not isinstance(value, bool) and self.low <= value <= self.high

    def distribution(self) -> BaseDistribution:
        from optuna.distributions import FloatDistribution

        return FloatDistribution(self.low, self.high, log=self.log, step=self.step)

    def suggest(self, trial: Trial, name: str) -> float:
        return trial.suggest_float(name, self.low, self.high, log=self.log, step=self.step)

    @classmethod
    def of_distribution(cls, distribution: BaseDistribution) -> Self | None:
        from optuna.distributions import FloatDistribution

        if not isinstance(distribution, FloatDistribution):
            return None
        low, high, log, step = distribution.low, distribution.high, distribution.log, distribution.step
        return cls(type="float", low=low, high=high, log=log, step=step)

    def check_size(self, where: str) -> None:
        super().check_size(where)
        if self.step is not None and (self.high - self.low) / self.step > limits.STEPS:
            raise ValueError(
                f"{where}.step = {self.step} makes more than {limits.STEPS:,} values; raise it, or leave it out"
            )
