"""The contract of the training function, in this process: what it may do and how it is told when it may not."""

import math
import sys
from itertools import pairwise

import pytest
import torch

from hpo_core.model.errors import ObjectiveError
from hpo_core.model.trial import CURVE_POINTS, Job, Outcome, Point, Rung
from hpo_core.training.attempt import run_attempt
from hpo_core.training.child.shared_progress import SharedProgress
from hpo_core.training.request import decode_report, decode_request, encode_report, encode_request
from tests.job_requests import changed, make_request


@pytest.fixture
def request_of(tmp_path):
    def make(target=3, checkpoint=None, metric="loss", attempt=0, **params):
        return make_request(
            job=Job(5, attempt, Rung(0, 0), target, params, checkpoint), metric=metric, seed=11, folder=str(tmp_path)
        )

    return make


class Counter:
    value = 0

    def state_dict(self):
        return {"value": self.value}

    def load_state_dict(self, state):
        self.value = state["value"]


def counting(trial):
    counter = Counter()
    trial.track(counter=counter)
    for step in trial.steps():
        counter.value += 1
        assert counter.value == step + 1 == trial.resource + 1
        trial.report(loss=1 / counter.value)


def test_a_second_job_continues_from_the_checkpoint(request_of):
    first = run_attempt(counting, request_of(target=2))
    assert first.outcome == Outcome.COMPLETED and first.metrics == {"loss": 0.5}
    assert first.checkpoint.uri == "checkpoints/trial-00005/rung-0-attempt-0.safetensors"
    assert (first.checkpoint.resource, first.checkpoint.parent) == (2, None)
    second = run_attempt(counting, request_of(target=5, checkpoint=first.checkpoint, attempt=1))
    assert second.curve == (Point(3, {"loss": 1 / 3}), Point(4, {"loss": 1 / 4}), Point(5, {"loss": 1 / 5}))
    assert second.checkpoint.parent == first.checkpoint.uri


def test_a_job_whose_target_is_reached_changes_nothing(request_of):
    first = run_attempt(counting, request_of(target=2))
    again = run_attempt(counting, request_of(target=2, checkpoint=first.checkpoint, attempt=1))
    assert (again.outcome, again.metrics, again.checkpoint) == (Outcome.COMPLETED, first.metrics, first.checkpoint)


def test_a_target_below_the_checkpoint_is_refused(request_of):
    first = run_attempt(counting, request_of(target=2))
    with pytest.raises(ValueError, match="target = 1 must be at least"):
        request_of(target=1, checkpoint=first.checkpoint)


def test_a_function_without_steps_needs_one_report(request_of):
    report = run_attempt(lambda trial: trial.report(loss=trial.target), request_of(target=9))
    assert (report.outcome, report.metrics, report.checkpoint) == (Outcome.COMPLETED, {"loss": 9.0}, None)
    assert report.curve == (Point(9, {"loss": 9.0}),)


def test_reports_merge_within_a_step_and_after_the_loop(request_of):
    def train(trial):
        for step in trial.steps():
            trial.report(a=step)
            trial.report(b=step)
        trial.report(loss=7)

    report = run_attempt(train, request_of(target=2))
    assert report.metrics == {"a": 1.0, "b": 1.0, "loss": 7.0}
    assert report.curve[0] == Point(1, {"a": 0.0, "b": 0.0})


@pytest.mark.parametrize("bad", [math.nan, -math.inf])
def test_diverged_keeps_no_checkpoint(request_of, tmp_path, bad):
    def after_the_loop(trial):
        trial.track(counter=Counter())
        for _ in trial.steps():
            pass
        trial.report(loss=bad)

    def within(trial):
        trial.track(counter=Counter())
        for _ in trial.steps():
            trial.report(loss=bad)

    for train in (after_the_loop, within):
        report = run_attempt(train, request_of())
        assert (report.outcome, report.checkpoint) == (Outcome.DIVERGED, None)
        assert "'loss' is" in report.message
        assert not list(tmp_path.rglob("*.safetensors"))
        assert str(decode_report(encode_report(report)).metrics["loss"]) == str(bad)


