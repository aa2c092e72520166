"""StatedDemand: the user's word on what a job needs, as amounts or by a function of its parameters."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hpo_core.model.errors import SpecError
from hpo_core.model.short_text import meant_or_known, shown
from hpo_core.model.space.choices import ListedParameter
from hpo_core.model.space.number import NumberParameter
from hpo_core.model.space.parameter import ParameterType
from hpo_core.model.space.search_space import SearchSpace

UNITS = {
    "kB": 1e3,
    "KB": 1e3,
    "MB": 1e6,
    "GB": 1e9,
    "TB": 1e12,
    "KiB": 2.0**10,
    "MiB": 2.0**20,
    "GiB": 2.0**30,
    "TiB": 2.0**40,
    "B": 1.0,
}
_AMOUNT = re.compile(rf"\s*(\d+(?:\.\d*)?(?:[eE][+-]?\d+)?|\.\d+)\s?({'|'.join(UNITS)})?\s*")
_MOST = {"memory": 2.0**62, "compute": 100.0, "cores": 1e6}
_UNITS = {"memory": "bytes", "compute": "percent of the device", "cores": "cores"}
PARTS = tuple(_MOST)


def amount(given: Any, *, where: str) -> float:
    """A number, or one with a unit of bytes.

    Raises:
        SpecError: it is none, negative or not finite.

    >>> amount("6GB", where="packing.demand.memory"), amount(30, where="packing.demand.compute")
    (6000000000.0, 30.0)
    """
    value = math.nan
    if isinstance(given, str) and (found := _AMOUNT.fullmatch(given)):
        value = float(found[1]) * UNITS[found[2] or "B"]
    elif isinstance(given, int | float) and not isinstance(given, bool):
        value = float(given)
    if not 0 <= value < math.inf:
        raise SpecError(
            f"{where} = {shown(given)} must be a number, 0 or more, or an amount such as 6GB. What depends on the "
            "parameters is said by a function: packing.demand.function."
        )
    return value


class StatedDemand:
    """Amounts by part; a part that is not stated is measured.

    ``memory`` in bytes, ``compute`` in percent of a device, ``cores`` of the node.

    Args:
        amounts: the same for all jobs.
        function: given a job's parameters it returns some parts by name; what it returns wins over ``amounts``.

    Raises:
        SpecError: an unknown part, or no amount.

    >>> stated = StatedDemand({"compute": 30}, lambda params: {"memory": 2e9 + 40e6 * params["batch_size"]})
    >>> stated.of({"batch_size": 50})
    {'compute': 30.0, 'memory': 4000000000.0}
    """

    def __init__(
        self, amounts: Mapping[str, Any] | None = None, function: Callable[[dict[str, Any]], Any] | None = None
    ) -> None:
        self.amounts = _checked(amounts or {}, "packing.demand")
        """The same for all jobs."""
        self._function = function

    def of(self, params: Mapping[str, Any]) -> dict[str, float]:
        """Amounts for a job with these parameters.

        Raises:
            SpecError: the function raised, or returned no such amounts.
        """
        if self._function is None:
            return self.amounts
        where = f"packing.demand.function of {dict(params)!r:.300}"
        try:
            found = self._function(dict(params))
        except Exception as error:  # whatever the user's function raises
            raise SpecError(f"{where} raised {type(error).__name__}: {error}. Correct the function.") from error
        if not isinstance(found, Mapping):
            raise SpecError(f"{where} returned {shown(found)}; it must return amounts by name, as {{'memory': '6GB'}}.")
        return {**self.amounts, **_checked(found, where)}


def _checked(given: Mapping[str, Any], where: str) -> dict[str, float]:
    found = {}
    for name, one in given.items():
        if name not in PARTS:
            raise SpecError(f"{where}: unknown part {name!r}; {meant_or_known(str(name), PARTS)}")
        value = found[name] = amount(one, where=f"{where}.{name}")
        if value > _MOST[name]:
            raise SpecError(f"{where}.{name} = {shown(one)} is {value:g} {_UNITS[name]}; at most {_MOST[name]:g}.")
    return found


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
