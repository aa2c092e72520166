"""What a start from another trial's checkpoint could not restore is told: as it happens, and in the trial's story."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from hpo_core import Study, StudySpec
from hpo_core.cli.studies import print_trial
from hpo_core.home import Home
from hpo_core.model.trial import Checkpoint, Outcome, Report
from hpo_flows.progress import PlainLines

LEFT = ("model.2.weight: (4, 8) in the checkpoint, (5, 8) here", "model.2.bias: (4,) in the checkpoint, (5,) here")


def test_lines_and_story(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    home = Home(tmp_path)
    journal = home.open_journal()
    spec = StudySpec.from_plain({
        "study": "grown", "metric": {"name": "loss"}, "space": {"width": {"type": "int", "low": 4, "high": 5}},
        "search": {"method": "pbt", "population": 2, "generations": 3},
    })  # fmt: skip
    study = Study.create(spec, journal)
    said: list[str] = []
    lines = PlainLines(study, said.append)
    jobs = study.set_capacity(1)
    while jobs:
        job = jobs.pop(0)
        checkpoint = Checkpoint(f"t{job.trial}", "", job.target, 0, job.checkpoint and job.checkpoint.uri)
        report = Report(
            trial=job.trial, attempt=job.attempt, outcome=Outcome.COMPLETED, metrics={"loss": 1 / (1 + job.trial)},
            checkpoint=checkpoint, unrestored=LEFT if job.parent is not None else (),
        )  # fmt: skip
        granted = study.tell_report(report)
        lines.on_report(report, granted)
        jobs += granted
    assert study.finished and len(said) == 6
    assert all(LEFT[0] not in line for line in said[:2]) and all(LEFT[0] in line for line in said[2:])
    assert "hpo show grown --trial 2" in said[2]
    parent = study.state.trials[2].parent
    assert re.search(rf"-> trial 2 goes on from trial {parent}, trains to 2$", said[1])
    print_trial(home, "grown", 2, at=None, as_json=False)
    told = capsys.readouterr().out
    assert all(f"attempt 0 left as built: {line}" in told for line in LEFT)
    print_trial(home, "grown", 0, at=None, as_json=False)
    assert "left as built" not in capsys.readouterr().out
    journal.close()
