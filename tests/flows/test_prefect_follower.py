"""The process that shows a command's study: what it says, how the flow run ends, and a journal that is away."""

from __future__ import annotations

import fcntl
import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from threading import Event
from types import SimpleNamespace
from typing import Any, NamedTuple, cast
from uuid import uuid4

import msgspec
import pytest
from hpo_flows.prefect_pages.prefect_follower import Controller, _final_state
from hpo_flows.prefect_pages.prefect_process import Ending
from hpo_flows.prefect_pages.task_runs import TaskRuns
from prefect.exceptions import ObjectNotFound

from hpo_core.journal.memory import MemoryJournal
from hpo_core.journal.protocol import StudyInfo
from hpo_core.model.devices.measurement import Usage
from hpo_core.model.errors import JournalError
from hpo_core.model.events import JobGranted, JobPlaced
from hpo_core.model.trial import Outcome
from hpo_core.security.private_files import LockFile
from hpo_core.spec import StudySpec
from hpo_core.spec.sections import SlurmClusterSpec
from hpo_core.study import Study
from hpo_flows.dask.clusters.kind import ClusterError
from hpo_flows.dask.clusters.slurm import SlurmJobs
from hpo_flows.dask.clusters.slurm_queue import call
from hpo_flows.prefect_pages import study_pages, task_runs
from hpo_flows.prefect_pages.study_pages import StudyPages
from tests.conftest import failed, make_spec


