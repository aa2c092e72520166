"""Real numbers in a range."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Literal, Self

from pydantic import Field, model_validator

from hpo_core.model import limits
from hpo_core.model.rng import Stream
from hpo_core.model.space.number import NumberParameter, Real, check_range, draw_on_log_steps
from hpo_core.model.space.parameter import Change

if TYPE_CHECKING:
    from optuna import Trial
    from optuna.distributions import BaseDistribution


class FloatParameter(NumberParameter):
    """A real number in [low, high], uniform, or uniform in its logarithm; with ``step`` rounded to its steps."""

    type: Literal["float"]
    low: Real = Field(description="Smallest value, or ``{param: NAME}``: the value of another number.")
    high: Real = Field(description="Largest value, or ``{param: NAME}``.")
    log: bool = False
    step: float | None = Field(default=None, gt=0, description="Values are low, low + step, low + 2 step, ...")

    @model_validator(mode="after")
    def _check(self) -> FloatParameter:
        if self.references():
            return self
        check_range(self.low, self.high, self.log)
        if not math.isfinite(self.high - self.low):
            raise ValueError(f"high - low = {self.high} - {self.low} is not finite; narrow the range")
        return self

    def draw(self, stream: Stream) -> float:
        if self.step is not None and self.log:
            at = draw_on_log_steps(stream, self.low, self.high, self.step)
            return min(self.high, self.low + self.step * at)
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

        return FloatDistribution(self.low, self.high, log=self.log, step=None if self.log else self.step)

    def suggest(self, trial: Trial, name: str) -> float:
        if self.log and self.step is not None:  # Optuna has no such distribution
            return float(self._clip(trial.suggest_float(name, self.low, self.high, log=True), Change(())))
        # Optuna 4's BruteForceSampler answers with a number of numpy's, which no journal takes
        return float(trial.suggest_float(name, self.low, self.high, log=self.log, step=self.step))

    @classmethod
    def of_distribution(cls, distribution: BaseDistribution) -> Self | None:
        from optuna.distributions import FloatDistribution

        if not isinstance(distribution, FloatDistribution):
            return None
        low, high, log, step = distribution.low, distribution.high, distribution.log, distribution.step
        return cls(type="float", low=low, high=high, log=log, step=step)

    def check_size(self, where: str) -> None:
        super().check_size(where)
        if self.step is not None and not self.references() and (self.high - self.low) / self.step > limits.STEPS:
            raise ValueError(
                f"{where}.step = {self.step} makes more than {limits.STEPS:,} values; raise it, or leave it out"
            )
