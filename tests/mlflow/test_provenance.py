"""A study's run in MLflow alone brings the study back; what was tampered with there is refused."""

from __future__ import annotations

import gzip
import shutil
import sqlite3
import subprocess
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from hpo_core import Study
from hpo_core.cli.app import app
from hpo_core.home import Home
from hpo_core.journal.memory import MemoryJournal
from hpo_core.model.errors import HpoError, JournalError, StudyExistsError
from hpo_core.replay import restored_study
from hpo_core.replay.audit import audit
from hpo_core.replay.rerun import rerun_spec
from hpo_core.replay.restored_study import Restored, restore_study
from hpo_core.tracking.follower import Follower, project_study
from hpo_core.tracking.provenance_files import CodeVersion
from tests.mlflow.test_mlflow import NAME, Clock, Tracker, Train, entries_of, good, play, start, tracker  # noqa: F401 - a fixture


class Uploaded:
    """A study that MLflow holds, and an empty home."""

    def __init__(self, tracker: Tracker, train: Train = good, **more: Any) -> None:  # noqa: F811
        self.tracker = tracker
        self.study = play(*start(MemoryJournal(), configs=6, **more), train)
        self.home = Home(tracker.folder / "home")
        self.project()

    def project(self, version: CodeVersion | None = None) -> None:
        projection = self.tracker.projection()
        projection.version = version
        projection.project(entries_of(self.study))
        projection.finish()
        projection.close()

    @property
    def run(self) -> str:
        return str(self.tracker.parent().info.run_id)

    @property
    def copy(self) -> Path:
        return self.downloaded("journal.jsonl.gz")

    def downloaded(self, name: str) -> Path:
        return Path(self.tracker.client.download_artifacts(self.run, f"provenance/{name}", str(self.tracker.folder)))

    def restore(self, **how: Any) -> Restored:
        return restore_study(self.home, self.copy, **how)


@pytest.fixture
def uploaded(tracker: Tracker) -> Uploaded:  # noqa: F811
    return Uploaded(tracker)


def test_the_study_is_back_in_an_empty_home(uploaded: Uploaded) -> None:
    found = uploaded.restore()
    journal = uploaded.home.open_journal()
    entries = list(journal.entries(NAME))
    assert found.entries == len(entries) == uploaded.study.seq
    assert entries[1:] == entries_of(uploaded.study)[1:], "only settings of place may differ, in entry 0"
    assert audit(entries).clean
    back = Study.open(NAME, journal)
    assert back.best == uploaded.study.best and back.status == "finished"
    grants = rerun_spec(entries, "again").plain()["search"]["study_record"]["grants"]
    assert grants == rerun_spec(entries_of(uploaded.study), "again").plain()["search"]["study_record"]["grants"]
    back.extend(2)  # it goes on as any other
    assert play(back, start(MemoryJournal())[1]).seq > found.entries
    assert audit(journal.entries(NAME)).clean


def test_under_another_name_where_the_name_is_taken(uploaded: Uploaded) -> None:
    uploaded.restore()
    with pytest.raises(StudyExistsError, match="--name"):
        uploaded.restore()
    assert uploaded.restore(name="other").study == "other"
    journal = uploaded.home.open_journal()
    assert audit(journal.entries("other")).clean
    assert Study.open("other", journal).spec.study == "other"
    with pytest.raises(HpoError, match="no name of a study"):
        uploaded.restore(name="../up")


