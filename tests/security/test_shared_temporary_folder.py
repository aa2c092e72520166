"""The folder of temporary files, ``/tmp``, is everybody's: nothing there may be predictable or open to others."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import distributed
import pytest

import hpo_core
from hpo_core.home import Home
from hpo_flows.dask.executor import DaskExecutor
from tests.conftest import make_spec
from tests.deployed.deployment_server import Deployed, serving
from tests.faults.test_real_study import Real
from tests.flows.conftest import LIMIT, ROOT, Runner
from tests.python.training import train
from tests.security.watched_folder import watched

STRANGER = 4321
"""Another user of the machine; only root can be one. Else the same user plants what that one would."""


@pytest.fixture
def shared(open_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for temporary files in which everybody may make their own, as in ``/tmp``."""
    folder = open_folder / "tmp"
    folder.mkdir()
    folder.chmod(0o1777)
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr(tempfile, "tempdir", None)
    return folder


def as_stranger(script: str, *arguments: str | Path) -> str:
    """What a script says that another user runs."""
    user = {"user": STRANGER, "group": STRANGER, "extra_groups": []} if os.geteuid() == 0 else {}
    python = "/usr/bin/python3" if Path("/usr/bin/python3").exists() else sys.executable
    done = subprocess.run(
        [python, "-c", script, *map(str, arguments)],
        capture_output=True, text=True, timeout=600, check=True, cwd="/", **user,  # type: ignore[call-overload]
    )  # fmt: skip
    return str(done.stdout)


@contextlib.contextmanager
def wide_modes() -> Iterator[None]:
    """Files that nobody restricts are open to everybody."""
    before = os.umask(0)
    try:
        yield
    finally:
        os.umask(before)


PLANT = """
import os, sys
folder, *targets = sys.argv[1:]
os.umask(0)
os.mkdir(folder, 0o777)
for name, target in zip(("global.lock", "purge.lock"), targets):
    os.symlink(target, os.path.join(folder, name))
"""


@pytest.mark.slow
def test_links_that_another_user_planted_in_dasks_scratch_folder_empty_no_file(
    tmp_path: Path, open_folder: Path, shared: Path
) -> None:
    thesis = [tmp_path / "chapter-1", tmp_path / "chapter-2"]
    for chapter in thesis:
        chapter.write_text("months of work")
    planted = shared / "dask-scratch-space"
    as_stranger(PLANT, planted, *thesis)
    Real(tmp_path, "good", search={"method": "random", "configs": 2, "max_resource": 1}).finish(2)
    assert [chapter.read_text() for chapter in thesis] == ["months of work"] * 2
    assert {path.name for path in planted.iterdir()} == {"global.lock", "purge.lock"}


@pytest.mark.parametrize(
    "cluster",
    [
        {"kind": "local", "workers": 2},
        pytest.param({"kind": "local_cuda"}, marks=pytest.mark.slow),
    ],
)
def test_scratch_folders_of_scheduler_and_workers_are_private(
    tmp_path: Path, shared: Path, monkeypatch: pytest.MonkeyPatch, cluster: dict[str, Any]
) -> None:
    """Dask's servers import from their scratch folders first: whoever writes there runs code."""
    monkeypatch.delenv("OMP_NUM_THREADS")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    before = dict(os.environ)
    home = Home(tmp_path / "home")
    spec = make_spec(cluster=cluster, objective="json:loads")
    executor = DaskExecutor(spec, str(home.study_folder("world", create=True)))
    try:
        executor.start()
        started = executor._kind.cluster
        servers = [started.scheduler, *started.workers.values()]
        places = [Path(server.local_directory) for server in servers]
        assert not [entry for entry in sys.path if Path(entry).is_relative_to(home.folder)]
        assert not [place for place in places if place.is_relative_to(shared)]
        scratch = [place for place in places if "dask-scratch-space" in place.parts]
        assert len(scratch) == len(servers) and all(place.is_relative_to(home.folder) for place in scratch), scratch
        open_ones = [place for place in scratch if place.stat().st_mode & 0o077]
        assert not open_ones, open_ones
        assert dict(os.environ) == before, "it is the user's process"
    finally:
        executor.close()
    assert dict(os.environ) == before
    assert not list(shared.iterdir())


