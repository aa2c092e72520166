"""Prefect artifacts at the end of a study: rungs, best trial, links."""

from __future__ import annotations

import re
from collections.abc import Mapping

from prefect.artifacts import create_link_artifact, create_markdown_artifact, create_table_artifact

from hpo_core.front_view import front_facts, front_rows
from hpo_core.naming import RungNames
from hpo_core.overview import bracket_views, entrances, folded, rung_rows
from hpo_core.study import Study


def artifact_key(study: str, what: str) -> str:
    """Prefect allows lowercase letters, digits and dashes."""
    return f"{re.sub('[^a-z0-9]+', '-', study.lower()).strip('-')}-{what}"


def best_markdown(study: Study) -> str:
    """The best configuration as Markdown."""
    best = study.best
    if best is None:
        return f"## {study.name}\n\nNo trial has a finite {study.spec.metric.name} yet."
    params = study.state.trials[best.trial].params
    lines = [
        f"## {study.name}: trial {best.trial}",
        "",
        f"**{study.spec.metric.name} = {study.metric_value(best.loss):.6g}** after {best.resource} units of training",
        "",
        "| parameter | value |",
        "| --- | --- |",
        *(f"| {name} | {value} |" for name, value in params.items()),
    ]
    if len(study.spec.objectives) > 1:
        lines += ["", *_front_table(study)]
    return "\n".join(lines)


def _front_table(study: Study) -> list[str]:
    rows = front_rows(front_facts(study.spec, study.state))
    names = ", ".join(metric.name for metric in study.spec.objectives)
    cells = [
        [f"{v:.6g}" if isinstance(v, float) else "" if v is None else str(v) for v in row.values()] for row in rows
    ]
    return [
        f"### Pareto front of {names}: {len(rows)} result{'' if len(rows) == 1 else 's'}",
        "",
        f"| {' | '.join(rows[0])} |",
        f"|{' --- |' * len(rows[0])}",
        *(f"| {' | '.join(row)} |" for row in cells),
    ]


def _about_rungs(study: Study) -> str:
    lines = [f"Rungs of {study.name}"]
    if enter := entrances(study.spec):
        places = ", ".join(f"{level} (bracket {bracket})" for bracket, level in enter.items())
        lines.append(f"All brackets share these rungs; their trials enter at {places}.")
    names = RungNames(study.spec)
    lines += [f"- {names.raised(event)}" for event in study.state.ceilings]
    return "\n\n".join(lines)


def write_artifacts(study: Study, links: Mapping[str, str]) -> None:
    """Create the artifacts of the present flow run.

    Args:
        links: title to target, for example MLflow and the report; a target that is no web address (a path, the
            command that serves an embedded MLflow) is shown as text.
    """
    rows = rung_rows(study, folded(bracket_views(study, details=True)))
    create_table_artifact(rows, key=artifact_key(study.name, "rungs"), description=_about_rungs(study))
    shown = "\n".join(f"- {title}: `{target}`" for title, target in links.items())
    create_markdown_artifact(
        f"{best_markdown(study)}\n\n{shown}",
        key=artifact_key(study.name, "best"),
        description=f"Best trial of {study.name}",
    )
    for title, target in links.items():
        key = artifact_key(study.name, title.lower().replace(" ", "-"))
        if target.startswith(("http://", "https://", "file://")):
            create_link_artifact(target, link_text=title, key=key)
        else:
            create_markdown_artifact(f"{title}: `{target}`", key=key)
