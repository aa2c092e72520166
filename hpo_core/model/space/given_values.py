"""Configurations that people give, whole or in part (``start_with``, ``enqueue``)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hpo_core.model.short_text import meant_or_known
from hpo_core.model.space.scalars import said
from hpo_core.model.space.search_space import SearchSpace
from hpo_core.model.trial import Params


def given_values(space: SearchSpace, values: Mapping[str, Any], where: str) -> Params:
    """The values as the space has them, in its order: 1 is 1.0 where the parameter is a float.

    Args:
        where: where they stand, for messages.

    Raises:
        ValueError: an unknown name, a value outside its range or choices, or a conditional parameter whose condition
            the given values do not meet; with place, value, rule and cure.
    """
    if unknown := [name for name in values if name not in space.parameters]:
        hint = meant_or_known(unknown[0], space.parameters, "it has")
        raise ValueError(f"{where}: {said(unknown[0])} is no parameter of the space; {hint}")
    found: Params = {}
    for name in space.order:
        if name not in values:
            continue
        if not space.is_active(name, found):
            condition = space.condition_in_words(name)
            raise ValueError(
                f"{where}.{name} = {said(values[name])}: {name} takes part only where {condition}, "
                f"and {_named(space.above(name), found)}; give that too, or drop {name}"
            )
        if missing := [other for other in space.references(name) if other not in found]:
            raise ValueError(
                f"{where}.{name} = {said(values[name])}: the range of {name} depends on {missing[0]}; give that too, "
                f"or drop {name}"
            )
        try:
            found[name] = space.resolved(name, found).taken(values[name])
        except ValueError as error:
            raise ValueError(f"{where}.{name} = {said(values[name])} {error}") from None
    if forbidden := space.forbidden_by(found):
        raise ValueError(f"{where}: it is forbidden that {forbidden}; change one of these values")
    return found


def _named(names: list[str], found: Params) -> str:
    return ", ".join(f"{name} is {said(found[name]) if name in found else 'not given'}" for name in names)


def default_values(space: SearchSpace) -> Params:
    """The defaults of the parameters that have one, as far as they take part together."""
    found: Params = {}
    for name in space.order:
        default = space.parameters[name].default
        known = all(other in found for other in space.references(name))
        if default is not None and known and space.is_active(name, found):
            found[name] = default
    return found
