"""A trial that starts from another one's checkpoint (PBT): state is the parent's, hyperparameters are its own."""

from __future__ import annotations

import copy
import random
from itertools import cycle

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler as schedules

from hpo_core.model.trial import UNRESTORED_LINES, Job, Outcome, Rung
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
            study="s", job=job, objective="a:b", metric="loss", seed=100 + number, folder=str(tmp_path),
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
    report = run(child, 8, 9, start, lr=0.03)
    assert report.unrestored == () == child.trial.unrestored
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


def test_changed_momentum_and_weight_decay_apply(run):
    def make(trial):
        weight = nn.Parameter(torch.ones(3))
        p = trial.params
        optimizer = torch.optim.AdamW([weight], lr=p["lr"], betas=(p["beta"], 0.999), weight_decay=p["decay"])
        trial.track(optimizer=optimizer)
        made.append(optimizer)
        for _ in trial.steps():
            weight.grad = torch.ones(3)
            optimizer.step()
            trial.report(loss=1)

    made = []
    start = run(make, 0, 2, lr=0.1, beta=0.9, decay=0.0)
    run(make, 1, 4, start, lr=0.1, beta=0.5, decay=0.3)
    group = made[1].param_groups[0]
    assert (group["lr"], group["betas"], group["weight_decay"]) == (0.1, (0.5, 0.999), 0.3)
    assert made[1].state[group["params"][0]]["step"] == 4, "the moments are the parent's, their age too"


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
    request = make_request(study="s", job=job, objective="a:b", metric="loss", seed=1, folder=str(tmp_path))
    report = run_attempt(make, request)
    assert report.outcome is Outcome.ERROR
    assert "OneCycleLR cannot be brought to step 5" in report.message


def test_a_wider_layer_and_an_added_layer_stay_as_built(run):
    """What matches by name and shape is restored, moments too; the rest is as it was built, and named."""

    def build(params):
        layers = [nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, params["width"]), nn.ReLU()]
        if params["deep"]:
            layers += [nn.Linear(params["width"], params["width"]), nn.ReLU()]
        return nn.Sequential(*layers, nn.Linear(params["width"], 1))

    parent, child = Session("adam", build=build), Session("adam", build=build)
    start = run(parent, 3, 4, lr=0.01, width=4, deep=False)
    early = parent.weights(), parent.moments()
    report = run(child, 8, 5, start, lr=0.0, width=5, deep=True)
    assert report.unrestored == (
        "model.2.weight: (4, 8) in the checkpoint, (5, 8) here",
        "model.2.bias: (4,) in the checkpoint, (5,) here",
        "model.4.weight: (1, 4) in the checkpoint, (5, 5) here",
        "model.4.bias: (1,) in the checkpoint, (5,) here",
        "model.6.weight: not in the checkpoint",
        "model.6.bias: not in the checkpoint",
        "optimizer: state of 6 of 8 parameters",
    )
    weights = child.weights()
    assert weights["0.weight"] == early[0]["0.weight"] and weights["2.weight"] == child.built["2.weight"].tolist()
    steps = [int(state["step"]) for state in child.moments()]
    assert steps == [5, 5, 1, 1, 1, 1, 1, 1], "only the first layer's moments are four steps old"


def test_layers_match_by_name_if_one_is_missing(run):
    class Net(nn.Module):
        def __init__(self, extra):
            super().__init__()
            self.first = nn.Linear(6, 6)
            if extra:
                self.extra = nn.Linear(6, 6)
            self.last = nn.Linear(6, 1)

        def forward(self, x):
            x = self.first(x)
            return self.last(self.extra(x) if hasattr(self, "extra") else x)

    parent, child = (Session("sgd", build=lambda params: Net(params["extra"])) for _ in range(2))
    start = run(parent, 0, 3, lr=0.01, extra=True)
    moments = {key: parent.optimizer.state[p] for key, p in parent.model.named_parameters()}
    report = run(child, 1, 4, start, lr=0.0, extra=False)
    assert report.unrestored == (
        "model.extra.weight: not part of the object here",
        "model.extra.bias: not part of the object here",
    )
    for (key, _), state in zip(child.model.named_parameters(), child.first_moments, strict=True):
        assert torch.equal(state["momentum_buffer"], moments[key]["momentum_buffer"])


def test_another_optimizer_class_starts_without_moments(run):
    start = run(Session("sgd"), 0, 3, lr=0.01, kind="sgd")
    child = Session("adam")
    report = run(child, 1, 5, start, lr=0.02, kind="adam")
    assert report.unrestored == ("optimizer: state of SGD in the checkpoint, Adam here",)
    assert child.rates == [0.02, 0.02] and [int(state["step"]) for state in child.moments()] == [2] * 4


