"""Conditions on other parameters: ``when`` of a parameter, and forbidden combinations.

One condition is a mapping: all of its tests hold. A list of mappings is a choice: one of them holds.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from pydantic import BeforeValidator

from hpo_core.model.short_text import shown

if TYPE_CHECKING:
    from hpo_core.model.space.parameter import ParameterType


Scalar = bool | int | float | str | None
Value = Scalar | list[Any]
"""A choice: a scalar, or a list of values (``[64, 64]``)."""


def same_scalar(a: Any, b: Any) -> bool:
    """Equality that keeps True apart from 1 (YAML users mean different things), also within lists."""
    if isinstance(a, list | tuple) and isinstance(b, list | tuple):
        return len(a) == len(b) and all(map(same_scalar, a, b))
    return bool(a == b) and isinstance(a, bool) == isinstance(b, bool)


def scalar_key(value: Any) -> tuple[bool, Any]:
    """Equal for what :func:`same_scalar` calls equal; to be looked up."""
    if isinstance(value, list | tuple):
        return False, tuple(map(scalar_key, value))
    return isinstance(value, bool), value


def said(value: Any) -> str:
    text = json.dumps(value) if isinstance(value, list | tuple) else ""
    return text if 0 < len(text) <= 40 else shown(value)


def _checked(condition: Any) -> Any:
    # Refuse what is no condition, in one line; a union of types would tell each error many times.
    if not isinstance(condition, Mapping):
        raise ValueError(f"is {shown(condition)} where a mapping of parameters belongs; write {{optimizer: sgd}}")
    for name, right in condition.items():
        values = right if isinstance(right, list | tuple) else [right]
        if isinstance(right, Mapping):
            if strange := [key for key in right if key not in ("not", "low", "high")]:
                raise ValueError(f"{name} has a test {shown(strange[0])}; tests are not, low and high")
            if not right:
                raise ValueError(f"{name} has an empty test; write {{not: value}} or {{low: 2, high: 8}}")
            ends = [right[end] for end in ("low", "high") if right.get(end) is not None]
            if bad := [one for one in ends if isinstance(one, bool) or not isinstance(one, int | float)]:
                raise ValueError(f"{name} has {shown(bad[0])} as an end; low and high are numbers")
            values = right["not"] if isinstance(right.get("not"), list | tuple) else [right.get("not")]
        if not values:
            raise ValueError(f"{name} lists no value, so it says nothing; name some")
        if bad := [one for one in values if not isinstance(one, Scalar | list | tuple)]:
            raise ValueError(f"{name} names {shown(bad[0])}; values are texts, numbers, true, false, null and lists")
    return {str(name): right for name, right in condition.items()}


def _checked_when(when: Any) -> Any:
    if not isinstance(when, list | tuple):
        return _checked(when)
    if not all(when):
        raise ValueError("one of the conditions of the list is empty and always holds; drop it")
    return [_checked(one) for one in when]


Condition = Annotated[dict[str, Any], BeforeValidator(_checked)]
"""By parameter: ``value``, ``[values]``, ``{not: value}``, ``{not: [values]}`` or ``{low: 2, high: 8}``."""
When = Annotated[dict[str, Any] | list[dict[str, Any]], BeforeValidator(_checked_when)]


class Test(msgspec.Struct, frozen=True):
    """A test of one parameter's value."""

    wanted: tuple[Value, ...] | None = None
    """One of these; None: any."""
    unwanted: tuple[Value, ...] = ()
    low: float | None = None
    high: float | None = None

    @classmethod
    def of(cls, right: Any) -> Test:
        if not isinstance(right, Mapping):
            return cls(tuple(right) if isinstance(right, list) else (right,))
        no = right.get("not", [])
        return cls(None, tuple(no) if isinstance(no, list) else (no,), right.get("low"), right.get("high"))

    def holds(self, value: Any) -> bool:
        if self.wanted is not None:
            return any(same_scalar(value, one) for one in self.wanted)
        if any(same_scalar(value, one) for one in self.unwanted):
            return False
        if self.low is None and self.high is None:
            return True
        if isinstance(value, bool) or not isinstance(value, int | float):
            return False
        return (self.low is None or value >= self.low) and (self.high is None or value <= self.high)

    def in_words(self) -> str:
        if self.wanted is not None:
            return f"is {' or '.join(map(said, self.wanted))}"
        parts = [f"is not {' or '.join(map(said, self.unwanted))}"] if self.unwanted else []
        parts += [f"is at least {self.low:g}"] if self.low is not None else []
        parts += [f"is at most {self.high:g}"] if self.high is not None else []
        return " and ".join(parts)

    def check(self, where: str, name: str, parameter: ParameterType) -> None:
        """Refuse a test that a parameter always fails, or a value that it never takes.

        Raises:
            ValueError: place, value, rule and cure.
        """
        for value in (*(self.wanted or ()), *self.unwanted):
            if not parameter.contains(value):
                raise ValueError(
                    f"{where} wants {name} {'=' if self.wanted is not None else 'not'} {said(value)}, a value that "
                    f"{name} never takes; use one that its range or choices contain"
                )
        if self.wanted is None and not parameter.may_pass(self):
            raise ValueError(f"{where}: no value of {name} {self.in_words()}; change the one or the other")


def alternatives(when: When) -> tuple[dict[str, Test], ...]:
    several = when if isinstance(when, list) else [when] if when else []
    return tuple({name: Test.of(right) for name, right in one.items()} for one in several)


def holds(condition: Mapping[str, Test], values: Mapping[str, Any]) -> bool:
    return all(name in values and test.holds(values[name]) for name, test in condition.items())


def in_words(conditions: Sequence[Mapping[str, Test]]) -> str:
    return ", or ".join(" and ".join(f"{name} {test.in_words()}" for name, test in one.items()) for one in conditions)
