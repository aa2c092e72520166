"""Refuses first configurations and constants that the rest of a new study does not fit."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from hpo_core.model.errors import SpecError
from hpo_core.model.rng import Stream
from hpo_core.model.short_text import shown
from hpo_core.model.space import SearchSpace
from hpo_core.model.space.nested_names import clash
from hpo_core.model.space.search_space import given_values
from hpo_core.model.trial import Params

if TYPE_CHECKING:
    from hpo_core.spec.study_spec import StudySpec


def check_given(spec: StudySpec, space: SearchSpace) -> None:
    """Check ``start_with`` and ``constants``.

    Raises:
        ValueError: place, value, rule and cure.
    """
    _check_names(spec)
    _check_completion(space, {}, "space")
    if spec.start_with and spec.search.record() is not None:
        raise ValueError("start_with: a rerun trains the recorded configurations; drop start_with")
    most = spec.search.sampled()
    if most is not None and len(spec.start_with) > most:
        raise ValueError(
            f"start_with holds {len(spec.start_with)} configurations, and search {spec.search.method} begins only "
            f"{most}; drop some, or let the search have more"
        )
    seen: dict[str, int] = {}
    for i, values in enumerate(spec.first_configurations):
        where = f"start_with[{i}]"
        if spec.start_with[i] == "default" and not values:
            raise ValueError(f"{where} is default, and no parameter of the space has a default; give one, or drop this")
        given = given_values(space, values, where)
        _check_completion(space, given, where)
        first = seen.setdefault(json.dumps(given), i)
        if first != i and not space.complaints(given):
            raise ValueError(f"{where} is the same configuration as start_with[{first}]; drop one of them")


def _check_completion(space: SearchSpace, given: Params, where: str) -> None:
    """Draw one: with few configurations left, that would fail again and again while the study runs."""
    if space.has_forbidden:
        try:
            space.draw(Stream(0, "check", 0), given)
        except SpecError as error:
            raise ValueError(f"{where}: {error}".rstrip(".")) from None


def _check_names(spec: StudySpec) -> None:
    for name in spec.constants:
        if name in spec.space:
            raise ValueError(
                f"constants.{name}: {name!r} is a parameter of the space too; drop it from one of the two (to hold a "
                "parameter fixed, take it out of the space)"
            )
        if not name:
            raise ValueError("constants: a name is empty; give it one")
    found = clash([*spec.space, *spec.constants])
    if found is not None:
        group, name = found
        raise ValueError(
            f"{shown(name)} is in the group {shown(group)}, which is a name of its own as well (space and constants "
            "together); rename one of them"
        )
