"""The search space: parameters, their order, conditions between them, and how to draw from them.

A parameter is a pydantic model, so that YAML, Python and a UI form fill in the same fields. Each one can
draw a value from a :class:`~hpo_core.model.rng.Stream`, say whether it contains a value, and name the Optuna
distribution that equals it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from hpo_core.model.rng import Stream
from hpo_core.model.trial import Params

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution

Scalar = bool | int | float | str | None


class _Parameter(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    when: dict[str, Scalar | list[Scalar]] = Field(
        default_factory=dict,
        description="Active only where the named parameters have (one of) these values.",
    )
    static: bool = Field(default=False, description="Fixed once drawn: PBT never mutates it.")

    def conditions(self) -> dict[str, list[Scalar]]:
        """``when`` with every right side as a list."""
        return {name: wanted if isinstance(wanted, list) else [wanted] for name, wanted in self.when.items()}

    @model_validator(mode="after")
    def _check_conditions(self) -> Self:
        for name, wanted in self.when.items():
            if wanted == []:
                raise ValueError(f"when: {name} lists no value, so the parameter could never be active; name some")
        return self


class FloatParameter(_Parameter):
    """A real number in [low, high], uniform, or uniform in its logarithm, or on a grid of ``step``."""

    type: Literal["float"]
    low: float
    high: float
    log: bool = False
    step: float | None = Field(default=None, gt=0)

    @model_validator(mode="after")
    def _check(self) -> FloatParameter:
        _check_range(self.low, self.high, self.log)
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


class IntParameter(_Parameter):
    """A whole number in [low, high], both included."""

    type: Literal["int"]
    low: int
    high: int
    log: bool = False
    step: int = Field(default=1, ge=1)

    @model_validator(mode="after")
    def _check(self) -> IntParameter:
        _check_range(self.low, self.high, self.log)
        if not -(2**63) <= self.low <= self.high < 2**63:
            raise ValueError(
                f"low = {self.low} and high = {self.high} must fit into 64 bits; tune an exponent or a float instead"
            )
        if self.log and self.step != 1:
            raise ValueError("log and step exclude each other; drop one of them")
        return self

    def draw(self, stream: Stream) -> int:
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

        return IntDistribution(self.low, self.high, log=self.log, step=self.step)


class CategoricalParameter(_Parameter):
    """One of several values without an order."""

    type: Literal["categorical"]
    choices: list[Scalar] = Field(min_length=1)

    @model_validator(mode="after")
    def _check(self) -> CategoricalParameter:
        _check_choices(self.choices)
        return self

    def draw(self, stream: Stream) -> Scalar:
        return stream.choice(self.choices)

    def contains(self, value: Any) -> bool:
        return any(same_scalar(value, choice) for choice in self.choices)

    def distribution(self) -> BaseDistribution:
        from optuna.distributions import CategoricalDistribution

        return CategoricalDistribution(self.choices)


class OrdinalParameter(CategoricalParameter):
    """One of several values whose order means something (neighbours are alike), smallest first."""

    type: Literal["ordinal"]  # type: ignore[assignment]


Parameter = Annotated[
    FloatParameter | IntParameter | CategoricalParameter | OrdinalParameter, Field(discriminator="type")
]


class SearchSpace:
    """The parameters of a study in an order in which every condition is decided before it is needed.

    Raises:
        ValueError: a condition names an unknown parameter, a value that cannot occur, or a cycle.
    """

    def __init__(self, parameters: Mapping[str, Parameter]) -> None:
        self.parameters: dict[str, Parameter] = dict(parameters)
        choices: dict[str, set[tuple[bool, Any]]] = {}
        for name, parameter in self.parameters.items():
            for other, wanted in parameter.conditions().items():
                above = self.parameters.get(other)
                if above is None:
                    raise ValueError(
                        f"space.{name}.when names {other!r}, which is no parameter of this space; "
                        f"known: {_some(self.parameters)}"
                    )
                if isinstance(above, CategoricalParameter):
                    known = choices.setdefault(other, {scalar_key(choice) for choice in above.choices})
                    strange = [value for value in wanted if scalar_key(value) not in known]
                else:
                    strange = [value for value in wanted if not above.contains(value)]
                if strange:
                    raise ValueError(
                        f"space.{name}.when wants {other} = {strange[0]!r}, a value that {other} never takes; "
                        "use one that its range or choices contain"
                    )
        self.order = self._sorted()
        self._conditions = {name: self.parameters[name].conditions() for name in self.order}

    def _sorted(self) -> tuple[str, ...]:
        """In waves: those without conditions, those that depend on these alone, and so on; each as it was given."""
        above = {name: len(parameter.when) for name, parameter in self.parameters.items()}
        below: dict[str, list[str]] = {name: [] for name in self.parameters}
        for name, parameter in self.parameters.items():
            for other in parameter.when:
                below[other].append(name)
        place = {name: i for i, name in enumerate(self.parameters)}
        done: list[str] = []
        wave = [name for name, count in above.items() if not count]
        while wave:
            done += wave
            ready = []
            for name in wave:
                for other in below[name]:
                    above[other] -= 1
                    if not above[other]:
                        ready.append(other)
            wave = sorted(ready, key=place.__getitem__)
        if len(done) < len(self.parameters):
            waiting = [name for name, count in above.items() if count]
            raise ValueError(
                f"space: the conditions of {_some(waiting)} form a circle; a parameter may depend only "
                "on ones that do not depend on it"
            )
        return tuple(done)

    def is_active(self, name: str, values: Mapping[str, Any]) -> bool:
        """Whether ``name`` matters given the values of the parameters before it in :attr:`order`."""
        return all(
            other in values and any(same_scalar(values[other], value) for value in wanted)
            for other, wanted in self._conditions[name].items()
        )

    def draw(self, stream: Stream) -> Params:
        """One configuration, each active parameter independently; inactive ones are absent."""
        values: Params = {}
        for name in self.order:
            if not self._conditions[name] or self.is_active(name, values):
                values[name] = self.parameters[name].draw(stream)
        return values

    def complaints(self, values: Mapping[str, Any]) -> list[str]:
        """What is wrong with a configuration made elsewhere (empty list: nothing)."""
        found = [f"{name} is no parameter of this space" for name in values if name not in self.parameters]
        for name in self.order:
            active = self.is_active(name, values)
            if active and name not in values:
                found.append(f"{name} is missing")
            elif not active and name in values:
                found.append(f"{name} is given although its condition does not hold")
            elif active and not self.parameters[name].contains(values[name]):
                found.append(f"{name} = {values[name]!r} lies outside its range or choices")
        return found


def same_scalar(a: Any, b: Any) -> bool:
    """Equality that keeps True apart from 1 (YAML users mean different things)."""
    return bool(a == b) and isinstance(a, bool) == isinstance(b, bool)


def scalar_key(value: Any) -> tuple[bool, Any]:
    """Equal for what :func:`same_scalar` calls equal; to be looked up."""
    return isinstance(value, bool), value


def _some(names: Iterable[str]) -> str:
    """The first ten of many names."""
    listed = list(names)
    more = f" and {len(listed) - 10:,} more" if len(listed) > 10 else ""
    return ", ".join(listed[:10]) + more


def _check_range(low: float, high: float, log: bool) -> None:
    if low > high:
        raise ValueError(f"low = {low} is larger than high = {high}; swap them")
    if log and low <= 0:
        raise ValueError(f"log: true needs low > 0, got low = {low}; raise low above zero or use a linear range")


def _check_choices(choices: list[Scalar]) -> None:
    seen: set[tuple[bool, Any]] = set()
    for value in choices:
        if scalar_key(value) in seen:
            raise ValueError(f"choices holds {value!r} twice; list each value once")
        seen.add(scalar_key(value))
