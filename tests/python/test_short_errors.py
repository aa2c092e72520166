"""Errors are short: what is wrong, where in the user's own code, and the cure; each thing once."""

from __future__ import annotations

import logging
import traceback
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import hpo_core as hpo
from hpo_core.model import errors
from hpo_flows.command import app
from hpo_flows.dask.clusters import address
from tests.python.training import train

SPACE = {"lr": hpo.Float(0, 1)}
QUIET: dict[str, Any] = {"home": None, "progress": False, "metric": "loss", "max_trials": 8}


def shown(error: BaseException) -> tuple[str, set[str]]:
    """What Python prints of an error, and the files of which it shows frames."""
    text = "".join(traceback.format_exception(error))
    return text, {line.split('"')[1] for line in text.splitlines() if line.startswith('  File "')}


def test_a_scheduler_that_does_not_answer_is_named_at_once_and_in_one_line(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(address, "CONNECT_SECONDS", 3.0)
    with caplog.at_level(logging.WARNING, "hpo"), pytest.raises(hpo.HpoError) as raised:
        hpo.tune(train, {"x": hpo.Float(0, 1)}, cluster="tcp://127.0.0.1:9", prefect="off", **QUIET)
    text, files = shown(raised.value)
    assert files <= {__file__, errors.__file__}, text
    assert "No Dask scheduler answers at tcp://127.0.0.1:9" in text and len(text.splitlines()) < 12
    said = [record.getMessage() for record in caplog.records]
    assert said.count("waiting for the Dask scheduler at tcp://127.0.0.1:9, for 3 s at most ...") == 1, said


def test_one_message_of_many_trials_is_printed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mistyped.py").write_text(
        "def train(trial):\n    for _ in trial.steps():\n        trial.report(los=trial.params['lr'])\n"
    )
    (tmp_path / "study.yaml").write_text(
        "study: wrong\nobjective: mistyped:train\nspace: {lr: {type: float, low: 0, high: 1}}\nmetric: {name: loss}\n"
        "search: {method: random, configs: 8, max_resource: 1}\ntracking: {mlflow: 'off'}\n"
    )
    arguments = ["tune", str(tmp_path / "study.yaml"), "--no-prefect", "--home", str(tmp_path / "home")]
    said = CliRunner().invoke(app, arguments).output
    assert said.count("Call trial.report(loss=...) in every step") == 2, said  # when it happens, and in the summary
    assert "the same as trial" in said and "ObjectiveError as above" in said, said
