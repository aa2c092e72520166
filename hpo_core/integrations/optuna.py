"""A pruner for plain Optuna (``study.optimize``) by the rules of this package: exact, and O(log n) a decision.

::

    pruner = AshaPruner(max_resource=27, reduction_factor=3)
    study = optuna.create_study(pruner=pruner)
    study.optimize(objective, n_jobs=4)   # reports steps 1, 2, 3, ... and asks should_prune() after each

What is exact when. A decision counts the results that the pruner knows at that moment, the trial's own included.

- Threads of one process (``n_jobs``): it knows every result that a decision was asked for, and those that the storage
  held when it was first asked. Decisions are taken one after the other.
- Several processes on one storage: give each ``shared=True``. Before a decision it reads the trials that may have
  changed. It knows what the storage holds at that moment; this costs O(n).
- A pruner that is pickled, or made anew in another process, begins by reading the storage. It writes nothing there.
"""

from __future__ import annotations

import math
import threading
from bisect import bisect_right, insort
from typing import Any

import optuna
from optuna.pruners import BasePruner
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial

from hpo_core.model.arithmetic import as_written
from hpo_core.search.rungs import rung_levels

__all__ = ["AshaPruner"]


class RungResults:
    """The results of one study, by rung."""

    def __init__(self, pruner: AshaPruner, study: optuna.Study, sign: float) -> None:
        self._pruner = pruner
        self._storage = study._storage
        """Kept alive: what is known is found by its id."""
        self._sign = sign
        self._results: list[list[tuple[float, int]]] = []
        """Pairs (loss, trial) by rung, the best first."""
        self._at: dict[int, int] = {}
        """Number of known results of each trial that is not over."""
        self._judged: dict[int, int] = {}
        """Number of judged results of each trial of this process."""
        self._stopped: set[int] = set()
        self._over = 0
        """Trials below this number have ended, and all their results are known."""

    def read(self, study: optuna.Study) -> None:
        trials = study.get_trials(deepcopy=False)
        ended = True
        for trial in trials[self._over :]:
            self._add(trial)
            ended = ended and trial.state.is_finished()
            if ended:
                self._over = trial.number + 1
                self._at.pop(trial.number, None)

    def _add(self, trial: FrozenTrial) -> int:
        # Take in a trial's new results; returns at how many rungs it has been.
        rung = self._at.get(trial.number, 0)
        while (level := self._pruner.level(rung)) is not None:
            value = self._pruner.result(trial, level)
            if value is None:
                break
            if rung == len(self._results):
                self._results.append([])
            insort(self._results[rung], (value * self._sign if math.isfinite(value) else math.inf, trial.number))
            rung += 1
        self._at[trial.number] = rung
        return rung

    def judge(self, trial: FrozenTrial) -> bool:
        """True if the trial stops. Each of its results is judged once, by those that are known then."""
        number = trial.number
        reached = self._add(trial)  # also of a trial that was told to stop: its result is in the storage
        if number in self._stopped:
            return True
        for rung in range(self._judged.get(number, 0), reached):
            level = self._pruner.level(rung)
            assert level is not None
            value = self._pruner.result(trial, level)
            assert value is not None
            if not self._goes_on(rung, value, number):
                self._stopped.add(number)
                return True
        self._judged[number] = reached
        return False

    def _goes_on(self, rung: int, value: float, number: int) -> bool:
        if not math.isfinite(value):
            return False
        ranked, eta = self._results[rung], self._pruner.eta
        return len(ranked) < eta or bisect_right(ranked, (value * self._sign, number)) <= int(len(ranked) // eta)


_NO_LIMIT = 2**62
"""Full resource where none is given: no trial gets there."""


class AshaPruner(BasePruner):
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
        shared: whether other processes optimize the same study.
        first_step: what the objective's first step is numbered; step k then is resource ``k - first_step + 1``.
    """

    def __init__(
        self,
        *,
        min_resource: int = 1,
        max_resource: int | None = None,
        reduction_factor: float = 3,
        shared: bool = False,
        first_step: int = 1,
    ) -> None:
        if min_resource < 1:
            raise ValueError(f"min_resource = {min_resource}: a training has at least one step; give 1 or more.")
        if max_resource is not None and max_resource <= min_resource:
            raise ValueError(
                f"max_resource = {max_resource} must be above min_resource = {min_resource}, or nothing is ever pruned."
            )
        if not 1.1 <= reduction_factor <= 1e6:
            raise ValueError(f"reduction_factor = {reduction_factor} must lie in [1.1, 1e6].")
        self.reduction_factor = reduction_factor
        self.eta = as_written(reduction_factor)
        self._shared = shared
        self.first_step = first_step
        self._studies: dict[tuple[int, int], RungResults] = {}
        self._lock = threading.Lock()
        self._levels = rung_levels(min_resource, max_resource or _NO_LIMIT, self.eta)

    def __getstate__(self) -> dict[str, Any]:
        """Settings alone: in another process the storage is read anew."""
        return {key: value for key, value in self.__dict__.items() if key not in ("_studies", "_lock")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__ |= state
        self._studies = {}
        self._lock = threading.Lock()

    def level(self, rung: int) -> int | None:
        """The resource of a rung; None at and above the full resource, where nothing is decided."""
        return self._levels[rung] if rung < len(self._levels) - 1 else None

    def prune(self, study: optuna.Study, trial: FrozenTrial) -> bool:
        """True if the trial stops at a rung that it has reached."""
        if trial.last_step is None:
            return False
        with self._lock:
            return self._known(study).judge(trial)

    def _known(self, study: optuna.Study) -> RungResults:
        key = (id(study._storage), study._study_id)
        known = self._studies.get(key)
        if known is None:
            known = RungResults(self, study, self._sign(study))
            known.read(study)
            self._studies[key] = known  # not before: a storage that cannot be read now is read at the next decision
        elif self._shared:
            known.read(study)
        return known

    def result(self, trial: FrozenTrial, level: int) -> float | None:
        """The trial's value at the first step at or above a level; None where it has not been there."""
        wanted = level + self.first_step - 1
        if wanted in trial.intermediate_values:
            return trial.intermediate_values[wanted]
        step = min((step for step in trial.intermediate_values if step > wanted), default=None)
        return None if step is None else trial.intermediate_values[step]

    def _sign(self, study: optuna.Study) -> float:
        if len(study.directions) > 1:
            raise ValueError(
                "AshaPruner: Optuna prunes no trials of studies with several objectives; leave the pruner out."
            )
        return -1.0 if study.direction == StudyDirection.MAXIMIZE else 1.0
