from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import optuna
import pytest
from optuna.trial import TrialState

from hpo_core.journal.memory import MemoryJournal
from hpo_core.model.trial import Job, Outcome, Report
from tests.methods import SEARCHES
from tests.mlflow.test_mlflow import NAME, Clock, bad, good, play, start

State = TrialState


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    yield
    optuna.logging.set_verbosity(before)


def test_a_finished_study() -> None:
    study = play(*start(MemoryJournal(), configs=8))
    found = study.to_optuna()
    assert found.study_name == NAME and found.metric_names == ["val_loss"]
    assert len(found.trials) == len(study.state.trials) == 8
    for trial, record in zip(found.trials, study.state.trials, strict=True):
        assert trial.number == trial.user_attrs["hpo.trial"] == record.number
        assert trial.params == record.params
        assert trial.user_attrs["acc"] == record.results[-1].metrics["acc"]
        assert sorted(trial.intermediate_values) == list(range(1, record.resource + 1))
        for result in record.results:
            assert trial.intermediate_values[result.resource] == result.loss
        assert trial.state is (State.COMPLETE if record.resource == 4 else State.PRUNED)
        assert trial.value == record.loss
    assert {trial.state for trial in found.trials} == {State.COMPLETE, State.PRUNED}
    assert found.best_value == min(t.loss for t in study.state.trials if t.resource == 4 and t.loss is not None)
    lr = found.trials[0].distributions["lr"]
    assert lr == optuna.distributions.FloatDistribution(1e-4, 1.0, log=True)
    for plot in ("plot_optimization_history", "plot_intermediate_values", "plot_parallel_coordinate", "plot_slice"):
        assert getattr(optuna.visualization, plot)(found).data


def test_paused_trials_run_until_the_study_has_ended() -> None:
    study, clock = start(MemoryJournal(), configs=8)
    play(study, clock, jobs=6)
    while_it_runs = study.to_optuna()
    paused = [t.number for t in study.state.trials if t.status == "paused" and t.resource < 4]
    assert paused and all(while_it_runs.trials[number].state is State.RUNNING for number in paused)
    assert all(while_it_runs.trials[number].intermediate_values for number in paused)
    play(study, clock)
    assert not [t for t in study.to_optuna().trials if t.state is State.RUNNING]


@pytest.mark.parametrize("search", ["asha", "asha-brackets", "stopping", "hyperband", "pasha", "pbt", "random"])
def test_methods(search: str) -> None:
    study = play(*start(MemoryJournal(), search=SEARCHES[search]))
    found = study.to_optuna()
    assert all(trial.state.is_finished() for trial in found.trials)
    complete = [trial for trial in found.trials if trial.state is State.COMPLETE]
    highest = max(record.resource for record in study.state.trials)
    assert complete and {trial.user_attrs["hpo.resource"] for trial in complete} == {highest}
    if study.state.has_members:
        children = [trial for trial in found.trials if "hpo.parent" in trial.user_attrs]
        assert children and all(min(t.intermediate_values) > study.state.trials[t.number].base for t in children)
        assert all({"hpo.member", "hpo.generation"} <= trial.user_attrs.keys() for trial in found.trials)


def test_failures_and_values_that_are_no_numbers() -> None:
    def train(job: Job, clock: Clock) -> Report:
        if job.trial == 1:
            return bad(job, clock, Outcome.ERROR)
        found = good(job, clock)
        if job.trial == 2:
            return Report(trial=2, attempt=job.attempt, outcome=Outcome.COMPLETED, metrics={"val_loss": math.inf})
        return found

    study = play(*start(MemoryJournal(), configs=4), train)
    found = study.to_optuna()
    assert found.trials[1].state is State.FAIL and found.trials[1].user_attrs["hpo.abandoned"]
    assert found.trials[1].intermediate_values == {1: 99.0}
    diverged = found.trials[2]
    assert diverged.state is State.PRUNED and diverged.value is None
    assert list(map(math.isnan, diverged.intermediate_values.values())) == [True]
    assert optuna.visualization.plot_intermediate_values(found).data


def test_several_objectives_constraints_and_maximize() -> None:
    def train(job: Job, clock: Clock) -> Report:
        x = job.params["lr"]
        metrics = {"acc": 1 - x, "size": x * job.target, "late": x - 0.5}
        return Report(trial=job.trial, attempt=job.attempt, outcome=Outcome.COMPLETED, metrics=metrics)

    metrics = [{"name": "acc", "mode": "max"}, {"name": "size"}]
    study = play(*start(MemoryJournal(), metric=metrics[0], metrics=metrics, constraints=["late"], configs=6), train)
    found = study.to_optuna()
    assert [direction.name for direction in found.directions] == ["MAXIMIZE", "MINIMIZE"]
    for trial, record in zip(found.trials, study.state.trials, strict=True):
        last = record.results[-1].metrics
        assert trial.values == [last["acc"], last["size"]]
        assert trial.system_attrs["constraints"] == [last["late"]]
        assert "acc" not in trial.user_attrs and trial.user_attrs["late"] == last["late"]
    assert found.best_trials and found.user_attrs["hpo.constraints"] == ["late"]
    assert optuna.visualization.plot_pareto_front(found).data


def test_a_copy_takes_the_place_of_no_other_study(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'optuna.db'}"
    theirs = optuna.create_study(storage=url, study_name=NAME)
    theirs.optimize(lambda trial: trial.suggest_float("x", 0, 1), n_trials=2)
    study = play(*start(MemoryJournal(), configs=3))
    with pytest.raises(optuna.exceptions.DuplicatedStudyError):
        study.to_optuna(url)
    study.to_optuna(url, "ours")
    assert len(optuna.load_study(study_name=NAME, storage=url).trials) == 2
    assert len(optuna.load_study(study_name="ours", storage=url).trials) == 3
