"""What pruning callbacks and wrappers of other libraries do with an Optuna trial."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import optuna
import pytest

from hpo_core.model.errors import ObjectiveError
from hpo_core.model.trial import Job, Outcome, Report, Rung
from hpo_core.optuna.optuna_space import find_space
from hpo_core.training.attempt import run_attempt
from hpo_core.training.objective import load_objective
from tests.job_requests import make_request

SPACE = {"x": {"type": "float", "low": 0.0, "high": 1.0}, "c": {"type": "categorical", "choices": ["a", "b"]}}


def run(objective: Any, folder: Path, *, target: int = 2, after: Report | None = None, **changes: Any) -> Report:
    checkpoint = None if after is None else after.checkpoint
    request = {
        "study": "s",
        "job": Job(5, 0, Rung(0, 0), target, {"x": 0.25, "c": "b"}, checkpoint),
        "objective": "a:b",
        "metric": "auc",
        "modes": ("max",),
        "seed": 11,
        "folder": str(folder),
        "style": "optuna",
        "space": SPACE,
    }
    return run_attempt(objective, make_request(**(request | changes)))


class LibraryError(Exception):
    """What a library in C makes of every exception of a callback."""


def boosted(trial: optuna.Trial) -> float:
    """Like CatBoost: exceptions of a callback arrive as its own, with the old one in the text alone."""
    trial.suggest_float("x", 0, 1)
    if trial.suggest_categorical("c", ["a", "b"]) == "a":
        trial.suggest_int("depth", 1, 3)
    for step in range(5):
        try:
            trial.report(0.5 + step / 10, step)
            if trial.should_prune():
                raise optuna.TrialPruned
        except BaseException as error:
            raise LibraryError(f"callback raised {type(error).__name__}") from None
    return 1.0


def picky(trial: optuna.Trial) -> float:
    """Like LightGBM's callback: refuses a direction that does not fit the metric, before the first report."""
    trial.suggest_float("x", 0, 1)
    if trial.study.direction != optuna.study.StudyDirection.MAXIMIZE:
        raise ValueError("The intermediate values are inconsistent with the objective values")
    trial.report(0.7, 0)
    return 0.8


class WithDefaults:
    def __init__(self, low: float = 0.0) -> None:
        self.low = low

    def __call__(self, trial: optuna.Trial) -> float:
        return trial.suggest_float("x", self.low, 1)


class NeedsData:
    def __init__(self, data: list[float], *, noise: float) -> None:
        self.data = data

    def __call__(self, trial: optuna.Trial) -> float:
        return trial.suggest_float("x", 0, 1)


instance = NeedsData([1.0], noise=0.0)


def reads_everything(trial: optuna.Trial) -> float:
    """Reads all that an objective of Optuna may read of its trial; raises where something is wrong."""
    assert isinstance(trial, optuna.trial.BaseTrial)
    trial.set_user_attr("batch", 128)
    x = trial.suggest_float("x", 0, 1)
    assert trial.user_attrs["batch"] == 128 and trial.params == {"x": x}
    assert trial.distributions == {"x": optuna.distributions.FloatDistribution(0, 1)}
    assert trial.datetime_start is not None and trial.number >= 0
    assert trial.system_attrs == {} and trial.constraints == {}
    assert trial.study.study_name and trial.study.user_attrs == {} and trial.study.system_attrs == {}
    assert len(trial.study.directions) == 1 and trial.study.direction == trial.study.directions[0]
    return x


def test_a_stop_within_an_error_of_a_library_ends_a_dry_call_and_a_job(tmp_path: Path) -> None:
    found = find_space(boosted)
    assert list(found.space) == ["x", "c", "depth"] and found.space["depth"]["when"] == {"c": "a"}
    report = run(boosted, tmp_path)
    assert report.outcome is Outcome.COMPLETED and report.metrics == {"auc": 0.6}
    finished = run(boosted, tmp_path, target=9)  # not told to stop: an error stays one
    assert finished.outcome is Outcome.COMPLETED and finished.metrics == {"auc": 1.0}


def test_an_error_of_a_library_that_was_not_told_to_stop_stays_an_error(tmp_path: Path) -> None:
    def broken(trial: optuna.Trial) -> float:
        trial.report(0.5, 0)
        raise LibraryError("callback raised TrialPruned")

    assert run(broken, tmp_path, target=3).outcome is Outcome.ERROR


