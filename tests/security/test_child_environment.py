"""Training code sees no credential of journal, tracking server, Prefect or Dask; what is the user's own it does see."""

import json
from pathlib import Path

import pytest

from hpo_core.model.trial import Job, Outcome, Rung
from hpo_core.training.child.trainer import Trainer
from hpo_core.training.evaluation import EvaluationRequest, TrainedModel, evaluate_models
from tests.job_requests import make_request

OBJECTIVES = str(Path(__file__).parents[1] / "faults")
SECRETS = {
    "HPO_JOURNAL": "postgresql://me:secret-1@127.0.0.1/journal",
    "HPO_DATABASE": "postgresql://127.0.0.1/secret-2",
    "HPO_FOLLOW": '{"uri": "http://127.0.0.1:5000/secret-3"}',
    "MLFLOW_TRACKING_USERNAME": "secret-4",
    "MLFLOW_TRACKING_PASSWORD": "secret-5",
    "MLFLOW_TRACKING_TOKEN": "secret-6",
    "MLFLOW_TRACKING_URI": "http://me:secret-7@127.0.0.1:5000",
    "PREFECT_API_KEY": "secret-8",
    "PREFECT_API_AUTH_STRING": "me:secret-9",
    "PREFECT_SERVER_API_AUTH_STRING": "me:secret-10",
    "PREFECT_API_DATABASE_CONNECTION_URL": "postgresql+asyncpg://me:secret-11@127.0.0.1/prefect",
    "PREFECT_SERVER_DATABASE_CONNECTION_URL": "sqlite+aiosqlite:////secret-12.db",
    "PREFECT_SERVER_DATABASE_PASSWORD": "secret-13",
    "PREFECT_CLIENT_CUSTOM_HEADERS": '{"Authorization": "secret-14"}',
    "PGPASSWORD": "secret-15",
    "PGPASSFILE": "/secret-16",
    "DASK_DISTRIBUTED__COMM__TLS__CLIENT__KEY": "/secret-17.pem",
    "DASK_INTERNAL_INHERIT_CONFIG": "secret-18",
}
OWN = {
    "AWS_SECRET_ACCESS_KEY": "mine", "WANDB_API_KEY": "mine", "HF_TOKEN": "mine", "HPO_DATA_FOLDER": "/data",
    "CUDA_VISIBLE_DEVICES": "", "DASK_LOGGING__DISTRIBUTED": "error",
}  # fmt: skip


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    for name, value in (SECRETS | OWN).items():
        monkeypatch.setenv(name, value)


def request_for(folder, do="notes_environment", checkpoint=None):
    return make_request(
        job=Job(1, 0, Rung(0, 0), 1, {"do": do}, checkpoint),
        objective="poison_objectives:dispatch",
        folder=str(folder),
        pythonpath=(OBJECTIVES,),
    )


def assert_clean(found):
    assert not SECRETS.keys() & found.keys()
    assert "secret-" not in json.dumps(found)
    assert found.items() >= OWN.items()


def test_zygote_and_children_get_no_private_setting(tmp_path):
    trainer = Trainer("poison_objectives:dispatch", (OBJECTIVES,))
    try:
        report = trainer.run(request_for(tmp_path))
    finally:
        trainer.close()
    assert report.outcome == Outcome.COMPLETED, report
    scratch = tmp_path / "scratch/trial-00001"
    assert_clean(json.loads((scratch / "environment").read_text()))
    assert b"secret-" not in (scratch / "parent").read_bytes()


def test_the_evaluation_process_gets_no_private_setting(tmp_path):
    trainer = Trainer("poison_objectives:dispatch", (OBJECTIVES,))
    try:
        report = trainer.run(request_for(tmp_path, do="good"))
    finally:
        trainer.close()
    assert report.checkpoint is not None, report
    model = TrainedModel(1, {"note": str(tmp_path / "note")}, 1, str(tmp_path), report.checkpoint)
    asked = EvaluationRequest("poison_objectives:evaluation_environment", (OBJECTIVES,), "loss", (model,))
    evaluate_models(asked, timeout=600)
    assert_clean(json.loads((tmp_path / "note").read_text()))
