"""Which parameters decide what a job needs (HyperSack: model, optimizer and batch size)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hpo_core.model.errors import SpecError
from hpo_core.model.short_text import meant_or_known
from hpo_core.model.space.choices import ListedParameter
from hpo_core.model.space.number import NumberParameter
from hpo_core.model.space.parameter import ParameterType
from hpo_core.model.space.search_space import SearchSpace


def deciding_parameters(
    space: SearchSpace, constants: Mapping[str, Any], by: Sequence[str] | None = None
) -> tuple[str, ...]:
    """Names of the parameters and constants that tell jobs with different needs apart.

    By default all that are no plain floats: not a learning rate, be it a range or a list of floats. A float that does
    decide, such as a width multiplier, has to be named.

    Args:
        by: the names that a user gives; None: the default.

    Raises:
        SpecError: ``by`` holds a name that is neither a parameter nor a constant, or holds one twice.
    """
    if by is None:
        found = [name for name, parameter in space.parameters.items() if not _is_plain_float(parameter)]
        return (*found, *(name for name, value in constants.items() if not isinstance(value, float)))
    known = [*space.parameters, *constants]
    for name in by:
        if name not in known:
            hint = meant_or_known(name, known)
            raise SpecError(f"packing.by: {name!r} is no parameter of the space and no constant; {hint}")
    if len(set(by)) < len(by):
        raise SpecError(f"packing.by = {list(by)} holds a name twice; drop it.")
    return tuple(by)


def _is_plain_float(parameter: ParameterType) -> bool:
    if isinstance(parameter, ListedParameter):
        return all(isinstance(value, float) for value in parameter.listed())
    return isinstance(parameter, NumberParameter) and not parameter.whole
