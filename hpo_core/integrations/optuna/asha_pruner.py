"""Asynchronous successive halving in plain Optuna."""

from __future__ import annotations

from hpo_core.integrations.optuna.rung_pruner import RungPruner
from hpo_core.model.arithmetic import Number
from hpo_core.search.rungs import rung_levels

_MOST_RUNGS = 64
_LARGEST = 2**62


def _open_levels(min_resource: int, reduction_factor: Number) -> list[int]:
    """Levels without a full resource; with a small eta several steps round to one level, which decides once."""
    found: dict[int, None] = {}
    steps = 0
    while (level := min_resource * reduction_factor**steps) < _LARGEST and len(found) < _MOST_RUNGS:
        found[round(level)] = None
        steps += 1
    return list(found)


class AshaPruner(RungPruner):
    """Asynchronous successive halving, stopping variant (Li et al. 2018, arXiv:1810.05934v1).

    At a rung a trial goes on where it is among the best ``floor(n / eta)`` of the ``n`` results of its rung so far,
    itself counted, or ``n < eta``. Between equal results the lower trial number comes first. NaN and infinity never
    go on. A trial's result at a rung is what it reported at the first step at or above the rung's level. At
    ``max_resource`` nothing is pruned.

    Optuna's ``SuccessiveHalvingPruner`` differs where ``n < eta`` (it keeps the best result alone), between equal
    results (it keeps all), and in its cost: it reads all trials for each decision.

    Args:
        min_resource: steps of the shortest training, r.
        max_resource: steps of a full training, R; None: no upper limit.
        reduction_factor: eta; one in eta goes on.
        early_stopping_rate: s; the first rung stands at ``r * eta**s``.
        shared: whether other processes optimize the same study.
        first_step: what the objective's first step is numbered; step k then is resource ``k - first_step + 1``.
    """

    def __init__(
        self,
        *,
        min_resource: int = 1,
        max_resource: int | None = None,
        reduction_factor: float = 3,
        early_stopping_rate: int = 0,
        shared: bool = False,
        first_step: int = 1,
    ) -> None:
        super().__init__(
            min_resource=min_resource, reduction_factor=reduction_factor, shared=shared, first_step=first_step
        )
        if early_stopping_rate < 0:
            raise ValueError(f"early_stopping_rate = {early_stopping_rate} must be at least 0.")
        if max_resource is not None and max_resource <= min_resource:
            raise ValueError(
                f"max_resource = {max_resource} must be above min_resource = {min_resource}, or nothing is ever pruned."
            )
        levels = None if max_resource is None else rung_levels(min_resource, max_resource, self.eta)
        if levels is not None and early_stopping_rate >= len(levels) - 1:
            raise ValueError(
                f"early_stopping_rate = {early_stopping_rate} leaves of the rungs {levels} no one to prune at; give at "
                f"most {len(levels) - 2}."
            )
        self._levels = levels
        self._open = _open_levels(min_resource, self.eta) if levels is None else []
        self._rate = early_stopping_rate

    def level(self, rung: int) -> int | None:
        """The resource of a rung; None at and above the full resource, where nothing is decided."""
        place = rung + self._rate
        if self._levels is not None:
            return self._levels[place] if place < len(self._levels) - 1 else None
        return self._open[place] if place < len(self._open) else None
