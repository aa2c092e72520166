"""Judgement of results: how those that violate constraints rank.

A constraint is a reported value that should be at most 0, as in Optuna. Feasible results rank by their losses alone,
before infeasible ones. Infeasible results rank by their total violation, the sum of the values above 0 (Deb 2002, as in
Optuna's NSGA-II); between equal ones by their losses, then by trial number. Results that are not finite come last.
"""

from __future__ import annotations

import functools
import math
import sys
from collections.abc import Iterable
from typing import Any

from hpo_core.model.arithmetic import float_sum


def total_violation(values: Iterable[float]) -> float | None:
    """Sum of the constraint values above 0; None where one of them is not finite.

    >>> total_violation([-1.0, 0.5, 2.0]), total_violation([]), total_violation([1.0, math.nan])
    (2.5, 0.0, None)
    """
    known = list(values)
    if not all(map(math.isfinite, known)):
        return None
    return min(float_sum(value for value in known if value > 0), sys.float_info.max)


@functools.total_ordering
class Infeasible:
    """The loss of a result that violates constraints, as rungs compare it.

    Larger than every finite loss and smaller than infinity, which stands for no finite loss.

    >>> 5.0 < Infeasible(0.1, 1.0) < Infeasible(0.2, 0.0) < math.inf
    True
    """

    __slots__ = ("_key", "losses", "violation")
    _key: tuple[float, ...]

    def __init__(self, violation: float, losses: float | tuple[float, ...], *, negative: bool = False) -> None:
        self.violation = violation
        self.losses = losses
        plain = losses if isinstance(losses, tuple) else (losses,)
        key = (violation, *plain)
        self._key = (-1, *(-value for value in key)) if negative else (1, *key)

    def __neg__(self) -> Infeasible:
        """For heaps with the largest first: smaller than every finite loss, larger than minus infinity."""
        return Infeasible(self.violation, self.losses, negative=self._key[0] > 0)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Infeasible) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)

    def __lt__(self, other: Any) -> bool:
        return self._key < _key_of(other)

    def __sub__(self, other: Any) -> float:
        """Between feasible and infeasible, or between two violations, no noise of the loss decides."""
        return math.inf

    __rsub__ = __sub__

    def __repr__(self) -> str:
        return f"Infeasible({self.violation!r}, {self.losses!r})"


Rankable = float | Infeasible
"""What a rung with one objective ranks; smaller is better."""


def _key_of(other: Any) -> tuple[float, ...]:
    if isinstance(other, Infeasible):
        return other._key
    return (0.0,) if math.isfinite(other) else (math.copysign(2.0, other),)
