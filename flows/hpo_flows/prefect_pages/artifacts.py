"""The page of a study while it runs, an artifact in the Prefect UI: best result, picture, links."""

from __future__ import annotations

import base64
import re
from collections.abc import Collection, Iterable, Mapping
from typing import Any
from urllib.parse import quote, unquote

from hpo_core.model.features import FEATURES, feature
from hpo_core.security.untrusted_text import markdown_code, markdown_row, markdown_text
from hpo_core.study import Study
from hpo_core.views.formatting import number, plural
from hpo_core.views.rungs import halt_words
from hpo_core.views.summary import best_result, front_members, front_rows, other_best_words, rule_words


def artifact_key(study: str, what: str) -> str:
    """Prefect allows lowercase letters, digits and dashes."""
    return f"{re.sub('[^a-z0-9]+', '-', study.lower()).strip('-')}-{what}"


def study_markdown(study: Study, words: str, links: Mapping[str, str]) -> str:
    """The page of a study: its best trial, how it stands, a picture, and where more is to be found.

    Args:
        words: how far it is.
        links: title to target. Only what a browser on another machine can open is a link: a path on the machine of the
            flow run is shown as text.
    """
    best, metric = best_result(study, study.best), markdown_text(study.spec.metric.name)
    parts = [f"## {study.name}" if best is None else f"## {study.name}: trial {best.trial}"]
    if why := why_halted(study):
        parts.append(f"**{why}**")
    if best is None:
        parts.append(f"No trial has a finite {metric} yet.")
    else:
        reached = f"**{metric} = {number(best.value)}** after {best.resource} units of training{rule_words(study)}"
        table = markdown_table(("parameter", "value"), best.params.items())
        parts += [reached, markdown_text(other_best_words(study)), "\n".join(table)]
        if len(study.spec.objectives) > 1:
            rows = front_rows(front_members(study.spec, study.state))
            names = markdown_text(", ".join(metric.name for metric in study.spec.objectives))
            parts.append(f"### Pareto front of {names}: {plural(len(rows), 'result')}")
            parts.append("\n".join(markdown_table(rows[0], (row.values() for row in rows))))
    parts.append(words)
    svg = feature("report", "pictures").search_picture(study) if "report" in FEATURES else None
    if svg is not None:
        parts.append(f"![the search](data:image/svg+xml;base64,{base64.b64encode(svg.encode()).decode()})")
    if links:
        parts += ["### More", "\n".join(f"- {_link(title, target)}" for title, target in links.items())]
    return "\n\n".join(filter(None, parts))


def why_halted(study: Study) -> str:
    halted = study.state.halted
    return "" if halted is None or study.finished else f"Halted: {markdown_text(halt_words(study.spec, halted))}"


def markdown_table(columns: Collection[Any], rows: Iterable[Iterable[Any]]) -> list[str]:
    return [markdown_row(columns), f"|{' --- |' * len(columns)}", *map(markdown_row, rows)]


def _link(title: str, target: str) -> str:
    if target.startswith(("http://", "https://")):
        return f"[{title}](<{_address(target)}>)"
    path = unquote(target.removeprefix("file://")) if target.startswith("file://") else target
    return f"{title}, on the machine of the run: {markdown_code(path)}"


def _address(url: str) -> str:
    return re.sub(r"[<>\\\s\x00-\x1f\x7f]", lambda found: quote(found[0]), url)
