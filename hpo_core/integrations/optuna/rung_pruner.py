"""What the pruners for plain Optuna share: levels, studies, locking, pickling."""

from __future__ import annotations

import threading
from abc import abstractmethod
from typing import Any, ClassVar

import optuna
from optuna.pruners import BasePruner
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial

from hpo_core.integrations.optuna.rung_results import RungResults
from hpo_core.model.arithmetic import as_written


class RungPruner(BasePruner):
    """Decides at rungs, by the results of all trials there."""

    _results_type: ClassVar[type[RungResults]] = RungResults

    def __init__(self, *, min_resource: int, reduction_factor: float, shared: bool, first_step: int) -> None:
        if min_resource < 1:
            raise ValueError(f"min_resource = {min_resource}: a training has at least one step; give 1 or more.")
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
        """Whether the trial stops at a rung that it has reached."""
        if trial.last_step is None:
            return False
        with self._lock:
            return bool(self._known(study).judge(trial))

    def _known(self, study: optuna.Study) -> Any:
        """The results of a study, read where that is due; for the holder of the lock."""
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
        """What the trial reported at the first step at or above a level; None where it has not been there."""
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
