from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import pytest

from hpo_core.model.devices.inventory import Portion
from hpo_core.model.devices.measurement import Usage
from hpo_core.model.trial import Job, Outcome, Report, Rung
from hpo_core.training.child.shared_progress import FIRST_SECONDS
from hpo_core.training.request import JobRequest
from hpo_core.training.worker import TrainerPool
from tests.job_requests import make_request
from tests.waiting import eventually

HERE = str(Path(__file__).parent)
OBJECTIVE = "usage_objectives:dispatch"
MB = 1_000_000
INHERITED = 80 * MB


@dataclasses.dataclass
class Bench:
    pool: TrainerPool
    folder: Path

    def request(self, do: str, *, target: int = 1, attempt: int = 0, **options: Any) -> JobRequest:
        limits = {name: options.pop(name) for name in ("portion", "threads", "metric") if name in options}
        return make_request(
            job=Job(0, attempt, Rung(0, 0), target, {"do": do, **options}),
            objective=OBJECTIVE,
            folder=str(self.folder),
            pythonpath=(HERE,),
            timeout=600.0,
            **{"metric": "loss", **limits},
        )

    def run(self, do: str, **options: Any) -> Report:
        return self.pool.run(self.request(do, **options))


@pytest.fixture(scope="module")
def pool() -> Iterator[TrainerPool]:
    pool = TrainerPool()
    yield pool
    pool.close_all()


@pytest.fixture
def bench(pool: TrainerPool, tmp_path: Path) -> Bench:
    return Bench(pool, tmp_path)


def cpu_share(memory: int, capacity: int, **changes: Any) -> Portion:
    given = {"device": "node", "architecture": "CPU", "compute": 1000, "cores": 1000, **changes}
    return Portion(memory=memory, capacity=capacity, **given)


def test_memory_cores_startup_and_unit_are_what_the_child_did(bench: Bench) -> None:
    report = bench.run("known", mb=150, looks=3, startup=0.3, cpu=0.1, sleep=0.15, target=3)
    until = time.time()
    assert report.outcome is Outcome.COMPLETED, report
    usage, wall, inner = report.usage, report.metrics["wall"], report.metrics["inner"]
    assert isinstance(usage, Usage)
    assert 148 * MB < usage.memory < 170 * MB
    assert usage.startup_seconds >= 0.3
    assert inner / 3 <= usage.unit_seconds <= wall / 3
    seconds = until - report.metrics["began_at"]  # the start-up, which slept, is not in the mean
    assert usage.cores * seconds > 0.29 and usage.cores * wall < 0.42
    assert (usage.device_memory, usage.compute, usage.share, usage.device) == (None, None, None, "")


def test_a_job_that_is_over_before_the_first_look_is_measured(bench: Bench) -> None:
    for attempt in range(1000):  # at least three; on a busy machine, until one is over before the first look
        report = bench.run("known", mb=60, attempt=attempt)
        if attempt > 1 and report.ended - report.started < FIRST_SECONDS / 2:
            break
    assert isinstance(report.usage, Usage)
    assert 58 * MB < report.usage.memory < 58 * MB + INHERITED
    assert report.usage.startup_seconds > 0 and report.usage.unit_seconds > 0


def test_memory_of_the_zygote_counts_once_it_is_written_to(bench: Bench) -> None:
    only_read = bench.run("writes_what_it_inherited", write=False).usage
    written = bench.run("writes_what_it_inherited", write=True, attempt=1).usage
    assert isinstance(only_read, Usage) and isinstance(written, Usage)
    assert only_read.memory < 20 * MB
    assert INHERITED - 2 * MB < written.memory < INHERITED + 20 * MB


def test_processes_that_it_starts_count(bench: Bench) -> None:
    usage = bench.run("starts_processes", mb=50).usage
    assert isinstance(usage, Usage)
    assert 98 * MB < usage.memory < 130 * MB


def test_a_killed_attempt_reports_what_it_used_until_then(bench: Bench) -> None:
    report = bench.run("killed", mb=100)
    assert report.outcome is Outcome.CRASHED
    assert isinstance(report.usage, Usage)
    assert 98 * MB < report.usage.memory < 120 * MB


def in_background(bench: Bench, iterations: int, *, seconds: float) -> tuple[list[Report], threading.Thread, Any]:
    request = bench.request("minibatches", mb=90, iterations=iterations, file=str(bench.folder / "go"))
    reports: list[Report] = []
    thread = threading.Thread(target=lambda: reports.append(bench.pool.run(request)))
    thread.start()
    until = time.monotonic() + seconds
    while not (found := bench.pool.usages()) and time.monotonic() < until:
        time.sleep(0.02)
    return reports, thread, found.get(f"{bench.folder}/trial-0/attempt-0")


