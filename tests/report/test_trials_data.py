"""The data behind the table of trials and the section of one; the report that is written anew."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import plotly.graph_objects as go
import pytest

from hpo_core.report import trials_table as embedded
from hpo_core.report import write_report
from hpo_core.report.parameters import contour, importances
from hpo_core.report.study_page import LiveReport
from hpo_core.views.series import read_series
from tests.cli.test_console import played as played_study
from tests.methods import spec_of
from tests.report.test_report import ASHA, SPACE, World
from tests.waiting import LIMIT


def data_of(page: str) -> dict[str, Any]:
    (found,) = re.findall('<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    plain: dict[str, Any] = json.loads(found)
    return plain


@pytest.fixture(scope="module")
def played() -> World:
    return World().play()


@pytest.fixture(scope="module")
def page(played: World, tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_report(played.entries(), tmp_path_factory.mktemp("report") / "report.html").read_text()


def test_every_trial_is_a_row_with_its_parameters_in_full(played: World, page: str) -> None:
    trials = data_of(page)["trials"]
    assert len(trials["rows"]) == len(played.study.state.trials) == 60
    for row, trial in zip(trials["rows"], played.study.state.trials, strict=True):
        found = dict(zip(trials["columns"], row, strict=True))
        assert found["trial"] == trial.number and found["trained for"] == trial.resource
        assert {name: found[name] for name in trial.params} == trial.params
        assert all(found[name] is None for name in set(SPACE) - set(trial.params))
        finite = [result.loss for result in trial.results if result.loss is not None]
        assert found["best val_loss"] == (min(finite) if finite else None)


def test_states_are_told_in_words(played: World) -> None:
    series = read_series(played.entries())
    found = embedded.embedded_trials(series)
    states = [row[1] for row in found["rows"]]
    best = played.study.best
    assert best is not None and states.count("winner") == 1 and states[best.trial] == "winner"
    assert states.count("abandoned") == played.study.state.abandoned_trials
    assert {"diverged", "not promoted", "completed"} <= set(states) and "paused" not in states
    running = World().play(30)
    states = [row[1] for row in (embedded.embedded_trials(read_series(running.entries())) or {})["rows"]]
    assert "winner" not in states and states.count("running") == len(running.study.state.running)


def test_curves_and_stories_stay_within_a_size(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(search={**ASHA, "configs": 300}, slots=8).play()
    monkeypatch.setattr(embedded, "DETAIL_BYTES", 30_000)
    found = embedded.embedded_trials(read_series(world.entries()))
    assert found is not None and len(found["rows"]) == 300
    assert 20_000 < len(json.dumps(found["details"])) < 32_000 and len(found["details"]) < 100
    assert found["details"][found["winner"]]["log"].startswith("logs/trial-"), "the best first"


def test_the_page_may_send_nothing_anywhere(page: str) -> None:
    policy = re.findall('http-equiv="Content-Security-Policy" content="([^"]*)"', page)[0]
    assert "default-src 'none'" in policy and "connect-src" not in policy and "form-action 'none'" in policy


def test_contour_is_of_the_two_parameters_that_matter_most(played: World) -> None:
    series = read_series(played.entries())
    found = importances(series)
    assert found is not None
    figure = contour(series, found)
    go.Figure(data=figure.data, layout=figure.layout)
    first, second = list(found.shares)[:2]
    assert first in figure.layout["xaxis"]["title"]["text"] and second in figure.layout["yaxis"]["title"]["text"]
    surface, dots = figure.data[:2]
    both = [t for t in series.trials if {first, second} <= set(t.params) and t.results]
    assert len(dots["x"]) == len(both), "a dot for every result"
    assert surface["type"] == "contour" and surface["connectgaps"]


def test_the_file_is_written_anew_where_the_journal_has_grown(tmp_path: Path) -> None:
    world, page = World(failing=False), tmp_path / "report.html"
    report = LiveReport(world.journal, "digits-mlp", page)
    assert report.write()
    assert "Nothing to draw yet" in page.read_text() and data_of(page.read_text())["live"] > 0
    before = page.stat().st_ino
    assert report.write() and page.stat().st_ino == before, "nothing new"
    world.play(12)
    assert report.write()
    assert len(data_of(page.read_text())["trials"]["rows"]) == len(world.study.state.trials)
    world.study.stop("enough")
    assert not report.write()
    assert data_of(page.read_text())["live"] == 0, "it loads itself no more"


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_the_command_follows_a_study_until_it_is_interrupted(how: signal.Signals, tmp_path: Path) -> None:
    played_study(tmp_path, spec_of("random"), steps=2)
    command = [sys.executable, "-m", "hpo_flows", "report", "world", "--live", "--home", str(tmp_path)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONUNBUFFERED": "1"})
    try:
        assert " follows world. Ctrl-C ends that" in process.stdout.readline()
        page = tmp_path / "studies" / "world" / "report.html"
        assert data_of(page.read_text())["live"] > 0
        process.send_signal(how)
        assert process.wait(timeout=LIMIT) == 0
        assert data_of(page.read_text())["live"] == 0
    finally:
        process.kill()
        process.wait(timeout=LIMIT)
