"""Values without an order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, Self

from pydantic import Field, model_validator

from hpo_core.model.space.listed import ListedParameter
from hpo_core.model.space.parameter import Scalar, scalar_key

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution


class CategoricalParameter(ListedParameter):
    """One of several values without an order."""

    type: Literal["categorical"]
    choices: list[Scalar] = Field(min_length=1)

    @model_validator(mode="after")
    def _check(self) -> CategoricalParameter:
        seen: set[tuple[bool, Scalar]] = set()
        for value in self.choices:
            if scalar_key(value) in seen:
                raise ValueError(f"choices holds {value!r} twice; list each value once")
            seen.add(scalar_key(value))
        return self

    def listed(self) -> Sequence[Scalar]:
        return self.choices

    @classmethod
    def of_distribution(cls, distribution: BaseDistribution) -> Self | None:
        from optuna.distributions import CategoricalDistribution

        if not isinstance(distribution, CategoricalDistribution):
            return None
        return cls(type="categorical", choices=list(distribution.choices))
