"""What a training loop changes and nobody saves is named, with its cure; what is saved or constant is not."""

from __future__ import annotations

import functools
import itertools
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from torch.optim.swa_utils import SWALR, AveragedModel
from torch.utils.data import DataLoader, TensorDataset

from hpo_core import State
from hpo_core.model.errors import ObjectiveError
from hpo_core.model.trial import Job, Outcome, Report, Rung
from hpo_core.training.attempt import run_attempt
from hpo_core.training.request import JobRequest, decode_report, encode_report
from hpo_core.training.untracked_state import MOST_NESTED, Saved, fingerprint, held_generators, merged_warnings

DATA = TensorDataset(torch.arange(8.0).reshape(8, 1))
Run = Callable[..., Report]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Trains to a target, perhaps from a checkpoint."""

    def run(function: Any, target: int = 3, start: Report | None = None) -> Report:
        checkpoint = None if start is None else start.checkpoint
        job = Job(5, 0 if start is None else 1, Rung(0, 0), target, {}, checkpoint)
        request = JobRequest(study="s", job=job, objective="a:b", metric="loss", seed=11, folder=str(tmp_path))
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


def test_copies_of_what_a_state_holds_are_not_warned_of(run: Run) -> None:
    """A script keeps its own variables; two lines copy them from a State and back."""

    def train(trial: Any) -> None:
        model, optimizer = model_and_optimizer()
        lr, best = 1.0, float("inf")
        trial.track(model=model, optimizer=optimizer, state=(state := State(lr=lr, best=best)))
        for _ in trial.steps():
            lr, best = state.lr, state.best
            loss = one_step(model, optimizer)
            lr, best = lr / 2, min(best, loss)
            state.lr, state.best = lr, best
            trial.report(loss=loss)

    assert warnings(run(train)) == ()


def test_copy_that_was_not_put_back_is_warned_of(run: Run) -> None:
    def train(trial: Any) -> None:
        model, optimizer = model_and_optimizer()
        lr = 1.0
        trial.track(model=model, optimizer=optimizer, state=State(lr=lr))
        for _ in trial.steps():
            lr /= 2
            trial.report(loss=one_step(model, optimizer))

    (line,) = warnings(run(train))
    assert line.startswith("lr changes in the loop and is not tracked.")


def test_loop_variables_are_named_with_a_state(run: Run, capfd: pytest.CaptureFixture[str]) -> None:
    def train(trial: Any) -> None:
        model, optimizer = model_and_optimizer()
        trial.track(model=model, optimizer=optimizer)
        best, patience, losses, _ignored, constant = float("inf"), 0, [], 0, 3
        for _ in trial.steps():
            loss = one_step(model, optimizer)
            best, patience, _ignored = min(best, loss), patience + 1, patience
            losses.append(loss)
            trial.report(loss=best)
        assert constant == 3

    (line,) = warnings(run(train))
    assert line.startswith("best, patience, losses change in the loop and are not tracked.")
    assert "hpo_core.State(best=..., patience=..., losses=...); trial.track(state=state)" in line
    assert f"hpo: {line}" in capfd.readouterr().err


class Ema:
    """An average as people write it, without state_dict()."""

    def __init__(self, model: torch.nn.Module) -> None:
        self.shadow = {name: value.detach().clone() for name, value in model.named_parameters()}


def test_objects_that_change_are_named_with_their_cure(run: Run) -> None:
    def train(trial: Any) -> None:
        model, optimizer = model_and_optimizer()
        averaged, numbers, stream = AveragedModel(model), np.random.default_rng(0), random.Random(0)
        schedule, ema, other = SWALR(optimizer, 0.01), Ema(model), torch.optim.SGD(model.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler("cpu", growth_interval=1)
        weights, batches = np.zeros(3), itertools.cycle(DataLoader(DATA))
        trial.track(model=model)
        for _ in trial.steps():
            trial.report(loss=one_step(model, optimizer))
            averaged.update_parameters(model)
            schedule.step()
            for value in ema.shadow.values():
                value.mul_(0.9)
            weights += numbers.random() + stream.random() + float(next(batches)[0][0])
            scaler.scale(torch.ones(1))
            scaler.update(2.0)
        assert other

    lines = {line.partition(" ")[0]: line for line in warnings(run(train))}
    assert set(lines) == {
        "optimizer", "averaged", "numbers", "stream", "schedule", "ema", "scaler", "weights", "batches",
    }  # fmt: skip
    for name in ("optimizer", "averaged", "numbers", "stream", "schedule", "scaler"):
        assert f"trial.track({name}={name})" in lines[name]
    assert "its position cannot be saved" in lines["batches"] and "(itertools cycle)" in lines["batches"]
    assert "keep it in an object with state_dict()" in lines["ema"]


def test_loaders_with_persistent_workers_or_a_generator_of_their_own(run: Run) -> None:
    class Noisy(TensorDataset):
        def __init__(self) -> None:
            super().__init__(*DATA.tensors)
            self.noise = np.random.default_rng(1)

        def __getitem__(self, index: Any) -> Any:
            return super().__getitem__(index)[0] + self.noise.random()

    def train(trial: Any) -> None:
        state = State(steps=0)
        kept = DataLoader(DATA, num_workers=1, persistent_workers=True)
        shuffled = DataLoader(DATA, shuffle=True, generator=torch.Generator())
        noisy = DataLoader(Noisy())
        trial.track(state=state)
        for _ in trial.steps():
            state.steps += sum(1 for _ in noisy)
            trial.report(loss=1.0)
        assert kept and shuffled

    lines = warnings(run(train, 1))
    assert [line.partition(" ")[0] for line in lines] == ["kept", "shuffled", "noisy.dataset.noise"]
    assert "persistent_workers=False" in lines[0] and "trial.track(order=shuffled.generator)" in lines[1]


COUNT = 0
TABLE = {"seen": 0}


def test_variables_of_the_module_and_attributes_of_self(run: Run) -> None:
    class Trainer:
        def __init__(self) -> None:
            self.best = 1e9

        def fit(self, trial: Any) -> None:
            global COUNT
            state = State()
            trial.track(state=state)
            for _ in trial.steps():
                COUNT += 1
                TABLE["seen"] += 1
                self.best /= 2
                trial.report(loss=self.best)

    (line,) = warnings(run(lambda trial: Trainer().fit(trial)))
    assert line.startswith("self.best, COUNT, TABLE change in the loop")


def test_watching_draws_no_random_number_and_keeps_nothing_alive(run: Run) -> None:
    def numbers(watched: bool) -> list[float]:
        found: list[float] = []

        def train(trial: Any) -> None:
            loader, stream = DataLoader(DATA, shuffle=True), np.random.default_rng(3)
            if watched:
                trial.track(state=State())
            for _ in trial.steps():
                found.append(float(next(iter(loader))[0][0]) + random.random() + stream.random() + np.random.random())
                trial.report(loss=1.0)

        run(train)
        return found

    assert numbers(watched=True) == numbers(watched=False)


def test_function_that_tracks_nothing_begins_anew_and_is_not_warned(run: Run) -> None:
    def train(trial: Any) -> None:
        best = 1.0
        for _ in trial.steps():
            best /= 2
            trial.report(loss=best)

    assert warnings(run(train)) == ()


def test_object_that_cannot_be_looked_at_disturbs_nothing(run: Run) -> None:
    class Strange(dict):  # type: ignore[type-arg]
        def values(self) -> Any:
            raise RuntimeError("not now")

    def train(trial: Any) -> None:
        strange = Strange(a=1)
        trial.track(state=State())
        for _ in trial.steps():
            trial.report(loss=1.0)
        assert strange is not None

    assert warnings(run(train)) == ()


def test_warnings_travel_with_the_report() -> None:
    report = Report(trial=1, attempt=0, outcome=Outcome.COMPLETED, warnings=("best changes",))
    assert decode_report(encode_report(report)) == report
    bare = Report(trial=1, attempt=0, outcome=Outcome.COMPLETED)
    assert "warnings" not in msgspec.to_builtins(bare)


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
        (iter([1]), r"an iterator whose position cannot be saved"),
        (DataLoader(DATA), r"trial.track\(thing=thing.generator\)"),
        (object(), r"plain values go into hpo_core.State"),
    ],
)
def test_what_cannot_be_tracked_is_told_what_to_do(item: Any, words: str, tmp_path: Path) -> None:
    job = Job(5, 0, Rung(0, 0), 1, {}, None)
    request = JobRequest(study="s", job=job, objective="a:b", metric="loss", seed=11, folder=str(tmp_path))
    with pytest.raises(ObjectiveError, match=words):
        run_attempt(lambda trial: trial.track(thing=item), request, raised=(ObjectiveError,))


def test_nested_data_is_looked_at_in_part() -> None:
    class Counted(list[Any]):
        looked = 0

        def __iter__(self) -> Any:
            Counted.looked += len(self)
            return super().__iter__()

    data = Counted([Counted([0.0] * 1000) for _ in range(1000)])
    before = fingerprint({"data": data, "count": [1]}, Saved())
    assert Counted.looked <= MOST_NESTED
    data[0][0] = 1.0
    assert fingerprint({"data": data, "count": [1]}, Saved()) != before, "the first ones are looked at"


class Holder:
    """An object of the user, with a generator somewhere inside."""

    def __init__(self, **held: Any) -> None:
        vars(self).update(held)


class Slotted:
    __slots__ = ("rng",)

    def __init__(self) -> None:
        self.rng = random.Random(1)


def closed_over() -> Callable[[], float]:
    rng = random.Random(2)
    return lambda: rng.random()


@pytest.mark.parametrize(
    ("held", "path", "kind"),
    [
        (lambda: Holder(rng=np.random.default_rng(1)), "thing.rng", "numpy Generator"),
        (lambda: Holder(inner=Holder(_np_random=np.random.default_rng(1))), "thing.inner._np_random", "numpy"),
        (lambda: {"a": [random.Random(1)]}, "thing['a'][0]", "random Random"),
        (lambda: Holder(order=torch.Generator()), "thing.order", "torch Generator"),
        (lambda: (1, Slotted()), "thing[1].rng", "random Random"),
        (closed_over, "thing.__closure__[0].cell_contents", "random Random"),
        (lambda: random.Random(3).random, None, None),  # a builtin method: nothing leads to its owner
        (lambda: functools.partial(max, np.random.RandomState(1)), "thing.args[0]", "numpy RandomState"),
        (lambda: Holder(rng=np.random.default_rng(1)).__dict__.copy, None, None),
        (lambda: torch.nn.Sequential(Drawing()), "thing._modules['0'].noise", "torch Generator"),
    ],
)
def test_generators_inside_objects_are_named(run: Run, held: Any, path: str | None, kind: str | None) -> None:
    def train(trial: Any) -> None:
        thing, state = held(), State()
        trial.track(state=state)
        for _ in trial.steps():
            for _, generator in held_generators([("thing", thing)]):
                generator.manual_seed(3) if isinstance(generator, torch.Generator) else draw(generator)
            trial.report(loss=1.0)

    found = warnings(run(train))
    if path is None:
        assert found == ()
    else:
        (line,) = found
        assert line.startswith(f"{path} ({kind}") and "draws in the loop and is not tracked: trial.track(" in line
        assert line.endswith(f"={path}).")


class Drawing(torch.nn.Module):
    """Dropout with a generator of its own, which no state_dict() holds."""

    def __init__(self) -> None:
        super().__init__()
        self.noise = torch.Generator()

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        return batch * torch.rand(batch.shape, generator=self.noise)


def draw(generator: Any) -> None:
    generator.random() if hasattr(generator, "random") else generator.random_sample()


def test_generators_that_are_saved_or_everybodys_are_not_named(run: Run) -> None:
    class Agent:
        def __init__(self) -> None:
            self.rng = np.random.default_rng(1)

        def state_dict(self) -> dict[str, Any]:
            return {"rng": self.rng.bit_generator.state}

        def load_state_dict(self, state: dict[str, Any]) -> None:
            self.rng.bit_generator.state = state["rng"]

    def train(trial: Any) -> None:
        agent, stream = Agent(), random.Random(1)
        other = Holder(agent=agent, stream=stream, mine=np.random.mtrand._rand, ours=random._inst)  # type: ignore[attr-defined]
        unused = Holder(rng=np.random.default_rng(2))
        trial.track(agent=agent, stream=stream)
        for _ in trial.steps():
            agent.rng.random()
            stream.random()
            np.random.random()
            trial.report(loss=random.random())
        assert other and unused

    assert warnings(run(train)) == ()


def test_the_generator_of_a_tracked_module_is_named(run: Run) -> None:
    """state_dict() of a torch module holds no generator."""

    def train(trial: Any) -> None:
        model = Drawing()
        trial.track(model=model)
        for _ in trial.steps():
            trial.report(loss=model(torch.ones(2)).sum())

    (line,) = warnings(run(train))
    assert line.startswith("model.noise (torch Generator) draws in the loop")


def test_a_generator_that_is_made_in_the_loop_is_named(run: Run) -> None:
    def train(trial: Any) -> None:
        env, state = Holder(_np_random=None), State()
        trial.track(state=state)
        for _ in trial.steps():
            env._np_random = env._np_random or np.random.default_rng(1)
            trial.report(loss=1.0)

    (line,) = warnings(run(train))
    assert line.startswith("env._np_random (numpy Generator) is made in the loop") and "reset(seed=trial.seed)" in line


def test_an_object_with_a_generator_and_state_is_named_by_both(run: Run) -> None:
    def train(trial: Any) -> None:
        env, state = Holder(rng=random.Random(1), position=0.0), State()
        trial.track(state=state)
        for _ in trial.steps():
            env.position += env.rng.random()
            trial.report(loss=env.position)

    assert [line.partition(" (")[0] for line in warnings(run(train))] == ["env", "env.rng"]


def test_warnings_of_several_jobs_name_each_variable_once() -> None:
    jobs = [
        ("a, b change in the loop and are not tracked. If later steps or reports need them: ...",),
        (
            "env (lab Env) changes in the loop and is not tracked.",
            "a changes in the loop and is not tracked. If later steps or reports need it: ...",
        ),
        ("env (lab Env) changes in the loop and is not tracked. Now.", "All ranks are alike.", "All is lost."),
    ]
    assert [line[:9] for line in merged_warnings(jobs)] == ["env (lab ", "All ranks", "All is lo", "a, b chan"]
