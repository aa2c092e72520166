from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from torch.optim.swa_utils import AveragedModel
from torch.utils.data import DataLoader, TensorDataset

from hpo_core import State
from hpo_core.model.errors import ObjectiveError
from hpo_core.model.trial import Job, Outcome, Report, Rung
from hpo_core.training.attempt import run_attempt
from tests.job_requests import make_request

DATA = TensorDataset(torch.arange(8.0).reshape(8, 1))
Run = Callable[..., Report]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    def run(function: Any, target: int = 3, start: Report | None = None) -> Report:
        checkpoint = None if start is None else start.checkpoint
        job = Job(5, 0 if start is None else 1, Rung(0, 0), target, {}, checkpoint)
        request = make_request(job=job, seed=11, folder=str(tmp_path))
        report = run_attempt(function, request)
        assert report.outcome is Outcome.COMPLETED, report.detail
        return report

    return run


def model_and_optimizer() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    model = torch.nn.Linear(1, 1)
    return model, torch.optim.Adam(model.parameters(), lr=0.1)


def one_step(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> float:
    optimizer.zero_grad()
    loss = model(torch.ones(2, 1)).square().mean()
    loss.backward()
    optimizer.step()
    return loss.item()


def warnings(report: Report) -> tuple[str, ...]:
    return report.warnings or ()


def test_exact_function_is_warned_of_nothing(run: Run) -> None:
    def train(trial: Any) -> None:
        model, optimizer = model_and_optimizer()
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1)
        criterion, order = torch.nn.MSELoss(), torch.Generator()
        loader = DataLoader(DATA, batch_size=4, shuffle=True, generator=order)
        parameters, both, frozen = list(model.parameters()), {"model": model}, torch.nn.Linear(3, 3)
        state, name, rates = State(best=1e9), "sgd", {"lr": 0.1}
        trial.track(model=model, optimizer=optimizer, schedule=schedule, order=order, state=state)
        for _ in trial.steps():
            for (batch,) in loader:
                criterion(model(batch), batch)
            loss = one_step(model, optimizer)
            schedule.step()
            state.best = min(state.best, loss)
            trial.report(loss=state.best)
        assert all([parameters, both, frozen, name, rates])

    report = run(train)
    assert warnings(report) == () and report.warnings is msgspec.UNSET


def test_modules_optimizers_and_generators_that_change_are_named_with_their_cure(
    run: Run, capfd: pytest.CaptureFixture[str]
) -> None:
    def train(trial: Any) -> None:
        model, optimizer = model_and_optimizer()
        averaged, numbers, stream = AveragedModel(model), np.random.default_rng(0), random.Random(0)
        order, other, frozen, split = torch.Generator(), None, torch.nn.Linear(3, 3), np.random.default_rng(1)
        split.permutation(3)
        best = 1.0
        trial.track(model=model)
        for _ in trial.steps():
            best = min(best, one_step(model, optimizer) + numbers.random() + stream.random())
            averaged.update_parameters(model)
            torch.randperm(3, generator=order)
            trial.report(loss=best)
        assert frozen and split and other is None

    lines = {line.partition(" ")[0]: line for line in warnings(run(train))}
    assert set(lines) == {"optimizer", "averaged", "numbers", "stream", "order"}
    for name, line in lines.items():
        assert line.endswith(f"changes in the loop and is not tracked: trial.track({name}={name}).")
    assert f"hpo: {lines['optimizer']}" in capfd.readouterr().err


def test_attributes_of_self_are_looked_at(run: Run) -> None:
    class Trainer:
        def __init__(self) -> None:
            self.model, self.optimizer = model_and_optimizer()

        def fit(self, trial: Any) -> None:
            trial.track(model=self.model)
            for _ in trial.steps():
                trial.report(loss=one_step(self.model, self.optimizer))

    (line,) = warnings(run(lambda trial: Trainer().fit(trial)))
    assert line.startswith("self.optimizer (torch Adam)") and "trial.track(optimizer=self.optimizer)" in line


def test_state_continues_in_the_next_job(run: Run) -> None:
    seen: list[Any] = []

    def train(trial: Any) -> None:
        state = State(best=9.0, history=[], names={"a": (1, "b", None, True)}, big=2**80, odd=float("nan"))
        trial.track(state=state)
        seen.append(state.state_dict())
        for step in trial.steps():
            state.best = np.float32(0.5) / (step + 1)
            state.history.append(np.int64(step))
            trial.report(loss=state.best)

    first = run(train, 1)
    second = run(train, 3, first)
    assert second.metrics == {"loss": pytest.approx(0.5 / 3)}
    assert seen[1]["best"] == 0.5 and seen[1]["history"] == [0] and type(seen[1]["best"]) is float
    assert seen[1]["names"] == {"a": (1, "b", None, True)} and seen[1]["big"] == 2**80


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (torch.ones(()), r"State.best got a torch.Tensor; .* value.item\(\)"),
        (np.zeros(3), r"State.best got a numpy.ndarray"),
        ([object()], r"State.best\[0\] got a object"),
        ({1: 2}, r"dict whose keys are not all texts"),
        ({"a": {"b": set()}}, r"State.best\['a'\]\['b'\] got a set"),
        (lambda: 0, r"got a function"),
    ],
)
def test_state_refuses_what_is_not_plain(value: Any, words: str) -> None:
    with pytest.raises(ObjectiveError, match=words):
        State(best=value)
    state = State(best=None)
    with pytest.raises(ObjectiveError, match=words):
        state.best = value


def test_state_that_holds_itself_and_names_it_cannot_have() -> None:
    state = State(best=[])
    state.best.append(state.best)
    with pytest.raises(ObjectiveError, match="below 20 others"):
        state.state_dict()
    with pytest.raises(ObjectiveError, match="no room for the name '_x'"):
        State(_x=1)
    with pytest.raises(AttributeError, match="has no value 'worst'; it has best"):
        assert state.worst


@pytest.mark.parametrize(
    ("item", "words"),
    [
        (3, r"plain values in a State: state = hpo_core.State\(thing=...\)"),
        (iter([1]), r"Make an iterator anew in each step"),
        (DataLoader(DATA), r"of a DataLoader its own one"),
        (object(), r"plain values go into hpo_core.State"),
    ],
)
def test_what_cannot_be_tracked_is_told_what_to_do(item: Any, words: str, tmp_path: Path) -> None:
    job = Job(5, 0, Rung(0, 0), 1, {}, None)
    request = make_request(job=job, seed=11, folder=str(tmp_path))
    with pytest.raises(ObjectiveError, match=words):
        run_attempt(lambda trial: trial.track(thing=item), request, raised=(ObjectiveError,))
