"""The log and the artifacts of a study in its Prefect flow run, as the journal tells of them.

A thread of the flow's process uses it (``hpo_flows.study_run.study_flow``). It only reads the journal, so what happens
in Prefect neither delays nor ends training. While the API does not answer, the journal is not read on; what is new
there is shown afterwards.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass, field
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import httpx
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.actions import LogCreate
from prefect.client.schemas.objects import State

from hpo_core.journal.protocol import Journal
from hpo_core.journal.sql import is_alive
from hpo_core.model.errors import JournalError, StudyNotFoundError
from hpo_core.model.events import AttemptReported, Entry, JobGranted
from hpo_core.model.trial import RESULTS
from hpo_core.pool.store import live_rows
from hpo_core.pool.words import standings
from hpo_core.study import Study
from hpo_core.views.summary import notices_of
from hpo_flows.prefect_api.api_watch import ASK_SECONDS, api_answers
from hpo_flows.prefect_pages.artifacts import StudyArtifacts
from hpo_flows.prefect_pages.flow_states import log_line
from hpo_flows.prefect_pages.study_tasks import EACH
from hpo_flows.progress import Pace, ResultLines, standing

POLL_SECONDS = 0.3
JOURNAL_SECONDS = 5.0
"""Until a journal that cannot be reached is tried again."""
QUIET_SECONDS = 120.0
"""Until the log of a study says how far it is, where nothing else was said."""
_LINES = 200
"""Lines of a log that are sent together."""
_LINE_LENGTH = 100_000
"""Most characters of a line."""
log = logging.getLogger("hpo.prefect")


@dataclass
class StudyPages:
    """Shows a study in a flow run until its controller has ended.

    Args:
        name: the study, which need not be in the journal yet.
        open_journal: called again where the journal cannot be reached.
        start: the first entry that counts as news.
        began: when its controller began, in seconds since the epoch.
        ended: set once the controller records no more.
        say: told what a person at the controller's terminal should know.
        on_state: told the flow run's state every two seconds, while the API answers.
    """

    name: str
    open_journal: Callable[[], Journal]
    _: KW_ONLY
    flow_run: UUID
    start: int
    began: float
    ended: threading.Event
    say: Callable[[str], None]
    on_state: Callable[[SyncPrefectClient, State[Any]], None]
    study: Study | None = field(default=None, init=False)
    """The study as it is shown; None until it is in the journal."""
    _told: bool = field(default=False, init=False)
    _journal: Journal | None = field(default=None, init=False)
    _lines: list[LogCreate] = field(default_factory=list, init=False)
    _reports: int = field(default=0, init=False)
    _failures: set[str] = field(default_factory=set, init=False)
    """Messages of failures that are in the log."""
    _written: float = field(default_factory=time.monotonic, init=False)
    """When the last line was written."""
    _asked: float = field(default=0.0, init=False)
    _answers: bool = field(default=True, init=False)

    def follow(self) -> None:
        """Show what is new until the controller has ended and all is shown."""
        with get_client(sync_client=True) as client:
            while True:
                ended = self.ended.is_set()  # before the journal is read: what was recorded until then is shown
                shown = self._api_answers(client) and self._show_news(client, to_end=ended)
                if ended and shown:
                    break
                if ended:  # whoever waits for this has a limit
                    time.sleep(POLL_SECONDS)
                else:
                    self.ended.wait(POLL_SECONDS)
            with contextlib.suppress(Exception):  # the API went away at this moment
                if self.study is not None:
                    self._artifacts.update(client)
                self._send_log(client)

    def finish(self, links: Mapping[str, str]) -> None:
        """Add links to what belongs to the study, after its end.

        Args:
            links: title to target, for example MLflow and the report; see :func:`study_markdown`.
        """
        if self.study is not None and links:
            with get_client(sync_client=True) as client:
                self._artifacts.update(client, links)

    # What is new.

    def _api_answers(self, client: SyncPrefectClient) -> bool:
        if time.monotonic() - self._asked >= ASK_SECONDS:
            self._answers = api_answers()
            self._asked = time.monotonic()
            if self._answers:
                try:
                    if (state := client.read_flow_run(self.flow_run).state) is not None:
                        self.on_state(client, state)
                except Exception as error:  # it is asked for again; the pages go on, whatever became of the flow run
                    log.debug("asking for the flow run's state: %s: %s", type(error).__name__, error)
            if not self._answers and not self._told and not self.ended.is_set():  # whose end has a sentence of its own
                self._told = True
                self.say("The Prefect server does not answer: its pages stop here. The study goes on.")
        return self._answers

    def _show_news(self, client: SyncPrefectClient, *, to_end: bool) -> bool:
        try:
            if self.study is None and not self._open_study():
                return to_end  # it ended before it began its study
            news = self._news()
        except JournalError as error:
            log.warning("the journal cannot be read now: %s", error)
            if self.study is None:
                self.ended.wait(JOURNAL_SECONDS)
            return False
        for entry in news:
            self._show(entry)
        assert self.study is not None
        if not to_end and time.monotonic() - self._written >= QUIET_SECONDS:
            self._write(logging.INFO, f"jobs: {standing(self.study, self._pace)}", time.time())
        try:
            self._artifacts.on_tick(client)
            self._send_log(client)
        except Exception as error:  # also an assertion of Prefect's client
            log.debug("Prefect's pages are not up to date: %s", error)
            return False
        return True

    def _open_study(self) -> bool:
        if self._journal is None:
            self._journal = self.open_journal()
        try:
            study = Study.open(self.name, self._journal, at=self.start - 1)
        except StudyNotFoundError:
            return False
        self.study = study
        self._artifacts = StudyArtifacts(study, self.flow_run, began=self.began, pool=self._pool_words)
        self._result_lines = ResultLines(study)
        self._pace = Pace(study)
        for notice in notices_of(study):
            self._write(logging.WARNING, notice, time.time())
        return True

    def _news(self) -> list[Entry]:
        assert self.study is not None and self._journal is not None
        if self._journal.info(self.name).entries == self.study.seq:
            return []
        return list(self._journal.entries(self.name, self.study.seq))

    def _show(self, entry: Entry) -> None:
        assert self.study is not None
        self.study.replay(entry)
        if isinstance(entry.stimulus, AttemptReported):
            report, state = entry.stimulus.report, self.study.state
            granted = [state.job(event) for event in entry.events if type(event) is JobGranted]
            line = self._result_lines.lines(report, granted)[0]
            failures = len(self._failures)
            if report.outcome not in RESULTS and failures < EACH:
                self._failures.add(report.message)
            if self._reports < EACH or len(self._failures) > failures:
                self._write(logging.INFO, line, entry.time)
            self._reports += 1
        if news := self._result_lines.news():
            self._write(logging.WARNING, news, entry.time)

    def _write(self, level: int, words: str, at: float) -> None:
        self._written = time.monotonic()
        self._lines.append(log_line(self.flow_run, level, words, datetime.fromtimestamp(at, UTC)))

    def _send_log(self, client: SyncPrefectClient) -> None:
        while self._lines:
            try:
                client.create_logs(self._lines[:_LINES])
            except httpx.HTTPStatusError as error:  # the server refuses them, and would again
                if error.response.status_code >= 500:
                    raise
                log.warning("lines of the flow run's log are missing: %s", error)
            del self._lines[:_LINES]

    def _pool_words(self) -> str:
        # Standing of the study in its pool; empty: it is in none, or that cannot be read.
        assert self._journal is not None
        with contextlib.suppress(JournalError):
            if (found := standings(live_rows(self._journal, is_alive)).get(self.name)) is not None:
                return found.words
        return ""
