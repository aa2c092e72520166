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

    def run(name: str, *arguments: str, hidden: Path | None = None) -> subprocess.Popen[bytes]:
        folder = tmp_path / name
        folder.mkdir()
        command = [sys.executable, "-m", *arguments]
        if hidden is not None:
            script = 'mount -t tmpfs none "$1" && shift && exec "$@"'
            command = ["unshare", "-m", "sh", "-c", script, "sh", str(hidden), *command]
        with (folder / "log").open("wb") as log:
            process = subprocess.Popen(
                command, cwd=folder, stdout=log, stderr=log, start_new_session=True,
                env=os.environ | {"PYTHONPATH": str(ROOT), "HOME": str(folder)},
            )  # fmt: skip
        running.append(process)
        return process

    yield run
    for process in reversed(running):  # the scheduler last: a worker whose scheduler is gone may not hear it
        process.terminate()
        try:
            process.wait(600)
        except subprocess.TimeoutExpired:
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
def worker(start: Start, address: str) -> Start:
    """Starts a worker; ``hidden``: a folder that is empty for it."""

    def run(name: str, hidden: Path | None = None) -> subprocess.Popen[bytes]:
        return start(
            name, "distributed.cli.dask_worker", address, "--host", "127.0.0.1", "--nthreads", "1", "--no-nanny",
            "--no-dashboard", "--name", name, "--local-directory", f"{name}-scratch",
            hidden=hidden,
        )  # fmt: skip

    return run


def test_a_study_continues_when_one_worker_dies_and_another_joins(tmp_path: Path, address: str, worker: Start) -> None:
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


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """The folder of the home; skips where no folder can be hidden from a worker."""
    folder = tmp_path / "home"
    folder.mkdir(mode=0o700)
    if subprocess.run(["unshare", "-m", "mount", "-t", "tmpfs", "none", folder], capture_output=True).returncode:
        pytest.skip("this machine forbids mounts")
    return folder


@pytest.mark.parametrize("place", ["carried", "s3", "sftp"])
@pytest.mark.parametrize("method", ["asha", "pbt"])
def test_workers_without_the_folder_of_the_study_train_it(
    request: pytest.FixtureRequest, tmp_path: Path, address: str, start: Start, home: Path, place: str, method: str
) -> None:
    """One worker sees the folder, one does not, one without it joins later; one of them is killed."""
    changes = {}
    if place == "s3":
        request.getfixturevalue("on_s3")
        changes["checkpoints"] = {"folder": "s3://bucket/hpo"}
    elif place == "sftp":
        server = request.getfixturevalue("on_sftp")
        changes["checkpoints"] = {"folder": f"sftp://127.0.0.1:{server.port}{tmp_path}/served"}
    worker = request.getfixturevalue("worker")
    worker("seeing")
    killed = worker("one", hidden=home)
    search = {
        "asha": {"method": "asha", "configs": 40, "min_resource": 1, "max_resource": 9, "reduction_factor": 3},
        "pbt": {"method": "pbt", "population": 4, "generations": 8, "steps_per_generation": 1},
    }[method]
    real = Real(tmp_path, "heavy", cluster={"kind": "address", "address": address}, search=search, **changes)
    controller = real.start()
    real.wait_for_entries(8, controller)
    worker("two", hidden=home)
    real.wait_for_entries(14, controller)
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    real.wait_for_entries(real.entries() + 4, controller)
    os.kill(controller.pid, signal.SIGKILL)
    controller.wait()
    study = real.finish(None if method == "asha" else 32)
    events = [event for entry in real.home.open_journal().entries("real") for event in entry.events]
    failed = [event for event in events if isinstance(event, AttemptFailed)]
    assert {event.outcome for event in failed} <= {Outcome.LOST}, failed
    done = [event for event in events if isinstance(event, JobCompleted)]
    assert len({event.worker for event in done}) == 3
    kept = real.checkpoint_files()
    assert kept == study.checkpoints.uris and study.state.best_checkpoint().uri in kept
    for name in ("one", "two", "seeing"):
        if name != "one":
            assert not list((tmp_path / name).rglob("*.safetensors")), "nothing is left on the workers"
    logs = {path.name for path in (real.home.study_folder("real") / "logs").iterdir()}
    assert {f"trial-{event.trial:05d}-attempt-{event.attempt}.log" for event in done} <= logs
