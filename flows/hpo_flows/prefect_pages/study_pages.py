"""The log and the artifact of a study in its Prefect flow run, and an ear for what becomes of that run.

The study's loop writes lines and pages, at most as often as they are shown, and a thread of the flow's process sends
them: what happens in Prefect neither delays nor ends training, but for an interrupt. What is new while the API does not
answer is shown afterwards.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from contextvars import copy_context
from types import MappingProxyType
from typing import Any
from uuid import UUID

from prefect import get_run_logger
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.actions import ArtifactCreate, ArtifactUpdate
from prefect.exceptions import Pause
from prefect.states import Running

from hpo_core.execution.loop import Observer
from hpo_core.model.trial import Job, Report
from hpo_core.study import Study
from hpo_core.views.summary import notices_of
from hpo_flows.prefect_api.connection import ASK_SECONDS, api_answers
from hpo_flows.prefect_pages.artifacts import artifact_key, study_markdown, why_halted
from hpo_flows.progress import BoardNotes, PlainLines

END_POLL_SECONDS = 0.3
SOONEST = 4.0
"""Seconds between two updates of the page at first; later a sixtieth of the time elapsed, ``LATEST`` at most."""
LATEST = 60.0
log = logging.getLogger("hpo.prefect")


class RunCancelledError(KeyboardInterrupt):
    """Somebody cancelled or paused the flow run in which a study is driven; the study was halted, as by Ctrl-C."""


class StudyPages(Observer):
    """Shows how a study goes on in the present flow run, and heeds what becomes of the run.

    Args:
        say: told what a person at the controller's terminal should know.
        heeds_runs: whether the study ends once this flow run, or one that it is part of, is cancelled.
    """

    def __init__(self, study: Study, *, flow_run: UUID, say: Callable[[str], None], heeds_runs: bool = False) -> None:
        self._study = study
        self._flow_run = flow_run
        self._say = say
        self._heeds_runs = heeds_runs
        self._notes = BoardNotes(study)
        self._progress = PlainLines(study, lambda line: self._lines.append((logging.INFO, line)), each=100)
        self._lines: deque[tuple[int, str]] = deque((logging.WARNING, notice) for notice in notices_of(study))
        self._ended = threading.Event()
        self._given_up = False
        self._interrupt: BaseException | None = None
        self._above: list[UUID] | None = None
        self._drawn: ArtifactUpdate | None = None
        """The page of the study as it was last drawn, by the study's loop."""
        self._sent: ArtifactUpdate | None = None
        self._artifact: UUID | None = None
        """Made once, then changed in place: new versions would fill the timeline with dots."""
        self._due = 0.0
        # in the flow run's context, which has the settings of its Prefect
        self._thread = threading.Thread(target=copy_context().run, args=(self._follow,), name="pages", daemon=True)

    def start(self) -> StudyPages:
        self._draw()
        self._thread.start()
        return self

    # In the thread of the study's loop.

    def on_report(self, report: Report, granted: list[Job]) -> None:
        self._progress.on_report(report, granted)

    def on_tick(self) -> None:
        """Raise Pause or RunCancelledError, which the loop takes as an interrupt, once that is the run's state.

        Not where nothing is left to run: a study that has ended ends its run.
        """
        self._progress.on_tick()
        if time.monotonic() >= self._due:
            self._due = time.monotonic() + min(LATEST, max(SOONEST, self._notes.pace.elapsed() / 60))
            self._draw()
        if self._interrupt is not None and (self._study.state.running or not self._study.at_rest):
            raise self._interrupt

    def close(self) -> None:
        """The controller records no more."""
        self._progress.close()
        self._draw()

    def finish(self, deadline: float, links: Mapping[str, str]) -> bool:
        """Wait until the API answers and all is shown; returns whether it is.

        Args:
            links: to what belongs to the study, by title.
        """
        if links:
            self._draw(links)
        self._ended.set()
        self._thread.join(max(0.0, deadline - time.monotonic()))
        self._given_up = self._thread.is_alive()
        return not self._given_up

    def _draw(self, links: Mapping[str, str] = MappingProxyType({})) -> None:
        study = self._study
        if study.finished or study.state.halted is not None:
            self._notes.end(None)
        words = self._notes.head()
        try:
            page = study_markdown(study, words, links)
        except Exception:  # a page is no reason to end a study
            log.exception("the page of study %r cannot be drawn", study.name)
        else:
            described = "; ".join(filter(None, [why_halted(study), f"study {study.name}: {words}"]))
            self._drawn = ArtifactUpdate(data=page, description=described)

    # In a thread.

    def _follow(self) -> None:
        logger, told = get_run_logger(), False
        with get_client(sync_client=True) as client:
            while not self._given_up:
                ended = self._ended.is_set()  # before it is sent: what was written until then is shown
                if api_answers():
                    if self._send(client, logger) and ended:
                        return
                    with suppress(Exception):  # somebody deleted the flow run, say: the pages go on
                        self._heed(client)
                elif not (told or ended):  # the end has a sentence of its own
                    told = True
                    self._say("The Prefect server does not answer: its pages stop here. The study goes on.")
                if ended:  # whoever waits for this has a limit
                    time.sleep(END_POLL_SECONDS)
                else:
                    self._ended.wait(ASK_SECONDS)

    def _send(self, client: SyncPrefectClient, logger: Any) -> bool:
        while self._lines:
            logger.log(*self._lines.popleft())
        try:
            self._send_page(client)
        except Exception as error:  # also an assertion of Prefect's client
            log.debug("Prefect's page is not up to date: %s", error)
            return False
        return True

    def _send_page(self, client: SyncPrefectClient) -> None:
        if (drawn := self._drawn) is None or drawn == self._sent:
            return
        if self._artifact is None:
            key, text = artifact_key(self._study.name, "study"), drawn.model_dump(exclude_unset=True)
            made = ArtifactCreate(key=key, type="markdown", flow_run_id=self._flow_run, **text)
            self._artifact = client.create_artifact(made).id
        else:
            client.update_artifact(self._artifact, drawn)
        self._sent = drawn

    def _heed(self, client: SyncPrefectClient) -> None:
        state = client.read_flow_run(self._flow_run).state
        if state is not None and state.is_crashed() and not self._ended.is_set():
            # the automation for silent runs missed heartbeats while its server was away
            client.set_flow_run_state(self._flow_run, Running(), force=True)
        if state is not None and state.is_paused() and state.state_details.pause_timeout is not None:
            # else Prefect calls the run Failed once that time is over, whatever its dialog promises
            state = state.model_copy(deep=True)
            state.state_details.pause_timeout = None
            state.message = f"Study {self._study.name!r} is halted until this run, or `hpo resume`, goes on with it."
            client.set_flow_run_state(self._flow_run, state, force=True)
        states = [state]
        if self._heeds_runs:
            if self._above is None:
                self._above = runs_above(client, self._flow_run)
            states += [client.read_flow_run(run).state for run in self._above]
        for one in filter(None, states):
            if self._heeds_runs and (one.is_cancelling() or one.is_cancelled()):
                self._interrupt = RunCancelledError()
            elif one.is_paused() and self._interrupt is None:
                self._interrupt = Pause("suspended", state=one)


def runs_above(client: SyncPrefectClient, run: UUID) -> list[UUID]:
    """The flow runs that a flow run is part of, the nearest first."""
    found: list[UUID] = []
    while (task_run := client.read_flow_run(run).parent_task_run_id) is not None:
        above = client.read_task_run(task_run).flow_run_id
        if above is None or above in found:
            break
        found.append(run := above)
    return found
