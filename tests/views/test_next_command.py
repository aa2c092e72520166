from __future__ import annotations

from typing import Any

import pytest

from hpo_core import Outcome, Study
from hpo_core.model.errors import HpoError
from hpo_core.report.study_page import render
from hpo_core.terminal.output import RunResult, out, print_run_result
from hpo_core.views.failure_reasons import command_after, cure_in_python, cure_words, failures_of, next_command
from hpo_core.views.series import read_series
from hpo_core.views.summary import summarize
from tests import conftest
from tests.checkpoints.test_checkpoints import good
from tests.conftest import World, completed, failed, fresh, make_spec

PBT = {"method": "pbt", "population": 4, "generations": 2, "steps_per_generation": 1}
RANDOM = {"method": "random", "configs": 7, "max_resource": 1}
GRID = {"method": "grid", "points": {"x": 3}, "max_resource": 1}


def played(search: dict[str, Any], **sections: Any) -> Study:
    return conftest.played(make_spec(search=search, **sections), World(2))


def last_line(study: Study) -> str:
    result = RunResult(
        summary=summarize(study),
        jobs_now=study.state.completed_jobs,
        seconds=1.0,
        failures=failures_of(study.state),
        notices=(),
        mlflow=None,
        checkpoint=None,
        report="",
    )
    with out.capture() as printed:
        following, then = next_command(study), command_after(study)
        print_run_result(result, following=following, then=then, folder="", as_json=False)
    return printed.get().splitlines()[-1]


def linked(study: Study) -> bool:
    return f"<code>{next_command(study)}</code>" in render(read_series(study.journal.entries(study.name)))


@pytest.mark.parametrize(("search", "configs"), [(RANDOM, 7), (PBT, 4)])
def test_a_finished_study_is_extended_by_as_much_as_it_has(search: dict[str, Any], configs: int) -> None:
    study = played(search)
    command = f"hpo extend {study.name} --configs {configs}"
    assert last_line(study) == f"  next        {command}   (also: hpo show {study.name}, hpo audit {study.name})"
    assert next_command(study) == command and linked(study)
    with pytest.raises(HpoError, match="give at least 1 further"):
        study.extend(0)
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
    assert cure_in_python(study) == f"hpo.resume({study.name!r}), or the call with resume=True, goes on."


def told(study: Study, report: Any, workers: int = 1) -> Study:
    jobs = list(study.set_capacity(workers))
    while jobs:
        jobs += study.tell_report(report(jobs.pop(0)))
    return study


@pytest.mark.parametrize(("configs", "status"), [(4, "finished"), (40, "halted")])
def test_a_study_without_a_finite_value_is_tried_and_started_anew(configs: int, status: str) -> None:
    spec = make_spec(search=RANDOM | {"configs": configs})
    study = told(fresh(spec), lambda job: completed(job, float("nan")))
    again = f"hpo tune STUDY.yaml --name {study.name}-2"
    assert study.status == status and linked(study)
    assert last_line(study) == (
        f"  next        hpo try STUDY.yaml   (then: {again}; also: hpo show {study.name}, hpo audit {study.name})"
    )
    assert again in cure_words(study)


def test_a_study_of_a_function_by_value_has_no_file_and_is_started_anew_from_python() -> None:
    sent = "by_value.s" + "0" * 16 + ".d" + "0" * 64 + ":train"
    study = told(fresh(make_spec(search=RANDOM, objective=sent)), lambda job: completed(job, float("nan")))
    again = f"hpo.tune(..., name='{study.name}-2')"
    assert (next_command(study), command_after(study)) == (f"hpo show {study.name}", again) and linked(study)
    assert cure_in_python(study, "/there") == (
        f"hpo.load('{study.name}', home='/there').jobs says how each attempt ended; mend the training function and "
        f"start anew: {again}."
    )


def test_a_study_whose_trials_all_fail_is_tried_and_started_anew() -> None:
    study = told(fresh(make_spec(search=RANDOM)), lambda job: failed(job, Outcome.ERROR, "ObjectiveError: no loss"))
    assert study.status == "halted" and next_command(study, "a.yaml") == "hpo try a.yaml"
    assert command_after(study, "a.yaml") == f"hpo tune a.yaml --name {study.name}-2"


def test_a_disk_that_was_full_from_the_start_is_no_failure_of_the_trials() -> None:
    study = fresh(make_spec(search=RANDOM))
    (job,) = study.set_capacity(1)
    study.tell_report(failed(job, Outcome.STORAGE, "the disk is full"))
    assert study.status == "halted" and next_command(study) == f"hpo resume {study.name}" and not command_after(study)


def test_a_limit_of_checkpoints_that_is_too_small_is_raised_in_a_new_study() -> None:
    """A resume keeps the limit, and would halt again at once."""

    def run(**limits: int) -> Study:
        return told(fresh(make_spec(checkpoints=limits)), lambda job: good(job, float(job.trial)))

    study = run(max_count=1)
    call = f"hpo.tune(..., name='{study.name}-2', checkpoints=hpo.Checkpoints(max_count=3))"
    assert cure_in_python(study).endswith(f"Start anew: {call}.")
    command = next_command(study)
    assert command == f"hpo tune STUDY.yaml --name {study.name}-2 --set checkpoints.max_count=3" and linked(study)
    study.recover("again")
    study.set_capacity(1)
    assert study.status == "halted", "a resume is no cure"
    assert run(max_count=3).status == "finished", "what is named is one"
