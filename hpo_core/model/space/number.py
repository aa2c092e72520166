"""Numbers in a range: what float and int parameters share."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

from pydantic import (
    Field,
    PlainSerializer,
    ValidatorFunctionWrapHandler,
    WrapValidator,
    model_validator,
)

from hpo_core.model import limits
from hpo_core.model.errors import SpecError
from hpo_core.model.rng import Stream
from hpo_core.model.settings import Part
from hpo_core.model.space.parameter import Change, ParameterType
from hpo_core.model.space.value_tests import Test, same_scalar, scalar_key

if TYPE_CHECKING:
    from optuna import Trial
    from optuna.distributions import BaseDistribution


class Reference(Part):
    """``{param: batch_size}``: the value of that parameter, as an end of a range."""

    param: str = Field(kw_only=False)


if TYPE_CHECKING:
    Whole = int
    Real = float
else:

    def _reference_or_number(value: Any, number: ValidatorFunctionWrapHandler) -> Any:
        """No union: of a wrong value, each error would be told twice."""
        return Reference.model_validate(value) if isinstance(value, Mapping | Reference) else number(value)

    _EITHER = WrapValidator(_reference_or_number)
    _PLAIN = PlainSerializer(lambda value: value.model_dump() if isinstance(value, Reference) else value)
    Whole = Annotated[int, _EITHER, _PLAIN]
    Real = Annotated[float, _EITHER, _PLAIN]


class NumberParameter(ParameterType):
    """A number in [low, high]; a subclass has these four fields."""

    whole: ClassVar[bool] = False
    """Whether values are integers."""

    if TYPE_CHECKING:
        low: float
        high: float
        log: bool = False
        step: float | None = None

    @property
    def rounds_to_steps(self) -> bool:
        """Whether its values are those of a step, so that there is a list of them."""
        return self.step is not None and not (self.whole and self.log and self.step == 1)

    @property
    def ends(self) -> tuple[float, float]:
        """The range in which people are shown its values."""
        return float(self.low), float(self.high)

    def is_stepped_log(self) -> bool:
        return self.log and self.rounds_to_steps

    def references(self) -> dict[str, str]:
        return {end: one.param for end in ("low", "high") if isinstance(one := getattr(self, end), Reference)}

    def resolved(self, values: Mapping[str, Any]) -> Self:
        found = self.references()
        return self.model_copy(update={end: values[name] for end, name in found.items()}) if found else self

    def may_pass(self, test: Test) -> bool:
        low = self.low if test.low is None else max(self.low, test.low)
        high = self.high if test.high is None else min(self.high, test.high)
        if self.rounds_to_steps or self.whole:
            step = self.step or 1
            low = self.low + math.ceil((low - self.low) / step - 1e-9) * step
            if low <= high and (high - low) // step < len(test.unwanted):
                unwanted = set(map(scalar_key, test.unwanted))
                count = math.floor((high - low) / step + 1e-9) + 1
                return any(scalar_key(low + at * step) not in unwanted for at in range(count))
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
            raise ValueError(f"lies outside its range, {self._range()}; give a value inside")
        if self.rounds_to_steps and not self.whole:
            assert self.step is not None
            places = (number - self.low) / self.step
            if abs(places - round(places)) > 1e-8 * max(1.0, abs(places)):
                raise ValueError(f"is off its steps, {self._range()}; give one of them")
        return number  # type: ignore[no-any-return]

    def _range(self) -> str:
        kind = "whole numbers " if self.whole else ""
        step = f" in steps of {self.step}" if self.step is not None and self.step != 1 else ""
        return f"{kind}{self.low} to {self.high}{step}"

    def distribution(self) -> BaseDistribution:
        from optuna.distributions import FloatDistribution, IntDistribution

        low, high, step = self.low, self.high, None if self.log else self.step
        if self.whole:
            return IntDistribution(int(low), int(high), log=self.log, step=int(step or 1))
        return FloatDistribution(low, high, log=self.log, step=step)

    def suggest(self, trial: Trial, name: str) -> float | int:
        ask: Any = trial.suggest_int if self.whole else trial.suggest_float
        if self.is_stepped_log():  # Optuna has no such distribution
            return self._clip(ask(name, self.low, self.high, log=True), Change(()))
        # Optuna 4's BruteForceSampler answers with a number of numpy's, which no journal takes
        return (int if self.whole else float)(ask(name, self.low, self.high, log=self.log, step=self.step))

    def draw_changed(self, stream: Stream, change: Change) -> float | int:
        return self._clip(self.draw(stream), change)

    def changed(self, value: Any, stream: Stream, change: Change) -> float | int:
        """The value times a factor, inside the range.

        0, which no factor moves, goes by that share of the range. Where rounding gives the same value again, the next
        one in that direction is taken.
        """
        factor = stream.choice(change.factors)
        width = self.high - self.low
        wanted = value * factor if value else value + (factor - 1) * width
        changed = self._clip(wanted, change)
        step = self.step
        if step is not None and abs(changed - value) < step / 2 and factor != 1:
            up = (wanted > value) if value else factor > 1
            changed = self._clip(value + (step if up else -step), change)
        return changed

    def _clip(self, value: float, change: Change) -> float | int:
        low, high = change.bounds or (self.low, self.high)
        value = min(max(value, low), high)
        if self.rounds_to_steps:
            value = self._on_step(value, low, high)
        if self.whole:
            return round(value)
        return float(min(max(value, self.low), self.high))

    def _on_step(self, value: float, low: float, high: float) -> float:
        """The nearest step within ``low`` and ``high``."""
        assert self.step is not None
        if self.whole:  # exact, however large
            first, last = -((self.low - math.ceil(low)) // self.step), (math.floor(high) - self.low) // self.step
        else:
            first = math.ceil((low - self.low) / self.step - 1e-9)
            last = math.floor((high - self.low) / self.step + 1e-9)
        return self.low + max(first, min(last, round((value - self.low) / self.step))) * self.step

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
        return self._clip(value, Change(()))

    def grid_size(self, points: int | list[Any] | None) -> float:
        if points is not None:
            return len(points) if isinstance(points, list) else points
        if not self.rounds_to_steps:
            return 0
        assert self.step is not None
        return (self.high - self.low) / self.step + 1

    def _grid_values(self, name: str, points: int | None) -> list[Any]:
        return self._all_values(name) if points is None else self._spread(points)

    def _all_values(self, name: str) -> list[Any]:
        if not self.rounds_to_steps or self.step is None:
            raise SpecError(
                f"search.grid: parameter {name!r} is continuous{' on a log scale' if self.log else ''}; "
                f"say how many points it has (points: {{{name}: 5}}) or draw it (random: [{name}])."
            )
        steps = (self.high - self.low) / self.step + 1e-9
        if steps >= limits.GRID_POINTS:
            raise SpecError(
                f"search.grid: parameter {name!r} has more than {limits.GRID_POINTS:,} values; say how many "
                f"(points: {{{name}: 5}})."
            )
        values = [self.low + i * self.step for i in range(int(steps) + 1)]
        if self.whole:
            return [round(v) for v in values]
        return [min(float(v), self.high) for v in values]

    def _spread(self, points: int) -> list[Any]:
        """Evenly spaced values, on a log scale where the parameter is."""
        low, high = float(self.low), float(self.high)
        ratio = 0.0
        if self.log:
            ratio = math.log(high / low) if high / low < math.inf else math.log(high) - math.log(low)
        found: list[Any] = []
        for i in range(points):
            share = i / (points - 1) if points > 1 else 0.5
            value = math.exp(math.log(low) + share * ratio) if self.log else low + share * (high - low)
            if self.rounds_to_steps:
                value = self._on_step(value, self.low, self.high)
            value = min(max(value, low), high)
            found.append(min(max(round(value), self.low), self.high) if self.whole else value)
        return list(dict.fromkeys(found))

    def check_bounds(self, name: str, bounds: tuple[float, float]) -> None:
        low, high = bounds
        if not self.low <= low <= high <= self.high:
            raise ValueError(
                f"search.bounds.{name} = [{low}, {high}] must ascend and lie within the parameter's range "
                f"[{self.low}, {self.high}]; narrow the one or widen the other"
            )


def draw_on_log_steps(stream: Stream, low: float, high: float, step: float) -> int:
    """Which step of ``low + k * step``: a log-uniform draw, rounded, so each gets its share of the scale."""
    last = math.floor((high - low) / step + 1e-9)
    bottom, top = math.log(max(low - step / 2, low / 2)), math.log(low + step * last + step / 2)
    value = math.exp(bottom + (top - bottom) * stream.uniform())
    return min(last, max(0, round((value - low) / step)))


def check_range(low: float, high: float, log: bool) -> None:
    """Refuse a range that holds nothing, or no logarithm.

    Raises:
        ValueError: values, rule and cure.
    """
    if low > high:
        raise ValueError(f"low = {low} is larger than high = {high}; swap them")
    if log and low <= 0:
        raise ValueError(f"log: true needs low > 0, got low = {low}; raise low above zero or use a linear range")


class FloatParameter(NumberParameter):
    """A real number in [low, high], uniform, or uniform in its logarithm; with ``step`` rounded to its steps."""

    type: Literal["float"] = "float"
    low: Real = Field(kw_only=False, description="Smallest value, or ``{param: NAME}``: the value of another number.")
    high: Real = Field(kw_only=False, description="Largest value, or ``{param: NAME}``.")
    log: bool = False
    step: float | None = Field(default=None, gt=0, description="Values are low, low + step, low + 2 step, ...")

    if TYPE_CHECKING:

        def __init__(
            self,
            low: float | Reference,
            high: float | Reference,
            *,
            log: bool = False,
            step: float | None = None,
            default: float | None = None,
            when: Mapping[str, Any] | list[Mapping[str, Any]] | None = None,
            static: bool = False,
        ) -> None: ...

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

    def check_size(self, where: str) -> None:
        super().check_size(where)
        if self.step is not None and not self.references() and (self.high - self.low) / self.step > limits.STEPS:
            raise ValueError(
                f"{where}.step = {self.step} makes more than {limits.STEPS:,} values; raise it, or leave it out"
            )


class IntParameter(NumberParameter):
    """A whole number in [low, high], both included."""

    whole: ClassVar[bool] = True

    type: Literal["int"] = "int"
    low: Whole = Field(
        kw_only=False, description="Smallest value, or ``{param: NAME}``: the value of another whole number."
    )
    high: Whole = Field(kw_only=False, description="Largest value, or ``{param: NAME}``.")
    log: bool = False
    step: int = Field(default=1, ge=1, description="Values are low, low + step, low + 2 step, ...")

    if TYPE_CHECKING:

        def __init__(
            self,
            low: int | Reference,
            high: int | Reference,
            *,
            log: bool = False,
            step: int = 1,
            default: int | None = None,
            when: Mapping[str, Any] | list[Mapping[str, Any]] | None = None,
            static: bool = False,
        ) -> None: ...

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
