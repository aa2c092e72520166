"""Several workers in one process, each with a GPU of its own: no trainer ever serves another GPU."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Literal

import pytest

from hpo_core.model.trial import Job, Outcome, Rung
from hpo_core.training.request import JobRequest
from hpo_core.training.worker import TrainerPool
from tests.job_requests import make_request

SHOWS = """
import os

AT_IMPORT = int(os.environ.get("CUDA_VISIBLE_DEVICES", "-1"))

def train(trial):
    for _ in trial.steps():
        trial.report(imported=AT_IMPORT, ran=int(os.environ.get("CUDA_VISIBLE_DEVICES", "-1")), pid=os.getpid())
"""
GPUS = ("", "0", "3", "12")


@pytest.fixture
def pool() -> Iterator[TrainerPool]:
    found = TrainerPool()
    yield found
    found.close_all()


def request(folder: Path, trial: int, gpu: str, process: Literal["fresh", "kept"] = "fresh") -> JobRequest:
    (folder / "shows_gpu.py").write_text(SHOWS)
    return make_request(
        job=Job(trial, 0, Rung(0, 0), 1, {}), objective="shows_gpu:train", metric="imported", folder=str(folder),
        pythonpath=(str(folder),), process=process, gpu=gpu, worker=f"worker {gpu}",
    )  # fmt: skip


def test_each_attempt_sees_its_gpu_at_import_and_run_in_any_order(
    pool: TrainerPool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fresh and kept, at once and one after the other."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    before, dice = dict(os.environ), random.Random(0)
    gpus = [dice.choice(GPUS) for _ in range(12)]
    kinds: list[Literal["fresh", "kept"]] = [dice.choice(["fresh", "kept"]) for _ in gpus]
    requests = [request(tmp_path, number, *each) for number, each in enumerate(zip(gpus, kinds, strict=True))]
    with ThreadPoolExecutor(3) as threads:
        reports = list(threads.map(pool.run, requests))
    assert {report.outcome for report in reports} == {Outcome.COMPLETED}
    seen = [(report.metrics["imported"], report.metrics["ran"]) for report in reports]
    assert seen == [(int(gpu or -1), int(gpu or -1)) for gpu in gpus]
    of_process: dict[float, set[str]] = {}
    for report, gpu in zip(reports, gpus, strict=True):
        of_process.setdefault(report.metrics["pid"], set()).add(gpu)
    assert all(len(served) == 1 for served in of_process.values())
    assert len(of_process) < len(gpus), "some processes were kept for a further attempt"
    assert dict(os.environ) == before


def test_a_process_that_waits_on_one_gpu_is_not_ended_for_an_attempt_on_another(
    pool: TrainerPool, tmp_path: Path
) -> None:
    """It holds memory of its own GPU."""
    first, other, again = (
        pool.run(request(tmp_path, trial, gpu, "kept")).metrics["pid"] for trial, gpu in enumerate(("0", "3", "0"))
    )
    assert again == first != other
    assert pool.run(request(tmp_path, 3, "3", "kept")).metrics["pid"] == other


def test_what_runs_on_a_worker_is_ended_alone(pool: TrainerPool, tmp_path: Path) -> None:
    (tmp_path / "waits.py").write_text("import time\ndef train(trial):\n    time.sleep(3600)\n")
    waiting = [
        make_request(
            job=Job(trial, 0, Rung(0, 0), 1, {}), objective="waits:train", grace=0.5,
            folder=str(tmp_path), pythonpath=(str(tmp_path),), gpu=gpu, worker=f"worker {gpu}",
        )
        for trial, gpu in enumerate(("0", "3"))
    ]  # fmt: skip
    with ThreadPoolExecutor(2) as threads:
        ends = [threads.submit(pool.run, each) for each in waiting]
        while not (pool.processes("0") and pool.processes("3")):
            assert not any(end.done() for end in ends)
        assert [list(pool.heartbeats(f"worker {gpu}")) for gpu in "03"] == [
            [f"{tmp_path}/trial-{trial}/attempt-0"] for trial in (0, 1)
        ]
        pool.cancel_on("worker 0")
        assert ends[0].result(600).outcome is Outcome.PREEMPTED
        assert pool.processes("3") and not pool.processes("0") and not pool.processes("")
        pool.cancel_on("worker 3")
        assert ends[1].result(600).outcome is Outcome.PREEMPTED