@pytest.mark.parametrize(
    ("make", "off", "on"),
    [
        (lambda w, v: torch.optim.Adam(w, amsgrad=v), False, True),
        (lambda w, v: torch.optim.RMSprop(w, momentum=v), 0.0, 0.9),
        (lambda w, v: torch.optim.RMSprop(w, centered=v), False, True),
    ],
)
def test_a_setting_that_needs_more_moments_starts_without_them(run, make, off, on):
    """Without a look at what a first step makes, the next step would fail for a missing key."""

    def train(trial):
        weight = nn.Parameter(torch.ones(2))
        optimizer = make([weight], trial.params["setting"])
        trial.track(optimizer=optimizer)
        for _ in trial.steps():
            weight.grad = torch.ones(2)
            optimizer.step()
            trial.report(loss=1)

    start = run(train, 0, 2, setting=off)
    assert run(train, 1, 3, start, setting=on).unrestored == ("optimizer: state of 1 of 1 parameters",)
    back = run(train, 2, 3, start, setting=off)
    assert back.unrestored == ()


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


def test_arrays_of_another_shape_stay_as_built(run):
    class Layers:
        def __init__(self, *widths):
            draw = np.random.default_rng(0)
            self.state = {f"w{i}": draw.normal(size=shape) for i, shape in enumerate(widths)}

        def state_dict(self):
            return dict(self.state)

        def load_state_dict(self, state):
            self.state = dict(state)

    def train(trial):
        net = Layers(*trial.params["shapes"])
        trial.track(net=net)
        for step in trial.steps():
            net.state = {key: value + 1 for key, value in net.state.items()}
            net.state["velocity"] = np.zeros(step + 1)
            trial.report(loss=1)
        nets.append(net.state)

    nets = []
    start = run(train, 0, 1, shapes=[[2, 3], [3, 4], [4, 1]])
    report = run(train, 1, 2, start, shapes=[[2, 3], [3, 5]])
    assert report.unrestored == ("net.w1: (3, 4) in the checkpoint, (3, 5) here",)
    assert set(nets[1]) == {"w0", "w1", "w2", "velocity"}, "what the child lacks is kept: training may have added it"
    assert np.array_equal(nets[1]["w0"], nets[0]["w0"] + 1)


def test_random_generators_continue_from_the_parents_state(run):
    def train(trial):
        own = random.Random(trial.seed)
        generator = np.random.default_rng(trial.seed)
        trial.track(own=own, generator=generator)
        for _ in trial.steps():
            drawn.append((random.random(), np.random.rand(), torch.rand(1).item(), own.random(), generator.random()))
            trial.report(loss=1)

    drawn = []
    run(train, 0, 5, lr=1)
    whole, drawn = drawn, []
    start = run(train, 0, 2, lr=1)
    run(train, 1, 5, start, lr=2)
    assert drawn == whole


def test_different_names_are_listed_as_unrestored(run, tmp_path, capfd):
    def train(names):
        def function(trial):
            trial.track(**{name: nn.Linear(2, 2) for name in names})
            for _ in trial.steps():
                trial.report(loss=1)

        return function

    start = run(train(["a", "b"]), 0, 1)
    report = run(train(["a", "c"]), 1, 2, start, x=1)
    assert report.unrestored == ("c: not in the checkpoint", "b: not tracked here")
    assert "Trial 1 starts from the checkpoint of trial 0; left as built:\n  c: not" in capfd.readouterr().err
    job = Job(0, 1, Rung(0, 2), 2, {}, start.checkpoint)
    own = make_request(study="s", job=job, objective="a:b", metric="loss", seed=1, folder=str(tmp_path))
    assert "has no 'c'" in run_attempt(train(["a", "c"]), own).message, "a trial's own checkpoint must fit exactly"


def test_long_lists_of_unrestored_names_are_shortened(run):
    def train(trial):
        width = trial.params["width"]
        trial.track(model=nn.ModuleList(nn.Linear(width, 1, bias=False) for _ in range(UNRESTORED_LINES + 9)))
        for _ in trial.steps():
            trial.report(loss=1)

    report = run(train, 1, 2, run(train, 0, 1, width=1), width=2)
    assert len(report.unrestored) == UNRESTORED_LINES and report.unrestored[-1] == "and 10 more"


def test_an_object_that_refuses_its_state_is_named_with_the_cure(run, tmp_path):
    class Stubborn:
        def __init__(self, size):
            self.size = size

        def state_dict(self):
            return {"rows": np.zeros(self.size)}

        def load_state_dict(self, state):
            if len(state["rows"]) != 2:
                raise ValueError("two rows or none")

    def train(trial):
        trial.track(table=Stubborn(trial.params["size"]))
        for _ in trial.steps():
            trial.report(loss=1)

    start = run(train, 0, 1, size=2)
    job = Job(1, 0, Rung(0, 2), 2, {"size": 3}, start.checkpoint, parent=0)
    request = make_request(study="s", job=job, objective="a:b", metric="loss", seed=1, folder=str(tmp_path))
    report = run_attempt(train, request)
    assert report.outcome is Outcome.ERROR and "'table' refuses the state" in report.message
    assert "two rows or none" in report.message
