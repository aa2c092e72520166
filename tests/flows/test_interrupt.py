"""Ctrl-C, SIGTERM, and a Dask cluster that lives longer than its controllers."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from tests.faults.test_real_study import descendants
from tests.flows.conftest import LIMIT, ROOT, Runner, wait_for_entries


@pytest.mark.parametrize(
    "number", [pytest.param(signal.SIGINT, marks=pytest.mark.slow), signal.SIGTERM], ids=["ctrl-c", "sigterm"]
)
def test_interrupt_ends_children_and_leaves_a_resumable_study(hpo: Runner, number: int) -> None:
    search = {"method": "random", "configs": 20, "max_resource": 2}
    process = hpo.start("tune", hpo.study("slow", search=search, prefect="auto"))
    wait_for_entries(hpo, "toy", 4, process)
    children = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(number)
    out, err = process.communicate(timeout=LIMIT)
    assert process.returncode == 130, out + err
    assert "hpo resume toy" in err and "Traceback" not in out + err
    _, alive = psutil.wait_procs(children, timeout=600)
    assert not [p for p in alive if p.status() != psutil.STATUS_ZOMBIE]
    status = hpo.json("status", "toy")
    assert status["status"] == "halted" and status["reason"] == "interrupted"
    facts = hpo.json("resume", "toy", "--no-prefect")
    assert facts["status"] == "finished" and facts["trials"] == 20
    assert "clean" in hpo("audit", "toy")


@pytest.fixture
def dask_cluster() -> Iterator[str]:
    """A scheduler and two workers of their own, on free ports of 127.0.0.1."""
    with dask_processes() as address:
        yield address


@contextmanager
def dask_processes() -> Iterator[str]:
    """The address of a scheduler with two workers, ended afterwards."""
    holder = socket.socket()  # bound while they run: the port is given to no other process before the scheduler has it
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    holder.bind(("127.0.0.1", 0))
    port = holder.getsockname()[1]
    address = f"tcp://127.0.0.1:{port}"
    dask = [sys.executable, "-m", "distributed.cli.dask_scheduler"]
    worker = [sys.executable, "-m", "distributed.cli.dask_worker"]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    processes = [
        subprocess.Popen(
            [*dask, "--host", "127.0.0.1", "--port", str(port), "--dashboard-address", "127.0.0.1:0"],
            cwd=ROOT, **quiet,  # type: ignore[call-overload]
        )
    ]  # fmt: skip
    processes += [
        subprocess.Popen(
            [*worker, address, "--nthreads", "1", "--no-dashboard", "--host", "127.0.0.1"],
            cwd=ROOT, **quiet,  # type: ignore[call-overload]
        )
        for _ in range(2)
    ]  # fmt: skip
    try:
        yield address
    finally:
        for process in reversed(processes):
            process.terminate()
        for process in processes:
            try:
                process.wait(LIMIT)
            except subprocess.TimeoutExpired:
                process.kill()
        holder.close()


def children_called(word: str) -> list[psutil.Process]:
    """Our living children whose command line holds a word."""
    found = []
    for child in psutil.Process().children():
        try:
            if any(word in part for part in child.cmdline()):
                found.append(child)
        except psutil.Error:  # it ended just now
            continue
    return found


@pytest.mark.slow
def test_cluster_by_address_outlives_a_killed_controller(hpo: Runner, dask_cluster: str, tmp_path: Path) -> None:
    file = hpo.study(
        "slow",
        cluster={"kind": "address", "address": dask_cluster},
        search={"method": "random", "configs": 12, "max_resource": 6},
    )
    process = hpo.start("tune", file)
    wait_for_entries(hpo, "toy", 3, process)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    facts = hpo.json("resume", "toy")
    assert facts["status"] == "finished" and facts["trials"] == 12
    assert "clean" in hpo("audit", "toy")
    workers = children_called("dask_worker")
    assert len(workers) == 2, "the user's workers are not ours to end"
    for worker in workers:
        stand_in = subprocess.Popen.__new__(subprocess.Popen)
        stand_in.pid = worker.pid
        assert not descendants(stand_in, "hpo_core.training.child.zygote"), "trainers left on the user's workers"


def test_scheduler_that_dies_is_said(hpo: Runner, dask_cluster: str) -> None:
    file = hpo.study(
        "slow",
        cluster={"kind": "address", "address": dask_cluster},
        search={"method": "random", "configs": 30, "max_resource": 6},
    )
    process = hpo.start("tune", file)
    wait_for_entries(hpo, "toy", 3, process)
    scheduler = children_called("dask_scheduler")[0]
    scheduler.kill()
    out, err = process.communicate(timeout=LIMIT)
    assert process.returncode == 1, out + err
    assert "The Dask scheduler at" in err and "hpo resume toy" in err and "Traceback" not in err
    assert hpo.json("status", "toy")["status"] in ("halted", "interrupted")


@pytest.mark.slow
def test_no_scheduler_at_the_address(hpo: Runner) -> None:
    text = hpo("tune", hpo.study(cluster={"kind": "address", "address": "tcp://127.0.0.1:9"}), code=1)
    assert "No Dask scheduler answers at tcp://127.0.0.1:9" in text and "Traceback" not in text
