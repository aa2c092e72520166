"""The log and the artifact of a study in its Prefect flow run, as the journal tells of them.

A thread of the flow's process only reads the journal, so what happens in Prefect neither delays nor ends training, but
for an interrupt. While the API does not answer, the journal is not read on; what is new there is shown afterwards.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Mapping
from contextvars import copy_context
from typing import Any
from uuid import UUID

from prefect import get_run_logger
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.exceptions import Pause
from prefect.states import Running

from hpo_core.execution.loop import Observer
from hpo_core.journal.protocol import Journal
from hpo_core.model.errors import JournalError, StudyNotFoundError
from hpo_core.model.events import AttemptReported, Entry, JobGranted
from hpo_core.model.trial import RESULTS
from hpo_core.study import Study
from hpo_core.views.summary import notices_of
from hpo_flows.prefect_api.api_watch import ASK_SECONDS, api_answers
from hpo_flows.prefect_pages.artifacts import StudyArtifact
from hpo_flows.progress import ResultLines, standing

POLL_SECONDS = 0.3
EACH = 100
"""Lines of the log that tell of one job each: of the first results, and of different failures."""
JOURNAL_SECONDS = 5.0
"""Until a journal that cannot be reached is tried again."""
QUIET_SECONDS = 120.0
"""Until the log of a study says how far it is, where nothing else was said."""
log = logging.getLogger("hpo.prefect")


class RunCancelledError(KeyboardInterrupt):
    """Somebody cancelled or paused the flow run in which a study is driven; the study was halted, as by Ctrl-C."""


class StudyPages(Observer):
    """Shows how a study goes on in the present flow run, in a thread of its own, and heeds what becomes of the run.

    Args:
        name: the study, which need not be in the journal yet.
        open_journal: called again where the journal cannot be reached.
        say: told what a person at the controller's terminal should know.
        heeds_runs: whether the study ends once this flow run, or one that it is part of, is cancelled.
    """

    def __init__(
        self,
        name: str,
        open_journal: Callable[[], Journal],
        *,
        flow_run: UUID,
        say: Callable[[str], None],
        heeds_runs: bool = False,
    ) -> None:
        self._name = name
        self._open_journal = open_journal
        self._flow_run = flow_run
        self._say = say
        self._heeds_runs = heeds_runs
        self.links: Mapping[str, str] = {}
        """Links to what belongs to the study, by title: shown at its end."""
        self._driven: Study | None = None
        self._start = 1
        """The first entry that counts as news."""
        self._began = time.time()
        self._study: Study | None = None
        """The study as it is shown; None until it is in the journal."""
        self._journal: Journal | None = None
        self._thread: threading.Thread | None = None
        self._ended = threading.Event()
        self._interrupt: BaseException | None = None
        self._above: list[UUID] | None = None
        self._logger: Any = log
        self._reports = 0
        self._failures: set[str] = set()
        """Messages of failures that are in the log."""
        self._written = time.monotonic()
        self._asked = 0.0
        self._answers = True
        self._told = False

    # In the thread of the study's loop.

    def begin(self, study: Study) -> StudyPages:
        """Begin with what the study records next."""
        self._driven, self._start, self._began = study, study.seq, time.time()
        self._logger = get_run_logger()
        # of the flow run's context, which has the settings of its Prefect
        self._thread = threading.Thread(target=copy_context().run, args=(self._follow,), name="pages", daemon=True)
        self._thread.start()
        return self

    def on_tick(self) -> None:
        """Raise Pause or RunCancelledError, which the loop takes as an interrupt, once that is the run's state.

        Not where nothing is left to run: a study that has ended ends its run.
        """
        is_over = self._driven is not None and self._driven.at_rest and not self._driven.state.running
        if self._interrupt is not None and not is_over:
            raise self._interrupt

    def close(self) -> None:
        """The controller records no more."""
        self._ended.set()

    def finish(self, deadline: float) -> bool:
        """Wait until all is shown, links included; returns whether it is."""
        if self._thread is None:
            return True
        self._thread.join(max(0.0, deadline - time.monotonic()))
        if self._thread.is_alive():
            return False
        if self._study is not None and self.links:
            with get_client(sync_client=True) as client:
                self._artifact.update(client, self.links)
        return True

    # In a thread.

    def _follow(self) -> None:
        with get_client(sync_client=True) as client:
            while True:
                ended = self._ended.is_set()  # before the journal is read: what was recorded until then is shown
                shown = self._api_answers(client) and self._show_news(client, to_end=ended)
                if ended and shown:
                    break
                if ended:  # whoever waits for this has a limit
                    time.sleep(POLL_SECONDS)
                else:
                    self._ended.wait(POLL_SECONDS)
            with contextlib.suppress(Exception):  # the API went away at this moment
                if self._study is not None:
                    self._artifact.update(client)

    def _api_answers(self, client: SyncPrefectClient) -> bool:
        if time.monotonic() - self._asked >= ASK_SECONDS:
            self._answers = api_answers()
            self._asked = time.monotonic()
            if self._answers:
                try:
                    self._heed(client)
                except Exception as error:  # it is asked for again; the pages go on, whatever became of the flow run
                    log.debug("asking for the flow run's state: %s: %s", type(error).__name__, error)
            elif not self._told and not self._ended.is_set():  # whose end has a sentence of its own
                self._told = True
                self._say("The Prefect server does not answer: its pages stop here. The study goes on.")
        return self._answers

    def _heed(self, client: SyncPrefectClient) -> None:
        state = client.read_flow_run(self._flow_run).state
        if state is not None and state.is_crashed() and not self._ended.is_set():
            # the automation for silent runs missed heartbeats while its server was away
            client.set_flow_run_state(self._flow_run, Running(), force=True)
        if state is not None and state.is_paused() and state.state_details.pause_timeout is not None:
            # else Prefect calls the run Failed once that time is over, whatever its dialog promises
            state = state.model_copy(deep=True)
            state.state_details.pause_timeout = None
            state.message = f"Study {self._name!r} is halted until this run, or `hpo resume`, goes on with it."
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

    def _show_news(self, client: SyncPrefectClient, *, to_end: bool) -> bool:
        try:
            if self._study is None and not self._open_study():
                return to_end  # it ended before it began its study
            news = self._news()
        except JournalError as error:
            log.warning("the journal cannot be read now: %s", error)
            if self._study is None:
                self._ended.wait(JOURNAL_SECONDS)
            return False
        for entry in news:
            self._show(entry)
        assert self._study is not None
        if not to_end and time.monotonic() - self._written >= QUIET_SECONDS:
            self._write(logging.INFO, f"jobs: {standing(self._study, self._artifact.pace)}")
        try:
            self._artifact.on_tick(client)
        except Exception as error:  # also an assertion of Prefect's client
            log.debug("Prefect's pages are not up to date: %s", error)
            return False
        return True

    def _open_study(self) -> bool:
        if self._journal is None:
            self._journal = self._open_journal()
        try:
            study = Study.open(self._name, self._journal, at=self._start - 1)
        except StudyNotFoundError:
            return False
        self._study = study
        self._artifact = StudyArtifact(study, self._flow_run, began=self._began)
        self._result_lines = ResultLines(study)
        for notice in notices_of(study):
            self._write(logging.WARNING, notice)
        return True

    def _news(self) -> list[Entry]:
        assert self._study is not None and self._journal is not None
        if self._journal.info(self._name).entries == self._study.seq:
            return []
        return list(self._journal.entries(self._name, self._study.seq))

    def _show(self, entry: Entry) -> None:
        assert self._study is not None
        self._study.replay(entry)
        if isinstance(entry.stimulus, AttemptReported):
            report, state = entry.stimulus.report, self._study.state
            granted = [state.job(event) for event in entry.events if type(event) is JobGranted]
            line = self._result_lines.lines(report, granted)[0]
            failures = len(self._failures)
            if report.outcome not in RESULTS and failures < EACH:
                self._failures.add(report.message)
            if self._reports < EACH or len(self._failures) > failures:
                self._write(logging.INFO, line)
            self._reports += 1
        if news := self._result_lines.news():
            self._write(logging.WARNING, news)

    def _write(self, level: int, words: str) -> None:
        self._written = time.monotonic()
        self._logger.log(level, words)


def runs_above(client: SyncPrefectClient, run: UUID) -> list[UUID]:
    """The flow runs that a flow run is part of, the nearest first."""
    found: list[UUID] = []
    while (task_run := client.read_flow_run(run).parent_task_run_id) is not None:
        above = client.read_task_run(task_run).flow_run_id
        if above is None or above in found:
            break
        found.append(run := above)
    return found
