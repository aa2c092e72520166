"""The process that shows a command's study: what it says, how the flow run ends, and a journal that is away."""

from __future__ import annotations

import fcntl
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from hpo_core.journal.memory import MemoryJournal
from hpo_core.journal.protocol import StudyInfo
from hpo_core.model.errors import JournalError
from hpo_core.model.trial import Outcome
from hpo_core.security.lock_file import LockFile
from hpo_core.spec import SlurmClusterSpec
from hpo_core.study import Study
from hpo_flows.dask.clusters.kind import ClusterError
from hpo_flows.dask.clusters.slurm import SlurmJobs
from hpo_flows.dask.clusters.slurm_jobs import call
from hpo_flows.study_run.prefect_follower import Controller, StudyFollower, _final_state
from hpo_flows.study_run.prefect_process import Ending
from tests.conftest import failed, make_spec


def test_what_it_says_holds_no_password(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("HPO_JOURNAL", "postgresql://hpo:s3cretpassword@db/hpo")
    monkeypatch.setattr("threading.Thread.start", lambda _: None)
    Controller(lambda: None).tell("no answer from postgresql://hpo:s3cretpassword@db/hpo")
    said = json.loads(capfd.readouterr().out)
    assert said.startswith("no answer") and "s3cretpassword" not in said


def test_a_study_without_any_result_is_failed() -> None:
    spec = make_spec(search={"method": "random", "configs": 1, "max_resource": 1}, training={"retries": {"error": 0}})
    study = Study.create(spec)
    job = study.ask()
    assert job is not None
    study.tell_report(failed(job, Outcome.ERROR))
    assert study.state.abandoned_trials == 1 and not study.state.completed_jobs
    state = _final_state(study, Ending())
    assert state.is_failed() and "No trial has a result" in str(state.message)


class AwayJournal(MemoryJournal):
    away = False

    def info(self, study: str) -> StudyInfo:
        if self.away:
            raise JournalError("away")
        return super().info(study)


def test_a_journal_that_is_away_is_not_one_without_news() -> None:
    journal = AwayJournal()
    study = Study.create(make_spec(), journal)
    follower = StudyFollower(study.name, journal, study.seq)
    assert follower.news() == []
    journal.away = True
    assert follower.news() is None
    journal.away = False
    study.ask()
    assert [entry.seq for entry in follower.news() or ()] == [study.seq - 1]


@pytest.fixture
def first_controller(tmp_path: Path) -> Iterator[None]:
    lock = LockFile(tmp_path / "slurm.lock", "the test")
    assert lock.take(fcntl.LOCK_EX)
    yield
    lock.close()


def test_a_second_controller_takes_no_slurm_jobs_of_the_first(first_controller: None, tmp_path: Path) -> None:
    """A study is in the journal only once its workers came: until then nothing else tells the two apart."""
    kind = SlurmJobs(SlurmClusterSpec(), "s", str(tmp_path))
    with pytest.raises(ClusterError, match="'s' has a controller on this machine that submits its Slurm jobs"):
        kind.create()


def test_a_command_that_cannot_be_started_is_no_end_of_the_watch(tmp_path: Path) -> None:
    command = tmp_path / "squeue"
    command.write_text("")
    with pytest.raises(ClusterError, match="cannot be started"):
        call([str(command)])
