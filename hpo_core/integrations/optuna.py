"""Pruners for plain Optuna (``study.optimize``) by the rules of this package: exact, and O(log n) a decision.

::

    pruner = AshaPruner(max_resource=27, reduction_factor=3)
    study = optuna.create_study(pruner=pruner)
    study.optimize(objective, n_jobs=4)   # reports steps 1, 2, 3, ... and asks should_prune() after each

What is exact when. A decision counts the results that the pruner knows at that moment, the trial's own included.

- Threads of one process (``n_jobs``): it knows every result that a decision was asked for, and those that the storage
  held when it was first asked. Decisions are taken one after the other.
- Several processes on one storage: give each ``shared=True``. Before a decision it reads the trials that may have
  changed. It knows what the storage holds at that moment; this costs O(n).
- A pruner that is pickled, or made anew in another process, begins by reading the storage. ``AshaPruner`` writes
  nothing there, ``PashaPruner`` one attribute of the study each time its ceiling is raised.
"""

from __future__ import annotations

import math
import threading
from abc import abstractmethod
from bisect import bisect_right, insort
from typing import Any, ClassVar

import optuna
from optuna.pruners import BasePruner
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial

from hpo_core.model.arithmetic import as_written
from hpo_core.search.rungs import rung_levels
from hpo_core.search.soft_ranking import SoftRanking, Tolerance

__all__ = ["AshaPruner", "PashaPruner"]


class RungResults:
    """The results of one study, by rung."""

    def __init__(self, pruner: RungPruner, study: optuna.Study, sign: float) -> None:
        self._pruner = pruner
        self._storage: Any = study._storage
        """Kept alive: what is known is found by its id."""
        self._study_id = study._study_id
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
        """True if the trial stops. Each of its results is judged once, by those that are known then."""
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
        """True if a trial goes on from a rung, by the results there."""
        if not math.isfinite(value):
            return False
        ranked, eta = self._results[rung], self._pruner.eta
        return len(ranked) < eta or bisect_right(ranked, (value * self._sign, number)) <= int(len(ranked) // eta)


class RungPruner(BasePruner):
    """Decides at rungs, by the results of all trials there."""

    _results_type: ClassVar[type[RungResults]] = RungResults

    def __init__(
        self, *, min_resource: int, max_resource: int | None, reduction_factor: float, shared: bool, first_step: int
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
        self._min = min_resource
        self._shared = shared
        self.first_step = first_step
        self._studies: dict[tuple[int, int], Any] = {}
        self._lock = threading.Lock()

    def __getstate__(self) -> dict[str, Any]:
        """Settings alone: in another process the storage is read anew."""
        return {key: value for key, value in self.__dict__.items() if key not in ("_studies", "_lock")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__ |= state
        self._studies = {}
        self._lock = threading.Lock()

    @abstractmethod
    def level(self, rung: int) -> int | None:
        """The resource of a rung; None at and above the full resource, where nothing is decided."""

    def prune(self, study: optuna.Study, trial: FrozenTrial) -> bool:
        """True if the trial stops at a rung that it has reached."""
        if trial.last_step is None:
            return False
        with self._lock:
            return bool(self._known(study).judge(trial))

    def _known(self, study: optuna.Study) -> Any:
        key = (id(study._storage), study._study_id)
        known = self._studies.get(key)
        if known is None:
            known = self._results_type(self, study, self._sign(study))
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
                f"{type(self).__name__}: Optuna prunes no trials of studies with several objectives; leave the pruner "
                "out."
            )
        return -1.0 if study.direction == StudyDirection.MAXIMIZE else 1.0


_NO_LIMIT = 2**62
"""Full resource where none is given: no trial gets there."""


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
            min_resource=min_resource,
            max_resource=max_resource,
            reduction_factor=reduction_factor,
            shared=shared,
            first_step=first_step,
        )
        if early_stopping_rate < 0:
            raise ValueError(f"early_stopping_rate = {early_stopping_rate} must be at least 0.")
        self._levels = rung_levels(min_resource, max_resource or _NO_LIMIT, self.eta)
        if early_stopping_rate >= len(self._levels) - 1:
            raise ValueError(
                f"early_stopping_rate = {early_stopping_rate} leaves of the rungs {self._levels} no one to prune at; "
                f"give at most {len(self._levels) - 2}."
            )
        self._rate = early_stopping_rate

    def level(self, rung: int) -> int | None:
        place = rung + self._rate
        return self._levels[place] if place < len(self._levels) - 1 else None


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
        """Trials with a result at a rung above the ceiling, as of that result, by rung."""

    def read(self, study: optuna.Study) -> None:
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
            min_resource=min_resource,
            max_resource=max_resource,
            reduction_factor=reduction_factor,
            shared=shared,
            first_step=first_step,
        )
        if not 0 <= percentile <= 100:
            raise ValueError(f"percentile = {percentile} must lie in [0, 100].")
        self.levels = rung_levels(min_resource, max_resource, self.eta)
        if len(self.levels) < 3:
            raise ValueError(
                f"max_resource = {max_resource} gives the rungs {self.levels}: the ceiling begins at the second "
                "one, so it could never rise. Give a larger max_resource or a smaller reduction_factor, or take "
                "AshaPruner."
            )
        self.percentile = percentile

    def level(self, rung: int) -> int | None:
        return self.levels[rung] if rung < len(self.levels) - 1 else None

    def ceiling(self, study: optuna.Study) -> int:
        """The highest resource to which trials of the study are trained now."""
        with self._lock:
            rung: int = self._known(study).ceiling
            return self.levels[rung]
