"""The report of a study that runs: its file is written anew while the journal grows."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path

from hpo_core.journal.protocol import Journal
from hpo_core.report.html_page import write_page
from hpo_core.report.series import read_series
from hpo_core.report.study_page import render

SECONDS = 5.0
"""Least time between two reports."""
_REST = 4.0
"""A page that takes a second to write is written again after four of these at the earliest."""


class LiveReport:
    """A report that is written anew where its journal has grown.

    Args:
        journal: read again whenever it has grown.
        path: of the page.
        folder: of the study, for the ends of its logs.
        links: what the head shows; asked for each time.
    """

    def __init__(
        self, journal: Journal, name: str, path: Path, *, folder: Path, links: Callable[[], Mapping[str, str]] = dict
    ) -> None:
        self._journal, self._name, self._path, self._folder, self._links = journal, name, path, folder, links
        self._entries = -1
        self._goes_on = True

    def write(self) -> bool:
        """Write the page where the journal has grown; returns whether the study may still go on.

        Raises:
            StudyNotFoundError: there is no such study.
            JournalError: its journal is damaged.
            StorageError: the file cannot be written.
        """
        known = self._journal.info(self._name).entries
        if known != self._entries:
            series = read_series(self._journal.entries(self._name, 0, known))
            self._goes_on = series.study.status == "open"
            write_page(render(series, self._links(), folder=self._folder, live=self._goes_on), self._path)
            self._entries = known
        return self._goes_on

    def follow(self) -> None:
        """Write until the study has ended; the last page does not load itself anew."""
        while True:
            began = time.monotonic()
            if not self.write():
                return
            time.sleep(max(SECONDS, _REST * (time.monotonic() - began)))
