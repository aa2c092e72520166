from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from hpo_core.home import Home
from hpo_core.model.errors import SpecError, StudyNotFoundError
from hpo_core.partitioning.resolution import with_partitions
from hpo_core.report import write_report
from hpo_core.spec import load_spec
from hpo_core.study import Study
from hpo_flows.command import app

STUDY = """
study: hopping
objective: lab:train
metric: {name: loss}
space: {x: {type: float, low: 0, high: 1}}
search: {method: random, configs: 2, max_resource: 2}
data: {partitions: shards/manifest.json, validation: shards/manifest.json}
tracking: {mlflow: "off"}
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where commands run: a study file, and its data split into two partitions and one for validation."""
    monkeypatch.chdir(tmp_path)
    np.savez(tmp_path / "data.npz", x=np.arange(100.0), y=np.arange(100) % 2)
    (tmp_path / "study.yaml").write_text(STUDY)
    split(validation_parts="1")
    return tmp_path


def split(**options: str) -> str:
    given = {"parts": "2", "to": "shards", "validation": "0.1", "stratify": "y"} | options
    arguments = [word for name, value in given.items() for word in (f"--{name.replace('_', '-')}", value) if word]
    result = CliRunner().invoke(app, ["partition", "data.npz", *arguments], catch_exceptions=False)
    assert result.exit_code == 0
    return result.output


def test_it_says_what_was_written_and_what_to_type_next(folder: Path) -> None:
    words = " ".join(split(to="others", validation_parts="3").split())
    assert "2 partitions to train on: 90 examples, 45 in each" in words
    assert "3 partitions for validation: 10 examples, 3 or 4 in each" in words
    assert "data: {partitions: others/manifest.json, validation: others/manifest.json}" in words
    plain = json.loads(split(to="again", json=""))
    assert plain == json.loads((folder / "again" / "manifest.json").read_text())
    assert [file["count"] for file in plain["partitions"]] == [45, 45]


def test_a_new_study_is_refused_before_anything_starts(folder: Path) -> None:
    arguments: list[Any] = ["tune", "study.yaml", "--home", str(folder / "home"), "--no-prefect"]
    with pytest.raises(SpecError, match=r"no file matches"):
        CliRunner().invoke(app, [*arguments, "--set", "data.partitions=other/*"], catch_exceptions=False)
    with pytest.raises(StudyNotFoundError):
        Home(folder / "home").open_journal().info("hopping")


def test_partitions_are_shown(folder: Path) -> None:
    home = Home(folder / "home")
    study = Study.create(with_partitions(load_spec("study.yaml")), home.open_journal())
    result = CliRunner().invoke(app, ["show", "hopping", "--home", str(home.folder)], catch_exceptions=False)
    words = f"2 partitions (90 examples) in {folder}, validation on 1 partition (10 examples), scheduler remaining"
    assert f"data: {words}" in " ".join(result.output.split())
    page = folder / "report.html"
    write_report(list(study.journal.entries("hopping")), page)
    assert "data: 2 partitions (90 examples)" in page.read_text()
