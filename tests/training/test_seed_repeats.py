"""Seed repeats: means of separate trainings to the bit, one checkpoint for all, the best repeat where one is wanted."""

from __future__ import annotations

import random
from fractions import Fraction
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from hpo_core import Job, MemoryJournal, Outcome, State, Study, StudySpec
from hpo_core.checkpoints import files
from hpo_core.checkpoints.files import write_weights
from hpo_core.execution.in_process import InProcessExecutor
from hpo_core.execution.loop import Loop
from hpo_core.model.errors import CheckpointError
from hpo_core.model.events import AttemptReported, JobGranted
from hpo_core.model.rng import derive_seed
from hpo_core.model.trial import Report, Rung
from hpo_core.replay.audit import audit
from hpo_core.training.attempt import run_attempt
from hpo_core.training.child.trainer import Trainer
from hpo_core.training.request import JobRequest
from hpo_core.training.resume_check import differences

REPEATS = 3
LADDER = {"method": "asha", "configs": 9, "min_resource": 1, "max_resource": 9, "reduction_factor": 3}


def network(trial: Any) -> None:
    """A network with dropout, momentum and draws of all three global generators in every step."""
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(0.3), torch.nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=trial.params["x"] * 0.01, momentum=0.9)
    trial.track(model=model, optimizer=optimizer)
    for _ in trial.steps():
        inputs = torch.randn(16, 4)
        loss = ((model(inputs) - inputs.sum(1, keepdim=True)) ** 2).mean() + np.random.random() + random.random()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        trial.report(loss=float(loss))


def deaf(trial: Any) -> None:
    """Uses no seed."""
    for _ in trial.steps():
        trial.report(loss=trial.params["x"])


def spec_with(**changes: Any) -> StudySpec:
    return StudySpec.from_plain({
        "study": "s", "metric": {"name": "loss"}, "space": {"x": {"type": "float", "low": 0.1, "high": 1.0}},
        "search": LADDER, "repeats": REPEATS, "seed": 5,
    } | changes)  # fmt: skip


def played(spec: StudySpec, folder: Path, objective: Any = network) -> tuple[Study, MemoryJournal]:
    journal = MemoryJournal()
    study = Study.create(spec, journal)
    Loop(study, InProcessExecutor(spec, folder, objective)).run()
    study.check()
    return study, journal


def request_for(folder: Path, job: Job, objective: str = "test_seed_repeats:network", **more: Any) -> JobRequest:
    for part in ("checkpoints", "logs"):
        (folder / part).mkdir(parents=True, exist_ok=True)
    name = f"tests.training.{objective}"
    return JobRequest(study="s", job=job, objective=name, metric="loss", folder=str(folder), **{"seed": 9} | more)


def exact_mean(values: list[float]) -> float:
    return float(sum(map(Fraction, values)) / len(values))


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Study, MemoryJournal, Path]:
    """An ASHA study of 3 repeats whose checkpoints all stay."""
    folder = tmp_path_factory.mktemp("trained")
    return *played(spec_with(), folder), folder


def reports(journal: MemoryJournal) -> list[tuple[JobGranted, Report]]:
    """Each report of a study, with the grant that it answers."""
    grants, found = {}, []
    for entry in journal.entries("s"):
        if isinstance(entry.stimulus, AttemptReported):
            report = entry.stimulus.report
            found.append((grants[report.trial, report.attempt], report))
        grants |= {(event.trial, event.attempt): event for event in entry.events if isinstance(event, JobGranted)}
    return found


def test_repeats_equal_separate_trainings_in_one_go_to_the_bit(
    trained: tuple[Study, MemoryJournal, Path], tmp_path: Path
) -> None:
    study, journal, folder = trained
    top = [trial for trial in study.state.trials if trial.results[-1].resource == 9]
    assert top and len(top[0].results) == 3, "one trial went 0 to 1 to 3 to 9"
    trial_seed = derive_seed(5, "training", top[0].number)
    seeds = [trial_seed, derive_seed(trial_seed, "seed-repeat", 1), derive_seed(trial_seed, "seed-repeat", 2)]
    single: list[Report] = []
    for number, seed in enumerate(seeds):
        job = Job(top[0].number, 0, Rung(0, 0), target=9, params=top[0].params)
        single.append(run_attempt(network, request_for(tmp_path / str(number), job, seed=seed)))
    own = {report.trial * 100 + grant.target: report for grant, report in reports(journal)}
    final = own[top[0].number * 100 + 9]
    assert final.repeats == tuple(report.metrics for report in single)
    assert final.metrics == {"loss": exact_mean([report.metrics["loss"] for report in single])}
    curve = [point for target in (1, 3, 9) for point in own[top[0].number * 100 + target].curve]
    assert [point.resource for point in curve] == list(range(1, 10))
    for place, point in enumerate(curve):
        assert point.metrics["loss"] == exact_mean([report.curve[place].metrics["loss"] for report in single])
    assert final.checkpoint is not None
    for number, report in enumerate(single):
        assert report.checkpoint is not None
        alone = files.load(tmp_path / str(number), report.checkpoint)
        among = files.load(folder, final.checkpoint, "checkpoints", repeat=number)
        assert not differences(alone["tracked"], among["tracked"]) and not differences(alone["random"], among["random"])
    assert not list((folder / "checkpoints").glob("*/*.repeat-*")), "nothing is left of the parts"