def test_a_running_attempt_tells_what_it_uses_once_its_profile_is_complete(bench: Bench) -> None:
    reports, thread, found = in_background(bench, 10, seconds=600)
    (bench.folder / "go").touch()
    thread.join(600)
    usage = msgspec.convert(found, Usage)
    assert 88 * MB < usage.memory < 110 * MB
    assert usage.unit_seconds == 0.0  # no unit has ended yet
    assert reports[0].outcome is Outcome.COMPLETED
    assert bench.pool.usages() == {}


def test_a_lost_attempt_keeps_what_was_known_of_it(bench: Bench) -> None:
    reports, thread, found = in_background(bench, 10, seconds=600)
    ((trainer, *_),) = bench.pool._running.values()
    trainer.kill()
    thread.join(600)
    assert reports[0].outcome is Outcome.LOST
    assert msgspec.to_builtins(reports[0].usage) == found


def test_memory_that_its_processes_share_counts_once(bench: Bench) -> None:
    report = bench.run("shares_with_processes", mb=150, portion=cpu_share(200 * MB, 1000 * MB))
    assert report.outcome is Outcome.COMPLETED, report.message
    assert isinstance(report.usage, Usage)
    assert 148 * MB < report.usage.memory < 200 * MB


def test_an_attempt_that_takes_more_than_its_share_is_ended(bench: Bench) -> None:
    report = bench.run("grows", mb=3000, portion=cpu_share(100 * MB, 2000 * MB))
    assert report.outcome is Outcome.OUT_OF_MEMORY
    assert "100 MB is its share of node" in report.message and "packing.demand.memory" in report.message
    assert isinstance(report.usage, Usage)
    assert 110 * MB < report.usage.memory < 1000 * MB


@pytest.mark.parametrize(("limit", "outcome"), [(120 * MB, Outcome.OUT_OF_MEMORY), (400 * MB, Outcome.COMPLETED)])
def test_the_limit_of_a_running_attempt_is_lowered(bench: Bench, limit: int, outcome: Outcome) -> None:
    """It took 90 MB, and takes 200 MB once the file is there; its share is 300 MB."""
    request = bench.request(
        "minibatches",
        mb=90,
        iterations=10,
        file=str(bench.folder / "go"),
        then=110,
        portion=cpu_share(300 * MB, 1000 * MB),
    )
    with ThreadPoolExecutor(1) as threads:
        running = threads.submit(bench.pool.run, request)
        eventually(bench.pool.usages)
        assert not bench.pool.limit(0, 7, str(bench.folder), limit), "another attempt"
        assert bench.pool.limit(0, 0, str(bench.folder), limit)
        (bench.folder / "go").touch()
        report = running.result(600)
    assert report.outcome is outcome, report.message
    assert isinstance(report.usage, Usage) and report.usage.share == (1000, min(limit, 300 * MB), 1000)
    if outcome is Outcome.OUT_OF_MEMORY:
        assert "120 MB is its share of node" in report.message
    assert not bench.pool.limit(0, 0, str(bench.folder), limit), "it ended"


def test_no_process_gets_more_than_jobs_may_use_together(bench: Bench) -> None:
    report = bench.run("at_once", mb=500, portion=cpu_share(100 * MB, 300 * MB))
    assert report.outcome is Outcome.OUT_OF_MEMORY
    assert "MemoryError" in report.message and "300 MB" in report.message
    assert isinstance(report.usage, Usage) and report.usage.memory < 300 * MB


def test_a_native_library_that_aborts_for_want_of_memory_is_out_of_memory(bench: Bench) -> None:
    report = bench.run("native_library", mb=500, portion=cpu_share(100 * MB, 300 * MB))
    assert report.outcome is Outcome.OUT_OF_MEMORY, report.message
    assert "got no memory" in report.message and "may use 300 MB together" in report.message


@pytest.mark.parametrize(("cores", "found"), [(3500, 3.0), (200, 1.0)])
def test_threads_follow_from_the_cores_of_the_share(bench: Bench, cores: int, found: float) -> None:
    threadpoolctl = pytest.importorskip("threadpoolctl")
    pytest.importorskip("numpy")
    has_pools = bool(threadpoolctl.threadpool_info())  # not of a numpy built without a BLAS
    report = bench.run("threads", portion=cpu_share(1000 * MB, 30_000 * MB, cores=cores))
    assert report.outcome is Outcome.COMPLETED, report
    assert (report.metrics["omp"], report.metrics["blas"]) == (found, found if has_pools else 0)
