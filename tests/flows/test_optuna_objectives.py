"""Optuna objectives as they are, in real studies."""

from __future__ import annotations

import numpy as np
import optuna
import pytest

from hpo_core import Study
from hpo_core.home import Home
from tests.flows import optuna_objectives
from tests.flows.conftest import Runner

SPACE = {
    "x": {"type": "float", "low": -1.0, "high": 1.0},
    "optimizer": {"type": "categorical", "choices": ["sgd", "adam"]},
    "momentum": {"type": "float", "low": 0.0, "high": 0.5, "when": {"optimizer": "sgd"}},
}


def of_optuna(function: str) -> dict[str, object]:
    return {"objective": f"tests.flows.optuna_objectives:{function}", "style": "optuna"}


@pytest.mark.slow
def test_asha_over_an_optuna_objective_with_conditions(hpo: Runner) -> None:
    sampler = {"name": "TPESampler", "n_startup_trials": 5}
    facts = hpo.json("tune", hpo.study(**of_optuna("conditional"), space=SPACE, sampler=sampler))
    assert facts["status"] == "finished" and facts["trials"] == 12
    study = Study.open("toy", Home(hpo.home).open_journal())
    assert study.state.completed_jobs > 12 and any("momentum" not in trial.params for trial in study.state.trials)
    full = [
        (number, trial) for number, trial in enumerate(study.state.trials) if 9 in {r.resource for r in trial.results}
    ]
    assert full
    for number, trial in full:  # what Optuna itself gives for these parameters and this seed
        np.random.seed(study.spec.training_seed(number) % 2**32)
        expected = optuna_objectives.conditional(optuna.trial.FixedTrial(trial.params))
        assert trial.results[-1].metrics["loss"] == pytest.approx(expected, abs=0)
