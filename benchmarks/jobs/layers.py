"""Our own path, a layer at a time, without Prefect and MLflow.

- ``child``: two threads, each with a trainer that forks a child per job; no cluster;
- ``dask``: the same jobs through DaskExecutor, two in flight; no study;
- ``driver``: a study with the SQL journal, driven by Driver; tells also what a decision took.
"""

from __future__ import annotations

import argparse
import queue
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from slots import SLOTS, answer

from hpo_core.execution.loop import CheckpointCleanup, Loop, Takeover
from hpo_core.journal.sql import current_owner, open_journal
from hpo_core.model.devices.inventory import Slot
from hpo_core.model.trial import Job, Report, Rung
from hpo_core.spec import StudySpec
from hpo_core.study import Study
from hpo_core.training.request import JobRequest, StudySetup
from hpo_core.training.worker import train_job, trainers
from hpo_flows.dask.executor import DaskExecutor

HERE = str(Path(__file__).resolve().parent)


def spec(objective: str, jobs: int) -> StudySpec:
    return StudySpec.from_plain(
        {
            "study": "layers",
            "objective": objective,
            "pythonpath": [HERE],
            "metric": {"name": "loss"},
            "space": {"x": {"type": "float", "low": 0.0, "high": 1.0}},
            "search": {"method": "random", "configs": jobs, "max_resource": 1},
            "cluster": {"kind": "local", "workers": SLOTS},
        }
    )


def job(number: int) -> Job:
    return Job(number, 0, Rung(0, 0), 1, {"x": 0.5})


def by_child(objective: str, jobs: int, folder: Path) -> list[Report]:
    for _ in range(SLOTS):
        trainers.prepare(objective, (HERE,))
    numbers: queue.SimpleQueue[int] = queue.SimpleQueue()
    for number in range(jobs):
        numbers.put(number)
    reports: list[Report] = []

    setup = StudySetup(study="layers", objective=objective, metrics=("loss",), folder=str(folder), pythonpath=(HERE,))

    def slot() -> None:
        while True:
            try:
                number = numbers.get_nowait()
            except queue.Empty:
                return
            request = JobRequest(setup=setup, job=job(number), seed=1)
            reports.append(train_job(request))

    threads = [threading.Thread(target=slot) for _ in range(SLOTS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    trainers.close_all()
    return reports


def by_dask(objective: str, jobs: int, folder: Path) -> list[Report]:
    executor = DaskExecutor(spec(objective, jobs), str(folder))
    executor.start()
    ended: queue.SimpleQueue[Report] = queue.SimpleQueue()
    reports: list[Report] = []
    try:
        for number in range(SLOTS):
            executor.submit(job(number), Slot(0, 0, "dask"), lambda _, report: ended.put(report))
        submitted = SLOTS
        while len(reports) < jobs:
            reports.append(ended.get())
            if submitted < jobs:
                executor.submit(job(submitted), Slot(0, 0, "dask"), lambda _, report: ended.put(report))
                submitted += 1
    finally:
        executor.close()
    return reports


class _Watch:
    def __init__(self) -> None:
        self.reports: list[Report] = []

    def on_report(self, report: Report, _granted: list[Job]) -> None:
        self.reports.append(report)

    def on_tick(self) -> None:
        """Not needed."""

    def close(self) -> None:
        """Nothing is open."""


def by_driver(objective: str, jobs: int, folder: Path) -> tuple[list[Report], dict[str, Any]]:
    valid = spec(objective, jobs)
    journal = open_journal(str(folder / "journal.db"))
    study = Study.create(valid, journal)
    owner = current_owner()
    study.epoch = journal.claim(study.name, owner)
    executor = DaskExecutor(valid, str(folder))
    executor.start()
    watch = _Watch()
    tell, spent = study.tell_report, []

    def timed(report: Report) -> list[Job]:
        began = time.perf_counter()
        granted = tell(report)
        spent.append(time.perf_counter() - began)
        return granted

    study.tell_report = timed  # type: ignore[method-assign]
    try:
        Loop(
            study,
            executor,
            checkpoints=CheckpointCleanup(study, folder),
            observers=[watch],
            takeover=Takeover(owner=owner),
        ).run()
    finally:
        executor.close()
    return watch.reports, {"decision_and_journal_ms": round(sum(spent) / len(spent) * 1e3, 3)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layer", choices=("child", "dask", "driver"), required=True)
    parser.add_argument("--jobs", type=int, default=500)
    parser.add_argument("--objective", default="objective:train")
    given = parser.parse_args()
    more: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="hpo-bench-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        for part in ("checkpoints", "logs"):
            (folder / part).mkdir()
        if given.layer == "child":
            reports = by_child(given.objective, given.jobs, folder)
        elif given.layer == "dask":
            reports = by_dask(given.objective, given.jobs, folder)
        else:
            reports, more = by_driver(given.objective, given.jobs, folder)
    failed = [report for report in reports if report.outcome != "completed"]
    if failed:
        raise SystemExit(f"{len(failed)} jobs failed, the first with: {failed[0].message}")
    answer([(report.started, report.ended) for report in reports], **more)


if __name__ == "__main__":
    main()
