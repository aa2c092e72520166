"""A home is one user's: folders 0700, files 0600, no links, no foreign owners."""

from __future__ import annotations

import contextlib
import os
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import pytest

from hpo_core.home import Home
from hpo_core.model.errors import StorageError
from hpo_core.security.private_files import check_folder, open_private, private_folder, write_private
from hpo_flows.prefect_api.connection import PrefectServerError
from hpo_flows.prefect_api.shared_server import SharedServer
from hpo_flows.study_run.session import Session
from tests.conftest import fresh, make_spec
from tests.faults.test_real_study import Real


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


def copies(home: Home) -> None:
    with contextlib.closing(Session(home, "world", spec=make_spec(objective="json:loads"))) as session:
        for tracker in session.trackers:
            tracker.start()


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
        ("studies/world/mlflow.log", copies),
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


def test_a_linked_home_in_a_project_is_refused(tmp_path: Path, thesis: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".hpo").symlink_to(thesis)
    before = contents(thesis)
    with pytest.raises(StorageError, match=".hpo is a symbolic link"):
        Home().open_journal()
    assert contents(thesis) == before and mode(thesis) == 0o755
    Home(tmp_path / ".hpo").open_journal().close()  # named by the user it is the user's choice
    assert (thesis / "journal.db").exists()


def test_new_files_are_private_and_open_ones_become_private(tmp_path: Path) -> None:
    wide = tmp_path / "wide"
    wide.mkdir(mode=0o755)
    wide.chmod(0o777)
    inner = private_folder(wide / "a" / "b", below=wide)
    assert [mode(path) for path in (wide, wide / "a", inner)] == [0o700] * 3
    old = inner / "log"
    old.write_text("before ")
    old.chmod(0o644)
    with open_private(old, "ab") as file:
        file.write(b"after")
    write_private(inner / "new", b"content")
    assert old.read_text() == "before after" and (inner / "new").read_bytes() == b"content"
    assert [mode(path) for path in inner.iterdir()] == [0o600] * 2
    with open_private(old, "wb") as file:
        file.write(b"anew")
    assert old.read_text() == "anew"


def test_links_are_refused_and_their_targets_stay(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.mkdir(mode=0o755)
    (victim / "key").write_text("secret")
    home = private_folder(tmp_path / "home")
    (home / "studies").symlink_to(victim)
    (home / "file").symlink_to(victim / "key")
    with pytest.raises(StorageError, match="studies is a symbolic link"):
        private_folder(home / "studies" / "x", below=home)
    with pytest.raises(StorageError, match="studies is a symbolic link"):
        check_folder(home / "studies" / "x", below=home)
    modes: list[Literal["rb", "wb", "ab"]] = ["rb", "wb", "ab"]
    for how in modes:
        with pytest.raises(StorageError, match="file is a symbolic link"):
            open_private(home / "file", how)
    write_private(home / "file", b"ours")
    assert (home / "file").read_bytes() == b"ours" and not (home / "file").is_symlink()
    assert (victim / "key").read_text() == "secret" and list(victim.iterdir()) == [victim / "key"]
    assert mode(victim) == 0o755


def test_a_pipe_is_refused_without_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "log")
    with pytest.raises(StorageError):
        open_private(tmp_path / "log", "ab")
    with pytest.raises(StorageError, match="no regular file"):
        open_private(tmp_path / "log", "rb")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make files of another user")
def test_a_home_of_another_user_that_others_may_write_to_is_refused(tmp_path: Path) -> None:
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    os.chown(theirs, 4321, 4321)
    private_folder(theirs)  # root acts for its owner
    theirs.chmod(0o775)
    with pytest.raises(StorageError, match="belongs to user 4321 and others may write to it"):
        private_folder(theirs)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make files of another user")
def test_files_of_another_user_are_refused(open_folder: Path) -> None:
    foreign = open_folder / "foreign"
    foreign.mkdir()
    (foreign / "log").write_text("theirs")
    for path in (foreign, foreign / "log"):
        os.chown(path, 4321, 4321)
    (foreign / "log").chmod(0o666)
    script = (
        "import os, sys; os.setgroups([]); os.setgid(4322); os.setuid(4322)\n"
        "from hpo_core.model.errors import StorageError\n"
        "from hpo_core.security.private_files import open_private, private_folder\n"
        "for call in (lambda: private_folder(sys.argv[1]), lambda: open_private(sys.argv[1] + '/log', 'ab')):\n"
        "    try: call()\n"
        "    except StorageError as error: print(error)\n"
    )
    # Imported before the change of user: the interpreter may lie where that user cannot look.
    script = "import hpo_core.model.errors, hpo_core.security.private_files\n" + script
    done = subprocess.run(
        [sys.executable, "-c", script, str(foreign)], capture_output=True, text=True, timeout=600, check=True
    )
    said = done.stdout.splitlines()
    assert len(said) == 2 and all("belongs to user 4321" in line for line in said), done
    assert (foreign / "log").read_text() == "theirs"
