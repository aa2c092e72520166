"""Every night: new data, a search, and the better model becomes the champion of MLflow's model registry.

``python examples/pipeline/nightly.py`` waits for three o'clock; ``prefect deployment run nightly/digits`` runs it now.
"""

from typing import Any

import mlflow
import numpy as np
import torch
from prefect import flow, task
from prefect.runtime import flow_run
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy

import hpo_core as hpo

CHAMPION = "models:/digits@champion"
SPACE = {"width": hpo.Int(8, 64, log=True), "lr": hpo.Float(1e-3, 0.1, log=True)}


def build(params: dict[str, Any]) -> nn.Module:
    return nn.Sequential(nn.Linear(64, params["width"]), nn.ReLU(), nn.Linear(params["width"], 10))


def parts(file: str) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """The data to fit and to validate with: images and labels of each."""
    with np.load(file) as data:
        images, labels = torch.tensor(data["images"], dtype=torch.float32), torch.tensor(data["labels"])
    return images[360:], labels[360:], images[:360], labels[:360]


def train(trial: hpo.Trial) -> None:
    images, labels, valid, targets = parts(trial.params["file"])
    model = build(trial.params)
    optimizer = torch.optim.Adam(model.parameters(), trial.params["lr"])
    trial.track(model=model, optimizer=optimizer)
    for _epoch in trial.steps():
        for batch in torch.randperm(len(images)).split(64):
            optimizer.zero_grad()
            cross_entropy(model(images[batch]), labels[batch]).backward()
            optimizer.step()
        with torch.no_grad():
            trial.report(loss=cross_entropy(model(valid), targets))


@task(persist_result=True)  # a second attempt of the run finds the same
def new_data(file: str) -> str:
    """Stands for a query of today's data."""
    digits = load_digits()
    order = np.random.default_rng().permutation(len(digits.data))
    np.savez(file, images=digits.data[order] / 16, labels=digits.target[order])
    return file


@task
def champions_loss(file: str) -> float:
    """Loss of the champion on the new data; infinite where there is none yet."""
    if not mlflow.MlflowClient().search_registered_models("name = 'digits'"):
        return float("inf")
    _, _, valid, targets = parts(file)
    with torch.no_grad():
        return cross_entropy(mlflow.pytorch.load_model(CHAMPION)(valid), targets).item()


@task
def promote(best: hpo.TrialResult) -> None:
    """Register the best trial's model as the champion."""
    model = mlflow.pytorch.log_model(
        best.load(build(best.params)),
        name="model",
        registered_model_name="digits",
        input_example=np.zeros((2, 64), dtype="float32"),
        pip_requirements=["torch"],
    )
    mlflow.MlflowClient().set_registered_model_alias("digits", "champion", model.registered_model_version)


@flow(retries=1)
def nightly(configs: int = 16) -> None:
    run = flow_run.name  # the same when the run is tried again, which then goes on with its study
    file = new_data(f"{run}.npz")
    result = hpo.tune(
        train,
        SPACE,
        metric="loss",
        method=hpo.Asha(configs=configs, max_resource=9),
        constants={"file": file},
        workers=2,
        name=f"nightly-{run}",
        resume=True,
    )
    if result.best.value < champions_loss(file):
        promote(result.best)


if __name__ == "__main__":
    nightly.serve("digits", cron="0 3 * * *")
