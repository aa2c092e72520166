"""The folder of temporary files, ``/tmp``, is everybody's: nothing there may be predictable or open to others."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from hpo_core.home import Home
from hpo_flows.dask.executor import DaskExecutor
from tests.conftest import make_spec
from tests.flows.conftest import LIMIT, Runner
from tests.security.watched_folder import watched


@pytest.fixture
def shared(open_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for temporary files in which everybody may make their own, as in ``/tmp``."""
    folder = open_folder / "tmp"
    folder.mkdir()
    folder.chmod(0o1777)
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr(tempfile, "tempdir", None)
    return folder


@contextlib.contextmanager
def wide_modes() -> Iterator[None]:
    """Files that nobody restricts are open to everybody."""
    before = os.umask(0)
    try:
        yield
    finally:
        os.umask(before)


def test_scratch_folders_of_scheduler_and_workers_are_private(
    tmp_path: Path, shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Dask's servers import from their scratch folders first: whoever writes there runs code."""
    monkeypatch.delenv("OMP_NUM_THREADS")
    before = dict(os.environ)
    home = Home(tmp_path / "home")
    spec = make_spec(cluster={"kind": "local", "workers": 2}, objective="json:loads")
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
def test_a_study_with_its_own_servers_leaves_nothing_in_the_shared_folder(tmp_path: Path, shared: Path) -> None:
    """Prefect's server, MLflow's copy, the workers, the report; and `hpo ui`, which shows all of it."""
    hpo = Runner(tmp_path, {}, prefect="auto")
    study = hpo.study(search={"method": "random", "configs": 2, "max_resource": 1}, tracking={})
    with wide_modes(), watched(shared) as made:
        hpo("tune", study)
        hpo("project", "toy")
        ui = hpo.start("ui")
        try:
            assert ui.stdout is not None
            assert any(line.startswith("Reports:") for line in ui.stdout)
        finally:
            ui.send_signal(signal.SIGINT)
            ui.communicate(timeout=LIMIT)
    assert made, "what they do make is seen"
    assert not [one for one in made if not one.is_private]
    assert not list(shared.iterdir())
