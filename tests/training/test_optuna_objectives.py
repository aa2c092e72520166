"""An unchanged Optuna objective under jobs: what it is told, what its end means, what is trained again."""

import math

import numpy as np
import optuna
import pytest

from hpo_core import StudySpec
from hpo_core.model.errors import SpecError
from hpo_core.model.trial import Job, Outcome, Rung
from hpo_core.training.attempt import run_attempt
from hpo_core.training.request import decode_request, encode_request
from tests.job_requests import make_request

SPACE = {
    "x": {"type": "float", "low": 0.0, "high": 1.0},
    "n": {"type": "int", "low": 2, "high": 8, "step": 2},
    "c": {"type": "ordinal", "choices": ["a", "b"]},
    "y": {"type": "float", "low": 1e-3, "high": 1.0, "log": True, "when": {"c": "a"}},
}
PLAIN = {
    "study": "s", "objective": "a:b", "style": "optuna", "metric": {"name": "loss"}, "space": SPACE,
    "search": {"method": "random", "configs": 1},
}  # fmt: skip
PARAMS = {"x": 0.25, "n": 4, "c": "b"}


@pytest.fixture
def job(tmp_path):
    """Runs an objective to a target; from the checkpoint of the report before, where one is given."""

    def run(objective, target=3, after=None, params=PARAMS, more=()):
        checkpoint = after.checkpoint if after is not None else None
        request = make_request(
            job=Job(5, 0 if after is None else after.attempt + 1, Rung(0, 0), target, params, checkpoint),
            more_metrics=more,
            seed=11,
            folder=str(tmp_path),
            style="optuna",
            space=StudySpec.from_plain(PLAIN).plain()["space"],
        )
        return run_attempt(objective, decode_request(encode_request(request)))

    return run


def learning(calls, *, first=0, every=1, epochs=9):
    """An objective that reports ``(step, draw)``; ``calls`` collects how many reports each call made."""

    def objective(trial):
        calls.append(0)
        value = 100.0
        for step in range(first, first + epochs, every):
            value -= np.random.random()
            trial.report(value, step)
            calls[-1] += 1
            if trial.should_prune():
                raise optuna.TrialPruned
        return -1.0

    return objective


def curve(report):
    return [(point.resource, point.metrics["loss"]) for point in report.curve]


def test_a_job_ends_at_its_target_with_the_value_reported_there(job):
    calls = []
    report = job(learning(calls), 3)
    assert report.outcome is Outcome.COMPLETED and calls == [3]
    assert [resource for resource, _ in curve(report)] == [1, 2, 3]
    assert report.metrics == {"loss": curve(report)[-1][1]}


def test_a_promoted_trial_trains_again_from_the_start_with_the_same_draws(job):
    calls = []
    first = job(learning(calls), 3)
    second = job(learning(calls), 6, after=first)
    straight = job(learning([]), 6)
    assert calls == [3, 6]
    assert curve(first) + curve(second) == curve(straight)
    assert [resource for resource, _ in curve(second)] == [4, 5, 6]


def test_an_objective_that_ended_by_itself_is_not_called_again(job):
    calls = []
    first = job(learning(calls, epochs=5), 9)
    second = job(learning(calls, epochs=5), 27, after=first)
    assert calls == [5] and (first.metrics, second.metrics) == ({"loss": -1.0}, {"loss": -1.0})
    assert second.outcome is Outcome.COMPLETED and second.checkpoint.resource == 27


def test_an_objective_without_should_prune_is_called_once_and_ranked_by_its_reports(job):
    calls = []

    def objective(trial):
        calls.append(1)
        for step in range(9):
            trial.report(9 - step, step)
        return -1.0

    reports = [job(objective, 1)]
    for target in (3, 9):
        reports.append(job(objective, target, after=reports[-1]))
    assert calls == [1]
    assert [report.metrics["loss"] for report in reports] == [9.0, 7.0, -1.0]
    assert [len(report.curve) for report in reports] == [1, 2, 6]


def test_an_objective_without_reports_has_one_value_for_every_target(job):
    calls = []

    def objective(trial):
        calls.append(1)
        return trial.suggest_float("x", 0, 1)

    first = job(objective, 1)
    assert job(objective, 9, after=first).metrics == first.metrics == {"loss": 0.25} and calls == [1]


@pytest.mark.parametrize(("first", "every", "reported"), [(1, 1, 4), (0, 3, 2)])
def test_steps_may_be_counted_from_0_or_1(job, first, every, reported):
    calls = []
    report = job(learning(calls, first=first, every=every, epochs=100), 4)
    assert calls == [reported] and curve(report)[-1] == (4, report.metrics["loss"])


