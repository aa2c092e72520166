"""The controller's or scheduler's host dies or is cut; another host goes on with the study."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from hpo_core.model.events import JobCompleted
from tests.hosts.conftest import MakeLab
from tests.hosts.lab import Process
from tests.hosts.services import PostgreSQLHost
from tests.hosts.studies import LIMIT, Cluster, FarStudy
from tests.hosts.test_worker_cut import PATIENT

pytestmark = [pytest.mark.slow, pytest.mark.postgresql]


def made(make_lab: MakeLab, shared: Path) -> FarStudy:
    """Scheduler on h1, controllers on h2 and h6, workers on h3 and h4, PostgreSQL on h5."""
    lab = make_lab(6)
    database = PostgreSQLHost(lab["h5"])
    cluster = Cluster(lab, shared, scheduler="h1", workers="h3 h4")
    return FarStudy(
        shared, cluster, database=database, seconds=0.5,
        search={"method": "asha", "configs": 24, "min_resource": 4, "max_resource": 36, "reduction_factor": 3},
    )  # fmt: skip


def resumed(study: FarStudy, host: str) -> Process:
    """A controller on another host, started again and again until it may have the study."""
    deadline = time.monotonic() + LIMIT
    while True:
        before = len(study.entries())
        process = study.resume(host)
        while process.poll() is None:
            if len(study.entries()) > before and study.entries()[-1].epoch > 1:
                return process
            assert time.monotonic() < deadline, process.said
            time.sleep(0.2)
        assert "is being driven by" in process.said, process.said


def test_another_host_resumes_when_the_controllers_host_has_died(make_lab: MakeLab, shared: Path) -> None:
    study = made(make_lab, shared)
    process = study.tune("h2")
    study.until(lambda: len(study.events(JobCompleted)) >= 3, process)
    study.lab["h2"].off()
    second = resumed(study, "h6")
    study.end(second)
    study.whole()
    assert {outcome for outcome, _ in study.failures()} <= {"lost"}


def test_a_controller_that_was_cut_comes_back_and_changes_nothing(make_lab: MakeLab, shared: Path) -> None:
    study = made(make_lab, shared)
    first = study.tune("h2")
    study.until(lambda: len(study.events(JobCompleted)) >= 3, first)
    study.lab.cut("h2")
    second = resumed(study, "h6")
    taken = len(study.entries())
    study.lab.heal("h2")
    code = first.wait(LIMIT)
    assert code != 0
    study.end(second)
    study.whole()
    assert {entry.epoch for entry in study.entries()[taken:]} == {study.entries()[taken].epoch}


def test_the_study_is_resumed_when_the_schedulers_host_has_died(make_lab: MakeLab, shared: Path) -> None:
    study = made(make_lab, shared)
    first = study.tune("h2")
    study.until(lambda: len(study.events(JobCompleted)) >= 3, first)
    study.lab["h1"].off()
    assert first.wait(LIMIT) == 1
    workers = [study.lab["h3"], study.lab["h4"]]
    study.until(lambda: not any(host.processes() for host in workers), None)
    study.lab["h1"].on()
    study.cluster.start_scheduler()
    for host in workers:
        study.cluster.start_worker(host.name)
    study.end(study.resume("h6"))
    study.whole()


def test_clocks_that_differ_and_jump_steal_no_lease_and_end_no_attempt(make_lab: MakeLab, shared: Path) -> None:
    """Controller at the right time, another ten minutes ahead, workers two minutes behind and ahead; then jumps.

    A worker's clock goes back by less than ``worker_timeout``: Dask times heartbeats by it, and sends none meanwhile.
    """
    lab = make_lab(6, clocks={"h2": 0.0, "h3": -120.0, "h4": 120.0, "h6": 600.0})
    database = PostgreSQLHost(lab["h5"])
    cluster = Cluster(lab, shared, scheduler="h1", workers="h3 h4", settings=PATIENT)
    study = FarStudy(
        shared, cluster, database=database, env=PATIENT,
        search={"method": "random", "configs": 24, "max_resource": 15},
        training={"timeout": 300, "stall_timeout": 60}, stop={"seconds": 7200},
    )  # fmt: skip
    process = study.tune("h2")
    study.until(lambda: study.training("h3") and study.training("h4"), process)
    second = study.resume("h6")
    for host, ahead in (("h2", 3600.0), ("h3", 3600.0), ("h4", 90.0), ("h2", -120.0)):
        done = len(study.events(JobCompleted))
        lab[host].clock = ahead
        study.until(lambda done=done: len(study.events(JobCompleted)) > done, process)  # type: ignore[misc]
    assert second.wait(LIMIT) != 0 and "is being driven by" in second.said, second.said
    study.end(process)
    study.whole(lost=0)
