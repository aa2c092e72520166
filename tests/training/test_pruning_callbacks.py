"""Optuna's own pruning callbacks, of the libraries that are installed: found by dry calls, stopped at a rung."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hpo_core.model.trial import Job, Outcome, Rung
from hpo_core.training.attempt import run_attempt
from hpo_core.training.optuna_space import find_space
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


def xgboost_objective(trial: Any) -> float:
    import xgboost
    from optuna_integration import XGBoostPruningCallback

    params = {"objective": "binary:logistic", "eval_metric": "auc", "eta": trial.suggest_float("x", 0.1, 1)}
    table = xgboost.DMatrix(data()[0], label=data()[1])
    xgboost.train(params, table, 20, evals=[(table, "v")], callbacks=[XGBoostPruningCallback(trial, "v-auc")])
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


def lightning_objective(trial: Any) -> float:
    import lightning.pytorch as pl
    import torch
    from optuna_integration import PyTorchLightningPruningCallback

    class Net(pl.LightningModule):
        def __init__(self, rate: float) -> None:
            super().__init__()
            self.layer, self.rate = torch.nn.Linear(3, 2), rate

        def training_step(self, batch: Any, _: int) -> Any:
            return torch.nn.functional.cross_entropy(self.layer(batch[0]), batch[1])

        def validation_step(self, batch: Any, _: int) -> None:
            self.log("accuracy", (self.layer(batch[0]).argmax(1) == batch[1]).float().mean())

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=self.rate)

    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(*map(torch.tensor, data())), batch_size=40)
    callback = PyTorchLightningPruningCallback(trial, monitor="accuracy")
    trainer = pl.Trainer(
        max_epochs=20, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, callbacks=[callback],
    )  # fmt: skip
    trainer.fit(Net(trial.suggest_float("x", 0.1, 1)), loader, loader)
    callback.check_pruned()
    return 1.0


def keras_objective(trial: Any) -> float:
    import keras
    from optuna_integration import KerasPruningCallback

    model = keras.Sequential([keras.layers.Dense(2, activation="softmax")])
    rate = trial.suggest_float("x", 0.1, 1)
    model.compile(keras.optimizers.SGD(rate), "sparse_categorical_crossentropy", metrics=["accuracy"])
    callback = KerasPruningCallback(trial, "val_accuracy")
    model.fit(*data(), validation_data=data(), epochs=20, verbose=0, callbacks=[callback])
    return 1.0


@pytest.mark.parametrize("library", ["lightgbm", "xgboost", "catboost", "lightning", "keras"])
def test_a_pruning_callback_of_optuna_stops_at_the_rung(library: str, tmp_path: Path) -> None:
    pytest.importorskip("optuna_integration", reason="optuna-integration is not installed")
    pytest.importorskip(library, reason=f"{library} is not installed")
    objective = globals()[f"{library}_objective"]
    assert list(find_space(objective).space) == ["x"]
    request = make_request(
        study="s",
        job=Job(0, 0, Rung(0, 0), 3, {"x": 0.5}, None),
        objective="a:b",
        metric="auc",
        modes=("max",),
        seed=1,
        folder=str(tmp_path),
        style="optuna",
        space={"x": {"type": "float", "low": 0.1, "high": 1.0}},
    )
    report = run_attempt(objective, request)
    assert report.outcome is Outcome.COMPLETED, report.message
    assert [point.resource for point in report.curve] == [1, 2, 3] and report.metrics == report.curve[-1].metrics