def test_what_it_says_holds_no_password(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("HPO_JOURNAL", "postgresql://hpo:s3cretpassword@db/hpo")
    monkeypatch.setattr("threading.Thread.start", lambda _: None)
    Controller(lambda: None).tell("no answer from postgresql://hpo:s3cretpassword@db/hpo")
    said = json.loads(capfd.readouterr().out)
    assert said.startswith("no answer") and "s3cretpassword" not in said


def final_state_of(study: Study | None, ending: Ending | None = Ending()) -> Any:  # noqa: B008
    return _final_state(study, ending, None, datetime.now(UTC))


def test_a_command_that_ended_before_its_study_was_begun_has_a_final_state() -> None:
    assert final_state_of(None, Ending(error="no workers came")).message == "no workers came"
    assert final_state_of(None, Ending(interrupted=True)).is_cancelled()
    assert final_state_of(None, None).is_crashed()


def test_a_study_without_any_result_is_failed() -> None:
    spec = make_spec(search={"method": "random", "configs": 1, "max_resource": 1}, training={"retries": {"error": 0}})
    study = Study.create(spec)
    job = study.ask()
    assert job is not None
    study.tell_report(failed(job, Outcome.ERROR))
    assert study.state.abandoned_trials == 1 and not study.state.completed_jobs
    state = final_state_of(study)
    assert state.is_failed() and "no trial has a finite value of loss: of 1 trial, 1 failed" in str(state.message)


def test_a_study_of_which_every_trial_diverged_is_failed() -> None:
    study = Study.create(make_spec(search={"method": "random", "configs": 1, "max_resource": 1}))
    job = study.ask()
    assert job is not None
    study.tell(job, {"loss": float("nan")})
    state = final_state_of(study)
    assert study.status == "finished" and state.is_failed() and "hpo try STUDY.yaml" in str(state.message)


class AwayJournal(MemoryJournal):
    away = False

    def info(self, study: str) -> StudyInfo:
        if self.away:
            raise JournalError("away")
        return super().info(study)


def test_a_journal_that_is_away_is_not_one_without_news(shown: list[Sent]) -> None:
    journal = AwayJournal()
    study = Study.create(make_spec(), journal)
    pages = pages_of(study, journal, study.seq)
    client: Any = Client()
    assert pages._show_news(client, to_end=True) and not shown
    journal.away = True
    study.ask()
    assert not pages._show_news(client, to_end=True) and not shown
    journal.away = False
    assert pages._show_news(client, to_end=True) and [one.state for one in shown] == ["Running"]


def test_a_study_that_is_not_in_the_journal_yet_is_waited_for(shown: list[Sent]) -> None:
    journal, client = MemoryJournal(), cast(Any, Client())
    study = Study.create(make_spec())
    pages = pages_of(study, journal, 1)
    assert not pages._show_news(client, to_end=False) and pages._show_news(client, to_end=True)
    Study.create(make_spec(), journal).ask()
    assert pages._show_news(client, to_end=False) and [one.state for one in shown] == ["Running"]


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


class Sent(NamedTuple):
    """A state of a task run as it was sent to Prefect."""

    name: str
    device: str
    state: str
    began: float
    time: float


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> list[Sent]:
    """What is sent to Prefect."""
    sent: list[Sent] = []

    def emit(event: str, *, occurred: datetime, payload: dict[str, Any], **_: Any) -> None:
        run = payload["task_run"]
        device = "".join(tag for tag in run["tags"] if tag.startswith("device-"))
        began = datetime.fromisoformat(run["start_time"]).timestamp()
        state = event.removeprefix("prefect.task-run.")
        sent.append(Sent(run["name"].partition("/")[0], device, state, began, occurred.timestamp()))

    monkeypatch.setattr(task_runs, "emit_event", emit)
    return sent


class Client:
    """Prefect's client, for what these tests do not look at."""

    def create_artifact(self, artifact: Any) -> Any:
        return SimpleNamespace(id=uuid4())

    def update_artifact(self, *_: Any) -> None: ...

    def create_logs(self, lines: Any) -> None: ...


def pages_of(study: Study, journal: MemoryJournal, start: int) -> StudyPages:
    return StudyPages(
        study.name,
        lambda: journal,
        flow_run=uuid4(),
        start=start,
        began=0.0,
        ended=Event(),
        say=lambda line: None,
        on_state=lambda client, state: None,
    )


def follow(spec: StudySpec, play: Callable[[Study, list[float]], None]) -> None:
    """Show a study that ``play`` drives; it moves the time."""
    now, journal = [100.0], MemoryJournal()
    study = Study.create(spec, journal, clock=lambda: now[0])
    play(study, now)
    assert pages_of(study, journal, 1)._show_news(cast(Any, Client()), to_end=True)


@pytest.mark.parametrize("error", [ObjectNotFound(RuntimeError()), OSError("no space left"), None])
def test_pages_go_on_where_the_state_of_their_run_cannot_be_taken(
    error: Exception | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody deleted the flow run, or what follows from its state failed: the study's pages do not end with that."""
    study = Study.create(make_spec(), journal := MemoryJournal())
    pages, taken = pages_of(study, journal, 1), []

    def read_flow_run(_: Any) -> Any:
        if error is not None and not isinstance(error, OSError):
            raise error
        return SimpleNamespace(state="paused")

    def on_state(_: Any, state: Any) -> None:
        taken.append(state)
        if error is not None:
            raise error

    monkeypatch.setattr(study_pages, "api_answers", lambda: True)
    pages.on_state = on_state
    assert pages._api_answers(cast(Any, SimpleNamespace(read_flow_run=read_flow_run)))
    assert taken == ([] if isinstance(error, ObjectNotFound) else ["paused"])


def begun(shown: list[Sent]) -> list[tuple[str, str, float]]:
    return [(one.name, one.device, one.began) for one in shown if one.state == "Running"]


def ended(shown: list[Sent]) -> list[tuple[str, str]]:
    return [(one.name, one.state) for one in shown if one.state != "Running"]


def test_a_job_that_shares_a_device_has_a_task_run_once_it_is_known_which(shown: list[Sent]) -> None:
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
    follow(make_spec(search=search, packing={}, training={"retries": {"error": 0}}), play)
    first, second, third = (f"trial-0000{number}" for number in range(3))
    wanted = [(first, "device-GPU-a", 100.5), (second, "device-cpu-vm", 103.0), (third, "", 105.0)]
    assert begun(shown) == wanted, "the fourth one waits"
    assert ended(shown) == [(first, "Completed"), (second, "Failed"), (third, "Crashed")]
    assert all(one.time == pytest.approx(105.0, abs=1e-3) for one in shown if one.state != "Running")
    shown.clear()
    follow(make_spec(search=search), lambda study, now: study.tell(study.set_capacity(2)[0], {"loss": 1.0}))
    assert [name for name, *_ in begun(shown)] == [first, second, third] and ended(shown) == [(first, "Completed")]


def test_jobs_that_are_stopped_end_and_are_not_begun_again(shown: list[Sent]) -> None:
    def play(study: Study, now: list[float]) -> None:
        first, _ = study.set_capacity(2)
        study.note_placements([JobPlaced(first.trial, 0, "GPU-a", "A100", share=(1, 1, 1), began=100.0)])
        study.recover("second:2")
        again = study.set_capacity(2)
        study.note_placements([JobPlaced(job.trial, job.attempt, "GPU-b", "A100", (1, 1, 1), 100.0) for job in again])

    follow(make_spec(search={"method": "random", "configs": 2, "max_resource": 1}, packing={}), play)
    assert [(name, device) for name, device, _ in begun(shown)] == [
        ("trial-00000", "device-GPU-a"), ("trial-00000", "device-GPU-b"), ("trial-00001", "device-GPU-b"),
    ]  # fmt: skip
    assert ended(shown) == [("trial-00000", "Crashed")]


def test_a_shown_entry_costs_the_same_however_many_jobs_run(shown: list[Sent]) -> None:
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
    copy = Study.open(study.name, journal, at=0)
    copy.state.running = Running()
    runs = TaskRuns(copy, uuid4(), lambda *_: None)
    for entry in journal.entries(study.name, 1):
        copy.replay(entry)
        runs.show(entry)
    assert (len(begun(shown)), len(ended(shown))) == (60, 30)
    assert looked == 0
