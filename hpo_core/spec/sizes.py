"""Refuses new descriptions that are too large (see :mod:`hpo_core.model.limits`).

What is checked here is cheap to reckon and dear to build. Search methods and parameter types check their own sizes.
Errors are ValueErrors, which the spec's validator turns into a SpecError.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel

from hpo_core.model import limits
from hpo_core.model.errors import SpecError
from hpo_core.model.limit_checks import at_most
from hpo_core.model.settings import Part
from hpo_core.model.short_text import shortened, shown

if TYPE_CHECKING:
    from hpo_core.spec.study_spec import StudySpec


def check_sizes(spec: StudySpec) -> None:
    """Refuse what is too large.

    Raises:
        ValueError: place, value, limit and cure.
    """
    at_most("space", len(spec.space), limits.PARAMETERS, "parameters; drop some")
    for name, parameter in spec.space.items():
        _check_name("space", name)
        parameter.check_size(f"space.{name}")
    at_most("metrics", len(spec.metrics), limits.METRICS, "metrics; drop some")
    for metric in (spec.metric, *spec.metrics):
        _check_name("metric", metric.name)
    at_most("repeats", spec.repeats, limits.REPEATS, "training seeds; lower it")
    for where, part in (("training", spec.training), ("cluster", spec.cluster), ("stop", spec.stop)):
        _check_seconds(where, part)
    spec.search.check_sizes(spec.search_space().parameters)


def check_constraints(constraints: Sequence[str], metrics: Collection[str]) -> None:
    """Refuse constraints that cannot be told apart from each other or from a metric.

    Raises:
        ValueError: name, rule and cure.
    """
    at_most("constraints", len(constraints), limits.METRICS, "constraints; drop some")
    for name in constraints:
        _check_name("constraints", name)
        if name in metrics:
            raise ValueError(
                f"constraints: {name!r} is a metric of the study already, and one value cannot be both; report the "
                "constraint under a name of its own, such as the value minus its limit"
            )
    if len(set(constraints)) < len(constraints):
        raise ValueError(f"constraints = {list(constraints)} names one twice; drop it")


def check_arguments(name: str, arguments: Mapping[str, Any]) -> None:
    """Refuse arguments of an Optuna sampler that would fill the memory.

    Raises:
        ValueError: argument, value, limit and cure.
    """
    for argument, most in limits.SAMPLER_ARGUMENTS.items():
        value = arguments.get(argument)
        if isinstance(value, int | float):
            at_most(f"sampler.{argument}", value, most, "; lower it")
    grid = arguments.get("search_space")
    if name == "GridSampler" and isinstance(grid, Mapping):
        points = math.prod(len(values) for values in grid.values() if isinstance(values, list | tuple))
        at_most("sampler.search_space", points, limits.GRID_VALUES, "points; use search: {method: grid} with fewer")


def _check_name(where: str, name: str) -> None:
    if not 0 < len(name) <= limits.NAME:
        raise ValueError(f"{where}: the name {shown(name)} has {len(name):,} characters; names have 1 to {limits.NAME}")


def _check_seconds(where: str, part: Part) -> None:
    for name, value in part:
        if isinstance(value, float) and not (where == "stop" and name == "target"):
            at_most(f"{where}.{name}", value, limits.SECONDS, "seconds; lower it, or leave it out")


_LARGEST = f"{limits.LARGEST_INTEGER:,}"
_SURROGATE = re.compile(r"[\ud800-\udfff]")


def check_plain(data: Any, where: str, lines: Mapping[tuple[Any, ...], int] | None = None) -> None:
    """Refuse what is no plain data or too large (see :mod:`hpo_core.model.limits`).

    Args:
        lines: of the places in the file, where there is one.

    Raises:
        SpecError: place, value, rule and cure.
    """
    waiting: list[tuple[tuple[Any, ...], Any]] = [((), data)]
    seen = 0
    while waiting:
        place, value = waiting.pop()
        problem = _problem(value)
        inner: Iterable[tuple[Any, Any]] = ()
        if isinstance(value, Mapping):
            inner = value.items()
        elif isinstance(value, list | tuple):
            inner = enumerate(value)
        if inner:
            seen += len(value)
            if seen > limits.VALUES:
                raise SpecError(
                    f"{where}: holds more than {limits.VALUES:,} values, the most a description may have; make it "
                    "smaller (a number with low and high instead of many choices, fewer parameters)."
                )
            if len(place) >= limits.DEPTH:
                problem = f"is nested deeper than {limits.DEPTH} levels, or contains itself; no setting is that deep"
        for key, one in () if problem else inner:
            if isinstance(value, Mapping) and (problem := _problem_of_key(key)):
                break
            waiting.append(((*place, key), one))
        if problem:
            raise SpecError(f"{line_of(place, where, lines or {})}: {named(place)}: {problem}")


def _problem_of_key(key: Any) -> str:
    if isinstance(key, bool) or not isinstance(key, str | int):
        return f"the key {shown(key)} is no text; put it in quotes"
    return _problem(key) and f"a key: {_problem(key)}"


def _problem(value: Any) -> str:
    """What is wrong with one value, looked at alone; empty: nothing."""
    if value is None or isinstance(value, bool | Mapping | list | tuple | BaseModel):
        return ""
    if isinstance(value, int):
        if abs(value) <= limits.LARGEST_INTEGER:
            return ""
        return f"{shown(value)} must fit into 64 bits (-{_LARGEST} to {_LARGEST}); give a smaller one"
    if isinstance(value, float):
        return "" if math.isfinite(value) else f"{value} is no finite number; give one, or leave the setting out"
    if not isinstance(value, str):
        return f"{shown(value)} is no plain value (text, number, true, false, null); put it in quotes"
    if len(value) > limits.TEXT:
        return f"{shown(value)} is too long: a text has at most {limits.TEXT:,} characters; shorten it"
    if "\0" in value:
        return f"{shown(value)} holds the character NUL, which databases refuse; remove it"
    if _SURROGATE.search(value):
        return f"{shown(value)} holds half a character (a lone surrogate); remove it"
    return ""


def line_of(place: tuple[Any, ...], where: str, lines: Mapping[tuple[Any, ...], int]) -> str:
    """Where something stands: the description's name, and the line of the file where that is known."""
    line = next((lines[place[:n]] for n in range(len(place), 0, -1) if place[:n] in lines), None)
    return where if line is None else f"{where}:{line}"


def named(place: tuple[Any, ...]) -> str:
    """A place in a description for people, such as ``space.x.low``."""
    few = ".".join(shortened(part) if isinstance(part, str) else shown(part) for part in place[: limits.DEPTH])
    return few or "the study"
