from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from hpo_core.model.errors import CheckpointError, ObjectiveError, SpecError
from hpo_core.training.evaluation import (
    MAX_LOSSES,
    EvaluationRequest,
    TrainedModel,
    evaluate_in_process,
    evaluate_models,
)
from tests.checkpoints.saving import save
from tests.flows.objectives import Weights
from tests.waiting import eventually, gone

FOLDER = str(Path(__file__).parents[2])


def good(trial: Any) -> list[float]:
    weights = Weights()
    trial.track(weights=weights)
    assert list(trial.steps()) == [] and trial.resource == trial.target == 9
    trial.report(loss=weights.value + trial.params["data"])
    return [3.0, 1.0, 2.0]


def many(trial: Any) -> Any:
    import torch

    trial.report(loss=0)
    return torch.arange(3 * MAX_LOSSES).reshape(-1, 3)


def silent(trial: Any) -> None:
    trial.report(accuracy=1.0)


def infinite(trial: Any) -> None:
    trial.report(loss=float("inf"))


def not_a_number(trial: Any) -> list[float]:
    trial.report(loss=0.0)
    return [1.0, float("nan")]


def wrong_name(trial: Any) -> None:
    trial.track(model=Weights())


def dies(trial: Any) -> None:
    import os

    print("last words", flush=True)
    os._exit(3)


def hangs(trial: Any) -> None:
    helper = subprocess.Popen(["sleep", "300"])
    print("helper", helper.pid, flush=True)
    helper.wait()


def request(function: str, folder: Path, count: int = 1) -> EvaluationRequest:
    tree = {"trial": 0, "resource": 9, "metrics": {}, "random": {}, "tracked": {
        "weights": {"value": 0.25}, "optimizer": {"lr": 0.1}, "unknown": {},
    }}  # fmt: skip
    saved = save(folder, "c.safetensors", tree, resource=9)
    models = tuple(TrainedModel(k, {"data": k}, 1, str(folder), saved) for k in range(count))
    return EvaluationRequest(f"tests.training.test_evaluation:{function}", (FOLDER,), "loss", models)


def test_evaluation_loads_models_and_neither_trains_nor_writes(tmp_path: Path) -> None:
    found = evaluate_in_process(request("good", tmp_path, count=2))
    assert [result.metrics for result in found] == [{"loss": 0.25}, {"loss": 1.25}]
    assert found[0].losses == (1.0, 2.0, 3.0)
    assert [path.name for path in tmp_path.iterdir()] == ["c.safetensors"]


def test_evaluation_in_a_separate_process_gives_the_same_result(tmp_path: Path) -> None:
    wanted = request("good", tmp_path, count=2)
    assert evaluate_models(wanted, timeout=600) == evaluate_in_process(wanted)


def test_losses_beyond_the_limit_are_reduced_to_quantiles(tmp_path: Path) -> None:
    (found,) = evaluate_in_process(request("many", tmp_path))
    assert len(found.losses) == MAX_LOSSES
    assert (found.losses[0], found.losses[-1]) == (0.0, 3.0 * MAX_LOSSES - 1)
    assert abs(found.losses[MAX_LOSSES // 2] - 1.5 * MAX_LOSSES) < 4


@pytest.mark.parametrize(
    ("function", "says"),
    [
        ("silent", r"reported loss = None .* Call trial.report\(loss=...\)"),
        ("infinite", "reported loss = inf"),
        ("not_a_number", "not all finite"),
        ("wrong_name", "has no 'model'; it was written with 'weights', 'optimizer', 'unknown'"),
    ],
)
def test_mistakes_of_the_evaluation_function_are_reported(function: str, says: str, tmp_path: Path) -> None:
    with pytest.raises(ObjectiveError, match=says):
        evaluate_in_process(request(function, tmp_path))


def test_the_error_of_a_dead_evaluation_process_has_the_end_of_its_output(tmp_path: Path) -> None:
    with pytest.raises(ObjectiveError, match=r"ended with code 3 and no answer(.|\n)*last words"):
        evaluate_models(request("dies", tmp_path))


def test_an_evaluation_beyond_its_timeout_is_ended_with_its_subprocesses(tmp_path: Path) -> None:
    for seconds in (4, 30, 200):  # the last of them is enough for any machine to begin the function
        with pytest.raises(ObjectiveError, match=f"hangs took longer than {seconds} s") as caught:
            evaluate_models(request("hangs", tmp_path), timeout=seconds)
        if "helper" in str(caught.value):
            break
    eventually(lambda: gone(str(caught.value).rpartition("helper ")[2]))


def test_an_unknown_function_and_a_damaged_checkpoint_are_reported(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="has no function 'nothing'"):
        evaluate_in_process(request("nothing", tmp_path))
    wanted = request("good", tmp_path)
    (tmp_path / "c.safetensors").write_bytes(b"x" * wanted.models[0].checkpoint.size)
    with pytest.raises(CheckpointError, match="corrupt"):
        evaluate_in_process(wanted)
