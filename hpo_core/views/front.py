"""The Pareto front of a study in the user's metrics."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from hpo_core.model.trial import Params
from hpo_core.spec import StudySpec
from hpo_core.state import Incumbent, StudyState


class FrontMember(msgspec.Struct, frozen=True):
    """A result that no other one dominates."""

    trial: int
    resource: int
    values: dict[str, float]
    """By metric, in the order of the spec."""
    params: Params


def values_of(spec: StudySpec, member: Incumbent) -> dict[str, float]:
    """Its objectives as the user's metrics (``mode: max`` flipped back), in the spec's order."""
    losses = member.losses or (member.loss,)
    return {metric.name: loss * metric.sign for metric, loss in zip(spec.objectives, losses, strict=True)}


def front_members(spec: StudySpec, state: StudyState) -> tuple[FrontMember, ...]:
    """Members of the front, the best in the first metric first."""
    return tuple(
        FrontMember(
            trial=member.trial,
            resource=member.resource,
            values=values_of(spec, member),
            params=state.trials[member.trial].params,
        )
        for member in state.front
    )


def front_rows(front: Sequence[FrontMember], most: int | None = None) -> list[dict[str, Any]]:
    """The first ``most`` members as table rows of one shape; None where a trial does not use a parameter."""
    names = dict.fromkeys(name for member in front for name in member.params)
    rows = []
    for member in front[:most]:
        row: dict[str, Any] = {"trial": member.trial, "trained to": member.resource, **member.values}
        for name in names:
            row[name if name not in row else f"parameter {name}"] = member.params.get(name)
        rows.append(row)
    return rows
