"""A trial that starts from another one's checkpoint (PBT): state is the parent's, hyperparameters are its own."""

from __future__ import annotations

import copy
import re
from itertools import cycle

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler as schedules

from hpo_core.model.trial import Job, Outcome, Rung
from hpo_core.training.attempt import run_attempt
from hpo_core.training.handle import TrialHandle
from hpo_core.training.request import decode_report, decode_request, encode_report, encode_request
from tests.job_requests import make_request

DATA = torch.randn(32, 6, generator=torch.Generator().manual_seed(0))
GOAL = DATA.sum(dim=1, keepdim=True).sin()

OPTIMIZERS = {
    "sgd": lambda p, lr: torch.optim.SGD(p, lr=lr, momentum=0.9),
    "adam": lambda p, lr: torch.optim.Adam(p, lr=lr),
    "adamw": lambda p, lr: torch.optim.AdamW(p, lr=lr, weight_decay=0.05),
}
SCHEDULES = {
    "none": None,
    "lambda": lambda o: schedules.LambdaLR(o, lambda step: min(1.0, (step + 1) / 5)),
    "cosine": lambda o: schedules.CosineAnnealingLR(o, T_max=20, eta_min=1e-3),
    "one cycle": lambda o: schedules.OneCycleLR(o, max_lr=o.param_groups[0]["lr"], total_steps=30),
    "step": lambda o: schedules.StepLR(o, step_size=3, gamma=0.5),
    "sequential": lambda o: schedules.SequentialLR(
        o, [schedules.LinearLR(o, 0.1, total_iters=4), schedules.ExponentialLR(o, 0.9)], [4]
    ),
    "chained": lambda o: schedules.ChainedScheduler(
        [schedules.LinearLR(o, 0.1, total_iters=4), schedules.ExponentialLR(o, 0.9)]
    ),
    "warm restarts": lambda o: schedules.CosineAnnealingWarmRestarts(o, T_0=3, T_mult=2),
}


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """As in a training process; more of them only get in each other's way with such small tensors."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def run(tmp_path):
    """Train one trial to ``target`` in this process, from the report of another one where it is given."""

    def run(train, number, target, start=None, **params):
        parent = None if start is None or start.trial == number else start.trial
        job = Job(
            number,
            0 if start is None else 1,
            Rung(0, target),
            target,
            params,
            start and start.checkpoint,
            parent=parent,
        )
        request = decode_request(encode_request(make_request(
            job=job, seed=100 + number, folder=str(tmp_path)
        )))  # fmt: skip
        report = decode_report(encode_report(run_attempt(train, request)))
        assert report.outcome is Outcome.COMPLETED, report.detail
        return report

    return run


class Session:
    """One torch training function; keeps what it built, and the learning rate of every step."""

    def __init__(self, optimizer="sgd", schedule="none", build=None):
        self._optimizer, self._schedule = OPTIMIZERS[optimizer], SCHEDULES[schedule]
        self._build = build or (lambda params: nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.2), nn.Linear(8, 1)))
        self.rates: list[float] = []

    def __call__(self, trial: TrialHandle):
        self.trial = trial
        self.model = self._build(trial.params)
        self.optimizer = self._optimizer(self.model.parameters(), trial.params["lr"])
        tracked = {"model": self.model, "optimizer": self.optimizer}
        self.schedule = self._schedule(self.optimizer) if self._schedule else None
        if self.schedule is not None:
            tracked["schedule"] = self.schedule
        trial.track(**tracked)
        self.built = copy.deepcopy(self.model.state_dict())
        loop = trial.steps()
        self.first_moments = self.moments()
        for _ in loop:
            self.rates.append(float(self.optimizer.param_groups[0]["lr"]))
            self.optimizer.zero_grad()
            loss = (self.model(DATA) - GOAL).square().mean()
            loss.backward()
            self.optimizer.step()
            if self.schedule is not None:
                self.schedule.step()
            trial.report(loss=loss)

    def weights(self):
        return {key: value.tolist() for key, value in self.model.state_dict().items()}

    def moments(self):
        return [
            {key: value.clone() if torch.is_tensor(value) else value for key, value in state.items()}
            for state in (self.optimizer.state.get(p, {}) for p in self.model.parameters())
        ]


def rates_of(optimizer, schedule, lr, steps):
    """The learning rates of a training with these settings from its first step on."""
    weight = nn.Parameter(torch.zeros(1))
    made = OPTIMIZERS[optimizer]([weight], lr)
    plan = SCHEDULES[schedule](made) if SCHEDULES[schedule] else None
    found = []
    for _ in range(steps):
        found.append(float(made.param_groups[0]["lr"]))
        made.step()
        if plan is not None:
            plan.step()
    return found


PAIRS = [(optimizer, schedule) for schedule, optimizer in zip(SCHEDULES, cycle(OPTIMIZERS), strict=False)]
"""Each schedule with one of the optimizers."""


@pytest.mark.parametrize(("optimizer", "schedule"), PAIRS)
def test_a_changed_learning_rate_applies_from_the_first_step(run, optimizer, schedule):
    parent, child = Session(optimizer, schedule), Session(optimizer, schedule)
    start = run(parent, 3, 4, lr=0.01)
    before = parent.moments()
    run(child, 8, 9, start, lr=0.03)
    assert child.rates == pytest.approx(rates_of(optimizer, schedule, 0.03, 9)[4:], rel=1e-12)
    for theirs, ours in zip(before, child.first_moments, strict=True):  # the optimizer's memory is the parent's
        assert set(theirs) == set(ours) and theirs
        assert all(torch.equal(torch.as_tensor(theirs[key]), torch.as_tensor(ours[key])) for key in theirs)


@pytest.mark.parametrize(("optimizer", "schedule"), PAIRS)
def test_equal_parameters_continue_the_parents_training_to_the_bit(run, optimizer, schedule):
    whole = Session(optimizer, schedule)
    run(whole, 3, 9, lr=0.02)
    start = run(Session(optimizer, schedule), 3, 4, lr=0.02)
    middle = run(Session(optimizer, schedule), 7, 6, start, lr=0.02)
    last = Session(optimizer, schedule)
    run(last, 8, 9, middle, lr=0.02)
    assert last.weights() == whole.weights(), "dropout, weights and rates of one training, over three trials"
    assert last.rates == whole.rates[6:]


def test_a_rate_that_the_loop_lowered_begins_anew_where_parameters_changed(run):
    def make(trial):
        weight = nn.Parameter(torch.ones(1))
        optimizer = torch.optim.SGD([weight], lr=trial.params["lr"])
        plan = schedules.ReduceLROnPlateau(optimizer, factor=0.1, patience=1)
        trial.track(optimizer=optimizer, plan=plan)
        for _ in trial.steps():
            rates.append(optimizer.param_groups[0]["lr"])
            plan.step(1.0)
            trial.report(loss=1)

    rates = []
    start = run(make, 0, 3, lr=0.5)
    run(make, 1, 4, start, lr=0.5)
    run(make, 2, 4, start, lr=1.0)
    assert rates == [0.5, 0.5, 0.5, pytest.approx(0.05), 1.0]


def test_a_schedule_built_from_a_changed_parameter_follows_the_child(run):
    """A lambda's closure is in no state_dict; the rates must follow the child's nevertheless, from its first step."""

    def make(trial):
        optimizer = torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=1.0)
        warm = trial.params["warm"]
        plan = schedules.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / warm))
        trial.track(optimizer=optimizer, plan=plan)
        for _ in trial.steps():
            rates.append(optimizer.param_groups[0]["lr"])
            optimizer.step()
            plan.step()
            trial.report(loss=1)

    rates = []
    start = run(make, 0, 3, warm=4)
    run(make, 1, 5, start, warm=10)
    assert rates == pytest.approx([1 / 4, 2 / 4, 3 / 4, 4 / 10, 5 / 10])


def test_a_schedule_shorter_than_the_parents_steps_is_refused(run, tmp_path):
    def make(trial):
        optimizer = torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=1.0)
        plan = schedules.OneCycleLR(optimizer, 1.0, total_steps=trial.params["total"])
        trial.track(optimizer=optimizer, plan=plan)
        for _ in trial.steps():
            optimizer.step()
            plan.step()
            trial.report(loss=1)

    start = run(make, 0, 5, total=20)
    job = Job(1, 0, Rung(0, 1), 6, {"total": 3}, start.checkpoint, parent=0)
    request = make_request(job=job, folder=str(tmp_path))
    report = run_attempt(make, request)
    assert report.outcome is Outcome.ERROR
    assert "OneCycleLR cannot be brought to step 5" in report.message


def test_state_without_torch_is_inherited(run):
    """Two quadratics: a number that has a parameter's name is the child's own."""

    class Surrogate:
        def __init__(self, params):
            self.state = {"theta": [0.9, 0.9], "h": params["h"], "steps": 0, "seen": {}}

        def state_dict(self):
            return self.state

        def load_state_dict(self, state):
            self.state = state

    def train(trial):
        surrogate = Surrogate(trial.params)
        trial.track(surrogate=surrogate)
        for step in trial.steps():
            state = surrogate.state
            state["theta"] = [value - 0.1 * state["h"] * value for value in state["theta"]]
            state["steps"] += 1
            state["seen"][f"h at {step}"] = state["h"]
            trial.report(loss=sum(state["theta"]))
        states.append(surrogate.state)

    states = []
    start = run(train, 0, 2, h=0.5)
    run(train, 1, 3, start, h=1.0)
    assert states[1]["seen"] == {"h at 0": 0.5, "h at 1": 0.5, "h at 2": 1.0} and states[1]["steps"] == 3
    assert states[1]["theta"] == pytest.approx([0.9 * 0.95**2 * 0.9] * 2)


def _module(trial):
    return {"net": nn.Linear(trial.params["x"], 1)}


def _optimizer(trial):
    kind = torch.optim.SGD if trial.params["x"] == 1 else torch.optim.Adam
    return {"net": kind([nn.Parameter(torch.ones(1))], lr=0.1)}


def _names(trial):
    return {f"net{trial.params['x']}": nn.Linear(1, 1)}


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (_module, "'net' refuses the state from the checkpoint of trial 0. A param.*search.static.*size mismatch for"),
        (_optimizer, "'net' refuses .* it is of SGD, and Adam is tracked here"),
        (_names, "trial 0 was written with 'net1', and 'net1', 'net2' are tracked in one of both"),
    ],
)
def test_another_shape_kind_or_name_is_refused_with_the_cure(run, tmp_path, make, words):
    def train(trial):
        trial.track(**make(trial))
        for _ in trial.steps():
            trial.report(loss=1)

    start = run(train, 0, 1, x=1)
    job = Job(1, 0, Rung(0, 2), 2, {"x": 2}, start.checkpoint, parent=0)
    request = make_request(job=job, folder=str(tmp_path))
    report = run_attempt(train, request)
    assert report.outcome is Outcome.ERROR and re.search(words, report.message, re.DOTALL), report.message
    assert "search.static" in report.message + report.detail
