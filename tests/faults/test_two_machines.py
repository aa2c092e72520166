"""A scheduler by address and workers in folders of their own: one is killed, another comes, while a study runs."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest

from hpo_core.model.events import AttemptFailed, JobCompleted
from hpo_core.model.trial import Outcome
from tests.dask_processes import DaskProcesses
from tests.faults.test_real_study import Real

pytestmark = pytest.mark.slow


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """The folder of the home; skips where no folder can be hidden from a worker."""
    folder = tmp_path / "home"
    folder.mkdir(mode=0o700)
    if subprocess.run(["unshare", "-m", "mount", "-t", "tmpfs", "none", folder], capture_output=True).returncode:
        pytest.skip("this machine forbids mounts")
    return folder


@pytest.mark.parametrize("place", ["s3", "sftp"])
@pytest.mark.parametrize("method", ["asha", "pbt"])
def test_workers_without_the_folder_of_the_study_train_it(
    request: pytest.FixtureRequest, tmp_path: Path, dask_processes: DaskProcesses, home: Path, place: str, method: str
) -> None:
    """One worker sees the folder, one does not, one without it joins later; one of them is killed."""
    if place == "s3":
        request.getfixturevalue("on_s3")
        folder = "s3://bucket/hpo"
    else:
        server = request.getfixturevalue("on_sftp")
        folder = f"sftp://127.0.0.1:{server.port}{tmp_path}/served"
    dask_processes.add_worker("seeing")
    dask_processes.add_worker("one", hidden=home)
    search = {
        "asha": {"method": "asha", "configs": 40, "min_resource": 1, "max_resource": 9, "reduction_factor": 3},
        "pbt": {"method": "pbt", "population": 4, "generations": 8, "steps_per_generation": 1},
    }[method]
    real = Real(tmp_path, "heavy", cluster=dask_processes.cluster, search=search, checkpoints={"folder": folder})
    controller = real.start()
    real.wait_for_entries(8, controller)
    dask_processes.add_worker("two", hidden=home)
    real.wait_for_entries(14, controller)
    dask_processes.kill("one")
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
            assert not list((tmp_path / "dask" / name).rglob("*.safetensors")), "nothing is left on the workers"