def test_an_objective_that_prunes_itself_keeps_its_last_value_or_ranks_last(job):
    def bored(trial):
        trial.report(7.0, 0)
        raise optuna.TrialPruned

    def at_once(trial):
        raise optuna.TrialPruned

    assert job(bored, 3).metrics == {"loss": 7.0}
    report = job(at_once, 3)
    assert report.outcome is Outcome.DIVERGED and math.isnan(report.metrics["loss"]) and report.checkpoint is None


def test_suggestions_return_the_trials_parameters(job):
    def objective(trial):
        found = (trial.suggest_float("x", 0, 1), trial.suggest_int("n", 2, 8, step=2))
        assert found == (0.25, 4) and type(found[1]) is int
        assert trial.suggest_categorical("c", ("a", "b")) == "a"
        assert trial.suggest_loguniform("y", 1e-3, 1) == 0.5
        assert trial.params == PARAMS | {"c": "a", "y": 0.5} and trial.number == 5
        assert trial.distributions["n"] == optuna.distributions.IntDistribution(2, 8, step=2)
        assert isinstance(trial, optuna.trial.BaseTrial)
        return 0.0

    report = job(objective, params=PARAMS | {"c": "a", "y": 0.5})
    assert report.outcome is Outcome.COMPLETED, report.detail


def test_a_constant_answers_a_suggestion_that_the_space_does_not_have(job):
    def objective(trial):
        return trial.suggest_float("z", 0, 1) + trial.suggest_categorical("k", [2, 3]) + trial.suggest_int("m", 1, 9)

    report = job(objective, params=PARAMS | {"z": 0.5, "k": 3, "m": 4})
    assert report.outcome is Outcome.COMPLETED and report.metrics["loss"] == 7.5
    for wrong in ({"z": 1.5, "k": 3, "m": 4}, {"z": 0.5, "k": 4, "m": 4}, {"z": 0.5, "k": 3, "m": 4.5}):
        report = job(objective, params=PARAMS | wrong)
        assert report.outcome is Outcome.ERROR and "take it out of constants" in report.message


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (lambda t: t.suggest_float("x", 0, 2), "low: 0.0, high: 2.0}.*{type: float, low: 0.0, high: 1.0}"),
        (lambda t: t.suggest_float("x", 0, 1, step=0.5), "step: 0.5"),
        (lambda t: t.suggest_int("x", 0, 1), "type: int.*type: float"),
        (lambda t: t.suggest_int("n", 2, 8), "high: 8}.*step: 2}"),
        (lambda t: t.suggest_categorical("c", ["b", "a"]), r"\[b, a\].*\[a, b\]"),
        (lambda t: t.suggest_float("z", 0, 1, log=False), "no 'z'; it has x, n, c, y. Write `z: {type: float"),
        (lambda t: t.suggest_float("y", 1e-3, 1, log=True), "only when {c: a}, and this trial has c = 'b'"),
        (lambda t: t.set_user_attr("k", object()), "JSON"),
        (lambda t: t.study.best_value, "trial.study.best_value is not there: .* not known while a trial trains"),
        (lambda t: t.study.stop(), "trial.study.stop is not there: an objective can read study_name"),
        (lambda t: t.storage, "trial.storage is not there"),
        (lambda t: t.set_constraint("size", 1), r"has none under constraints. Write `constraints: \[size\]`"),
        (lambda t: t.suggest_categorical("c", [print]), "a builtin_function_or_method; a study file holds"),
        (lambda t: None, "returned None where a number belongs"),
        (lambda t: (1.0, 2.0), "returned .1.0, 2.0. where a number belongs"),
        (lambda t: t.report("low", 0), "takes a float and an int"),
    ],
)  # fmt: skip
def test_suggestions_that_differ_from_the_space_are_refused(job, ask, message):
    report = job(ask)
    assert report.outcome is Outcome.ERROR and report.checkpoint is None
    import re

    assert re.search(message, report.message), report.message


def test_user_attributes_are_kept_over_jobs(job):
    seen = []

    def objective(trial):
        seen.append(trial.user_attrs)
        for step in range(9):
            trial.set_user_attr("epochs", step + 1)
            trial.report(0.0, step)
            if trial.should_prune():
                raise optuna.TrialPruned
        return 0.0

    job(objective, 6, after=job(objective, 2))
    assert seen == [{}, {"epochs": 2}]


def test_several_objectives_are_returned_together(job):
    assert job(lambda trial: (1.0, 2.0), more=("size",)).metrics == {"loss": 1.0, "size": 2.0}
    refused = job(lambda trial: trial.report(1.0, 0), more=("size",))
    assert refused.outcome is Outcome.ERROR and "several objectives" in refused.message


def test_population_based_training_is_refused():
    search = {"method": "pbt", "population": 4, "generations": 2}
    with pytest.raises(SpecError, match="an Optuna objective cannot go on from another trial's weights"):
        StudySpec.from_plain(PLAIN | {"search": search})