@pytest.mark.slow
def test_worker_threads_of_this_process_leave_no_folder_to_import_from(shared: Path) -> None:
    """Studies without a home have theirs below ``/tmp``: whoever made that name later had code imported here."""
    names = [f"s{number}" for number in range(3)]
    with ThreadPoolExecutor(3) as threads:  # servers of Dask that end in another order than they began
        calls = [
            threads.submit(
                hpo_core.tune, train, {"x": hpo_core.Float(0, 1)}, metric="loss", max_trials=2, name=name, home=None
            )
            for name in names
        ]
    assert all(call.result().best for call in calls)
    assert not [entry for entry in sys.path if Path(entry).is_relative_to(shared)]


@pytest.mark.slow
def test_a_study_with_its_own_servers_leaves_nothing_in_the_shared_folder(tmp_path: Path, shared: Path) -> None:
    """Prefect's server, MLflow's copy, the workers, the report; and `hpo ui`, which shows all of it."""
    hpo = Runner(tmp_path, {}, prefect="auto")
    study = hpo.study(search={"method": "random", "configs": 2, "max_resource": 1}, tracking={})
    with wide_modes(), watched(shared) as folder:
        hpo("tune", study)
        hpo("project", "toy")
        ui = hpo.start("ui")
        try:
            assert ui.stdout is not None
            assert any(line.startswith("Reports:") for line in ui.stdout)
        finally:
            ui.send_signal(signal.SIGINT)
            ui.communicate(timeout=LIMIT)
    assert folder.made, "what they do make is seen"
    assert not [made for made in folder.made if not made.is_private]
    assert not list(shared.iterdir())


@pytest.mark.slow
def test_a_deployment_and_its_worker_leave_nothing_in_the_shared_folder(
    tmp_path: Path, shared: Path, deployments_api: dict[str, str]
) -> None:
    with wide_modes(), watched(shared) as folder, serving(Deployed(tmp_path, deployments_api)) as deployed:
        deployed.completed("tune-file", file="toy.yaml")
    assert folder.made, "what they do make is seen"
    assert not [made for made in folder.made if not made.is_private]
    deadline = time.monotonic() + LIMIT
    while left := list(shared.iterdir()):  # a process that shows the study in Prefect ends by itself
        assert time.monotonic() < deadline, left
        time.sleep(0.1)


@pytest.mark.slow
def test_scheduler_and_workers_of_the_slurm_profile_leave_nothing_in_the_shared_folder(
    tmp_path: Path, shared: Path
) -> None:
    home, profile = tmp_path / "home", ROOT / "deployments" / "slurm"
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment = os.environ | {
        "HPO_HOME": str(home), "HPO_VENV": sys.prefix, "HPO_INTERFACE": "lo", "HPO_PORT": str(port),
    }  # fmt: skip
    with wide_modes(), watched(shared) as folder:
        batches = [
            subprocess.Popen(["bash", str(profile / name)], env=environment, cwd=tmp_path, start_new_session=True)
            for name in ("scheduler.sbatch", "workers.sbatch")
        ]
        try:
            with distributed.Client(f"tcp://127.0.0.1:{port}", timeout=LIMIT, set_as_default=False) as client:
                client.wait_for_workers(1, timeout=LIMIT)
                assert {path.name for path in home.iterdir()} == {"dask-scheduler.json", "dask-scratch-space"}
                assert home.stat().st_mode & 0o777 == 0o700
        finally:
            for batch in batches:
                batch.terminate()
                batch.wait(LIMIT)
    assert not [made for made in folder.made if not made.is_private]
    assert not list(shared.iterdir())
