"""StatedDemand: what a user says that a job needs, as amounts or expressions of its parameters."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from typing import Any

from hpo_core.model.devices.amount_expression import AmountExpression
from hpo_core.model.errors import SpecError
from hpo_core.model.short_text import meant_or_known
from hpo_core.model.space.choices import ListedParameter
from hpo_core.model.space.number import NumberParameter
from hpo_core.model.space.parameter import ParameterType
from hpo_core.model.space.search_space import SearchSpace

PARTS = ("memory", "compute", "cores", "unit_seconds")
_MOST = {"memory": 2.0**62, "compute": 100.0, "cores": 1e6, "unit_seconds": 1e10}
_UNITS = {"memory": "bytes", "compute": "percent of the device", "cores": "cores", "unit_seconds": "seconds"}
_MOST_NAMES = 6
"""An expression of more parameters is tried at fewer corners of the space."""


class StatedDemand:
    """Amounts by part; a part that is not stated is measured.

    ``memory`` in bytes, ``compute`` in percent of a device, ``cores`` of the node, ``unit_seconds`` per unit of
    training.

    >>> stated = StatedDemand.read({"memory": "2GB + 40MB * batch_size", "compute": 30})
    >>> stated.value("memory", {"batch_size": 50}), stated.value("compute", {}), stated.value("cores", {})
    (4000000000.0, 30.0, None)
    """

    def __init__(self, amounts: Mapping[str, AmountExpression] | None = None) -> None:
        self._amounts = dict(amounts or {})

    @classmethod
    def read(cls, given: Mapping[str, str | float], where: str = "packing.demand") -> StatedDemand:
        """What a study file says.

        Raises:
            SpecError: an unknown part, an amount that is no expression, or a constant beyond its limit.
        """
        amounts = {}
        for name, text in given.items():
            if name not in PARTS:
                raise SpecError(f"{where}: unknown part {name!r}; {meant_or_known(name, PARTS)}")
            amounts[name] = AmountExpression(text, where=f"{where}.{name}")
        found = cls(amounts)
        for name, amount in amounts.items():
            if not amount.names:
                found.value(name, {})
        return found

    @property
    def parts(self) -> tuple[str, ...]:
        """What is stated."""
        return tuple(self._amounts)

    def value(self, part: str, parameters: Mapping[str, Any]) -> float | None:
        """The amount for these parameters; None where it is not stated.

        Raises:
            SpecError: a parameter is missing or no number; the amount is negative, not finite or beyond its limit.
        """
        amount = self._amounts.get(part)
        if amount is None:
            return None
        value = amount.value(parameters)
        if value > _MOST[part]:
            raise SpecError(
                f"{amount.where} = {amount.text!r} gives {value:g} {_UNITS[part]}; at most {_MOST[part]:g}."
            )
        return value

    def check(self, space: SearchSpace, constants: Mapping[str, Any]) -> None:
        """Refuse what some configuration cannot fill in, tried at the ends of the ranges.

        Raises:
            SpecError: a name is unknown, no number or takes part only under a condition; or the amount is negative,
                not finite or beyond its limit for some of these configurations.
        """
        for part, amount in self._amounts.items():
            ends = [_ends(name, space, constants, amount) for name in sorted(amount.names)]
            if len(ends) > _MOST_NAMES:
                corners = [tuple(end[0] for end in ends), tuple(end[-1] for end in ends)]
            else:
                corners = list(itertools.product(*ends))
            for corner in corners:
                self.value(part, dict(zip(sorted(amount.names), corner, strict=True)))


def _ends(name: str, space: SearchSpace, constants: Mapping[str, Any], amount: AmountExpression) -> tuple[Any, ...]:
    """The smallest and the largest value that a name can have."""
    text = f"{amount.where} = {amount.text!r}"
    if name in constants:
        return (constants[name],)
    parameter = space.parameters.get(name)
    if parameter is None:
        hint = meant_or_known(name, [*space.parameters, *constants])
        raise SpecError(f"{text}: {name!r} is no parameter of the space and no constant; {hint}")
    if parameter.conditions():
        raise SpecError(f"{text}: {name} takes part only under a condition; name parameters that always do.")
    numbers = _numbers(parameter)
    if numbers is None:
        raise SpecError(f"{text}: {name} is {parameter.type} with values that are no numbers; name numbers only.")
    return tuple(sorted({min(numbers), max(numbers)}))


def _numbers(parameter: ParameterType) -> list[float] | None:
    if isinstance(parameter, NumberParameter):
        ends = [end for end in (parameter.low, parameter.high) if end is not None and math.isfinite(end)]
        return ends or [1.0]
    if isinstance(parameter, ListedParameter):
        values = parameter.listed()
        if all(isinstance(value, int | float) and not isinstance(value, bool) for value in values):
            return list(values)  # type: ignore[arg-type]
    return None
