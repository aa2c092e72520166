from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from hpo_core import Study
from hpo_core.cli.app import app
from hpo_core.journal.sql import open_journal
from hpo_core.model.errors import SpecError, StudyNotFoundError
from hpo_core.simulation import AnalyticCurves, Simulation, VirtualClock
from tests.conftest import make_spec

YAML = """
study: sine
metric: {name: val_loss}
space: {x: {type: float, low: 0, high: 1}}
search: {method: asha, configs: 40, min_resource: 1, max_resource: 9, reduction_factor: 3}
"""


@pytest.fixture
def study_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "study.yaml"
    path.write_text(YAML)
    return path


def hpo(*words: object) -> str:
    result = CliRunner().invoke(app, ["simulate", *map(str, words)])
    if result.exception is not None:
        raise result.exception
    return result.stdout


def facts(*words: object) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(hpo(*words, "--json"))
    return found


def test_it_prints_figures(study_file: Path) -> None:
    shown = hpo(study_file, "--workers", 4, "--repeat", 3, "--seconds-per-unit", 60, "--target", 0.5)
    for words in ("sine: simulated 3 times", "4 workers", "time to val_loss ≤ 0.5", "trials at R = 9", "utilization",
                  "worker-hours", "first trial at R = 9"):  # fmt: skip
        assert words in shown


def test_workers_methods_and_settings_are_compared(study_file: Path) -> None:
    found = facts(study_file, "--workers", 2, "--workers", 8, "--method", "asha", "--method", "random", "--repeat", 1,
                  "--set", "search.max_resource=27")  # fmt: skip
    names = [scenario["name"] for scenario in found["scenarios"]]
    assert names == ["2 workers, asha", "2 workers, random", "8 workers, asha", "8 workers, random"]
    seconds = [scenario["runs"][0]["seconds"] for scenario in found["scenarios"]]
    assert seconds[1] == 20 * 27 and seconds[3] == 5 * 27 and seconds[2] < seconds[0] < seconds[1]


def test_faults(study_file: Path) -> None:
    faulty = facts(study_file, "--workers", 4, "--repeat", 1, "--stragglers", 0.5, "--drops", 0.05)
    assert faulty["scenarios"][0]["runs"][0]["failed_attempts"] > 0
    assert "granted again" in " ".join(faulty["limits"])


def test_a_past_study_answers_what_if(study_file: Path) -> None:
    home = study_file.parent / "home"
    home.mkdir()
    spec = make_spec()
    journal = open_journal(f"sqlite:///{home / 'journal.db'}")
    clock = VirtualClock(1e9)
    curves = AnalyticCurves(spec, seconds_per_unit=30.0, overhead=5.0)
    study = Study.create(spec, journal, clock=clock)
    Simulation(study, clock, workers=3, train=curves.train, seconds=curves.seconds).run()
    journal.close()
    found = facts("--from-journal", "world", "--home", home, "--workers", 3, "--workers", 9, "--repeat", 2)
    same, larger = (scenario["runs"][0]["seconds"] for scenario in found["scenarios"])
    assert same == pytest.approx(clock.now - 1e9) and larger < same
    assert "30 trials of 'world'" in found["source"] and "5 s a job" in found["source"]
    other = facts("--from-journal", "world", "--home", home, "--workers", 3, "--repeat", 1, "--method", "random")
    assert other["limits"][0].startswith(("8", "9")), "most trials were never trained to R: guessed"
    with pytest.raises(SpecError, match="never reported 'val_loss'"):
        hpo(study_file, "--from-journal", "world", "--home", home)
    with pytest.raises(StudyNotFoundError, match="other"):
        hpo("--from-journal", "other", "--home", home)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--workers", 0], "workers = 0; give at least 1"),
        (["--repeat", 0], "--repeat 0"),
        (["--set", "search.reduction_factor"], "write KEY=VALUE"),
        (["--drops", 2], "drops = 2.0"),
        (["--seconds-per-unit", 0], "seconds per unit = 0.0"),
        (["--set", "seed=1", *[x for n in range(30) for x in ("--set", f"search.configs={n + 9}")]], "at most 24"),
    ],
)
def test_questions_without_sense_are_refused(study_file: Path, words: list[object], message: str) -> None:
    with pytest.raises(SpecError, match=message.replace("(", "\\(")):
        hpo(study_file, *words)


def test_a_cluster_that_is_not_asked_has_no_number_of_workers(study_file: Path) -> None:
    """Nothing runs at the address; the message said that the study did."""
    place = ["--set", 'cluster={"kind": "address", "address": "tcp://127.0.0.1:8786"}']
    rule = r"does not say how many workers it has \(cluster.kind = 'address'\).*looks at no cluster.*--workers 4"
    with pytest.raises(SpecError, match=rule):
        hpo(study_file, *place)
    assert "4 workers" in hpo(study_file, *place, "--workers", 4, "--repeat", 1)
