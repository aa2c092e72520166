"""Which command terminal and report name next: one rule, and a command that the study does not refuse."""

from __future__ import annotations

from typing import Any

import pytest

from hpo_core import Study
from hpo_core.cli.output import RunResult, out, print_run_result
from hpo_core.model.errors import HpoError
from hpo_core.report.study.series import read_series
from hpo_core.report.study.study_page import render
from hpo_core.views.failure_reasons import failures_of
from hpo_core.views.next_command import next_command
from tests.conftest import World, fresh, make_spec

PBT = {"method": "pbt", "population": 4, "generations": 2, "steps_per_generation": 1}
RANDOM = {"method": "random", "configs": 7, "max_resource": 1}
GRID = {"method": "grid", "points": {"x": 3}, "random": [], "max_resource": 1}


def played(search: dict[str, Any], **sections: Any) -> Study:
    world = World(2)
    study = fresh(make_spec(search=search, **sections), world=world)
    world.play(study)
    return study


def last_line(study: Study) -> str:
    """What the terminal prints last."""
    result = RunResult(
        study=study.name,
        status=study.status,
        reason="",
        rule="",
        method="",
        trials=len(study.state.trials),
        jobs=study.state.completed_jobs,
        seconds=1.0,
        metric="loss",
        failures=failures_of(study.state),
        best=None,
        front=(),
        notices=(),
        trained_further=None,
        mlflow=None,
        checkpoint=None,
        report="",
    )
    with out.capture() as printed:
        print_run_result(result, following=next_command(study), folder="", as_json=False)
    return printed.get().splitlines()[-1]


def linked(study: Study) -> bool:
    """Whether the report names the same command."""
    return f"<code>{next_command(study)}</code>" in render(read_series(study.journal.entries(study.name)))


@pytest.mark.parametrize(("search", "configs"), [(RANDOM, 7), (PBT, 4)])
def test_a_finished_study_is_extended_by_as_much_as_it_has(search: dict[str, Any], configs: int) -> None:
    study = played(search)
    command = f"hpo extend {study.name} --configs {configs}"
    assert last_line(study) == f"  next        {command}   (also: hpo show {study.name}, hpo audit {study.name})"
    assert next_command(study) == command and linked(study)
    study.extend(configs)


def test_a_grid_that_is_all_tried_is_shown_and_not_extended() -> None:
    study = played(GRID, space={"x": {"type": "float", "low": 0.0, "high": 1.0}})
    with pytest.raises(HpoError, match="all of them are in the study"):
        study.extend(3)
    assert last_line(study) == f"  next        hpo show {study.name}   (also: hpo audit {study.name})"
    assert linked(study)


def test_a_halted_study_is_resumed() -> None:
    study = played(RANDOM, stop={"total_resource": 3})
    assert study.status == "halted"
    assert last_line(study).startswith(f"  next        hpo resume {study.name} ") and linked(study)
