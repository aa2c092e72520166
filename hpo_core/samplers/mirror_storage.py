"""Optuna's storage in memory, with a view laid over trials."""

from __future__ import annotations

from collections.abc import Container
from typing import Any

import optuna
from optuna.trial import FrozenTrial, TrialState


class MirrorStorage(optuna.storages.InMemoryStorage):
    """Optuna's own storage; samplers see a trial of :attr:`view` in place of the stored one."""

    def __init__(self) -> None:
        super().__init__()
        self.view: dict[int, FrozenTrial] = {}

    def get_all_trials(
        self, study_id: int, deepcopy: bool = True, states: Container[TrialState] | None = None
    ) -> list[FrozenTrial]:
        if states == (TrialState.WAITING,):  # Optuna looks for one at each ask; here none ever waits
            return []
        trials = super().get_all_trials(study_id, deepcopy=False)  # by number, from 0 on
        shown = list(map(self.view.get, range(len(trials)), trials))
        return [trial for trial in shown if states is None or trial.state in states]

    def get_trial_system_attrs(self, trial_id: int) -> dict[str, Any]:
        """Those of the shown trial: GPSampler of Optuna 4 reads the constraints here."""
        stored: FrozenTrial = super().get_trial(trial_id)
        shown = self.view.get(stored.number, stored)
        return {**shown.system_attrs, **stored.system_attrs}
