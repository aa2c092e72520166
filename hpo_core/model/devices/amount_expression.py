"""Amounts that a person writes: ``6GB``, ``30``, or an expression of parameters such as ``2GB + 40MB * batch_size``.

An expression is parsed into numbers, names of parameters, ``+ - * / **``, parentheses, ``min``, ``max``, ``sqrt`` and
``log2``. It is never evaluated as code: whatever else the text holds is refused when it is read.
"""

from __future__ import annotations

import ast
import math
import operator
import re
from collections.abc import Callable, Mapping
from typing import Any

from hpo_core.model.errors import SpecError
from hpo_core.model.short_text import shown

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
            tree = ast.parse(with_factors, mode="eval")
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
