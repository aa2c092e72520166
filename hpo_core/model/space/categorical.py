"""Values without an order."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, Self

from pydantic import Field, model_validator

from hpo_core.model.rng import Stream
from hpo_core.model.space.listed import ListedParameter
from hpo_core.model.space.scalars import Value, optuna_choice, said, scalar_key

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution


class CategoricalParameter(ListedParameter):
    """One of several values without an order."""

    type: Literal["categorical"]
    choices: list[Value] = Field(min_length=1, description="Texts, numbers, true, false, null, or lists of them.")
    weights: list[float] | None = Field(
        default=None, description="How likely each choice is to be drawn, in any unit; default: all equally."
    )

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

    @classmethod
    def of_distribution(cls, distribution: BaseDistribution) -> Self | None:
        from optuna.distributions import CategoricalDistribution

        if not isinstance(distribution, CategoricalDistribution):
            return None
        return cls(type="categorical", choices=list(distribution.choices))
