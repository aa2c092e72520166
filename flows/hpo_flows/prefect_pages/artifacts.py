"""Artifacts of a study while it runs, in the Prefect UI: one page (best, rungs, picture, links), and a bar of progress.

Both are made once and then changed in place: a new version for every change would fill the timeline with dots.
"""

from __future__ import annotations

import base64
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
from hpo_core.views.device_use import granted_words
from hpo_core.views.formatting import duration, number, plural
from hpo_core.views.rungs import RungNames, bracket_views, entry_levels, grouped_brackets, halt_words, rung_rows
from hpo_core.views.summary import best_result, front_members, front_rows, other_best_words, rule_words
from hpo_flows.progress import Pace, remaining_units

SOONEST = 4.0
"""Seconds between two updates at first; later ones are a sixtieth of the time elapsed apart, a minute at most."""
LATEST = 60.0


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
        *markdown_table(("parameter", "value"), ((name, str(_short(value))) for name, value in best.params.items())),
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


def _short(value: Any) -> Any:
    return number(value) if isinstance(value, float) else value


def study_markdown(study: Study, words: str, links: Mapping[str, str]) -> str:
    """The page of a study: how it stands, its best trial, its rungs, a picture, and where more is to be found.

    Args:
        words: how far it is.
        links: title to target. Only what a browser on another machine can open is a link: a path on the machine of the
            flow run is shown as text.
    """
    rows = rung_rows(study, grouped_brackets(bracket_views(study, details=True)))
    columns = list(dict.fromkeys(name for row in rows for name in row))
    parts = [best_markdown(study), words]
    if (svg := search_picture(study)) is not None:
        parts.append(f"![the search](data:image/svg+xml;base64,{base64.b64encode(svg.encode()).decode()})")
    if rows:
        table = markdown_table(columns, ([_short(row.get(name, "")) for name in columns] for row in rows))
        parts += [_about_rungs(study), "\n".join(table)]
    if links:
        parts += ["### More", "\n".join(f"- {_link(title, target)}" for title, target in links.items())]
    return "\n\n".join(parts)


def _link(title: str, target: str) -> str:
    if target.startswith(("http://", "https://")):
        return f"[{title}](<{_address(target)}>)"
    path = unquote(target.removeprefix("file://")) if target.startswith("file://") else target
    return f"{title}, on the machine of the run: {markdown_code(path)}"


def _about_rungs(study: Study) -> str:
    lines = [f"### {'Generations' if study.spec.search.outline().members else 'Rungs'}"]
    if enter := entry_levels(study.spec):
        places = ", ".join(f"{level} (bracket {bracket})" for bracket, level in enter.items())
        lines.append(f"All brackets share these rungs; their trials enter at {places}.")
    names = RungNames(study.spec)
    lines += [f"- {names.ceiling_line(event)}" for event in study.state.ceilings]
    return "\n\n".join(lines)


def _address(url: str) -> str:
    return re.sub(r"[<>\\\s\x00-\x1f\x7f]", lambda found: quote(found[0]), url)


class StudyArtifacts:
    """The artifacts of one flow run.

    Args:
        flow_run: the flow run they belong to.
        began: when its controller began, in seconds since the epoch.
    """

    def __init__(
        self,
        study: Study,
        flow_run: UUID,
        *,
        began: float,
    ) -> None:
        self._study = study
        self._flow_run = flow_run
        self._pace = Pace(study, before=max(0.0, time.time() - began))
        self._made: dict[str, tuple[UUID, ArtifactUpdate]] = {}
        self._due = 0.0

    def on_tick(self, client: SyncPrefectClient) -> None:
        """Bring the artifacts up to date where that is due."""
        if time.monotonic() >= self._due:
            self._due = time.monotonic() + min(LATEST, max(SOONEST, self._pace.elapsed() / 60))
            self.update(client)

    def update(self, client: SyncPrefectClient, links: Mapping[str, str] | None = None) -> None:
        """Bring the artifacts up to date now.

        Args:
            links: title to target, for example MLflow and the report; see :func:`study_markdown`.
        """
        for what, (kind, data, description) in self._shown(links).items():
            update = ArtifactUpdate(data=data, description=description)
            if what not in self._made:
                made = client.create_artifact(
                    ArtifactCreate(
                        key=artifact_key(self._study.name, what),
                        type=kind,
                        data=data,
                        description=description,
                        flow_run_id=self._flow_run,
                    )
                )
                self._made[what] = (made.id, update)
            elif self._made[what][1] != update:
                client.update_artifact(self._made[what][0], update)
                self._made[what] = (self._made[what][0], update)

    def _shown(self, links: Mapping[str, str] | None = None) -> dict[str, tuple[str, Any, str]]:
        # Content of the artifacts now: type, data, description by the end of their keys.
        study = self._study
        words, why = self._words(), _halted(study)
        described = "; ".join(filter(None, (why, f"{'study' if why else 'Study'} {study.name}: {words}")))
        page = study_markdown(study, words, links or {})
        shown: dict[str, tuple[str, Any, str]] = {"study": ("markdown", page, described)}
        share: Any = self._share()
        if share is None and (before := self._made.get("progress")) is not None:
            share = before[1].data  # nothing says how far a halted study is, and 2 jobs are not running any more
        if share is not None:
            shown["progress"] = ("progress", share, "; ".join(filter(None, (why, words))))
        return shown

    def _words(self) -> str:
        study = self._study
        if study.finished:
            return f"Finished: {study.state.completed_jobs:,} jobs in {duration(self._pace.elapsed())}."
        halted = study.state.halted is not None
        words = f"{study.state.completed_jobs:,} jobs done, {granted_words(study, driven=not halted)}"
        if halted:
            return words
        return f"{words}, {duration(self._pace.elapsed())} elapsed{self._pace.eta_words()}"

    def _share(self) -> float | None:
        # Percent of the units of training that are done; None where nothing says how many there will be.
        study = self._study
        if study.finished:
            return 100.0
        left = remaining_units(study)
        if left is None or study.state.halted is not None:
            return None
        done = study.state.resource_used
        return round(100.0 * done / max(done + left, 1), 1)
