"""Progressive asynchronous successive halving in plain Optuna."""

from __future__ import annotations

from typing import ClassVar

import optuna

from hpo_core.integrations.optuna.rung_pruner import RungPruner
from hpo_core.integrations.optuna.rung_results import RungResults
from hpo_core.integrations.optuna.rungs_under_ceiling import RungsUnderCeiling
from hpo_core.search.rungs import rung_levels


class PashaPruner(RungPruner):
    """PASHA: no trial passes a ceiling, which rises while rankings change (Bohdal et al., ICLR 2023).

    The ceiling stands at the second rung first. With every result there, the trials at the ceiling are compared in the
    order that they have there and in the order that they had one rung below. Where the orders differ, the ceiling rises
    by one rung, at most to ``max_resource``. Trials count as exchangeable where their losses in the rung below lie
    within a tolerance: the ``percentile`` of the final distances of trials whose learning curves cross at least twice.
    So report every step: with results at rungs alone fewer crossings are seen, and the ceiling rises more often.

    What plain Optuna changes. PASHA is made for the promotion variant: trials that wait at the ceiling are resumed
    when it rises. Optuna cannot resume a trial, so one that reaches the ceiling stops there for good, unless its own
    result raises the ceiling. Those that stopped before stay in the comparison of their rung and are never trained
    further; the rung that opens is filled by later trials alone, and by the one that opened it. This needs more
    trials to reach the same level than the search method ``pasha``.

    Below the ceiling the stopping variant of asynchronous successive halving decides, as in :class:`AshaPruner`. It is
    the counterpart of promotion where nothing waits: both let the best ``floor(n / eta)`` of a rung go on. While
    ``n < eta`` all go on, which lets up to ``eta - 1`` more trials into the comparison.

    ``should_prune()`` is true for a trial that stops at the ceiling, too. Where no trial got to ``max_resource``,
    Optuna's ``study.best_trial`` finds a trial only if the objective returns its value at the ceiling instead of
    raising ``TrialPruned``: compare its step with :meth:`ceiling`.

    After a restart the open levels are those noted in the storage, and the same trials are compared. The tolerance
    is then learnt from the first 300 trials of a rung by number instead of by time.

    Args:
        min_resource: steps of the shortest training, r.
        max_resource: steps of a full training, R; the highest ceiling.
        reduction_factor: eta; one in eta goes on.
        percentile: of the distances between curves that cross twice; the tolerance.
        shared: whether other processes optimize the same study.
        first_step: what the objective's first step is numbered; step k then is resource ``k - first_step + 1``.
    """

    _results_type: ClassVar[type[RungResults]] = RungsUnderCeiling

    def __init__(
        self,
        *,
        max_resource: int,
        min_resource: int = 1,
        reduction_factor: float = 3,
        percentile: float = 90,
        shared: bool = False,
        first_step: int = 1,
    ) -> None:
        super().__init__(
            min_resource=min_resource, reduction_factor=reduction_factor, shared=shared, first_step=first_step
        )
        if not 0 <= percentile <= 100:
            raise ValueError(f"percentile = {percentile} must lie in [0, 100].")
        if max_resource <= min_resource:
            raise ValueError(
                f"max_resource = {max_resource} must be above min_resource = {min_resource}, or nothing is ever pruned."
            )
        self.levels = rung_levels(min_resource, max_resource, self.eta)
        if len(self.levels) < 3:
            raise ValueError(
                f"max_resource = {max_resource} gives the rungs {self.levels}: the ceiling begins at the second "
                "one, so it could never rise. Give a larger max_resource or a smaller reduction_factor, or take "
                "AshaPruner."
            )
        self.percentile = percentile

    def level(self, rung: int) -> int | None:
        """The resource of a rung; None at and above the full resource, where nothing is decided."""
        return self.levels[rung] if rung < len(self.levels) - 1 else None

    def ceiling(self, study: optuna.Study) -> int:
        """The resource that trials of the study are trained to at most, as of now."""
        with self._lock:
            rung: int = self._known(study).ceiling
            return self.levels[rung]