def test_seeds_differ_between_repeats_and_between_trials() -> None:
    spec = spec_with()
    seeds = [spec.training_seed(trial, repeat) for trial in range(50) for repeat in range(10)]
    assert len(set(seeds)) == len(seeds)
    assert [spec.training_seed(trial) for trial in range(50)] == seeds[::10], "number 0 is the trial's own"
    assert spec_with(repeats=1).training_seed(3) == seeds[30]


def promoted_by(values: dict[int, dict[int, float]], factor: int) -> set[tuple[int, int]]:
    """(trial, rung level) that the paper's rule allows to be promoted: the top 1/eta of a rung, Li et al. 2020."""
    allowed = set()
    for level, losses in values.items():
        ranked = sorted(losses, key=lambda trial: (losses[trial], trial))
        allowed |= {(trial, level) for trial in ranked[: len(ranked) // factor]}
    return allowed


def judge(journal: MemoryJournal, value: Any) -> int:
    """Promotions that the rule does not allow, with ``value`` of a report's single metrics as the loss."""
    values: dict[int, dict[int, float]] = {}
    levels: dict[int, int] = {}
    wrong = 0
    for entry in journal.entries("s"):
        if isinstance(entry.stimulus, AttemptReported):
            report = entry.stimulus.report
            assert isinstance(report.repeats, tuple) and len(report.repeats) == REPEATS
            values.setdefault(levels[report.trial], {})[report.trial] = value(report.repeats)
        for event in entry.events:
            if isinstance(event, JobGranted):
                before = levels.get(event.trial)
                wrong += before is not None and (event.trial, before) not in promoted_by(values, 3)
                levels[event.trial] = event.target
    return wrong


def test_promotions_go_by_the_mean_of_the_repeats(tmp_path: Path) -> None:
    spec = spec_with(search=LADDER | {"configs": 40, "max_resource": 27})
    study, journal = played(spec, tmp_path, noisy)
    assert judge(journal, lambda repeats: exact_mean([one["loss"] for one in repeats])) == 0
    assert judge(journal, lambda repeats: repeats[0]["loss"]) > 3, "the first repeat alone would not have done"
    assert judge(journal, lambda repeats: min(one["loss"] for one in repeats)) > 3, "nor the best"
    assert audit(journal.entries("s")).clean
    best = study.best
    assert best is not None
    assert best.loss == min(report.metrics["loss"] for _, report in reports(journal))


def noisy(trial: Any) -> None:
    for step in trial.steps():
        trial.report(loss=trial.params["x"] / (step + 1) + random.Random(f"{trial.seed}/{step}").random())


def test_the_best_repeat_is_what_one_model_is_read_from(
    trained: tuple[Study, MemoryJournal, Path], tmp_path: Path
) -> None:
    _, journal, folder = trained
    seen = set()
    for grant, report in reports(journal):
        assert isinstance(report.repeats, tuple) and report.checkpoint is not None
        path = folder / report.checkpoint.uri
        if not path.exists():  # no longer live
            continue
        losses = [one["loss"] for one in report.repeats]
        best = losses.index(min(losses))
        seen.add(best)
        plain = files.load(folder, report.checkpoint, "checkpoints")
        assert not differences(plain, files.load(folder, report.checkpoint, "checkpoints", repeat=best))
        assert plain["metrics"]["loss"] == min(losses) and plain["resource"] == grant.target
        assert write_weights(path, tmp_path / "w.safetensors") == "model"
        weights = load_file(tmp_path / "w.safetensors")
        model = plain["tracked"]["model"]
        assert weights.keys() == model.keys() and all(torch.equal(weights[key], model[key]) for key in model)
        with pytest.raises(CheckpointError, match="no state of seed repeat 3"):
            files.load(folder, report.checkpoint, "checkpoints", repeat=3)
    assert len(seen) > 1, "not always the same one"


def test_repeats_in_child_processes_give_the_same_and_share_a_log(tmp_path: Path) -> None:
    trainer = Trainer("tests.training.test_seed_repeats:network")
    try:
        checkpoint = None
        for attempt, target in enumerate((1, 3)):
            job = Job(4, attempt, Rung(0, attempt), target=target, params={"x": 0.3}, checkpoint=checkpoint)
            here, there = (request_for(tmp_path / name, job, repeats=REPEATS) for name in ("here", "there"))
            mine, theirs = run_attempt(network, here), trainer.run(there)
            assert theirs.outcome is Outcome.COMPLETED, theirs.detail
            assert (mine.metrics, mine.curve, mine.repeats) == (theirs.metrics, theirs.curve, theirs.repeats)
            assert mine.checkpoint == theirs.checkpoint and mine.checkpoint is not None, "the same bytes"
            checkpoint = mine.checkpoint
        log = (tmp_path / "there" / there.log_path).read_text()
        assert [line for line in log.splitlines() if line.startswith("hpo: repeat")] == [
            f"hpo: repeat {number} of 3, seed {seed}" for number, seed in enumerate(
                [9, derive_seed(9, "seed-repeat", 1), derive_seed(9, "seed-repeat", 2)]
            )
        ]  # fmt: skip
    finally:
        trainer.close()


@pytest.mark.parametrize(
    ("x", "outcome", "message"),
    [
        (0.25, Outcome.ERROR, "KeyError: 'no such layer' (repeat 1 of 3, counted from 0)"),
        (0.5, Outcome.CRASHED, "(repeat 1 of 3, counted from 0)"),
        (0.75, Outcome.DIVERGED, "Metric 'loss' is nan at step 2. (repeat 1 of 3, counted from 0)"),
    ],
)
def test_a_repeat_that_fails_or_diverges_ends_the_job(tmp_path: Path, x: float, outcome: Outcome, message: str) -> None:
    trainer = Trainer("tests.training.repeated_objectives:unlucky")
    try:
        job = Job(4, 0, Rung(0, 0), target=2, params={"x": x})
        report = trainer.run(request_for(tmp_path, job, "repeated_objectives:unlucky", repeats=3))
    finally:
        trainer.close()
    assert report.outcome is outcome and report.message.endswith(message) and report.checkpoint is None
    log = (tmp_path / "logs/trial-00004-attempt-0.log").read_text()
    assert "repeat 0 goes on in trial-00004\n" in log and "repeat 2 goes on" not in log


@pytest.mark.slow
def test_the_time_limit_holds_for_all_repeats_of_an_attempt_together(tmp_path: Path) -> None:
    trainer = Trainer("tests.training.repeated_objectives:slow")
    try:
        trainer.prepare()
        job = Job(4, 0, Rung(0, 0), target=2, params={"x": 0.5})
        report = trainer.run(request_for(tmp_path, job, "repeated_objectives:slow", repeats=20, timeout=2.0))
    finally:
        trainer.close()
    assert report.outcome is Outcome.TIMEOUT and "training.timeout = 2 s" in report.message
    assert "repeat 0 of" not in report.message


def test_an_objective_that_ignores_its_seed_is_told_so(tmp_path: Path) -> None:
    job = Job(0, 0, Rung(0, 0), target=2, params={"x": 0.5})
    report = run_attempt(deaf, request_for(tmp_path, job, repeats=3))
    assert report.metrics == {"loss": 0.5} and report.checkpoint is None
    assert isinstance(report.warnings, tuple) and "does not use its seed" in report.warnings[0]
    heard = run_attempt(network, request_for(tmp_path, job, repeats=3))
    assert heard.warnings is msgspec.UNSET
    assert run_attempt(deaf, request_for(tmp_path, job, repeats=1)).warnings is msgspec.UNSET


def remembers(trial: Any) -> None:
    """Each step adds a number of the repeat's own to what the parent's same repeat had."""
    memory = State(seen=[])
    trial.track(memory=memory)
    for _ in trial.steps():
        memory.seen = [*memory.seen, (trial.number, trial.repeat)]
        trial.report(loss=trial.params["x"] + 0.01 * trial.repeat + 1.0 / len(memory.seen))


def test_exploitation_goes_on_from_the_same_repeat_of_the_parent(tmp_path: Path) -> None:
    search = {"method": "pbt", "population": 4, "generations": 3, "steps_per_generation": 2}
    study, _ = played(spec_with(search=search), tmp_path, remembers)
    copied = 0
    for trial in study.state.trials:
        if trial.parent is None or trial.checkpoint() is None:
            continue
        checkpoint = trial.checkpoint()
        assert checkpoint is not None
        if not (tmp_path / checkpoint.uri).exists():
            continue
        for repeat in range(REPEATS):
            seen = files.load(tmp_path, checkpoint, "checkpoints", repeat=repeat)["tracked"]["memory"]["seen"]
            assert {number for _, number in seen} == {repeat}
            assert [number for number, _ in seen][-2:] == [trial.number] * 2
            assert [number for number, _ in seen][-4:-2] == [trial.parent] * 2
            copied += 1
    assert copied >= REPEATS
