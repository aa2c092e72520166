"""Optuna's own pruning callbacks, of the libraries that are installed: found by dry calls, stopped at a rung."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hpo_core.model.trial import Job, Outcome, Rung
from hpo_core.optuna.optuna_space import find_space
from hpo_core.training.attempt import run_attempt
from tests.job_requests import make_request

pytestmark = pytest.mark.slow


def data() -> tuple[Any, Any]:
    draw = np.random.RandomState(0)
    x = draw.normal(size=(80, 3)).astype("float32")
    return x, (x[:, 0] > 0).astype("int64")


def lightgbm_objective(trial: Any) -> float:
    import lightgbm
    from optuna_integration import LightGBMPruningCallback

    params = {
        "objective": "binary",
        "metric": "auc",
        "verbosity": -1,
        "learning_rate": trial.suggest_float("x", 0.1, 1),
    }
    table = lightgbm.Dataset(*data())
    callback = LightGBMPruningCallback(trial, "auc")
    lightgbm.train(params, table, 20, valid_sets=[lightgbm.Dataset(*data(), reference=table)], callbacks=[callback])
    return 1.0


def catboost_objective(trial: Any) -> float:
    import catboost
    from optuna_integration import CatBoostPruningCallback

    rate = trial.suggest_float("x", 0.1, 1)
    model = catboost.CatBoostClassifier(
        iterations=20, learning_rate=rate, eval_metric="AUC", verbose=0, allow_writing_files=False
    )
    callback = CatBoostPruningCallback(trial, "AUC")
    model.fit(*data(), eval_set=[data()], callbacks=[callback])
    callback.check_pruned()
    return 1.0


@pytest.mark.parametrize("library", ["lightgbm", "catboost"])
def test_a_pruning_callback_of_optuna_stops_at_the_rung(library: str, tmp_path: Path) -> None:
    pytest.importorskip("optuna_integration", reason="optuna-integration is not installed")
    pytest.importorskip(library, reason=f"{library} is not installed")
    objective = globals()[f"{library}_objective"]
    assert list(find_space(objective).space) == ["x"]
    request = make_request(
        job=Job(0, 0, Rung(0, 0), 3, {"x": 0.5}, None),
        metric="auc",
        modes=("max",),
        folder=str(tmp_path),
        style="optuna",
        space={"x": {"type": "float", "low": 0.1, "high": 1.0}},
    )
    report = run_attempt(objective, request)
    assert report.outcome is Outcome.COMPLETED, report.message
    assert [point.resource for point in report.curve] == [1, 2, 3] and report.metrics == report.curve[-1].metrics
