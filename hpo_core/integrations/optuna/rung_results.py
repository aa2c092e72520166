"""The results of one Optuna study, by rung, and which trials go on."""

from __future__ import annotations

import math
from bisect import bisect_right, insort
from typing import TYPE_CHECKING, Any

import optuna
from optuna.trial import FrozenTrial

if TYPE_CHECKING:
    from hpo_core.integrations.optuna.rung_pruner import RungPruner


class RungResults:
    """The results of one study, by rung."""

    def __init__(self, pruner: RungPruner, study: optuna.Study, sign: float) -> None:
        self._pruner = pruner
        self._storage: Any = study._storage
        """Kept alive: what is known is found by its id."""
        self._study_id = study._study_id
        self._sign = sign
        self._results: list[list[tuple[float, int]]] = []
        """By rung, (loss, trial), the best first."""
        self._at: dict[int, int] = {}
        """By trial that is not over: so many of its results are known."""
        self._judged: dict[int, int] = {}
        """By trial of this process: so many of them were judged."""
        self._stopped: set[int] = set()
        self._over = 0
        """Trials below this number have ended, and all their results are known."""

    def read(self, study: optuna.Study) -> None:
        """Take in what other processes found."""
        trials = study.get_trials(deepcopy=False)
        ended = True
        for trial in trials[self._over :]:
            self._add(trial)
            ended = ended and trial.state.is_finished()
            if ended:
                self._over = trial.number + 1
                self._at.pop(trial.number, None)

    def _add(self, trial: FrozenTrial) -> int:
        """Take in a trial's new results; returns at how many rungs it has been."""
        rung = self._at.get(trial.number, 0)
        while (level := self._pruner.level(rung)) is not None:
            value = self._pruner.result(trial, level)
            if value is None:
                break
            if rung == len(self._results):
                self._results.append([])
            insort(self._results[rung], (self.loss(value), trial.number))
            self.taken(trial, rung)
            rung += 1
        self._at[trial.number] = rung
        return rung

    def taken(self, trial: FrozenTrial, rung: int) -> None:
        """A trial's result at a rung is known from now on."""

    def loss(self, value: float) -> float:
        """Lower is better; what is not finite ranks last."""
        return value * self._sign if math.isfinite(value) else math.inf

    def judge(self, trial: FrozenTrial) -> bool:
        """Whether the trial stops. Each of its results is judged once, by those that are known then."""
        number = trial.number
        reached = self._add(trial)  # also of a trial that was told to stop: its result is in the storage
        self.settle()
        if number in self._stopped:
            return True
        for rung in range(self._judged.get(number, 0), reached):
            level = self._pruner.level(rung)
            assert level is not None
            value = self._pruner.result(trial, level)
            assert value is not None
            if not self.goes_on(rung, value, number):
                self._stopped.add(number)
                return True
        self._judged[number] = reached
        return False

    def settle(self) -> None:
        """Draw what follows from the results alone, before a trial is judged."""

    def goes_on(self, rung: int, value: float, number: int) -> bool:
        """Whether a trial goes on from a rung, by the results there."""
        if not math.isfinite(value):
            return False
        ranked, eta = self._results[rung], self._pruner.eta
        return len(ranked) < eta or bisect_right(ranked, (value * self._sign, number)) <= int(len(ranked) // eta)
