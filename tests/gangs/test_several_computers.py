"""Gangs over two computers with networks and host names of their own, whose cable is pulled while they train."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from hpo_core.model.events import AttemptFailed, CapacityChanged, JobCompleted, JobGranted
from hpo_core.model.trial import Outcome
from tests.gangs.computers import Computers, two_computers
from tests.gangs.test_gang_runs import Runs

pytestmark = pytest.mark.slow
PORT = "8786"
"""Free: the network is the test's own."""
LISTENS = "0A"


class RunsThere(Runs):
    """Studies whose controller is on computer ``a``, with two worker threads on each."""

    def __init__(self, folder: Path, computers: Computers) -> None:
        super().__init__(folder)
        self.computers = computers
        self.address = f"tcp://{computers.address['a']}:{PORT}"
        computers.serve(
            "a", "dask.__main__", "scheduler", "--host", computers.address["a"], "--port", PORT, "--no-dashboard"
        )
        self.workers = {
            name: computers.serve(
                name, "dask.__main__", "worker", self.address, "--nthreads", "2", "--no-dashboard",
                "--host", computers.address[name],
            )
            for name in "ab"
        }  # fmt: skip

    def start(self, *arguments: Any) -> subprocess.Popen[str]:
        command = [*self.computers.within("a"), sys.executable, "-m", "hpo_flows", *map(str, arguments)]
        with (self.folder / "log").open("a") as log:
            return subprocess.Popen(command, stdout=log, stderr=log, text=True, env=self.environment, cwd=self.folder)

    def listening(self) -> set[tuple[str, int]]:
        """What listens on the two computers, by the kernel's tables: addresses in its own notation, and ports."""
        found = set()
        for worker in self.workers.values():
            for table in ("tcp", "tcp6"):
                for line in Path(f"/proc/{worker.pid}/net/{table}").read_text().splitlines()[1:]:
                    address, state = line.split()[1], line.split()[3]
                    if state == LISTENS:
                        found.add((address.partition(":")[0], int(address.partition(":")[2], 16)))
        return found


@pytest.fixture
def runs(tmp_path: Path) -> Iterator[RunsThere]:
    computers = two_computers(tmp_path)
    try:
        yield RunsThere(tmp_path, computers)
    finally:
        computers.close()


def _by_kernel(address: str) -> str:
    """Bytes in the machine's order."""
    return f"{int.from_bytes(socket.inet_aton(address), sys.byteorder):08X}"


def there(runs: RunsThere, **changes: Any) -> dict[str, Any]:
    training = {"worker_timeout": 10} | changes.pop("training", {})
    return {"cluster": {"kind": "address", "address": runs.address}, "training": training} | changes


def test_ranks_on_two_computers_train_what_one_process_trains(runs: RunsThere) -> None:
    runs.run("tune", runs.study("alone", 1, **there(runs)))
    before = runs.listening()
    process = runs.start("tune", runs.study("over", 4, **there(runs)))
    listening = set()
    while process.poll() is None:
        listening |= runs.listening()
    listening -= before
    runs.end(process)
    runs.whole("over")
    devices = runs.events("over", CapacityChanged)[-1].inventory.devices
    assert {device.name: device.slots for device in devices} == {runs.computers.address[name]: 2 for name in "ab"}
    assert {event.demand.slots for event in runs.events("over", JobGranted)} == {4}
    alone, over = (
        {(event.trial, event.resource): event.loss for event in runs.events(name, JobCompleted)}
        for name in ("alone", "over")
    )
    assert over == pytest.approx(alone, rel=1e-4)
    private = {_by_kernel(address) for address in ["127.0.0.1", *runs.computers.address.values()]}
    assert {address for address, _ in listening} <= private and listening, listening


def test_a_pulled_cable_ends_the_gang_as_one_lost_attempt_and_it_goes_on_later(runs: RunsThere) -> None:
    search = {"method": "random", "configs": 2, "max_resource": 6}
    constants = {"how": "slow", "culprit": -1}
    process = runs.start("tune", runs.study("cut", 4, "misbehaves", **there(runs, search=search, constants=constants)))
    runs.until(process, lambda: runs.exists("cut") and len(runs.pids("cut")) == 4)
    ranks = runs.pids("cut")
    runs.computers.plug("b", "down")
    runs.until(process, lambda: runs.events("cut", AttemptFailed))
    failed = runs.events("cut", AttemptFailed)
    assert [event.outcome for event in failed] == [Outcome.LOST], failed
    runs.until(process, lambda: "training.gang = 4 needs 4 slots at once, and the cluster has 2" in runs.log)
    runs.computers.plug("b")
    runs.end(process)
    study = runs.whole("cut")
    assert study.state.completed_jobs == 2
    assert not [rank for rank in ranks if psutil.pid_exists(rank) and psutil.Process(rank).status() != "zombie"]
