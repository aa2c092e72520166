"""Whole numbers in a range."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from hpo_core.model.rng import Stream
from hpo_core.model.space.number import NumberParameter, Whole, check_range, draw_on_log_steps
from hpo_core.model.space.parameter import Change

if TYPE_CHECKING:
    from optuna import Trial
    from optuna.distributions import BaseDistribution


class IntParameter(NumberParameter):
    """A whole number in [low, high], both included."""

    whole: ClassVar[bool] = True

    type: Literal["int"]
    low: Whole = Field(description="Smallest value, or ``{param: NAME}``: the value of another whole number.")
    high: Whole = Field(description="Largest value, or ``{param: NAME}``.")
    log: bool = False
    step: int = Field(default=1, ge=1, description="Values are low, low + step, low + 2 step, ...")

    @model_validator(mode="after")
    def _check(self) -> IntParameter:
        if self.references():
            return self
        check_range(self.low, self.high, self.log)
        if not -(2**63) <= self.low <= self.high < 2**63:
            raise ValueError(
                f"low = {self.low} and high = {self.high} must fit into 64 bits; tune an exponent or a float instead"
            )
        return self

    def draw(self, stream: Stream) -> int:
        if self.log and self.step != 1:
            return self.low + self.step * draw_on_log_steps(stream, self.low, self.high, self.step)
        if self.log:
            low, high = math.log(self.low - 0.5), math.log(self.high + 0.5)
            return min(self.high, max(self.low, round(math.exp(low + (high - low) * stream.uniform()))))
        return self.low + self.step * stream.below((self.high - self.low) // self.step + 1)

    def contains(self, value: Any) -> bool:
        return (
            isinstance(value, int)
            and not isinstance(value, bool)
            and self.low <= value <= self.high
            and (value - self.low) % self.step == 0
        )

    def distribution(self) -> BaseDistribution:
        from optuna.distributions import IntDistribution

        return IntDistribution(self.low, self.high, log=self.log, step=1 if self.log else self.step)

    def suggest(self, trial: Trial, name: str) -> int:
        if self.log and self.step != 1:  # Optuna has no such distribution
            return int(self._clip(trial.suggest_int(name, self.low, self.high, log=True), Change(())))
        return int(trial.suggest_int(name, self.low, self.high, log=self.log, step=self.step))

    @classmethod
    def of_distribution(cls, distribution: BaseDistribution) -> Self | None:
        from optuna.distributions import IntDistribution

        if not isinstance(distribution, IntDistribution):
            return None
        low, high, log, step = distribution.low, distribution.high, distribution.log, distribution.step
        return cls(type="int", low=low, high=high, log=log, step=step)
