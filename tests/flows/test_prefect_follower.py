"""The process that shows a command's study: what it says, how the flow run ends, and a journal that is away."""

from __future__ import annotations

import fcntl
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from hpo_core.journal.memory import MemoryJournal
from hpo_core.journal.protocol import StudyInfo
from hpo_core.model.devices.usage import Usage
from hpo_core.model.errors import JournalError
from hpo_core.model.events import JobGranted, JobPlaced
from hpo_core.model.trial import Job, Outcome
from hpo_core.security.private_files import LockFile
from hpo_core.spec import SlurmClusterSpec, StudySpec
from hpo_core.study import Study
from hpo_flows.dask.clusters.kind import ClusterError
from hpo_flows.dask.clusters.slurm import SlurmJobs
from hpo_flows.dask.clusters.slurm_queue import call
from hpo_flows.study_run.followed_jobs import FollowedJobs
from hpo_flows.study_run.prefect_follower import Controller, StudyFollower, _final_state
from hpo_flows.study_run.prefect_process import Ending
from hpo_flows.study_run.tasks import End
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
    assert state.is_failed() and "no trial has a finite value of loss: of 1 trial, 1 failed" in str(state.message)


def test_a_study_of_which_every_trial_diverged_is_failed() -> None:
    study = Study.create(make_spec(search={"method": "random", "configs": 1, "max_resource": 1}))
    job = study.ask()
    assert job is not None
    study.tell(job, {"loss": float("nan")})
    state = _final_state(study, Ending())
    assert study.status == "finished" and state.is_failed() and "hpo try STUDY.yaml" in str(state.message)


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


class Shown:
    """Task runs that are noted: name of the job, device, begin, end."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.clock = clock
        self.begun: list[tuple[int, str, float]] = []
        self.ended: list[tuple[int, Outcome, float]] = []

    @property
    def task_runs(self) -> int:
        return len(self.begun)

    def begin(self, job: Job, device: str = "") -> End:
        self.begun.append((job.trial, device, self.clock()))
        return lambda report: self.ended.append((job.trial, report.outcome, self.clock()))

    def close(self, seconds: float = 0.0) -> None: ...


def follow(spec: StudySpec, play: Callable[[Study, list[float]], None]) -> Shown:
    """What is shown of a study that ``play`` drives; it moves the time."""
    now, journal = [100.0], MemoryJournal()
    study = Study.create(spec, journal, clock=lambda: now[0])
    play(study, now)
    follower = StudyFollower(study.name, journal, 1)
    jobs = FollowedJobs(follower.study, Shown)
    for entry in follower.news() or ():
        follower.study.replay(entry)
        jobs.show(entry)
    assert isinstance(jobs.tasks, Shown)
    return jobs.tasks


def test_a_job_that_shares_a_device_has_a_task_run_once_it_is_known_which() -> None:
    def play(study: Study, now: list[float]) -> None:
        first, second, third, *_ = study.set_capacity(4)
        now[0] = 101.0
        study.note_placements([JobPlaced(first.trial, 0, "GPU-a", "A100", share=(1, 1, 1), began=100.5)])
        now[0] = 105.0
        study.tell(first, {"loss": 1.0})
        usage = Usage(device="cpu:vm", architecture="CPU", share=(1, 1, 1))
        short = failed(second, Outcome.ERROR)
        study.tell_report(msgspec.structs.replace(short, started=103.0, ended=104.0, usage=usage))
        study.tell_report(failed(third, Outcome.PREEMPTED))

    search = {"method": "random", "configs": 4, "max_resource": 1}
    shown = follow(make_spec(search=search, packing={}, training={"retries": {"error": 0}}), play)
    assert shown.begun == [(0, "GPU-a", 100.5), (1, "cpu:vm", 103.0), (2, "", 105.0)], "the fourth one waits"
    assert [(trial, time) for trial, _, time in shown.ended] == [(0, 105.0), (1, 105.0), (2, 105.0)]
    shown = follow(make_spec(search=search), lambda study, now: study.tell(study.set_capacity(2)[0], {"loss": 1.0}))
    assert [trial for trial, _, _ in shown.begun] == [0, 1, 2] and [one[0] for one in shown.ended] == [0]


def test_jobs_that_are_stopped_end_and_are_not_begun_again() -> None:
    def play(study: Study, now: list[float]) -> None:
        first, _ = study.set_capacity(2)
        study.note_placements([JobPlaced(first.trial, 0, "GPU-a", "A100", share=(1, 1, 1), began=100.0)])
        study.recover("second:2")
        again = study.set_capacity(2)
        study.note_placements([JobPlaced(job.trial, job.attempt, "GPU-b", "A100", (1, 1, 1), 100.0) for job in again])

    shown = follow(make_spec(search={"method": "random", "configs": 2, "max_resource": 1}, packing={}), play)
    assert [(trial, device) for trial, device, _ in shown.begun] == [(0, "GPU-a"), (0, "GPU-b"), (1, "GPU-b")]
    assert [(trial, outcome) for trial, outcome, _ in shown.ended] == [(0, Outcome.PREEMPTED)]


def test_a_shown_entry_costs_the_same_however_many_jobs_run() -> None:
    looked = 0

    class Running(dict[int, JobGranted]):
        def values(self) -> Any:
            nonlocal looked
            looked += 1
            return super().values()

    journal = MemoryJournal()
    study = Study.create(make_spec(search={"method": "random", "configs": 90, "max_resource": 1}), journal)
    for job in study.set_capacity(30):
        study.tell(job, {"loss": 1.0})
    follower = StudyFollower(study.name, journal, 1)
    follower.study.state.running = Running()
    jobs = FollowedJobs(follower.study, Shown)
    for entry in follower.news() or ():
        follower.study.replay(entry)
        jobs.show(entry)
    assert isinstance(jobs.tasks, Shown)
    assert (len(jobs.tasks.begun), len(jobs.tasks.ended)) == (60, 30)
    assert looked == 0
