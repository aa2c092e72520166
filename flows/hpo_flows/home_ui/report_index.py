"""The list of a home's studies as a page, and the report of each, written from its journal when it is looked at.

No file is served: what lies or links in the folders of reports is not read.
"""

from __future__ import annotations

import json
import threading
import time
from html import escape

from hpo_core.home import Home, is_name
from hpo_core.journal.protocol import Journal
from hpo_core.model.errors import HpoError
from hpo_core.report.html_page import Live, html_page, table
from hpo_core.report.live import ASK_SECONDS, LiveReport, PageResponse
from hpo_core.study import Study
from hpo_core.tracking.tracker_links import read_place
from hpo_core.views.formatting import number
from hpo_core.views.summary import summarize
from hpo_flows.home_ui.running_ui import mlflow_page

KEPT = 8
"""Reports that are kept in memory; of the others the oldest go."""


class ReportIndex:
    """Answers for a ``LocalServer``: ``""`` is a list that follows its studies, ``NAME/`` the report of one."""

    def __init__(self, home: Home) -> None:
        self._home = home
        self._lock = threading.Lock()
        self._reports: dict[str, LiveReport] = {}
        self._rows: dict[str, tuple[int, list[str]]] = {}

    def answer(self, place: str) -> PageResponse | None:
        """The index, or a page of a study's report."""
        if place in ("", "fragment", "version"):
            return self._index(place)
        name, _, part = place.partition("/")
        report = self._report(name) if "/" in place and is_name(name) else None
        return None if report is None else report.answer(part)

    def _report(self, name: str) -> LiveReport | None:
        with self._lock:
            if name not in self._reports:
                source = self._home.read_journal()
                if name not in {info.name for info in source.studies()}:
                    source.close()
                    return None
                while len(self._reports) >= KEPT:
                    del self._reports[next(iter(self._reports))]
                folder = self._home.study_folder(name)

                def links() -> dict[str, str]:
                    run = read_place(folder)
                    return {"All studies": "../"} | ({} if run is None else {"MLflow": mlflow_page(self._home, run)})

                self._reports[name] = LiveReport(source, name, folder, links)
            return self._reports[name]

    def _index(self, place: str) -> PageResponse:
        source = self._home.read_journal()
        try:
            studies = sorted(source.studies(), key=lambda info: (-info.created, info.name))
            version = f"{len(studies)}-{sum(info.entries for info in studies)}"
            if place == "version":
                return PageResponse(json.dumps({"version": version, "ended": False}), "application/json")
            rows = []
            for info in studies:  # a study is read again only where its journal has grown
                entries, row = self._rows.get(info.name, (-1, []))
                if entries != info.entries:
                    row = _row(source, info.name, info.created)
                    self._rows[info.name] = (info.entries, row)
                rows.append(row)
        finally:
            source.close()
        shown = "<p>No study yet.</p>"
        if rows:
            shown = table(("study", "method", "status", "trials", "jobs", "best", "created"), rows, most=200)
            for name, *_ in rows:  # a name has no character that HTML knows
                cell = 'data-label="study">'
                shown = shown.replace(
                    f"{cell}{name}</td>", f'{cell}<a href="{escape(name)}/">{escape(name)}</a></td>', 1
                )
        home = escape(str(self._home.folder))
        body = (
            f'<header><h1>Studies</h1><p class="about">of {home}, the newest first</p></header>'
            f'<section class="card" style="margin-top:18px">{shown}</section>'
        )
        live = Live(version, ASK_SECONDS, draws=False)
        return PageResponse(html_page("Studies", body, [], "Read from the journal.", live=live, whole=place == ""))


def _row(source: Journal, name: str, created: float) -> list[str]:
    when = time.strftime("%Y-%m-%d %H:%M", time.localtime(created))
    try:
        summary = summarize(Study.open(name, source, reading=True))
    except HpoError as error:
        return [name, "", f"damaged: {error}", "", "", "", when]
    best = "" if summary.best is None else f"{summary.metric} {number(summary.best.value, 5)}"
    return [name, summary.method, summary.status, f"{summary.trials:,}", f"{summary.jobs:,}", best, when]
