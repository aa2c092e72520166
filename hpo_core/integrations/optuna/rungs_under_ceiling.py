"""The results of one Optuna study under a ceiling that rises."""

from __future__ import annotations

from typing import TYPE_CHECKING

import optuna
from optuna.trial import FrozenTrial

from hpo_core.integrations.optuna.rung_results import RungResults
from hpo_core.model.arithmetic import as_written
from hpo_core.search.soft_ranking import SoftRanking, Tolerance

if TYPE_CHECKING:
    from hpo_core.integrations.optuna.pasha_pruner import PashaPruner

_KEY = "hpo.pasha.level_{}"
"""Attribute of the study once that level is open: the tolerance at that moment."""


class RungsUnderCeiling(RungResults):
    """The results of one study, and which of its rungs are open."""

    def __init__(self, pruner: PashaPruner, study: optuna.Study, sign: float) -> None:
        super().__init__(pruner, study, sign)
        self._levels, self._first_step = pruner.levels, pruner.first_step
        self.ceiling = 1
        self._ranking = SoftRanking()
        self._tolerance = Tolerance(as_written(pruner.percentile))
        self._unstable = False
        self._above: dict[int, list[FrozenTrial]] = {}
        """By rung above the ceiling: trials with a result there, as of that result."""

    def read(self, study: optuna.Study) -> None:
        """Take in which rungs are open, then the results."""
        noted = self._storage.get_study_system_attrs(self._study_id)
        for rung in range(len(self._levels) - 1, self.ceiling, -1):
            if (tolerance := noted.get(_KEY.format(self._levels[rung]))) is not None:
                self._open(rung, tolerance)
                break
        super().read(study)

    def taken(self, trial: FrozenTrial, rung: int) -> None:
        if rung > self.ceiling:
            self._above.setdefault(rung, []).append(trial)
        elif rung == self.ceiling:
            self._compare(trial)

    def _compare(self, trial: FrozenTrial) -> None:
        below, level = self._levels[self.ceiling - 1 : self.ceiling + 1]
        low, high = self._loss_at(trial, below), self._loss_at(trial, level)
        steps: dict[int, float] = trial.intermediate_values
        curve = [(step - self._first_step + 1, value * self._sign) for step, value in steps.items()]
        self._tolerance.add(curve, level, high)
        found = self._ranking.add(trial.number, below=low, above=high, tolerance=self._tolerance.value)
        self._unstable = found is not None

    def _loss_at(self, trial: FrozenTrial, level: int) -> float:
        value = self._pruner.result(trial, level)
        assert value is not None
        return self.loss(value)

    def settle(self) -> None:
        """Open rungs while the two highest open ones order their trials differently."""
        while self._unstable and self.ceiling < len(self._levels) - 1:
            key, tolerance = _KEY.format(self._levels[self.ceiling + 1]), self._tolerance.value
            self._storage.set_study_system_attr(self._study_id, key, tolerance)
            self._open(self.ceiling + 1, tolerance)

    def _open(self, rung: int, tolerance: float) -> None:
        self.ceiling = rung
        self._ranking, self._unstable = SoftRanking(), False
        self._tolerance.begin()
        self._tolerance.value = tolerance
        waiting = self._above.pop(rung, [])
        self._above = {other: trials for other, trials in self._above.items() if other > rung}
        for trial in waiting:
            self._compare(trial)

    def goes_on(self, rung: int, value: float, number: int) -> bool:
        return rung < self.ceiling and super().goes_on(rung, value, number)
