from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hpo_core.execution.in_process import first_job
from hpo_core.model.errors import SpecError
from hpo_core.model.trial import Job, Outcome, Rung
from hpo_core.placement.gpus import available_cores
from hpo_core.spec import StudySpec
from hpo_core.spec.assembly import THREAD_VARIABLES, oversubscription, threads_of
from hpo_core.training.request import JobRequests
from hpo_core.training.worker import TrainerPool
from tests.conftest import make_spec
from tests.job_requests import make_request

SHOWS = """
import os
def train(trial):
    for _ in trial.steps():
        trial.report(**{name: int(os.environ[name]) for name in trial.params["names"].split()})
"""
SLURM = {"kind": "slurm", "workers": 3, "cores": 6}


def spec(threads: Any, **cluster: Any) -> StudySpec:
    changes: dict[str, Any] = {"cluster": cluster} if cluster else {}
    return make_spec(training={"threads": threads}, objective="a:b", **changes)


def test_jobs_get_the_threads_and_trainers_are_kept_apart(tmp_path: Path) -> None:
    (tmp_path / "shows_threads.py").write_text(SHOWS)
    pool = TrainerPool()

    def numbers(attempt: int, threads: int | None) -> set[float]:
        job = Job(0, attempt, Rung(0, 0), 1, {"names": " ".join(THREAD_VARIABLES)})
        request = make_request(
            job=job, objective="shows_threads:train", metric=THREAD_VARIABLES[0], threads=threads,
            folder=str(tmp_path), pythonpath=(str(tmp_path),),
        )  # fmt: skip
        report = pool.run(request)
        assert report.outcome is Outcome.COMPLETED, report
        return set(report.metrics.values())

    try:
        assert numbers(0, 3) == {3.0}
        assert numbers(1, None) == {1.0}
        assert numbers(2, 3) == {3.0}
    finally:
        pool.close_all()


@pytest.mark.parametrize(
    ("threads", "cluster", "cores", "found"),
    [
        (None, {"kind": "local", "workers": 2}, 8, None),
        (5, {"kind": "local", "workers": 2}, 8, 5),
        ("auto", {"kind": "local", "workers": 3}, 8, 2),
        ("auto", {"kind": "local", "workers": 30}, 8, 1),
        ("auto", SLURM, 64, 6),
    ],
)
def test_auto_is_a_workers_share_of_the_cores(threads: Any, cluster: Any, cores: int, found: int | None) -> None:
    assert threads_of(spec(threads, **cluster), cores) == found


@pytest.mark.parametrize(
    ("threads", "cluster", "words"),
    [
        (
            "auto",
            {"kind": "address", "address": "tcp://127.0.0.1:1"},
            "does not say how many cores a worker has; give a number",
        ),
        ("auto", {"kind": "local_cuda"}, "does not say how many cores a worker has; give a number"),
        (0, {}, "greater than or equal to 1"),
        ("many", {}, "'auto'"),
    ],
)
def test_what_cannot_be_is_refused(threads: Any, cluster: Any, words: str) -> None:
    with pytest.raises(SpecError, match=words):
        spec(threads, **cluster)


def test_request_and_journal_have_it() -> None:
    found = spec("auto", kind="local", workers=1)
    request = JobRequests(found, "/nowhere").of(first_job(found))
    assert request.setup.threads == available_cores() >= 1
    again = StudySpec.from_journal(found.plain())
    assert again.training.threads == "auto"


@pytest.mark.parametrize(
    ("threads", "workers", "environment", "words"),
    [
        (None, 4, {}, ""),
        (None, 4, {"OMP_NUM_THREADS": "2"}, "4 workers with 2 threads each"),
        (None, 5, {}, "5 workers share 4 CPU cores"),
        (2, 2, {}, ""),
        (2, 3, {"OMP_NUM_THREADS": "1"}, "Cure: training.threads: auto, or fewer workers."),
        ("auto", 3, {}, ""),
        (None, 4, {"OMP_NUM_THREADS": "4,2"}, ""),
    ],
)
def test_more_threads_than_cores_are_told(threads: Any, workers: int, environment: Any, words: str) -> None:
    said = oversubscription(spec(threads, kind="local", workers=workers), 4, environment)
    assert words in said and bool(words) == bool(said)
    assert oversubscription(spec(64, **SLURM), 4, environment) == ""
