"""The page of a study while it runs, an artifact in the Prefect UI: best result, picture, links."""

from __future__ import annotations

import base64
import logging
import re
import time
from collections.abc import Collection, Iterable, Mapping
from typing import Any
from urllib.parse import quote, unquote
from uuid import UUID

from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.actions import ArtifactCreate, ArtifactUpdate

from hpo_core.report.pictures import search_picture
from hpo_core.security.untrusted_text import markdown_code, markdown_row, markdown_text
from hpo_core.study import Study
from hpo_core.views.formatting import number, plural
from hpo_core.views.rungs import halt_words
from hpo_core.views.summary import best_result, front_members, front_rows, other_best_words, rule_words
from hpo_flows.progress import BoardNotes

SOONEST = 4.0
"""Seconds between two updates at first; later ones are a sixtieth of the time elapsed apart, a minute at most."""
LATEST = 60.0
log = logging.getLogger("hpo.prefect")


def artifact_key(study: str, what: str) -> str:
    """Prefect allows lowercase letters, digits and dashes."""
    return f"{re.sub('[^a-z0-9]+', '-', study.lower()).strip('-')}-{what}"


def best_markdown(study: Study) -> str:
    best = best_result(study, study.best)
    why = _halted(study)
    halted = [f"**{why}**", ""] if why else []
    if best is None:
        none = f"No trial has a finite {markdown_text(study.spec.metric.name)} yet."
        return "\n".join([f"## {study.name}", "", *halted, none])
    reached = f"{markdown_text(study.spec.metric.name)} = {number(best.value)}"
    lines = [
        f"## {study.name}: trial {best.trial}",
        "",
        *halted,
        f"**{reached}** after {best.resource} units of training{rule_words(study)}",
        "",
        *((markdown_text(other), "") if (other := other_best_words(study)) else ()),
        *markdown_table(
            ("parameter", "value"),
            ((name, number(value) if isinstance(value, float) else value) for name, value in best.params.items()),
        ),
    ]
    if len(study.spec.objectives) > 1:
        rows = front_rows(front_members(study.spec, study.state))
        names = markdown_text(", ".join(metric.name for metric in study.spec.objectives))
        lines += ["", f"### Pareto front of {names}: {plural(len(rows), 'result')}", ""]
        lines += markdown_table(rows[0], (row.values() for row in rows))
    return "\n".join(lines)


def markdown_table(columns: Collection[Any], rows: Iterable[Iterable[Any]]) -> list[str]:
    return [markdown_row(columns), f"|{' --- |' * len(columns)}", *map(markdown_row, rows)]


def _halted(study: Study) -> str:
    halted = study.state.halted
    return "" if halted is None or study.finished else f"Halted: {markdown_text(halt_words(study.spec, halted))}"


def study_markdown(study: Study, words: str, links: Mapping[str, str]) -> str:
    """The page of a study: how it stands, its best trial, a picture, and where more is to be found.

    Args:
        words: how far it is.
        links: title to target. Only what a browser on another machine can open is a link: a path on the machine of the
            flow run is shown as text.
    """
    parts = [best_markdown(study), words]
    if (svg := search_picture(study)) is not None:
        parts.append(f"![the search](data:image/svg+xml;base64,{base64.b64encode(svg.encode()).decode()})")
    if links:
        parts += ["### More", "\n".join(f"- {_link(title, target)}" for title, target in links.items())]
    return "\n\n".join(parts)


def _link(title: str, target: str) -> str:
    if target.startswith(("http://", "https://")):
        return f"[{title}](<{_address(target)}>)"
    path = unquote(target.removeprefix("file://")) if target.startswith("file://") else target
    return f"{title}, on the machine of the run: {markdown_code(path)}"


def _address(url: str) -> str:
    return re.sub(r"[<>\\\s\x00-\x1f\x7f]", lambda found: quote(found[0]), url)


class StudyArtifact:
    """The artifact of one flow run: made once, then changed in place; new versions would fill the timeline with dots.

    It is drawn in the thread of the study's loop, and sent by another.
    """

    def __init__(self, study: Study, flow_run: UUID) -> None:
        self._study = study
        self._flow_run = flow_run
        self.notes = BoardNotes(study)
        self._made: UUID | None = None
        self._drawn: ArtifactUpdate | None = None
        self._sent: ArtifactUpdate | None = None
        self._due = 0.0

    def on_tick(self) -> None:
        if time.monotonic() >= self._due:
            self._due = time.monotonic() + min(LATEST, max(SOONEST, self.notes.pace.elapsed() / 60))
            self.draw()

    def draw(self, links: Mapping[str, str] | None = None) -> None:
        """Draw it as of now.

        Args:
            links: title to target, for example MLflow and the report; see :func:`study_markdown`.
        """
        study = self._study
        if study.finished or study.state.halted is not None:
            self.notes.end(None)
        words, why = self.notes.head(), _halted(study)
        described = f"{why}; study {study.name}: {words}" if why else f"Study {study.name}: {words}"
        try:
            self._drawn = ArtifactUpdate(data=study_markdown(study, words, links or {}), description=described)
        except Exception:  # a page is no reason to end a study
            log.exception("the page of study %r cannot be drawn", study.name)

    def send(self, client: SyncPrefectClient) -> None:
        if (drawn := self._drawn) is None or drawn == self._sent:
            return
        if self._made is None:
            key, text = artifact_key(self._study.name, "study"), drawn.model_dump(exclude_unset=True)
            made = ArtifactCreate(key=key, type="markdown", flow_run_id=self._flow_run, **text)
            self._made = client.create_artifact(made).id
        else:
            client.update_artifact(self._made, drawn)
        self._sent = drawn