def test_the_curve_is_downsampled_and_keeps_its_ends(request_of):
    def train(trial):
        for step in trial.steps():
            trial.report(loss=step)

    curve = run_attempt(train, request_of(target=10_007)).curve
    steps = [point.resource for point in curve]
    gaps = {b - a for a, b in pairwise(steps)}
    assert len(curve) == CURVE_POINTS and (steps[0], steps[-1]) == (1, 10_007)
    assert max(gaps) - min(gaps) < 0.1 * max(gaps)


@pytest.mark.parametrize(
    ("value", "named"), [(True, "builtins.bool"), (torch.ones(2), r"torch.Tensor of shape \(2,\)")]
)
def test_values_that_are_not_one_real_number_are_refused(request_of, value, named):
    report = run_attempt(lambda trial: trial.report(loss=value), request_of())
    assert report.outcome == Outcome.ERROR
    with pytest.raises(ObjectiveError, match=rf"trial\.report\(loss=\.\.\.\) got a .*{named}"):
        raise ObjectiveError(report.message)


def leaves_early(trial):
    for _ in trial.steps():
        trial.report(loss=1)
        break


def tracks_late(trial):
    for _ in trial.steps():
        trial.track(counter=Counter())


def tracks_twice(trial):
    trial.track(counter=Counter())
    trial.track(counter=Counter())


def never_loops(trial):
    trial.track(counter=Counter())
    trial.report(loss=1)


def loops_twice(trial):
    for _ in (*trial.steps(), *trial.steps()):
        pass


def no_state(trial):
    trial.track(model=object())


def only_early(trial):
    for step in trial.steps():
        if step == 0:
            trial.report(loss=1, accuracy=2)


def other_metric(trial):
    trial.report(accuracy=1)


def odd_state(trial):
    counter = Counter()
    counter.value = lambda: None
    trial.track(counter=counter)
    for _ in trial.steps():
        trial.report(loss=1)


@pytest.mark.parametrize(
    ("train", "told"),
    [
        (leaves_early, "left the loop over trial.steps() early, after 0 of 3 steps"),
        (tracks_late, "trial.track(counter) was called within steps()"),
        (tracks_twice, "'counter' is tracked already"),
        (never_loops, "never looped over trial.steps()"),
        (loops_twice, "trial.steps() was called twice"),
        (no_state, "trial.track(model=...) got a object, which has no state_dict()"),
        (only_early, "Metric 'loss' was not reported at the target (step 3); reported there: nothing"),
        (other_metric, "reported there: 'accuracy'. Call trial.report(loss=...)"),
        (lambda trial: trial.report(), "trial.report() got no metric"),
        (lambda trial: trial.report(0.5), "trial.report() got 0.5 without a name"),
        (lambda trial: trial.report({"loss": 1}), "got a dict of 1 without a name; name at least one metric"),
        (lambda trial: trial["x"], "a trial is no dictionary; take trial.params['x']"),
        (lambda trial: {"loss": 1}, "It returned a dict of 1: only of an Optuna objective"),
        (odd_state, "Checkpoint value at 'tracked/counter/value' is a builtins.function"),
    ],
)
def test_a_wrong_order_of_calls_is_explained(request_of, train, told):
    whole = []
    report = run_attempt(train, request_of(), log=whole.append)
    assert report.outcome == Outcome.ERROR
    assert told in report.message
    assert "Traceback" not in report.detail and "hpo_core" not in report.detail
    assert len(whole) == 1 and "Traceback" in whole[0] and "hpo_core" in whole[0]


@pytest.mark.parametrize(
    ("train", "told"),
    [
        (lambda trial: trial.suggest_float("x", 0, 1), "trial has no 'suggest_float' here; that belongs to an Optuna"),
        (lambda trial: trial.should_prune(), 'give style="optuna"'),
        (lambda trial: trial.reports(loss=1), "trial has no 'reports' here; did you mean 'report'?"),
        (lambda trial: trial.param, "trial has no 'param' here; did you mean 'params'?"),
    ],
)
def test_what_a_trial_lacks_is_said_with_what_was_meant(request_of, train, told):
    report = run_attempt(train, request_of())
    assert report.outcome == Outcome.ERROR and report.message.startswith("AttributeError: ")
    assert told in report.message and "?." not in report.message


