"""The Pareto front of a study in the user's metrics, for tables and programs."""

from __future__ import annotations

from typing import Any

from hpo_core.spec import StudySpec
from hpo_core.state import Incumbent, StudyState


def values_of(spec: StudySpec, member: Incumbent) -> dict[str, float]:
    """Its objectives as the user's metrics (``mode: max`` flipped back), in the spec's order."""
    losses = member.losses or (member.loss,)
    return {metric.name: loss * metric.sign for metric, loss in zip(spec.objectives, losses, strict=True)}


def front_facts(spec: StudySpec, state: StudyState) -> list[dict[str, Any]]:
    """Members of the front, the best in the first metric first, as plain data."""
    return [
        {
            "trial": member.trial,
            "resource": member.resource,
            "values": values_of(spec, member),
            "params": state.trials[member.trial].params,
        }
        for member in state.front
    ]


def front_rows(front: list[dict[str, Any]], most: int | None = None) -> list[dict[str, Any]]:
    """The first ``most`` of :func:`front_facts` as rows of one shape; None where a trial does not use a parameter."""
    names = dict.fromkeys(name for facts in front for name in facts["params"])
    rows = []
    for facts in front[:most]:
        row: dict[str, Any] = {"trial": facts["trial"], "trained to": facts["resource"], **facts["values"]}
        for name in names:
            row[name if name not in row else f"parameter {name}"] = facts["params"].get(name)
        rows.append(row)
    return rows
