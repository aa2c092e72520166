"""Ranges whose ends are the values of other parameters: ``high: {param: batch_size}``."""

from __future__ import annotations

import math
from collections.abc import Mapping

from hpo_core.model.space.number import NumberParameter, check_range
from hpo_core.model.space.parameter import ParameterType


def widest(name: str, parameter: ParameterType, known: Mapping[str, ParameterType]) -> ParameterType:
    """The parameter with the widest range that it can have; itself where no other one is in it.

    Raises:
        ValueError: an end is no such number, or does not always take part, or the range can be empty.
    """
    named = parameter.references()
    if not named or not isinstance(parameter, NumberParameter):
        return parameter
    ends = {}
    for end, other in named.items():
        above = known[other]
        where = f"space.{name}.{end} = {{param: {other}}}"
        if not isinstance(above, NumberParameter) or (parameter.whole and not above.whole):
            kind = "whole number (int)" if parameter.whole else "number (int or float)"
            raise ValueError(f"{where}: {other} is {above.type}, and the end of this range is a {kind}; name one")
        if above.when:
            raise ValueError(f"{where}: {other} takes part only under a condition; name a parameter that always does")
        ends[end] = (above.low, above.high)
        if above.low is None or above.high is None:
            raise ValueError(f"{where}: {other} has no end; give it low and high")
    low, high = ends.get("low", (parameter.low,) * 2), ends.get("high", (parameter.high,) * 2)
    if low[1] > high[0]:
        raise ValueError(
            f"space.{name}: low can be {low[1]} while high is {high[0]}, with nothing between; narrow the range of "
            f"{' or '.join(named.values())}, or that of {name}"
        )
    check_range(low[0], high[1], parameter.log)
    if not parameter.whole and not math.isfinite(high[1] - low[0]):
        raise ValueError(
            f"space.{name}: high - low can be {high[1]} - {low[0]}, which is not finite; narrow the range of "
            f"{' or '.join(named.values())}, or that of {name}"
        )
    return parameter.model_copy(update={"low": low[0], "high": high[1]})
