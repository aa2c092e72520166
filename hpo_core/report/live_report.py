"""The report of a study as a page that follows its journal."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from hpo_core.journal.protocol import Journal
from hpo_core.report.html_page import Live
from hpo_core.report.local_server import Answer
from hpo_core.report.study.series import Series, read_series
from hpo_core.report.study.study_page import render

ASK_SECONDS = 2.0
"""Between two questions of a page whether there is a newer one."""
_REST = 4.0
"""A page that takes a second to write is written again after four of these at the earliest."""


class LiveReport:
    """Answers for :class:`~hpo_core.report.local_server.LocalServer`.

    Args:
        journal: read again whenever it has grown.
        folder: of the study, for the ends of its logs.
        links: what the head shows; asked for each time.
    """

    def __init__(
        self, journal: Journal, name: str, folder: Path, links: Callable[[], Mapping[str, str]] = dict
    ) -> None:
        self._journal, self._name, self._folder, self._links = journal, name, folder, links
        self._lock = threading.Lock()
        self._series: Series | None = None
        self._entries = -1
        self._next = 0.0

    def answer(self, place: str) -> Answer | None:
        """The page itself, its changing part, or which version there is."""
        if place not in ("", "fragment", "version"):
            return None
        with self._lock:
            series = self._current()
            ended = series.study.status != "open"
            if place == "version":
                return Answer(json.dumps({"version": str(self._entries), "ended": ended}), "application/json")
            live = Live(str(self._entries), ASK_SECONDS)
            began = time.monotonic()
            page = render(series, self._links(), folder=self._folder, live=live, whole=place == "")
            self._next = max(self._next, time.monotonic() + _REST * (time.monotonic() - began))
            return Answer(page)

    def _current(self) -> Series:
        now = time.monotonic()
        if self._series is None or now >= self._next:
            known = self._journal.info(self._name).entries
            if self._series is None or known != self._entries:
                self._series = read_series(self._journal.entries(self._name, 0, known))
                self._entries = known
                self._next = time.monotonic() + _REST * (time.monotonic() - now)
        return self._series
