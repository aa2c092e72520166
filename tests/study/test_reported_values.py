"""Names and values of metrics, at every door: what is no real number never becomes one, and no column is replaced."""

from __future__ import annotations

import datetime
import decimal
import enum
import fractions
import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import hpo_core as hpo
from hpo_core.model.errors import ObjectiveError, SpecError
from hpo_core.model.trial import Job, Outcome, Rung
from hpo_core.training.attempt import run_attempt
from hpo_core.training.evaluation import _evaluation
from hpo_core.training.request import JobRequest
from tests.conftest import make_spec
from tests.job_requests import make_request


class _Level(enum.IntEnum):
    HIGH = 3


class _Half:
    """Can be made a float, but is no number."""

    def __float__(self) -> float:
        return 0.5

    def __repr__(self) -> str:
        return "half"


REAL = [
    1, -0.0, 10**15, _Level.HIGH, fractions.Fraction(1, 2), decimal.Decimal("0.5"), np.int8(3), np.float16(3),
    np.longdouble(3), np.array(2.5), torch.tensor(2), torch.tensor(2, dtype=torch.bfloat16),
    torch.tensor(2.5, requires_grad=True), pd.Series([1.5]).sum(),
]  # fmt: skip
NO_NUMBER = [
    None, True, np.bool_(True), torch.tensor(True), "0.5", b"1", np.str_("1"), _Half(), int, 1j, np.complex128(1),
    torch.tensor(1j), [1.0], np.ones(1), torch.ones(2), pd.Series([1.0]), np.array(1.0, dtype=object), np.ma.masked,
    np.timedelta64(5, "ns"), datetime.timedelta(seconds=1), pd.NaT, pd.NA, 10**400, decimal.Decimal("sNaN"), Path("1"),
]  # fmt: skip


def _words(value: Any) -> str:
    return f"{type(value).__name__} {value!r}"


def _request(style: str = "handle") -> JobRequest:
    return make_request(
        job=Job(0, 0, Rung(0, 0), target=1, params={}), objective="-", seed=0,
        folder="/nowhere", required="all", style=style,
    )  # fmt: skip


def _told(value: Any) -> float:
    study = hpo.Study.create(make_spec())
    job = study.ask()
    study.tell(job, {"loss": value})
    return study.state.trials[job.trial].results[0].metrics["loss"]


def _reported(value: Any) -> float:
    report = run_attempt(lambda trial: trial.report(loss=value), _request())
    if report.outcome in (Outcome.COMPLETED, Outcome.DIVERGED):
        return report.metrics["loss"]
    raise ObjectiveError(report.message)


def _returned(value: Any) -> float:
    report = run_attempt(lambda trial: value, _request("optuna"))
    if report.outcome in (Outcome.COMPLETED, Outcome.DIVERGED):
        return report.metrics["loss"]
    raise ObjectiveError(report.message)


DOORS = [_told, _reported, _returned]


@pytest.mark.parametrize("door", DOORS)
def test_a_real_number_is_taken_as_it_is(door: Any) -> None:
    for value in REAL:
        assert door(value) == float(value), _words(value)


@pytest.mark.parametrize("door", DOORS)
def test_what_is_no_real_number_does_not_become_one(door: Any) -> None:
    for value in NO_NUMBER:
        try:
            taken = door(value)
        except ObjectiveError as error:
            assert "number" in str(error), _words(value)
        else:
            pytest.fail(f"{_words(value)} was taken as {taken}")


@pytest.mark.parametrize("value", [math.nan, torch.tensor(-math.inf), decimal.Decimal("NaN")])
def test_what_is_not_finite_is_a_divergence(value: Any) -> None:
    assert run_attempt(lambda trial: trial.report(loss=value), _request()).outcome is Outcome.DIVERGED


@pytest.mark.parametrize("value", ["0.5", True], ids=_words)
def test_an_optuna_objective_cannot_report_it_either(value: Any) -> None:
    report = run_attempt(lambda trial: trial.report(value, 1), _request("optuna"))
    assert report.outcome is Outcome.ERROR and "takes a float and an int" in report.message


@pytest.mark.parametrize("losses", [[1j], ["0.5"], np.array([5], "m8[ns]"), torch.tensor([1j])], ids=_words)
def test_losses_of_examples_are_real_numbers(losses: Any) -> None:
    with pytest.raises(ObjectiveError, match="losses per example"):
        _evaluation({"loss": 1.0}, losses)


@pytest.mark.parametrize("name", ["trial", "params.x"])
def test_a_name_of_a_column_is_refused_at_the_first_report(name: str) -> None:
    report = run_attempt(lambda trial: trial.report(**{"loss": 1.0, name: 2.0}), _request())
    assert report.outcome is Outcome.ERROR
    assert f"trial.report({name}=...)" in report.message and "is a column" in report.message
    assert f"my_{name.replace('.', '_')}" in report.message
    study = hpo.Study.create(make_spec())
    job = study.ask()
    assert job is not None
    with pytest.raises(ObjectiveError, match="is a column"):
        study.tell(job, {"loss": 1.0, name: 2.0})


@pytest.mark.parametrize("setting", ["metric", "metrics", "constraints"])
def test_a_study_cannot_name_one(setting: str, name: str = "trial") -> None:
    more: dict[str, Any] = {
        "metric": {"metric": {"name": name}},
        "metrics": {"metrics": [{"name": "loss"}, {"name": name}]},
        "constraints": {"constraints": [name]},
    }[setting]
    with pytest.raises(SpecError, match="is a column"):
        make_spec(**more)


def test_the_list_is_that_of_the_tables(tmp_path: Path) -> None:
    from hpo_core.model.trial import COLUMNS as known

    def train(trial: hpo.TrialHandle) -> None:
        trial.report(loss=1.0)

    off: dict[str, Any] = {"tracking": {"mlflow": "off"}, "prefect": "off", "progress": False, "workers": 1}
    method = hpo.Random(configs=1, max_resource=1)
    result = hpo.tune(train, {"x": hpo.Float(0, 1)}, metric="loss", method=method, home=tmp_path, **off)
    columns = {*result.trials.reset_index(), *result.results, *result.curves}
    assert columns == known | {"loss", "params.x"}
