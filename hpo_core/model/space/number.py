"""Numbers in a range: what float and int parameters share."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field, model_validator

from hpo_core.model import limits
from hpo_core.model.errors import SpecError
from hpo_core.model.rng import Stream
from hpo_core.model.space.parameter import ParameterType
from hpo_core.model.space.value_tests import Test, same_scalar, scalar_key

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution


_LISTED = 10_000
"""Ranges of more values are continuous on the scale of samplers: Optuna's GPSampler lists all values of others."""


class NumberParameter(ParameterType):
    """A number in [low, high]; a subclass has these four fields."""

    whole: ClassVar[bool] = False
    """True if values are integers."""

    if TYPE_CHECKING:
        low: float
        high: float
        log: bool = False
        step: float | None = None

    @property
    def last_step(self) -> int | None:
        """Number of its last value, counted from 0; None: it is continuous."""
        if self.whole:
            return int((self.high - self.low) // (self.step or 1))
        if self.step is None:
            return None
        return math.floor((exactly(self.high) - exactly(self.low)) / exactly(self.step) + _ALMOST)

    def at_step(self, number: int) -> float | int:
        """The value of that number; as decimals say, so that the third step of 0.1 is 0.3."""
        if self.whole:
            return self.low + number * int(self.step or 1)
        assert self.step is not None
        return min(self.high, float(exactly(self.low) + number * exactly(self.step)))

    def nearest_step(self, value: float | int) -> int:
        last = self.last_step
        assert last is not None
        return max(0, min(last, round((exactly(value) - exactly(self.low)) / exactly(self.step or 1))))

    @property
    def ends(self) -> tuple[float, float]:
        return float(self.low), float(self.high)

    def may_pass(self, test: Test) -> bool:
        low = self.low if test.low is None else max(self.low, test.low)
        high = self.high if test.high is None else min(self.high, test.high)
        if self.last_step is not None and low <= high:
            first, last = self._steps_within(low, high)
            if last - first >= len(test.unwanted):
                return True
            unwanted = set(map(scalar_key, test.unwanted))
            return any(scalar_key(self.at_step(at)) not in unwanted for at in range(first, last + 1))
        return low <= high and not (low == high and any(same_scalar(low, one) for one in test.unwanted))

    def taken(self, value: Any) -> float | int:
        number = value
        if not isinstance(value, bool | str) and hasattr(value, "__float__"):  # numpy's too
            try:
                number = float(value)
            except OverflowError:
                number = math.inf
            if self.whole and number.is_integer():
                number = int(value)
        if not self.contains(number):
            inside = isinstance(number, float | int) and not isinstance(number, bool) and self._inside_ends(number)
            if inside and self.step not in (None, 1):
                raise ValueError(f"is off its steps, {self._range()}; give one of them")
            raise ValueError(f"lies outside its range, {self._range()}; give a value inside")
        if self.step is None or self.whole:
            return number  # type: ignore[no-any-return]
        return self.at_step(self.nearest_step(number))

    def _inside_ends(self, value: float | int) -> bool:
        return self.low <= value <= self.high

    def _range(self) -> str:
        kind = "whole numbers " if self.whole else ""
        step = f" in steps of {self.step}" if self.step is not None and self.step != 1 else ""
        return f"{kind}{self.low} to {self.high}{step}"

    def distribution(self) -> BaseDistribution:
        from optuna.distributions import FloatDistribution, IntDistribution

        if self.whole:
            return IntDistribution(int(self.low), int(self.high), log=self.log, step=int(self.step or 1))
        return FloatDistribution(self.low, self.high, log=self.log, step=self.step)

    def scale(self) -> BaseDistribution:
        from optuna.distributions import FloatDistribution, IntDistribution

        last = self.last_step
        if self.log and last is not None and last < _LISTED:
            return IntDistribution(int(self.low), int(self.high), log=True)
        if self.log or last is None:
            return FloatDistribution(float(self.low), float(self.high), log=self.log)
        return IntDistribution(0, last) if last < _LISTED else FloatDistribution(0.0, float(last))

    def on_scale(self, value: Any) -> float | int:
        if self.log or self.last_step is None:
            return value  # type: ignore[no-any-return]
        return self.nearest_step(value)

    def from_scale(self, value: Any) -> float | int:
        if self.log or self.last_step is None:
            return self._clip(value)
        return self.at_step(round(value))

    def changed(self, value: Any, stream: Stream, factors: Sequence[float]) -> float | int:
        """The value times a factor, inside the range.

        0, which no factor moves, goes by that share of the range. Where rounding gives the same value again, the next
        one in that direction is taken.
        """
        factor = stream.choice(factors)
        width = self.high - self.low
        wanted = value * factor if value else value + (factor - 1) * width
        changed = self._clip(wanted)
        step = self.step
        if step is not None and abs(changed - value) < step / 2 and factor != 1:
            up = (wanted > value) if value else factor > 1
            changed = self._clip(value + (step if up else -step))
        return changed

    def _clip(self, value: float) -> float | int:
        value = min(max(value, self.low), self.high)
        return float(value) if self.last_step is None else self.at_step(self.nearest_step(value))

    def _steps_within(self, low: float, high: float) -> tuple[int, int]:
        # Numbers of the first and last value in a narrower range; the first is the larger one if there is none.
        start, step = exactly(self.low), exactly(self.step or 1)
        first = math.ceil((exactly(low) - start) / step - _ALMOST)
        return first, math.floor((exactly(high) - start) / step + _ALMOST)

    def share(self, value: Any) -> float:
        low, high, at = self.low, self.high, value
        if self.log:
            low, high, at = math.log(low), math.log(high), math.log(at)
        return (at - low) / (high - low) if high > low else 0.5

    def at_share(self, share: float) -> float | int:
        """The value at a place in the range, from 0 to 1; the inverse of :meth:`share`, rounded to the step."""
        low, high = self.low, self.high
        if self.log:
            value = math.exp(math.log(low) + share * (math.log(high) - math.log(low)))
        else:
            value = low + share * (high - low)
        return self._clip(value)

    def grid_size(self, points: int | list[Any] | None) -> float:
        if points is not None:
            return len(points) if isinstance(points, list) else points
        last = self.last_step
        return 0 if last is None or self.log else last + 1

    def _grid_values(self, name: str, points: int | None) -> list[Any]:
        return self._all_values(name) if points is None else self._spread(points)

    def _all_values(self, name: str) -> list[Any]:
        last = self.last_step
        if last is None or self.log:
            raise SpecError(
                f"search.grid: parameter {name!r} is continuous{' on a log scale' if self.log else ''}; "
                f"say how many points it has (points: {{{name}: 5}}) or use method: random."
            )
        if last >= limits.GRID_POINTS:
            raise SpecError(
                f"search.grid: parameter {name!r} has more than {limits.GRID_POINTS:,} values; say how many "
                f"(points: {{{name}: 5}})."
            )
        return list(map(self.at_step, range(last + 1)))

    def _spread(self, points: int) -> list[Any]:
        low, high = float(self.low), float(self.high)
        ratio = 0.0
        if self.log:
            ratio = math.log(high / low) if high / low < math.inf else math.log(high) - math.log(low)
        found: list[Any] = []
        for i in range(points):
            share = i / (points - 1) if points > 1 else 0.5
            value = math.exp(math.log(low) + share * ratio) if self.log else low + share * (high - low)
            found.append(self._clip(value))
        return list(dict.fromkeys(found))


_ALMOST = Fraction(1, 10**9)
"""A share of a step that rounding may cost: steps of 1/3 end at 1."""


def exactly(value: float | int) -> Fraction:
    """The number that a person reads: 0.1 is a tenth."""
    return Fraction(value) if isinstance(value, int) else Fraction(repr(float(value)))


def check_range(low: float, high: float, *, log: bool, stepped: bool) -> None:
    """Refuse a range that holds nothing, or no logarithm, and steps on a log scale.

    Raises:
        ValueError: values, rule and cure.
    """
    if low > high:
        raise ValueError(f"low = {low} is larger than high = {high}; swap them")
    if log and low <= 0:
        raise ValueError(f"log: true needs low > 0, got low = {low}; raise low above zero or use a linear range")
    if log and stepped:
        raise ValueError("log: true and a step cannot be together; drop the one or the other, or tune an exponent")


class FloatParameter(NumberParameter):
    """A real number in [low, high], uniform, or uniform in its logarithm; with ``step`` rounded to its steps."""

    type: Literal["float"] = "float"
    low: float = Field(kw_only=False, description="Smallest value.")
    high: float = Field(kw_only=False, description="Largest value.")
    log: bool = Field(default=False, description="Drawn evenly on a logarithmic scale: for ranges like 0.0001 to 1.")
    step: float | None = Field(default=None, gt=0, description="Values are low, low + step, low + 2 step, ...")

    if TYPE_CHECKING:

        def __init__(
            self,
            low: float,
            high: float,
            *,
            log: bool = False,
            step: float | None = None,
            when: Mapping[str, Any] | list[Mapping[str, Any]] | None = None,
        ) -> None: ...

    @model_validator(mode="after")
    def _check(self) -> FloatParameter:
        check_range(self.low, self.high, log=self.log, stepped=self.step is not None)
        if not math.isfinite(self.high - self.low):
            raise ValueError(f"high - low = {self.high} - {self.low} is not finite; narrow the range")
        return self

    def draw(self, stream: Stream) -> float:
        if (last := self.last_step) is not None:
            return self.at_step(stream.below(last + 1))
        if self.log:
            low, high = math.log(self.low), math.log(self.high)
            return min(self.high, max(self.low, math.exp(low + (high - low) * stream.uniform())))
        return self.low + (self.high - self.low) * stream.uniform()

    def contains(self, value: Any) -> bool:
        if not isinstance(value, float | int) or isinstance(value, bool) or not self._inside_ends(value):
            return False
        if self.step is None:
            return True
        off = abs(self.at_step(self.nearest_step(value)) - value)
        return off <= max(1e-8 * self.step, 4 * math.ulp(max(abs(value), abs(self.low))))

    def check_size(self, where: str) -> None:
        super().check_size(where)
        if self.step is None:
            return
        if (self.high - self.low) / self.step > limits.STEPS:
            raise ValueError(
                f"{where}.step = {self.step} makes more than {limits.STEPS:,} values; raise it, or leave it out"
            )
        farthest = max(abs(self.low), abs(self.high))
        if self.step < math.ulp(farthest):
            raise ValueError(
                f"{where}.step = {self.step} is too small beside {farthest}, where floats are "
                f"{math.ulp(farthest):g} apart; raise it, or leave it out"
            )


class IntParameter(NumberParameter):
    """A whole number in [low, high], both included."""

    whole: ClassVar[bool] = True

    if TYPE_CHECKING:
        last_step: int

    type: Literal["int"] = "int"
    low: int = Field(kw_only=False, description="Smallest value.")
    high: int = Field(kw_only=False, description="Largest value.")
    log: bool = Field(default=False, description="Drawn evenly on a logarithmic scale: for ranges like 0.0001 to 1.")
    step: int = Field(default=1, ge=1, description="Values are low, low + step, low + 2 step, ...")

    if TYPE_CHECKING:

        def __init__(
            self,
            low: int,
            high: int,
            *,
            log: bool = False,
            step: int = 1,
            when: Mapping[str, Any] | list[Mapping[str, Any]] | None = None,
        ) -> None: ...

    @model_validator(mode="after")
    def _check(self) -> IntParameter:
        check_range(self.low, self.high, log=self.log, stepped=self.step != 1)
        if not -(2**63) <= self.low <= self.high < 2**63:
            raise ValueError(
                f"low = {self.low} and high = {self.high} must fit into 64 bits; tune an exponent or a float instead"
            )
        return self

    def draw(self, stream: Stream) -> int:
        if self.log:
            low, high = math.log(self.low - 0.5), math.log(self.high + 0.5)
            return min(self.high, max(self.low, round(math.exp(low + (high - low) * stream.uniform()))))
        return self.low + self.step * stream.below(self.last_step + 1)

    def contains(self, value: Any) -> bool:
        return (
            isinstance(value, int)
            and not isinstance(value, bool)
            and self.low <= value <= self.high
            and (value - self.low) % self.step == 0
        )
