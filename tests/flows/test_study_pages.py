"""Pages of a study in its flow run: how the run ends, its log and page, and what becomes of the run."""

from __future__ import annotations

import threading
import time
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID, uuid4

import pytest
from prefect import Flow
from prefect.client.orchestration import SyncPrefectClient
from prefect.exceptions import ObjectNotFound, Pause
from prefect.states import Crashed, Running, Suspended

from hpo_core.model.trial import Outcome, Report
from hpo_core.replay.rerun import rerun_spec
from hpo_core.study import Study
from hpo_flows.prefect_pages import study_pages
from hpo_flows.prefect_pages.artifacts import study_markdown
from hpo_flows.prefect_pages.study_pages import StudyPages
from hpo_flows.prefect_pages.tune_flow import shown_parameters
from tests.conftest import completed, failed, make_spec


def test_the_log_of_a_long_study_is_short_and_tells_of_each_new_failure() -> None:
    study = Study.create(make_spec(search={"method": "random", "configs": 2000, "max_resource": 1}))
    pages, client = pages_of(study), Client()

    def told() -> list[str]:
        pages.on_tick()
        before = len(client.lines)
        assert pages._send(cast(Any, client), client)
        return client.lines[before:]

    def reported(report: Report) -> None:
        pages.on_report(report, granted := study.tell_report(report))
        jobs.extend(granted)

    assert told() == []
    jobs = study.set_capacity(2)
    for done in range(1000):
        reported(completed(jobs.pop(0), 1.0 + done))
    assert len(words := told()) in range(100, 200) and all("] trial " in line for line in words)
    for _ in range(2):
        reported(failed(jobs.pop(0), Outcome.ERROR, message="a new message"))
    assert len([line for line in told() if "a new message" in line]) == 1
    study.stop("somebody said so")
    pages.close()
    assert told()[-1] == "halted: somebody said so" and "**Halted: somebody said so**" in client.page


def test_a_page_of_several_objectives_has_their_front() -> None:
    study = Study.create(make_spec(metrics=[{"name": "loss"}, {"name": "speed", "mode": "max"}]))
    for loss, speed in ((1.0, 2.0), (0.5, 1.0), (2.0, 0.5)):
        job = study.ask()
        assert job is not None
        study.tell(job, {"loss": loss, "speed": speed})
    page = study_markdown(study, "", {})
    assert "### Pareto front of loss, speed: 2 results" in page


def test_a_rerun_of_thousands_of_trials_is_shown_by_its_source() -> None:
    """Its record holds all their parameters and grants, and a Prefect server refuses what is that long."""
    search = {"method": "random", "configs": 3500, "max_resource": 1}
    study = Study.create(make_spec(objective="tests.flows.objectives:good", search=search))
    while (job := study.ask()) is not None:
        study.tell(job, {"loss": float(job.trial)})
    spec = rerun_spec(list(study.journal.entries(study.name)), "again")
    limit = 524_288  # bytes: PREFECT_SERVER_API_MAX_PARAMETER_SIZE
    assert len(repr(spec.plain())) > limit
    parameters = shown_parameters(spec)
    assert parameters["search"].startswith(f'{{"method": "recorded", "study_record": {{"source": "{study.name}"')
    assert parameters["name"] == "again" and len(repr(parameters)) < limit / 10


class Client:
    """Prefect's client and run logger: keeps the page and the lines of the log."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.page = ""

    def log(self, level: int, words: str) -> None:
        self.lines.append(words)

    def create_artifact(self, artifact: Any) -> Any:
        self.page = artifact.data
        return SimpleNamespace(id=uuid4())

    def update_artifact(self, _: Any, artifact: Any) -> None:
        self.page = artifact.data


def pages_of(study: Study, run: UUID | None = None) -> StudyPages:
    return StudyPages(study, flow_run=run or uuid4(), say=print)


def test_pages_go_on_where_the_state_of_their_run_cannot_be_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody deleted the flow run: the study's pages do not end with that."""
    asked = threading.Event()

    class OfDeletedRun(Client):
        def read_flow_run(self, _: Any) -> Any:
            asked.set()
            raise ObjectNotFound(RuntimeError())

    client = OfDeletedRun()
    monkeypatch.setattr(study_pages, "api_answers", lambda: True)
    monkeypatch.setattr(study_pages, "get_client", lambda **_: nullcontext(client))
    monkeypatch.setattr(study_pages, "get_run_logger", lambda: client)
    pages = pages_of(Study.create(make_spec())).start()
    assert asked.wait(60) and " jobs done, " in client.page, "it is there at once"
    pages.close()
    assert pages.finish(time.monotonic() + 60, {"Report": "https://host/r"}) and "(<https://host/r>)" in client.page


def test_a_paused_run_has_no_time_at_which_prefect_calls_it_failed(prefect_api: dict[str, str]) -> None:
    """Prefect's dialog says that it resumes by itself then."""
    with SyncPrefectClient(
        prefect_api["PREFECT_API_URL"], auth_string=prefect_api["PREFECT_API_AUTH_STRING"]
    ) as client:
        run = client.create_flow_run(Flow(lambda: None, name="paused"), state=Running()).id
        client.set_flow_run_state(run, Suspended(timeout_seconds=300), force=True)
        given = client.read_flow_run(run).state
        assert given is not None and given.state_details.pause_timeout is not None
        pages = pages_of(Study.create(make_spec()), run)
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
        pages = pages_of(Study.create(make_spec()), run)
        for ended in (False, True):
            client.set_flow_run_state(run, Crashed(), force=True)
            if ended:
                pages._ended.set()
            pages._heed(client)
            state = client.read_flow_run(run).state
            assert state is not None and state.is_running() is not ended, "an end is left as it is"
