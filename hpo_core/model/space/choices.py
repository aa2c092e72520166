"""Parameters whose values stand in a list."""

from __future__ import annotations

import itertools
import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field, model_validator

from hpo_core.model import limits
from hpo_core.model.errors import SpecError
from hpo_core.model.rng import Stream
from hpo_core.model.settings import plain
from hpo_core.model.short_text import at_most, some
from hpo_core.model.space.parameter import Change, ParameterType
from hpo_core.model.space.value_tests import Scalar, Test, Value, optuna_choice, said, same_scalar, scalar_key

if TYPE_CHECKING:
    from optuna import Trial
    from optuna.distributions import BaseDistribution


class ListedParameter(ParameterType):
    """One of several values; a subclass says which."""

    @abstractmethod
    def listed(self) -> Sequence[Value]:
        """All values, in the order in which people see them."""

    def draw(self, stream: Stream) -> Value:
        return stream.choice(self.listed())

    def contains(self, value: Any) -> bool:
        try:
            return scalar_key(value) in self._keys
        except TypeError:  # a dictionary
            return False

    @cached_property
    def _keys(self) -> frozenset[tuple[bool, Any]]:
        return frozenset(map(scalar_key, self.listed()))

    def may_pass(self, test: Test) -> bool:
        return any(map(test.holds, self.listed()))

    def taken(self, value: Any) -> Any:
        for choice in self.listed():
            if same_scalar(value, choice):
                return choice
        raise ValueError(f"is none of its choices {some(map(said, self.listed()))}; give one of them")

    def distribution(self) -> BaseDistribution:
        from optuna.distributions import CategoricalDistribution

        return CategoricalDistribution(self._optuna_choices())

    def seen(self, value: Any) -> Scalar:
        return optuna_choice(value)

    def suggest(self, trial: Trial, name: str) -> Any:
        choices = self._optuna_choices()
        answer = trial.suggest_categorical(name, choices)
        return next(mine for mine, its in zip(self.listed(), choices, strict=True) if same_scalar(its, answer))

    def _optuna_choices(self) -> list[Scalar]:
        return [optuna_choice(value) for value in self.listed()]

    def draw_changed(self, stream: Stream, change: Change) -> Value:
        return self.draw(stream)

    def changed(self, value: Any, stream: Stream, change: Change) -> Value:
        """Drawn anew; types whose order means something move to a neighbour instead."""
        return self.draw(stream)

    def neighbour(self, value: Any, stream: Stream) -> Value:
        """The next lower or the next higher value; at an end the only one there is."""
        choices = self.listed()
        at = next(i for i, choice in enumerate(choices) if same_scalar(choice, value))
        near = [i for i in (at - 1, at + 1) if 0 <= i < len(choices)]
        return choices[stream.choice(near)] if near else value

    def share(self, value: Any) -> float | None:
        return None

    def grid_size(self, points: int | list[Any] | None) -> float:
        if points is not None:
            return len(points) if isinstance(points, list) else points
        return len(self.listed())

    def _grid_values(self, name: str, points: int | None) -> list[Any]:
        count = len(self.listed())
        if points is not None and points != count:
            raise SpecError(
                f"search.grid.points.{name} = {points}: it has {count} choices; leave it out, or "
                "give the list of those you want."
            )
        return list(self.listed())

    def check_size(self, where: str) -> None:
        super().check_size(where)
        at_most(f"{where}.choices", len(self.listed()), limits.CHOICES, "choices; use a number with low and high")


class CategoricalParameter(ListedParameter):
    """One of several values; those of an ordinal ascend, and neighbours are alike."""

    public_name: ClassVar[str] = "Choice"

    type: Literal["categorical", "ordinal"] = Field(
        default="categorical", description="ordinal: the choices ascend, and neighbours are alike."
    )
    choices: list[Value] = Field(min_length=1, description="Texts, numbers, true, false, null, or lists of them.")
    weights: list[float] | None = Field(
        default=None, description="How likely each choice is to be drawn, in any unit; default: all equally."
    )

    if TYPE_CHECKING:

        def __init__(
            self,
            *values: Value | Sequence[Value],
            type: Literal["categorical", "ordinal"] = "categorical",
            choices: Sequence[Value] = (),
            weights: Sequence[float] | None = None,
            default: Value | None = None,
            when: Mapping[str, Any] | list[Mapping[str, Any]] | None = None,
            static: bool = False,
        ) -> None: ...
    else:

        def __init__(self, *values: Any, **more: Any) -> None:
            """Take the choices by position: one by one, or one list of them."""
            if len(values) == 1 and isinstance(listed := plain(values[0]), list):
                values = tuple(listed)
            if values and "choices" in more:
                raise SpecError("Choice: choices is given twice, by position and by name; drop one.")
            super().__init__(**({"choices": list(values)} if values else {}), **more)

        __init__.__pydantic_base_init__ = True

    @model_validator(mode="after")
    def _check(self) -> CategoricalParameter:
        for found in (map(scalar_key, self.choices), (scalar_key(optuna_choice(one)) for one in self.choices)):
            seen = set()
            for value, key in zip(self.choices, found, strict=True):
                if key in seen:
                    raise ValueError(f"choices holds {said(value)} twice; list each value once")
                seen.add(key)
        if self.weights is not None:
            if len(self.weights) != len(self.choices):
                raise ValueError(
                    f"weights has {len(self.weights)} numbers for {len(self.choices)} choices; give one each"
                )
            if not all(weight > 0 for weight in self.weights):
                raise ValueError(f"weights = {self.weights} holds one that is not above 0; drop that choice instead")
            if not math.isfinite(sum(self.weights)):
                raise ValueError(f"weights = {self.weights} have a sum that is not finite; divide them all")
        return self

    def listed(self) -> Sequence[Value]:
        return self.choices

    def draw(self, stream: Stream) -> Value:
        if self.weights is None:
            return super().draw(stream)
        upto = list(itertools.accumulate(self.weights))
        at = stream.uniform() * upto[-1]
        return next((one for one, end in zip(self.choices, upto, strict=True) if at < end), self.choices[-1])

    def changed(self, value: Any, stream: Stream, change: Change) -> Value:
        """A neighbour of an ordinal value; of others one that is drawn anew."""
        return self.neighbour(value, stream) if self.type == "ordinal" else self.draw(stream)