def test_a_journal_that_was_tampered_with_is_refused(
    uploaded: Uploaded, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(restored_study, "MAX_LINE_BYTES", 1_000_000)
    lines = gzip.decompress(uploaded.copy.read_bytes()).splitlines(keepends=True)
    file = tmp_path / "copy"
    one_lost, cut = gzip.compress(b"".join(lines[:3] + lines[4:])), gzip.compress(b"".join(lines))[:-40]
    for damaged in (one_lost, cut, b"PK\x03\x04 no journal", gzip.compress(b" " * 2_000_000)):
        file.write_bytes(damaged)
        with pytest.raises(JournalError):
            restore_study(uploaded.home, file)
    monkeypatch.setattr(restored_study, "MAX_BYTES", 100)
    with pytest.raises(JournalError, match="at most 100 are read"):
        uploaded.restore()
    with pytest.raises(JournalError, match="cannot be read"):
        restore_study(uploaded.home, tmp_path / "none")
    assert not uploaded.home.folder.exists()


def test_settings_that_lead_elsewhere_are_replaced(tracker: Tracker) -> None:  # noqa: F811
    hostile = Uploaded(
        tracker,
        objective="planted:run",
        pythonpath=["/tmp/planted"],
        cluster={"kind": "address", "address": "tcp://evil.example:8786"},
        checkpoints={"folder": "file:///etc"},
    )
    hostile.restore(code=["/srv/mine"])
    spec = Study.open(NAME, hostile.home.open_journal(), reading=True).spec
    assert spec.pythonpath == ["/srv/mine"] and spec.cluster.kind == "local"
    assert spec.checkpoints.folder is None and spec.tracking.mlflow == "off", "its run is not written to"


def _git(folder: Path, *arguments: str) -> str:
    author = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
    return subprocess.run(["git", *author, *arguments], cwd=folder, check=True, capture_output=True, text=True).stdout


def test_code_and_packages_are_noted(uploaded: Uploaded, tmp_path: Path) -> None:
    code = tmp_path / "code"
    (code / "lab").mkdir(parents=True)
    (code / "lab" / "__init__.py").write_text("raise SystemExit('imported')")
    (code / "lab" / "train.py").write_text("")
    _git(code, "init", "-q")
    _git(code, "add", "lab")
    _git(code, "commit", "-qm", "first")
    spec = uploaded.study.spec.model_copy(update={"objective": "lab.train:fit", "pythonpath": [str(code)]})
    (code / "lab" / "train.py").write_text("x = 1\n")
    assert CodeVersion.here(spec).dirty
    _git(code, "commit", "-qam", "second")
    uploaded.project(CodeVersion.here(spec))
    tags = uploaded.tracker.parent().data.tags
    assert tags["mlflow.source.git.commit"] == _git(code, "rev-parse", "HEAD").strip()
    assert tags["hpo.code_dirty"] == "false"
    packages = uploaded.downloaded("requirements.txt").read_text()
    assert packages.startswith("# Python 3.") and "\nmlflow==" in packages and "msgspec==" in packages


def test_the_commands(uploaded: Uploaded, tmp_path: Path) -> None:
    first, second = str(uploaded.home.folder), str(tmp_path / "other")
    done = CliRunner().invoke(app, ["import", str(uploaded.copy), "--home", first])
    assert done.exit_code == 0, done.output
    assert f"{uploaded.study.seq} entries imported" in done.output
    file = tmp_path / "exported.jsonl"
    file.write_text(CliRunner().invoke(app, ["export", NAME, "--home", first]).output)
    assert CliRunner().invoke(app, ["import", str(file), "--home", second]).exit_code == 0
    audited = CliRunner().invoke(app, ["audit", NAME, "--home", second])
    assert audited.exit_code == 0 and audited.output.startswith("clean:")


def test_an_older_journal_is_noticed_and_what_is_said_makes_the_copy_anew(
    tracker: Tracker,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", tracker.uri)
    home = Home(tracker.folder / "home")
    file = home.folder / "journal.db"
    with closing(home.open_journal()) as journal:
        study, clock = start(journal, configs=6)
        play(study, clock, jobs=5)
        with sqlite3.connect(file) as source, sqlite3.connect(tracker.folder / "copy.db") as copy:
            source.backup(copy)
        play(study, clock)
        project_study(home, journal, NAME)
        follower = Follower(journal, tracker.projection())
        assert follower.advance()
    for path in home.folder.glob("journal.db*"):
        path.unlink()
    shutil.copy(tracker.folder / "copy.db", file)
    with closing(home.open_journal()) as older:
        follower.journal = older
        assert not follower.advance() and "An older journal was put back" in follower.trouble
        follower.projection.close()
        with pytest.raises(JournalError, match="An older journal was put back, it seems. Delete the study's runs"):
            project_study(home, older, NAME)
        for run in [*tracker.runs(), tracker.parent()]:
            tracker.client.delete_run(run.info.run_id)
        project_study(home, older, NAME, rebuild=True)
        control = tracker.projection("control")
        control.project(older.entries(NAME))
        control.finish()
        control.close()
    assert tracker.picture() == tracker.picture("control")
