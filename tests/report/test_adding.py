"""What the READMEs of report and tracking say of new figures and tags, done."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from hpo_core.tracking.mlflow_runs import TRIAL_TAGS, trial_tags
from hpo_core.tracking.tracked_study import TrackedStudy
from hpo_core.views.series import read_series
from tests.conftest import World, played
from tests.methods import spec_of
from tests.report.test_report import World as FourWorkers

CORE = Path(__file__).parents[2] / "hpo_core"


def code(room: str, title: str) -> str:
    section = (CORE / room / "README.md").read_text().split(f"\n## {title}\n")[1]
    (found,) = re.findall(r"```python\n(.*?)```", section, flags=re.DOTALL)
    return re.sub(r"^   ", "", found, flags=re.MULTILINE)


def test_the_figure_of_the_page_is_drawn() -> None:
    names: dict[str, object] = {}
    exec(compile(code("report", "Add a figure"), "README.md", "exec", dont_inherit=True), names)
    series = read_series(FourWorkers().play().entries())
    figure = names["attempts_by_worker"](series)  # type: ignore[operator]
    assert len(figure.data[0]["x"]) == 4 and sum(figure.data[0]["y"]) == len(series.spans)


def test_the_tag_of_the_page_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    study = played(spec_of("asha"), World(4))
    for key, value in eval(f"{{{code('tracking', 'Add a tag or metric')}}}").items():
        monkeypatch.setitem(TRIAL_TAGS, key, value)
    fold = TrackedStudy()
    for entry in study.journal.entries("world"):
        fold.add(entry)
    assert trial_tags(fold, 0, "run")["hpo.attempts"] == str(study.state.trials[0].attempts)
