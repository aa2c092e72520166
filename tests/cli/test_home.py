"""Looking creates nothing and needs no permission to write; a name is checked before a disk is touched."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from hpo_core.home import Home
from hpo_core.journal.sql import SqlJournal
from hpo_core.model.errors import SpecError, StudyNotFoundError
from hpo_flows.command import app
from tests.conftest import World, fresh, make_spec

ROOT = Path(__file__).parents[2]
COMMANDS = ("status", "show", "audit", "export", "report", "project", "resume")


@pytest.mark.parametrize(
    "arguments",
    [
        *([command, "x"] for command in COMMANDS),
        ["compare", "x", "y"],
        ["list"], ["extend", "x", "--configs", "3"], ["rerun", "x", "--as", "y"], ["schedule", "x"],
        ["simulate", "--from-journal", "x"],
    ],
)  # fmt: skip
def test_commands_leave_a_wrong_folder_as_it_is(
    tmp_path: Path, arguments: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PREFECT_API_URL", "http://127.0.0.1:9/api")  # none may be started for a wrong name
    monkeypatch.setattr("hpo_flows.study_run.in_prefect.check_api", lambda api: None)
    result = CliRunner().invoke(app, [*arguments, "--home", str(tmp_path / "nowhere")])
    if arguments == ["list"]:
        assert "No study yet" in result.output
    else:
        assert isinstance(result.exception, StudyNotFoundError), result.exception
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["../../evil", "/tmp/evil", "", "a\nb", "-x", "x" * 101, "\x1b[2J"])
def test_what_is_no_name_is_refused_before_anything_is_made(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PREFECT_API_URL", "http://127.0.0.1:9/api")
    monkeypatch.setattr("hpo_flows.study_run.in_prefect.check_api", lambda api: None)
    home = tmp_path / "a" / "b" / "home"
    more = [["extend", "--configs", "3"], ["rerun", "--as", "y"], ["schedule"]]
    for command in [["status"], ["report"], ["resume"], *more]:
        result = CliRunner().invoke(app, [*command, "--home", str(home), "--", name])
        assert isinstance(result.exception, SpecError), (command, result.exception)
        assert "is no name of a study" in str(result.exception) and "\x1b" not in str(result.exception)
    result = CliRunner().invoke(app, ["rerun", "x", f"--as={name}", "--home", str(home)])
    assert isinstance(result.exception, SpecError)
    from hpo_flows.study_run.session import Session

    for make in (lambda: Home(home).study_folder(name, create=True), lambda: Session(Home(home), name)):
        with pytest.raises(SpecError, match="is no name of a study"):
            make()
    assert list(tmp_path.iterdir()) == []


def played(home: Path) -> SqlJournal:
    journal = Home(home).open_journal()
    world = World(3)
    world.play(fresh(make_spec(), journal, world))
    return journal


def as_reader(home: Path, *arguments: str) -> str:
    """Runs ``hpo`` without the right to write what is read-only (root may write it all the same)."""
    command = [sys.executable, "-m", "hpo_flows", *arguments, "--home", str(home)]
    if os.geteuid() == 0:
        if shutil.which("setpriv") is None:
            pytest.skip("root without setpriv")
        command = ["setpriv", "--bounding-set=-all", "--inh-caps=-all", *command]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


def set_writable(folder: Path, writable: bool) -> None:
    for path in [folder, *folder.rglob("*")]:
        path.chmod((0o700 if path.is_dir() else 0o600) if writable else (0o500 if path.is_dir() else 0o400))


@pytest.mark.slow
@pytest.mark.parametrize("left", ["nothing", "wal and shm"])
def test_a_read_only_home_can_be_read(tmp_path: Path, left: str) -> None:
    """An archive of a home that nobody drives, and of one whose controller was killed."""
    live = tmp_path / "live"
    journal = played(live)
    entries = journal.info("world").entries
    archive = tmp_path / "archive %23"
    if left == "nothing":
        journal.close()
    shutil.copytree(live, archive)
    assert ((archive / "journal.db-wal").exists()) == (left != "nothing")
    journal.close()
    before = sorted(path.name for path in archive.iterdir())
    set_writable(archive, False)
    try:
        status: dict[str, Any] = json.loads(as_reader(archive, "status", "world", "--json"))
        assert status["entries"] == entries and status["status"] == "finished"
        if left == "nothing":
            as_reader(archive, "report", "world", "--out", str(tmp_path / "report.html"))
            assert (tmp_path / "report.html").stat().st_size > 10_000
        assert sorted(path.name for path in archive.iterdir()) == before
    finally:
        set_writable(archive, True)
