"""A scheduler by address and workers in folders of their own: one is killed, another comes, while a study runs."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hpo_core.model.events import AttemptFailed, JobCompleted
from hpo_core.model.trial import Outcome
from tests.faults.test_real_study import ROOT, Real
from tests.flows.conftest import LIMIT

Start = Callable[..., subprocess.Popen[bytes]]

pytestmark = pytest.mark.slow


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts a Dask command in a folder of its own, as another machine would."""
    running: list[subprocess.Popen[bytes]] = []

    def run(name: str, *arguments: str) -> subprocess.Popen[bytes]:
        folder = tmp_path / name
        folder.mkdir()
        with (folder / "log").open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", *arguments], cwd=folder, stdout=log, stderr=log, start_new_session=True,
                env=os.environ | {"PYTHONPATH": str(ROOT), "HOME": str(folder)},
            )  # fmt: skip
        running.append(process)
        return process

    yield run
    for process in running:
        process.terminate()
    for process in running:
        try:
            process.wait(600)
        except subprocess.TimeoutExpired:  # a worker whose scheduler is gone already may not hear it
            process.kill()
            process.wait()


@pytest.fixture
def address(start: Start) -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    start("scheduler", "distributed.cli.dask_scheduler", "--host", "127.0.0.1", "--port", str(port), "--no-dashboard")
    return f"tcp://127.0.0.1:{port}"


@pytest.fixture
def worker(start: Start, address: str) -> Callable[[str], subprocess.Popen[bytes]]:
    def run(name: str) -> subprocess.Popen[bytes]:
        return start(
            name, "distributed.cli.dask_worker", address, "--host", "127.0.0.1", "--nthreads", "1", "--no-nanny",
            "--no-dashboard", "--name", name, "--local-directory", f"{name}-scratch",
        )  # fmt: skip

    return run


def test_a_study_continues_when_one_worker_dies_and_another_joins(
    tmp_path: Path, address: str, worker: Callable[[str], subprocess.Popen[bytes]]
) -> None:
    first, _ = worker("one"), worker("two")
    search = {"method": "asha", "configs": 60, "min_resource": 1, "max_resource": 9, "reduction_factor": 3}
    shared = f"local://{tmp_path}/shared"  # by its URL, so that all goes through fsspec
    real = Real(
        tmp_path, cluster={"kind": "address", "address": address}, search=search, checkpoints={"folder": shared}
    )
    controller = real.start()
    real.wait_for_entries(8, controller)
    first.send_signal(signal.SIGKILL)
    first.wait()
    killed = real.entries()
    real.wait_for_entries(killed + 6, controller)
    came = time.time()
    worker("three")
    assert controller.wait(LIMIT) == 0, real.log.read_text()[-3000:]
    study = real.assert_whole()
    events = [event for entry in real.home.open_journal().entries("real") for event in entry.events]
    assert [event.outcome for event in events if isinstance(event, AttemptFailed)] == [Outcome.LOST]
    done = [event for event in events if isinstance(event, JobCompleted)]
    workers = {event.worker for event in done}
    assert len(workers) == 3, "all three have trained"
    late = {event.worker for event in done if event.started > came}
    assert len(late) == 2 and workers - late, "the third one after it came, the first one not any more"
    resumed = [event for event in done if event.resource > 1]
    assert resumed and all(event.checkpoint is not None for event in resumed)
    kept = {f"{shared}/{path.relative_to(tmp_path / 'shared')}" for path in tmp_path.glob("shared/real/*/*")}
    assert kept == study.checkpoints.uris and study.state.best_checkpoint().uri in kept
    for name in ("one", "two", "three"):
        assert not list((tmp_path / name).rglob("*.safetensors")), "checkpoints lie in the shared place alone"
    assert not list(real.home.folder.rglob("*.safetensors"))
