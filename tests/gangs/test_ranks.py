"""Gangs of real processes on gloo: the same training as one process, exact resumes, and every way to end badly."""

from __future__ import annotations

import difflib
import inspect
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from hpo_core.checkpoints import files
from hpo_core.gangs.process_group import gang_report
from hpo_core.model.trial import Checkpoint, Job, Outcome, Report, Rung
from hpo_core.training.request import ALONE, RankPlace
from hpo_core.training.worker import TrainerPool
from tests.job_requests import make_request

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.slow


class Gangs:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.pool = TrainerPool()
        self._attempt = -1

    def train(
        self,
        size: int,
        target: int,
        function: str = "train",
        *,
        start: Checkpoint | None = None,
        metric: str = "loss",
        params: dict[str, Any] | None = None,
        **limits: Any,
    ) -> Report:
        self._attempt += 1
        job = Job(0, self._attempt, Rung(0, 0), target, {"lr": 0.01} | (params or {}), checkpoint=start)
        reports: list[Report | None] = [None] * size
        store = str(self.folder / uuid.uuid4().hex)

        def one(rank: int) -> None:
            place = RankPlace(rank=rank, size=size, local_rank=rank, local_size=size, store=store)
            reports[rank] = self.pool.run(
                make_request(
                    study="lab",
                    job=job,
                    objective=_objective(function),
                    metric=metric,
                    seed=5,
                    folder=str(self.folder),
                    pythonpath=(str(ROOT),),
                    gang=place if size > 1 else ALONE,
                    **limits,
                )
            )

        threads = [threading.Thread(target=one, args=(rank,)) for rank in range(size)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return gang_report([report for report in reports if report is not None])


def _objective(function: str) -> str:
    if ":" in function:
        return function
    return f"tests.gangs.{'library_lab' if '_with_' in function else 'lab'}:{function}"


@pytest.fixture
def gangs(tmp_path: Path) -> Iterator[Gangs]:
    before = set(psutil.Process().children(recursive=True))  # of tests before this one, as a server for all of them
    made = Gangs(tmp_path)
    yield made
    children = set(psutil.Process().children(recursive=True)) - before
    made.pool.close_all()
    assert not [child for child in psutil.wait_procs(children, timeout=600)[1] if child.is_running()]


def losses(report: Report) -> list[float]:
    assert report.outcome is Outcome.COMPLETED, report.message + report.detail
    return [point.metrics["loss"] for point in report.curve]


@pytest.mark.parametrize("function", ["train", "train_plainly"])
def test_two_and_four_ranks_train_what_one_process_trains(gangs: Gangs, function: str) -> None:
    alone = losses(gangs.train(1, 5, function))
    assert len(alone) == 5 and alone[-1] < alone[0]
    for size in (2, 4):
        report = gangs.train(size, 5, function)
        assert losses(report) == pytest.approx(alone, rel=1e-5)
        assert not report.warnings


@pytest.mark.parametrize("function", ["train", "train_noisy"])
@pytest.mark.parametrize("size", [2, 4])
def test_a_resume_at_each_rung_is_exact(gangs: Gangs, function: str, size: int) -> None:
    whole = gangs.train(size, 6, function)
    again = gangs.train(size, 6, function)
    assert whole.checkpoint is not None and again.checkpoint is not None
    assert again.checkpoint.digest == whole.checkpoint.digest, "the same ranks give the same bits"
    rung, curve = None, []
    for target in (1, 2, 4, 6):
        report = gangs.train(size, target, function, start=rung)
        curve += losses(report)
        rung = report.checkpoint
    assert rung is not None and curve == losses(whole)
    assert rung.digest == whole.checkpoint.digest


def test_a_checkpoint_goes_on_with_any_number_of_ranks_and_without_a_gang(gangs: Gangs) -> None:
    alone = losses(gangs.train(1, 4))
    first = gangs.train(4, 1)
    second = gangs.train(2, 2, start=first.checkpoint)
    third = gangs.train(1, 3, start=second.checkpoint)
    fourth = gangs.train(4, 4, start=third.checkpoint)
    found = [losses(one)[-1] for one in (first, second, third, fourth)]
    assert found == pytest.approx(alone, rel=1e-5)
    for report in (first, third, fourth):
        assert report.checkpoint is not None
        state = files.load(gangs.folder, report.checkpoint)
        assert not [key for key in state["tracked"]["model"] if key.startswith("module.")]
        assert "ranks" not in state, "all ranks drew alike"
    noisy = gangs.train(4, 1, "train_noisy")
    assert noisy.checkpoint is not None
    assert len(files.load(gangs.folder, noisy.checkpoint)["ranks"]) == 4
    for size in (1, 2):
        assert gangs.train(size, 2, "train_noisy", start=noisy.checkpoint).outcome is Outcome.COMPLETED


def test_the_example_has_two_new_lines_and_its_ranks_stay_alike(gangs: Gangs) -> None:
    """It shuffles and drops out by the same generator, and its last batch has parts of two sizes."""
    from examples.digits import train as digits
    from examples.gangs import train as in_gangs

    alone = inspect.getsource(digits.train).splitlines()
    together = inspect.getsource(in_gangs.train).splitlines()
    changed = [line for line in difflib.ndiff(alone, together) if line[0] in "+-"]
    assert len(changed) == 2 and all("trial.data_parallel(" in line or "trial.shard(" in line for line in changed)
    params = {"width": 24, "dropout": 0.2, "optimizer": "adam", "learning_rate": 0.01, "weight_decay": 0.0}
    how: dict[str, Any] = {"params": params | {"batch_size": 64}, "metric": "val_loss"}
    objective = "examples.gangs.train:train"
    whole = gangs.train(3, 3, objective, **how)
    first = gangs.train(3, 1, objective, **how)
    rest = gangs.train(3, 3, objective, start=first.checkpoint, **how)
    assert whole.outcome is Outcome.COMPLETED, whole.message + whole.detail
    assert rest.checkpoint is not None and whole.checkpoint is not None
    assert rest.checkpoint.digest == whole.checkpoint.digest
    assert "ranks" not in files.load(gangs.folder, whole.checkpoint)


@pytest.mark.parametrize(
    ("how", "outcome", "words"),
    [
        ("raise", Outcome.ERROR, "Rank 2 of 3: KeyError: 'no such layer'"),
        ("memory", Outcome.OUT_OF_MEMORY, "Rank 2 of 3: MemoryError: all of it"),
        ("exit", Outcome.CRASHED, "Rank 2 of 3: The training process exited by itself with code 3"),
        ("kill", Outcome.CRASHED, "Rank 2 of 3: The training process was ended by SIGKILL"),
        ("leave", Outcome.ERROR, "Rank 2 of 3: ObjectiveError: The training function left the loop"),
        (
            "metric",
            Outcome.ERROR,
            "Rank 2 of 3 reported 'loss', 'other' at step 3, and rank 0 'loss': report the same metrics on all ranks",
        ),
        ("apart", Outcome.ERROR, "What is tracked as 'model' differs between rank 1 of 3 and rank 0"),
        ("stop", Outcome.HUNG, "Rank 2 of 3: No step was finished within training.stall_timeout = 15 s"),
        ("spin", Outcome.HUNG, "Rank 2 of 3: No step was finished within training.stall_timeout = 15 s"),
    ],
)
def test_a_rank_that_fails_ends_the_gang_as_one_attempt(gangs: Gangs, how: str, outcome: Outcome, words: str) -> None:
    params = {"how": how, "culprit": 2}
    report = gangs.train(3, 3, "misbehaves", params=params, stall_timeout=15.0, grace=1.0)
    assert report.outcome is outcome, report.message
    assert report.message.removeprefix("ObjectiveError: ").startswith(words), report.message
    assert report.checkpoint is None
    assert not list((gangs.folder / "checkpoints").rglob("*.safetensors*"))
    state = {"stop": "was stopped", "spin": "was running"}.get(how, "")
    assert state in report.message


def test_what_a_gang_on_one_node_listens_on_is_the_loopback_interface(gangs: Gangs) -> None:
    seen: set[str] = set()
    ended = threading.Event()

    def look() -> None:
        while not ended.wait(0.05):
            for child in psutil.Process().children(recursive=True):
                try:
                    found = child.net_connections(kind="inet")
                except psutil.Error:
                    continue
                seen.update(one.laddr.ip for one in found if one.status == psutil.CONN_LISTEN)

    watcher = threading.Thread(target=look)
    watcher.start()
    report = gangs.train(3, 4, "misbehaves", params={"how": "slow", "culprit": -1})
    ended.set()
    watcher.join()
    assert report.outcome is Outcome.COMPLETED
    assert seen == {"127.0.0.1"}
