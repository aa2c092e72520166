"""``Study.to_optuna``: a copy of a journal as an Optuna study."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from typing import Any

import optuna

from hpo_core.model.errors import JournalError
from hpo_core.model.events import Entry
from hpo_core.state import StudyState
from hpo_core.study.optuna_trials import OptunaTrials, directions_of


def copy_to_optuna(entries: Iterable[Entry], storage: Any, name: str, *, ended: bool) -> optuna.Study:
    """A new Optuna study that holds what these entries say.

    Args:
        ended: whether the search is over, so that what is paused does not go on.

    Raises:
        optuna.exceptions.DuplicatedStudyError: the storage holds a study of that name.
    """
    state = StudyState()
    trials: OptunaTrials | None = None
    for entry in entries:
        for event in entry.events:
            state.apply(event)
        if trials is None:
            assert state.spec is not None
            trials = OptunaTrials(state.spec, state)
        trials.add(entry)
    if trials is None or state.spec is None:
        raise JournalError(f"Study {name!r}: its journal holds no entry.")
    directions = directions_of(state.spec)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of what is experimental, and of ranges whose end is on no step
        verbosity = optuna.logging.get_verbosity()
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        try:
            study = optuna.create_study(storage=storage, study_name=name, directions=directions)
        finally:
            optuna.logging.set_verbosity(verbosity)
        study.set_metric_names([metric.name for metric in state.spec.objectives])
        for number in range(len(state.trials)):
            study._storage.create_new_trial(study._study_id, template_trial=trials.frozen(number, ended=ended))
    return study
