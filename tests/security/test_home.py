"""A home folder is one user's: private, and nothing that was planted in it makes us touch other files."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from hpo_core.home import Home
from hpo_core.model.errors import StorageError
from hpo_core.tracking.mlflow_projection import ProcessLock
from hpo_core.tracking.tracker_links import CopyProgress, note_progress, read_progress
from hpo_flows.prefect_api.connection import PrefectServerError
from hpo_flows.prefect_api.shared_server import SharedServer
from hpo_flows.study_run.session import Session
from tests.conftest import World, fresh, make_spec
from tests.faults.test_real_study import Real

ROOT = Path(__file__).parents[2]


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


@pytest.fixture
def thesis(tmp_path: Path) -> Path:
    """Files of the user's that have nothing to do with us."""
    folder = tmp_path / "thesis"
    (folder / "trial-00000").mkdir(parents=True)
    (folder / "trial-00000" / "rung-0-attempt-0.safetensors").write_text("chapter 1")
    (folder / "profile").write_text("alias ll='ls -l'\n")
    (folder / "empty").mkdir(mode=0o755)
    folder.chmod(0o755)
    return folder


def contents(folder: Path) -> dict[str, str | None]:
    return {str(path): path.read_text() if path.is_file() else None for path in folder.rglob("*")}


def test_all_files_of_a_study_are_private(tmp_path: Path) -> None:
    old = os.umask(0o000)
    try:
        real = Real(tmp_path, "good", search={"method": "random", "configs": 3, "max_resource": 2})
        real.home.folder.mkdir(mode=0o777)  # of an older version
        real.finish(3)
    finally:
        os.umask(old)
    journal = real.home.open_journal()
    fresh(make_spec(study="one-more"), journal)  # -wal and -shm are there while it is open
    found = [real.home.folder, *real.home.folder.rglob("*")]
    assert {"journal.db", "journal.db-wal", "journal.db-shm", "report.html"} <= {path.name for path in found}
    wide = {str(path): oct(mode(path)) for path in found if mode(path) & 0o077}
    # Training processes write the output of attempts, and Dask its locks; their folders are private.
    others = ("/logs/", "/dask-scratch-space/")
    assert not {path: wide[path] for path in wide if not any(name in path for name in others)}, wide
    journal.close()


def test_mlflows_database_is_private(empty_store: Path) -> None:
    assert mode(empty_store) == 0o600


def begins(home: Home) -> None:
    Session(home, "world", spec=make_spec(objective="json:loads"))


def starts_prefect(home: Home) -> None:
    server = SharedServer(home.folder / "prefect")
    try:
        server.start()
    finally:
        server.close()


@pytest.mark.parametrize(
    ("planted", "use"),
    [
        ("studies", begins),
        ("studies/world/checkpoints", begins),
        ("mlartifacts", begins),  # MLflow follows links itself: what it writes is looked at before it begins
        ("mlflow.db", begins),
        ("mlflow.db-wal", begins),
        ("journal.db", Home.open_journal),
        ("journal.db-wal", Home.open_journal),
        ("compared", lambda home: home.comparison_path(["a"])),
        ("prefect", starts_prefect),  # database, password and pages once went to where it led
        ("prefect/prefect.db-wal", starts_prefect),
        ("prefect/ui/v1/index.html", starts_prefect),
    ],
)
def test_nothing_is_written_or_removed_through_a_link(
    tmp_path: Path, thesis: Path, planted: str, use: Callable[[Home], object]
) -> None:
    home = Home(tmp_path / "home")
    link = home.make_folder() / planted
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(thesis / "profile" if "." in link.name else thesis)
    before = contents(thesis)
    with pytest.raises((StorageError, PrefectServerError), match=f"{link.name} is a symbolic link"):
        use(home)
    assert contents(thesis) == before and mode(thesis) == 0o755


@pytest.mark.parametrize("name", ["mlflow.log", "mlflow.copy", "lock", "report.html"])
def test_linked_files_in_a_study_folder_are_refused(tmp_path: Path, thesis: Path, name: str) -> None:
    home = Home(tmp_path / "home")
    folder = home.study_folder("world", create=True)
    before = contents(thesis)
    link = folder / name
    if name == "lock":
        lock = ProcessLock.of(folder, "here")
        lock.path.symlink_to(thesis / "profile")
        with pytest.raises(StorageError):
            lock.take()
    else:
        link.symlink_to(thesis / "profile")
    if name == "mlflow.copy":
        note_progress(folder, CopyProgress(trouble="out of reach"))
        assert read_progress(folder) == CopyProgress(trouble="out of reach") and not link.is_symlink()
    if name == "report.html":
        from hpo_core.report import write_report

        world = World(1)
        study = fresh(make_spec(), None, world)
        world.play(study)
        write_report(list(study.journal.entries("world")), home.report_path("world"))
        assert not link.is_symlink() and mode(link) == 0o600
    if name == "mlflow.log":
        session = Session(home, "world", spec=make_spec(objective="json:loads"))
        with pytest.raises(StorageError, match="is a symbolic link"):
            session.trackers.start()
        session.close()
    assert contents(thesis) == before


def test_a_linked_home_in_a_project_is_refused(tmp_path: Path, thesis: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".hpo").symlink_to(thesis)
    before = contents(thesis)
    with pytest.raises(StorageError, match=".hpo is a symbolic link"):
        Home().open_journal()
    assert contents(thesis) == before and mode(thesis) == 0o755
    Home(tmp_path / ".hpo").open_journal().close()  # named by the user it is the user's choice
    assert (thesis / "journal.db").exists()
