"""Gangs through a real ``hpo tune`` on a Dask cluster: exact, and whole after every kill."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from hpo_core import Study
from hpo_core.home import Home
from hpo_core.model.events import AttemptFailed, CapacityChanged, Entry, JobCompleted, JobGranted
from hpo_core.model.trial import Outcome
from hpo_core.replay.audit import audit
from tests.dask_processes import DaskProcesses
from tests.slurm.one_node import free_ports

ROOT = Path(__file__).parents[2]
LIMIT = 900
pytestmark = pytest.mark.slow


class Runs:
    """Studies in a home of their own, driven by the command line."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.home = folder / "home"
        self.environment = os.environ | {"HPO_HOME": str(self.home), "PREFECT_HOME": str(folder / "prefect")}
        self.seen: set[psutil.Process] = set()

    def study(self, name: str, gang: int, function: str = "train", workers: int = 4, **changes: Any) -> Path:
        plain: dict[str, Any] = {
            "study": name,
            "objective": f"tests.gangs.lab:{function}",
            "pythonpath": [str(ROOT)],
            "metric": {"name": "loss", "mode": "min"},
            "space": {"lr": {"type": "float", "low": 0.003, "high": 0.03}},
            "search": {"method": "sha", "configs": 4, "min_resource": 1, "max_resource": 4, "reduction_factor": 2},
            "cluster": {"kind": "local", "workers": workers},
            "training": {"gang": gang, "stall_timeout": 20} | changes.pop("training", {}),
            "prefect": "off",
            "tracking": {"mlflow": "off"},
        }
        path = self.folder / f"{name}.json"
        path.write_text(json.dumps(plain | changes))
        return path

    def start(self, *arguments: Any) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "hpo_flows", *map(str, arguments)]
        with (self.folder / "log").open("a") as log:
            return subprocess.Popen(command, stdout=log, stderr=log, text=True, env=self.environment, cwd=self.folder)

    def end(self, process: subprocess.Popen[str], code: int = 0) -> None:
        deadline = time.monotonic() + LIMIT
        while process.poll() is None:
            assert time.monotonic() < deadline, self.log
            self.look(process)
            time.sleep(0.2)
        assert process.returncode == code, self.log

    def run(self, *arguments: Any, code: int = 0) -> None:
        self.end(self.start(*arguments), code)

    def look(self, process: subprocess.Popen[str]) -> list[psutil.Process]:
        try:
            found = psutil.Process(process.pid).children(recursive=True)
        except psutil.Error:
            return []
        self.seen.update(found)
        return found

    def until(self, process: subprocess.Popen[str], condition: Callable[[], Any]) -> Any:
        deadline = time.monotonic() + LIMIT
        while not (found := condition()):
            assert process.poll() is None and time.monotonic() < deadline, self.log
            self.look(process)
            time.sleep(0.1)
        return found

    @property
    def log(self) -> str:
        return (self.folder / "log").read_text()[-5000:]

    def entries(self, name: str) -> list[Entry]:
        journal = Home(self.home).open_journal()
        try:
            return list(journal.entries(name))
        finally:
            journal.close()

    def exists(self, name: str) -> bool:
        if not (self.home / "journal.db").exists():
            return False
        journal = Home(self.home).open_journal()
        try:
            return name in {info.name for info in journal.studies()}
        finally:
            journal.close()

    def whole(self, name: str) -> Study:
        """The study, which is finished and clean, and has left no process and no meeting place behind."""
        entries = self.entries(name)
        report = audit(entries)
        assert report.clean, report.findings
        study = Study.from_entries(entries)
        study.check()
        assert study.status == "finished"
        assert not list((self.home / "studies" / name).glob("gangs/*"))
        left = psutil.wait_procs(list(self.seen), timeout=600)[1]
        assert not [process for process in left if process.status() != psutil.STATUS_ZOMBIE]
        return study

    def events(self, name: str, kind: type) -> list[Any]:
        return [event for entry in self.entries(name) for event in entry.events if isinstance(event, kind)]

    def pids(self, name: str) -> list[int]:
        files = sorted((self.home / "studies" / name / "scratch").glob("*/rank-*.pid"))
        return [int(text) for file in files if (text := file.read_text())]


@pytest.fixture
def runs(tmp_path: Path) -> Iterator[Runs]:
    made = Runs(tmp_path)
    yield made
    for process in made.seen:
        if process.is_running():
            process.kill()


ONE_TRIAL = {"method": "random", "configs": 1, "max_resource": 3}


