"""Ctrl-C, SIGTERM, and a Dask cluster that lives longer than its controllers."""

from __future__ import annotations

import os
import signal

import psutil
import pytest

from tests.dask_processes import DaskProcesses
from tests.faults.test_real_study import descendants
from tests.flows.conftest import LIMIT, Runner, wait_for_entries


@pytest.mark.parametrize(
    ("number", "prefect"),
    [
        pytest.param(signal.SIGINT, "auto", marks=pytest.mark.slow, id="ctrl-c"),
        pytest.param(signal.SIGTERM, "off", marks=pytest.mark.slow, id="sigterm"),
        pytest.param(signal.SIGTERM, "auto", marks=pytest.mark.slow, id="sigterm-in-prefect"),
    ],
)
def test_interrupt_ends_children_and_leaves_a_resumable_study(hpo: Runner, number: int, prefect: str) -> None:
    search = {"method": "random", "configs": 20, "max_resource": 2}
    process = hpo.start("tune", hpo.study("slow", search=search, prefect=prefect))
    wait_for_entries(hpo, "toy", 4, process)
    children = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(number)
    out, err = process.communicate(timeout=LIMIT)
    assert process.returncode == 130, out + err
    assert "hpo resume toy" in err and "Traceback" not in out + err and " of 0 trials" not in out + err
    _, alive = psutil.wait_procs(children, timeout=600)
    assert not [p for p in alive if p.status() != psutil.STATUS_ZOMBIE]
    status = hpo.json("status", "toy")
    assert status["status"] == "halted" and status["reason"] == "interrupted"
    facts = hpo.json("resume", "toy", "--no-prefect")
    assert facts["status"] == "finished" and facts["trials"] == 20
    assert "clean" in hpo("audit", "toy")


@pytest.fixture
def dask_cluster(dask_processes: DaskProcesses) -> DaskProcesses:
    for name in ("one", "two"):
        dask_processes.add_worker(name, nanny=True)
    return dask_processes


@pytest.mark.slow
def test_cluster_by_address_outlives_a_killed_controller(hpo: Runner, dask_cluster: DaskProcesses) -> None:
    file = hpo.study(
        "slow",
        cluster=dask_cluster.cluster,
        search={"method": "random", "configs": 12, "max_resource": 6},
    )
    process = hpo.start("tune", file)
    wait_for_entries(hpo, "toy", 3, process)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    facts = hpo.json("resume", "toy")
    assert facts["status"] == "finished" and facts["trials"] == 12
    assert "clean" in hpo("audit", "toy")
    for worker in dask_cluster.workers.values():
        assert worker.poll() is None, "the user's workers are not ours to end"
        assert not descendants(worker, "hpo_core.training.child.zygote"), "trainers left on the user's workers"


@pytest.mark.slow
def test_scheduler_that_dies_is_said(hpo: Runner, dask_cluster: DaskProcesses) -> None:
    file = hpo.study(
        "slow",
        cluster=dask_cluster.cluster,
        search={"method": "random", "configs": 30, "max_resource": 6},
    )
    process = hpo.start("tune", file)
    wait_for_entries(hpo, "toy", 3, process)
    dask_cluster.scheduler.kill()
    out, err = process.communicate(timeout=LIMIT)
    assert process.returncode == 1, out + err
    assert "The Dask scheduler at" in err and "hpo resume toy" in err and "Traceback" not in err
    assert hpo.json("status", "toy")["status"] == "halted"
