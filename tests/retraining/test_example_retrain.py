"""The retraining example, without its services: what its README says of the periods is so."""

from __future__ import annotations

from pathlib import Path

import torch

from examples.retrain.periods import write
from examples.retrain.train import train
from hpo_core.model.trial import Job, Rung
from hpo_core.retraining.promotion_policy import Drift, check_drift
from hpo_core.spec import load_spec
from hpo_core.training.attempt import run_attempt
from hpo_core.training.evaluation import Evaluation, EvaluationRequest, TrainedModel, evaluate_in_process
from tests.job_requests import make_request

ROOT = Path(__file__).parents[2]


def test_the_examples_third_period_drifts_and_its_second_does_not(tmp_path: Path) -> None:
    torch.set_num_threads(1)
    write(tmp_path)
    spec = load_spec(ROOT / "examples/retrain/study.yaml")
    params = {"learning_rate": 0.01, "width": 64}
    assert spec.search_space().complaints(params) == []
    request = make_request(
        study="s", job=Job(0, 0, Rung(0, 0), 18, params), objective=str(spec.objective), metric=spec.metric.name,
        seed=1, folder=str(tmp_path),
    )  # fmt: skip
    report = run_attempt(train, request)
    assert report.checkpoint is not None

    def on(period: int) -> Evaluation:
        data = {"data": str(tmp_path / f"period-{period}.npz")}
        model = TrainedModel(0, params | data, 1, str(tmp_path), report.checkpoint)
        return evaluate_in_process(
            EvaluationRequest("examples.retrain.train:evaluate", (str(ROOT),), "val_loss", (model,))
        )[0]

    own = on(0)
    assert abs(own.metrics["val_loss"] - report.metrics["val_loss"]) < 1e-6, "training and evaluation agree"
    drifts: list[Drift] = [check_drift(own.losses, on(period).losses) for period in (1, 2)]
    assert [drift.drifted for drift in drifts] == [False, True]
