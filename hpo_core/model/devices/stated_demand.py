"""StatedDemand: what a user says that a job needs, as amounts or expressions of its parameters."""

from __future__ import annotations

import ast
import itertools
import math
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hpo_core.model.errors import SpecError
from hpo_core.model.short_text import meant_or_known, shown
from hpo_core.model.space.choices import ListedParameter
from hpo_core.model.space.number import NumberParameter
from hpo_core.model.space.parameter import ParameterType
from hpo_core.model.space.search_space import SearchSpace
from hpo_core.model.syntax_tree import syntax_tree

LONGEST = 500
"""Characters of one expression."""
DEEPEST = 40
"""Nested operations of one expression."""

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
_AMOUNT = re.compile(rf"(?<![\w.])(\d+(?:\.\d*)?|\.\d+)\s?({'|'.join(UNITS)})\b")
_OPERATORS: dict[type[ast.AST], Callable[[float, float], float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Pow: math.pow,
}
_FUNCTIONS: dict[str, Callable[..., float]] = {"min": min, "max": max, "sqrt": math.sqrt, "log2": math.log2}
_GRAMMAR = "numbers, amounts such as 6GB, parameters, + - * / **, parentheses, min, max, sqrt and log2"

Evaluate = Callable[[Mapping[str, float]], float]


class AmountExpression:
    """An amount as a function of a trial's parameters.

    Args:
        text: a number, an amount with a unit of bytes, or an expression.
        where: the setting's name, for errors.

    Raises:
        SpecError: the text is no such expression.

    >>> amount = AmountExpression("2GB + 40MB * batch_size", where="packing.demand.memory")
    >>> sorted(amount.names), amount.value({"batch_size": 50})
    (['batch_size'], 4000000000.0)
    """

    def __init__(self, text: str | float, *, where: str) -> None:
        self.text = str(text)
        self.where = where
        self.names: set[str] = set()
        """Parameters that it reads."""
        if len(self.text) > LONGEST:
            raise SpecError(f"{where}: {len(self.text)} characters, and an expression has at most {LONGEST}.")
        with_factors = _AMOUNT.sub(lambda match: f"({match[1]} * {UNITS[match[2]]!r})", self.text.strip())
        try:
            tree = syntax_tree(with_factors, "<expression>", "eval")
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            raise self._refused("is no expression") from None
        self._evaluate = self._compiled(tree.body, DEEPEST)

    def value(self, parameters: Mapping[str, Any]) -> float:
        """The amount for these parameters.

        Raises:
            SpecError: a parameter is missing or no number, or the amount is negative or not finite.
        """
        numbers = {}
        for name in sorted(self.names):
            value = parameters.get(name)
            if isinstance(value, bool) or not isinstance(value, int | float):
                what = f"is {shown(value)}, which is no number" if name in parameters else "is not in the configuration"
                raise SpecError(f"{self.where} = {self.text!r}: the parameter {name!r} {what}.")
            numbers[name] = float(value)
        try:
            amount = self._evaluate(numbers)
        except (ArithmeticError, ValueError) as error:
            raise SpecError(f"{self.where} = {self.text!r} cannot be reckoned for {numbers}: {error}.") from None
        if not 0 <= amount < math.inf:
            raise SpecError(f"{self.where} = {self.text!r} gives {amount!r} for {numbers}; it must be 0 or more.")
        return amount

    def _refused(self, why: str) -> SpecError:
        return SpecError(f"{self.where} = {shown(self.text)} {why}. It may hold {_GRAMMAR}.")

    def _compiled(self, node: ast.AST, depth: int) -> Evaluate:
        if depth == 0:
            raise self._refused(f"nests more than {DEEPEST} operations")
        if isinstance(node, ast.Constant) and isinstance(node.value, int | float) and not isinstance(node.value, bool):
            return self._constant(node.value)
        if isinstance(node, ast.Name):
            name = node.id
            self.names.add(name)
            return lambda numbers: numbers[name]
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.UAdd):
            sign = -1.0 if isinstance(node.op, ast.USub) else 1.0
            inner = self._compiled(node.operand, depth - 1)
            return lambda numbers: sign * inner(numbers)
        if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
            operation = _OPERATORS[type(node.op)]
            left, right = self._compiled(node.left, depth - 1), self._compiled(node.right, depth - 1)
            return lambda numbers: operation(left(numbers), right(numbers))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _FUNCTIONS:
            return self._call(node, node.func.id, depth)
        raise self._refused(f"holds {shown(ast.unparse(node))}, which is none of what an expression may hold")

    def _constant(self, value: float) -> Evaluate:
        try:
            number = float(value)
        except OverflowError:
            raise self._refused("holds a number that is too large") from None
        return lambda _: number

    def _call(self, node: ast.Call, name: str, depth: int) -> Evaluate:
        least, most = (2, 20) if name in ("min", "max") else (1, 1)
        if node.keywords or not least <= len(node.args) <= most:
            raise self._refused(f"calls {name} with {len(node.args)} values")
        function = _FUNCTIONS[name]
        arguments = [self._compiled(argument, depth - 1) for argument in node.args]
        return lambda numbers: function(*[argument(numbers) for argument in arguments])


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