def test_a_callback_that_reads_the_direction_finds_that_of_the_metric(tmp_path: Path) -> None:
    found = find_space(picky)
    assert list(found.space) == ["x"] and found.mode == "max"
    assert run(picky, tmp_path).metrics == {"auc": 0.8}
    wrong = run(picky, tmp_path, modes=("min",))
    assert wrong.outcome is Outcome.ERROR and "inconsistent" in wrong.message
    assert find_space(WithDefaults).mode is None


def test_everything_that_can_be_read_is_the_same_in_a_dry_call_and_in_a_job(tmp_path: Path) -> None:
    assert list(find_space(reads_everything).space) == ["x"]
    report = run(reads_everything, tmp_path)
    assert report.outcome is Outcome.COMPLETED, report.message


def test_classes_and_instances_are_objectives(tmp_path: Path) -> None:
    for found in (WithDefaults, load_objective(f"{__name__}:WithDefaults"), load_objective(f"{__name__}:instance")):
        assert list(find_space(found).space) == ["x"]
        assert run(found, tmp_path).metrics == {"auc": 0.25}
    message = r"missing 1 required positional argument: 'data'. Give an object of it; .* `objective = NeedsData\(...\)`"
    with pytest.raises(ObjectiveError, match=message):
        find_space(NeedsData)
    assert "'data'" in run(NeedsData, tmp_path).message
    with pytest.raises(ObjectiveError, match="LibraryError is a class without __call__"):
        find_space(LibraryError)


def test_tuples_are_suggested_as_they_were_written_and_described_as_lists(tmp_path: Path) -> None:
    def layered(trial: optuna.Trial) -> float:
        layers = trial.suggest_categorical("layers", [(16, 16), (32,)])
        assert isinstance(layers, tuple)
        if len(layers) == 2:
            trial.suggest_float("x", 0, 1)
        return float(sum(layers))

    found = find_space(layered)
    assert found.space["layers"]["choices"] == [[16, 16], [32]]
    assert found.space["x"]["when"] == {"layers": [[16, 16]]}
    job = Job(5, 0, Rung(0, 0), 1, {"layers": [32]}, None)
    report = run(layered, tmp_path, job=job, target=1, space=found.space)
    assert report.metrics == {"auc": 32.0}, report.message


def test_constraints_set_before_the_first_report_are_found() -> None:
    def limited(trial: optuna.Trial) -> float:
        x = trial.suggest_float("x", 0, 1)
        trial.set_constraint("size", x - 0.5)
        assert trial.constraints == {"size": x - 0.5} and trial.system_attrs == {"constraints:size": x - 0.5}
        if x > 0.5:
            trial.set_constraint("time", 1)
        trial.report(x, 0)
        trial.set_constraint("late", 1)
        return x

    assert find_space(limited).constraints == ["size", "time"]


def test_set_constraints_are_reported_with_the_metrics(tmp_path: Path) -> None:
    def limited(trial: optuna.Trial) -> float:
        trial.set_constraint("size", 0.5)
        trial.set_constraint("size", 9.0)  # the first one counts, as in Optuna
        for step in range(4):
            trial.report(step, step)
            if trial.should_prune():
                raise optuna.TrialPruned
        return 7.0

    report = run(limited, tmp_path, constraints=("size",))
    assert report.metrics == {"auc": 1.0, "size": 0.5}
    ended = run(limited, tmp_path, constraints=("size",), target=9)
    assert ended.metrics == {"auc": 7.0, "size": 0.5}
    again = run(lambda trial: 1 / 0, tmp_path, constraints=("size",), target=20, after=ended)
    assert again.metrics == {"auc": 7.0, "size": 0.5}, again.message


def test_a_constraint_that_is_not_set_when_the_trial_is_judged_is_an_error(tmp_path: Path) -> None:
    def late(trial: optuna.Trial) -> float:
        trial.report(0.5, 0)
        if trial.should_prune():
            raise optuna.TrialPruned
        trial.set_constraint("size", 0.5)
        return 1.0

    report = run(late, tmp_path, constraints=("size",), target=1)
    assert report.outcome is Outcome.ERROR
    assert "'size' was not set when the trial was judged at 1. Call trial.set_constraint('size'" in report.message
