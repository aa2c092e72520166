"""Numbers with a normal distribution, of themselves or of their logarithm, truncated or not."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property
from statistics import NormalDist
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from hpo_core.model.rng import Stream
from hpo_core.model.space.number import NumberParameter
from hpo_core.model.space.value_tests import Test

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution

_LEAST_MASS = 1e-9
_EDGE = 1e-3
_STANDARD = NormalDist()


class NormalParameter(NumberParameter):
    """A real number that is normally distributed; of a lognormal one the natural logarithm is.

    With ``low`` or ``high`` it is truncated there. Values come from the inverse of the distribution function, so that
    none is drawn twice or thrown away.
    """

    type: Literal["normal", "lognormal"] = Field(
        default="normal", description="lognormal: the natural logarithm is normally distributed."
    )
    mean: float = Field(kw_only=False, description="Mean; of lognormal: that of the natural logarithm.")
    std: float = Field(
        gt=0, kw_only=False, description="Standard deviation; of lognormal: that of the natural logarithm."
    )
    low: float | None = Field(default=None, description="Smallest value; null: no end.")  # type: ignore[assignment]
    high: float | None = Field(default=None, description="Largest value; null: no end.")  # type: ignore[assignment]

    if not TYPE_CHECKING:
        step: ClassVar[None] = None

        @property
        def log(self) -> bool:
            """True if its logarithm has the normal distribution; people see it on a logarithmic scale."""
            return self.type == "lognormal"

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.low is not None and self.high is not None and self.low > self.high:
            raise ValueError(f"low = {self.low} is larger than high = {self.high}; swap them")
        if self.log and self.low is not None and self.low <= 0:
            raise ValueError(f"low = {self.low}: lognormal values are above 0; raise low, or leave it out")
        if self.log and self.high is not None and self.high <= 0:
            raise ValueError(f"high = {self.high}: lognormal values are above 0; raise high, or leave it out")
        if self.log and (abs(self.mean) > 300 or self.std > 100):
            raise ValueError(f"mean = {self.mean} and std = {self.std} are of the logarithm, and too large")
        if not self.log and not math.isfinite(abs(self.mean) + 40 * self.std):
            raise ValueError(f"mean = {self.mean} and std = {self.std} make values that are not finite; lower them")
        start, end, _ = self._tail
        if end - start < _LEAST_MASS:
            raise ValueError(
                f"low = {self.low} to high = {self.high} has a probability below {_LEAST_MASS:g} with mean = "
                f"{self.mean} and std = {self.std}; widen the range or move the mean"
            )
        return self

    @cached_property
    def _tail(self) -> tuple[float, float, float]:
        # Probabilities below low and below high, and 1 or -1: in the upper tail all is mirrored, to be exact there.
        low = -math.inf if self.low is None else self._standard(self.low)
        high = math.inf if self.high is None else self._standard(self.high)
        mirror = -1.0 if low > 0 else 1.0
        if mirror < 0:
            low, high = -high, -low
        return _below(low), _below(high), mirror

    def _standard(self, value: float) -> float:
        if self.log:
            if value <= 0:
                return -math.inf
            value = math.log(value)
        return (value - self.mean) / self.std

    def at_share(self, share: float) -> float:
        start, end, mirror = self._tail
        p = start + (end - start) * (share if mirror > 0 else 1 - share)
        z = mirror * _STANDARD.inv_cdf(min(max(p, 5e-324), 1 - 2**-53))
        value = self.mean + self.std * z
        if self.log:
            value = math.exp(min(value, 709.0))
        return self._inside(value)

    def share(self, value: Any) -> float:
        start, end, mirror = self._tail
        place = (_below(mirror * self._standard(value)) - start) / (end - start)
        return min(1.0, max(0.0, place if mirror > 0 else 1 - place))

    def _inside(self, value: float) -> float:
        value = value if self.low is None else max(self.low, value)
        return value if self.high is None else min(self.high, value)

    def _clip(self, value: float) -> float:
        return self._inside(float(value))

    @property
    def ends(self) -> tuple[float, float]:
        low, high = self.low, self.high
        return (self.at_share(_EDGE) if low is None else low), (self.at_share(1 - _EDGE) if high is None else high)

    def draw(self, stream: Stream) -> float:
        return self.at_share(stream.uniform())

    def contains(self, value: Any) -> bool:
        number = isinstance(value, float | int) and not isinstance(value, bool) and math.isfinite(value)
        return number and self._inside(value) == value and not (self.log and value <= 0)

    def may_pass(self, test: Test) -> bool:
        low = max((one for one in (self.low, test.low) if one is not None), default=-math.inf)
        high = min((one for one in (self.high, test.high) if one is not None), default=math.inf)
        return low <= high and not (self.log and high <= 0)

    def _range(self) -> str:
        low = "above 0" if self.log else "any number"
        return f"{low if self.low is None else self.low} to {'no end' if self.high is None else self.high}"

    def distribution(self) -> BaseDistribution:
        from optuna.distributions import FloatDistribution

        return FloatDistribution(0.0, 1.0)

    def scale(self) -> BaseDistribution:
        return self.distribution()

    def on_scale(self, value: Any) -> float:
        return self.share(value)

    def from_scale(self, value: Any) -> float:
        return self.at_share(value)

    def changed(self, value: Any, stream: Stream, factors: Sequence[float]) -> float:
        factor = stream.choice(factors)
        return self._clip(value * factor if value else (factor - 1) * self.std)

    def _spread(self, points: int) -> list[Any]:
        return list(dict.fromkeys(self.at_share((i + 0.5) / points) for i in range(points)))


def _below(z: float) -> float:
    return 0.5 * math.erfc(-z / math.sqrt(2))
