"""Values in an order."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, Self

from hpo_core.model.rng import Stream
from hpo_core.model.space.categorical import CategoricalParameter
from hpo_core.model.space.parameter import Change
from hpo_core.model.space.scalars import Value

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution


class OrdinalParameter(CategoricalParameter):
    """One of several values whose order means something (neighbours are alike), smallest first."""

    type: Literal["ordinal"]  # type: ignore[assignment]

    def changed(self, value: Any, stream: Stream, change: Change) -> Value:
        return self.neighbour(value, stream)

    @classmethod
    def of_distribution(cls, distribution: BaseDistribution) -> Self | None:
        """Optuna has no ordered choices."""
        return None
