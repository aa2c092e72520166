"""A worker's host is cut from the others while its processes go on."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from hpo_core.model.events import JobCompleted
from tests.hosts.conftest import MakeLab
from tests.hosts.studies import Cluster, FarStudy

pytestmark = pytest.mark.slow
PATIENT = {"DASK_DISTRIBUTED__COMM__TIMEOUTS__TCP": "150s"}
"""As docs/how-to/use-my-own-dask-cluster.md says: longer than ``worker_timeout``."""
SEARCH = {"method": "random", "configs": 3, "max_resource": 70}


def begun(make_lab: MakeLab, shared: Path, settings: dict[str, str], **changes: Any) -> tuple[FarStudy, Any]:
    """A study whose controller is on h2, scheduler on h1, and whose two workers, on h3 and h4, train."""
    lab = make_lab(4)
    cluster = Cluster(lab, shared, scheduler="h1", workers="h3 h4", settings=settings)
    study = FarStudy(shared, cluster, env=settings, **({"search": SEARCH} | changes))
    process = study.tune("h2")
    study.until(lambda: study.training("h3") and study.training("h4"), process)
    return study, process


@pytest.mark.parametrize("seconds", [10, 45])
def test_a_cut_within_the_limit_loses_nothing(make_lab: MakeLab, shared: Path, seconds: float) -> None:
    study, process = begun(make_lab, shared, PATIENT)
    study.lab.cut("h3")
    time.sleep(seconds)
    assert study.training("h3", within=10)
    study.lab.heal("h3")
    study.end(process)
    study.whole(lost=0)


def test_beyond_the_limit_the_attempt_is_lost_once_and_its_late_result_is_refused(
    make_lab: MakeLab, shared: Path
) -> None:
    """The cut attempt trains to its end, which nobody hears in time; healed, its worker counts again."""
    changes = {"training": {"worker_timeout": 15}, "search": {"method": "random", "configs": 6, "max_resource": 30}}
    study, process = begun(make_lab, shared, PATIENT, **changes)
    study.lab.cut("h3")
    study.until(study.failures, process)
    assert study.training("h3", within=10), "it does not know"
    study.until(lambda: not study.training("h3", within=5), process)
    study.lab.heal("h3")
    healed = time.time()
    study.end(process)
    study.whole(lost=1)
    assert "gave no sign of life for 15 s" in study.failures()[0][1]
    address = study.lab["h3"].address
    assert [event for event in study.events(JobCompleted) if event.started > healed and address in event.worker]


SHORT = {"method": "asha", "configs": 8, "min_resource": 2, "max_resource": 18, "reduction_factor": 3}


@pytest.mark.parametrize(
    "link",
    [{"delay": "100ms", "loss": 0.05}, {"delay": "10ms", "rate": "10mbit"}],
    ids=["200 ms and 5 % lost", "10 Mbit/s"],
)
def test_bad_links_of_all_hosts_lose_no_attempt(make_lab: MakeLab, shared: Path, link: dict[str, float]) -> None:
    """200 ms there and back. Checkpoints of 100 MB go to the shared folder, reports and code over the link."""
    lab = make_lab(4)
    results = []
    for name, quality in (("calm", {}), ("bad", link)):
        cluster = Cluster(lab, shared / name, scheduler="h1", workers="h3 h4")
        for host in lab if quality else []:
            host.link(**quality)
        study = FarStudy(shared / name, cluster, search=SHORT, seconds=0.2, megabytes=25)
        began = time.monotonic()
        study.end(study.tune("h2"))
        print(f"{name}: {time.monotonic() - began:.0f} s")
        study.whole(lost=0)
        results.append(study.results())
        cluster.stop()
    shared_results = results[0].keys() & results[1].keys()
    assert len(shared_results) >= 8
    assert {key: results[0][key] for key in shared_results} == {key: results[1][key] for key in shared_results}
