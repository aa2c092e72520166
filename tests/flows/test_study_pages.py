"""Pages of a study in its flow run: how the run ends, and a journal that is away."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast
from uuid import uuid4

import pytest
from prefect import Flow
from prefect.client.orchestration import SyncPrefectClient
from prefect.exceptions import ObjectNotFound, Pause
from prefect.states import Crashed, Running, Suspended

from hpo_core.journal.memory import MemoryJournal
from hpo_core.journal.protocol import StudyInfo
from hpo_core.model.errors import JournalError
from hpo_core.model.trial import Outcome
from hpo_core.study import Study
from hpo_core.views.failure_reasons import cure_words
from hpo_flows.prefect_pages import study_pages
from hpo_flows.prefect_pages.flow_states import end_state
from hpo_flows.prefect_pages.study_pages import StudyPages
from tests.conftest import failed, make_spec


def final_state_of(study: Study) -> Any:
    return end_state(study, cure_words(study))


def test_a_study_without_any_result_is_failed() -> None:
    spec = make_spec(search={"method": "random", "configs": 1, "max_resource": 1}, training={"retries": {"error": 0}})
    study = Study.create(spec)
    job = study.ask()
    assert job is not None
    study.tell_report(failed(job, Outcome.ERROR))
    assert study.state.abandoned_trials == 1 and not study.state.completed_jobs
    state = final_state_of(study)
    assert state.is_failed() and "no trial has a finite value of loss: of 1 trial, 1 failed" in str(state.message)


class AwayJournal(MemoryJournal):
    away = False

    def info(self, study: str) -> StudyInfo:
        if self.away:
            raise JournalError("away")
        return super().info(study)


def test_a_journal_that_is_away_is_not_one_without_news() -> None:
    journal, client = AwayJournal(), Client()
    study = Study.create(make_spec(), journal)
    pages = pages_of(study, journal, study.seq)
    assert pages._show_news(cast(Any, client), to_end=True) and not client.lines
    journal.away = True
    study.tell(study.set_capacity(1)[0], {"loss": 1.0})
    assert not pages._show_news(cast(Any, client), to_end=True) and not client.lines
    journal.away = False
    assert pages._show_news(cast(Any, client), to_end=True) and len(client.lines) == 1


def test_a_study_that_is_not_in_the_journal_yet_is_waited_for() -> None:
    journal, client = MemoryJournal(), Client()
    study = Study.create(make_spec())
    pages = pages_of(study, journal, 1)
    assert not pages._show_news(cast(Any, client), to_end=False) and pages._show_news(cast(Any, client), to_end=True)
    begun = Study.create(make_spec(), journal)
    begun.tell(begun.set_capacity(1)[0], {"loss": 1.0})
    assert pages._show_news(cast(Any, client), to_end=False) and len(client.lines) == 1


def test_the_log_of_a_long_study_is_short_and_never_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    journal, client = MemoryJournal(), Client()
    study = Study.create(make_spec(search={"method": "random", "configs": 2000, "max_resource": 1}), journal)
    pages = pages_of(study, journal, study.seq)
    pages._show_news(cast(Any, client), to_end=False)
    jobs = study.set_capacity(2)
    for done in range(1000):
        jobs += study.tell(jobs.pop(0), {"loss": 1.0 + done})
    pages._show_news(cast(Any, client), to_end=False)
    words = [line.message for line in client.lines]
    assert len(words) == 100 and all(line.startswith("trial ") for line in words), "a line for each of the first jobs"
    monkeypatch.setattr(study_pages, "QUIET_SECONDS", 0.0)
    pages._show_news(cast(Any, client), to_end=False)
    study.tell_report(failed(jobs.pop(0), Outcome.ERROR, message="a new message"))
    pages._show_news(cast(Any, client), to_end=False)
    study.tell_report(failed(jobs.pop(0), Outcome.ERROR, message="a new message"))
    pages._show_news(cast(Any, client), to_end=True)
    words = [line.message for line in client.lines[100:]]
    assert [line.startswith("jobs: 1000 done, 2 running, best loss 1 (trial 0 at 1), ETA ") for line in words[:1]] == [
        True
    ], words
    assert len([line for line in words if "a new message" in line]) == 1, words


class Client:
    """Prefect's client: keeps the lines of the log, and forgets what these tests do not look at."""

    def __init__(self) -> None:
        self.lines: list[Any] = []

    def create_artifact(self, artifact: Any) -> Any:
        return SimpleNamespace(id=uuid4())

    def update_artifact(self, *_: Any) -> None: ...

    def create_logs(self, lines: Any) -> None:
        self.lines += lines


def pages_of(study: Study, journal: MemoryJournal, start: int) -> StudyPages:
    pages = StudyPages(study.name, lambda: journal, flow_run=uuid4(), say=lambda line: None)
    pages._start = start
    return pages


def test_pages_go_on_where_the_state_of_their_run_cannot_be_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody deleted the flow run: the study's pages do not end with that."""
    study = Study.create(make_spec(), journal := MemoryJournal())

    def read_flow_run(_: Any) -> Any:
        raise ObjectNotFound(RuntimeError())

    monkeypatch.setattr(study_pages, "api_answers", lambda: True)
    assert pages_of(study, journal, 1)._api_answers(cast(Any, SimpleNamespace(read_flow_run=read_flow_run)))


def test_a_paused_run_has_no_time_at_which_prefect_calls_it_failed(prefect_api: dict[str, str]) -> None:
    """Prefect's dialog says that it resumes by itself then."""
    with SyncPrefectClient(
        prefect_api["PREFECT_API_URL"], auth_string=prefect_api["PREFECT_API_AUTH_STRING"]
    ) as client:
        run = client.create_flow_run(Flow(lambda: None, name="paused"), state=Running()).id
        client.set_flow_run_state(run, Suspended(timeout_seconds=300), force=True)
        given = client.read_flow_run(run).state
        assert given is not None and given.state_details.pause_timeout is not None
        pages = StudyPages("toy", MemoryJournal, flow_run=run, say=print)
        pages._heed(client)
        state = client.read_flow_run(run).state
        assert state is not None and state.is_paused() and state.name == "Suspended"
        assert state.state_details.pause_timeout is None and state.state_details.pause_reschedule
        assert "`hpo resume`" in str(state.message)
        with pytest.raises(Pause):
            pages.on_tick()


def test_a_run_that_was_taken_for_dead_is_running_again(prefect_api: dict[str, str]) -> None:
    """The server was away for long, and took heartbeats that it missed for heartbeats that were not sent."""
    with SyncPrefectClient(
        prefect_api["PREFECT_API_URL"], auth_string=prefect_api["PREFECT_API_AUTH_STRING"]
    ) as client:
        run = client.create_flow_run(Flow(lambda: None, name="silent"), state=Running()).id
        pages = StudyPages("toy", MemoryJournal, flow_run=run, say=print)
        for ended in (False, True):
            client.set_flow_run_state(run, Crashed(), force=True)
            if ended:
                pages.close()
            pages._heed(client)
            state = client.read_flow_run(run).state
            assert state is not None and state.is_running() is not ended, "an end is left as it is"