def test_tracked_names_that_differ_from_the_checkpoint_are_refused(request_of):
    def fewer(trial):
        for _ in trial.steps():
            pass

    def more(trial):
        trial.track(counter=Counter(), schedule=Counter())

    def other_shape(trial):
        trial.track(counter=torch.nn.Linear(2, 2))

    first = run_attempt(counting, request_of(target=1)).checkpoint
    go_on = request_of(checkpoint=first, attempt=1)
    assert "holds 'counter', not tracked now" in run_attempt(fewer, go_on).message
    assert "has no 'schedule'; it was written with 'counter'" in run_attempt(more, go_on).message
    assert "State of 'counter' in the trial's checkpoint does not fit" in run_attempt(other_shape, go_on).message


def test_alive_within_a_step_updates_the_progress(request_of):
    said = []

    class Noting(SharedProgress):
        def step(self, resource):
            super().step(resource)
            said.append(self.read(target=2)[0])

    def train(trial):
        for _ in trial.steps():
            trial.alive()
            trial.report(loss=1)

    board = Noting()
    board.begin(0)
    run_attempt(train, request_of(target=2), board)
    assert said == [0, 1, 1, 2]


def two_objectives(trial):
    counter = Counter()
    trial.track(counter=counter)
    for _ in trial.steps():
        counter.value += 1
        if trial.params.get("loss"):
            trial.report(loss=0.5)
        if trial.params.get("speed"):
            trial.report(speed=trial.params["speed"])


@pytest.mark.parametrize("required", ["all", "any"])
def test_one_of_several_metrics_suffices_if_required_is_any(request_of, required):
    def ended(**params):
        request = changed(request_of(**params), metrics=("loss", "speed"), required=required)
        return run_attempt(two_objectives, decode_request(encode_request(request)))

    assert ended(loss=1, speed=2.0).outcome is Outcome.COMPLETED
    for params in ({"loss": 1}, {"speed": 2.0}):
        report = ended(**params)
        if required == "all":
            assert report.outcome is Outcome.ERROR and "was not reported at the target" in report.message
        else:
            assert report.outcome is Outcome.COMPLETED and set(report.metrics) == set(params)
            assert report.checkpoint is not None and report.checkpoint.resource == 3
    nothing = ended()
    assert nothing.outcome is Outcome.ERROR and "Metric 'loss' was not reported" in nothing.message
    assert ended(speed=math.nan).outcome is (Outcome.ERROR if required == "all" else Outcome.DIVERGED)


def exits(code, last=None):
    """A training function that ends its process, as a script does; ``last`` is the step after which it does."""

    def train(trial):
        for step in trial.steps():
            trial.report(loss=0.5)
            if step + 1 == last:
                break
        sys.exit(code)

    return train


@pytest.mark.parametrize(
    ("train", "metrics", "words"),
    [
        (exits(None), {"loss": 0.5}, ""),
        (exits(0), {"loss": 0.5}, ""),
        (exits(1), {}, "SystemExit: 1 (the training function ended its process with exit code 1; 0 would be a result)"),
        (exits("no data"), {}, "SystemExit: no data (the training function ended its process with exit code 1;"),
        (exits(0, last=1), {}, "left the loop over trial.steps() early, after 0 of 2 steps"),
        (lambda trial: sys.exit(), {}, "Metric 'loss' was not reported at the target (step 2)"),
    ],
)
def test_an_exit_is_a_result_with_code_0_after_the_target_and_else_a_failure(train, metrics, words, request_of):
    report = run_attempt(train, request_of(target=2))
    assert report.outcome is (Outcome.COMPLETED if metrics else Outcome.ERROR)
    assert report.metrics == metrics and words in report.message