def test_rungs_of_two_and_four_ranks_equal_those_of_one_process_and_a_straight_training(runs: Runs) -> None:
    losses = {}
    for gang in (1, 2, 4):
        runs.run("tune", runs.study(f"rungs-{gang}", gang))
        losses[gang] = {
            (event.trial, event.resource): event.metrics["loss"] for event in runs.events(f"rungs-{gang}", JobCompleted)
        }
        assert {grant.demand.slots for grant in runs.events(f"rungs-{gang}", JobGranted)} == {gang}
        if gang > 1:
            runs.whole(f"rungs-{gang}")
            assert losses[gang] == pytest.approx(losses[1], rel=1e-4)
    assert len(losses[1]) == 4 + 2 + 1
    straight = {"method": "random", "configs": 4, "max_resource": 4}
    runs.run("tune", runs.study("straight", 4, search=straight))
    digests = {event.trial: event.checkpoint.digest for event in runs.events("straight", JobCompleted)}
    (last,) = [event for event in runs.events("rungs-4", JobCompleted) if event.resource == 4]
    assert last.checkpoint.digest == digests[last.trial], "three jobs end where one does, to the bit"


def test_a_worker_that_dies_takes_its_gang_along_and_it_begins_again(runs: Runs, dask_processes: DaskProcesses) -> None:
    for name in ("one", "two", "three"):
        dask_processes.add_worker(name)
    constants = {"how": "slow", "culprit": -1}
    search = {"method": "random", "configs": 1, "max_resource": 20}
    path = runs.study("worker", 3, "misbehaves", search=search, constants=constants, cluster=dask_processes.cluster)
    process = runs.start("tune", path)
    pids = runs.until(process, lambda: pids if len(pids := runs.pids("worker")) == 3 else None)
    dask_processes.kill(dask_processes.name_of(psutil.Process(pids[1])))
    dask_processes.add_worker("four")
    runs.end(process)
    (failure,) = runs.events("worker", AttemptFailed)
    assert failure.outcome is Outcome.LOST and failure.worker and failure.message.startswith("Rank ")
    assert "Dask worker" in failure.message
    runs.whole("worker")


def test_after_a_controller_is_killed_nothing_is_left_and_a_resume_goes_on(runs: Runs) -> None:
    constants = {"how": "slow", "culprit": -1}
    search = {"method": "random", "configs": 2, "max_resource": 8}
    process = runs.start("tune", runs.study("killed", 2, "misbehaves", workers=2, search=search, constants=constants))
    runs.until(process, lambda: len(runs.pids("killed")) == 2)
    runs.look(process)
    process.send_signal(signal.SIGKILL)
    process.wait()
    left = psutil.wait_procs(list(runs.seen), timeout=600)[1]
    assert not [one for one in left if one.status() != psutil.STATUS_ZOMBIE]
    assert list((runs.home / "studies" / "killed" / "gangs").iterdir()), "its ranks had met there"
    runs.run("resume", "killed")
    study = runs.whole("killed")
    assert len(study.state.trials) == 2 and study.state.completed_jobs == 2


def test_a_gang_that_does_not_fit_waits_with_a_word_until_workers_join(runs: Runs) -> None:
    runs.run("tune", runs.study("refused", 5), code=2)
    assert "training.gang = 5 needs 5 slots at once, and cluster.workers gives 4" in runs.log
    port = str(free_ports(1)[0])
    address = f"tcp://127.0.0.1:{port}"
    servers = [_server("dask.__main__", "scheduler", "--host", "127.0.0.1", "--port", port, "--no-dashboard")]
    worker = ("dask.__main__", "worker", address, "--nthreads", "2", "--no-dashboard", "--host")
    try:
        servers.append(_server(*worker, "127.0.0.1"))
        cluster = {"kind": "address", "address": address}
        process = runs.start("tune", runs.study("waits", 4, search=ONE_TRIAL, cluster=cluster))
        runs.until(process, lambda: "training.gang = 4 needs 4 slots at once, and the cluster has 2" in runs.log)
        runs.until(process, lambda: runs.exists("waits"))
        assert not runs.events("waits", JobGranted)
        servers.append(_server(*worker, "127.0.0.2"))  # another computer, as far as addresses say
        runs.end(process)
        runs.whole("waits")
        assert [grant.demand.slots for grant in runs.events("waits", JobGranted)] == [4]
        devices = runs.events("waits", CapacityChanged)[-1].inventory.devices
        assert {device.name: device.slots for device in devices} == {"127.0.0.1": 2, "127.0.0.2": 2}
    finally:
        for server in reversed(servers):
            server.terminate()
            server.wait(600)


def _server(*arguments: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=ROOT
    )
