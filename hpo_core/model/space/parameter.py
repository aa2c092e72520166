"""ParameterType: what every type of parameter answers.

A type is one pydantic model in a file of its own, so that YAML, Python and a form fill in the same fields. It derives
from :class:`~hpo_core.model.space.number.NumberParameter` (a range) or from
:class:`~hpo_core.model.space.choices.ListedParameter` (a list of values), which answer most of this.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer

from hpo_core.model import limits
from hpo_core.model.errors import SpecError
from hpo_core.model.rng import Stream
from hpo_core.model.settings import Part
from hpo_core.model.short_text import at_most, shortened, shown
from hpo_core.model.space.value_tests import Test, When, alternatives

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution


class ParameterType(Part, ABC):
    """One parameter of a search space; each type is a subclass, told apart by ``type``."""

    when: When = Field(
        default_factory=dict,
        description="Takes part only where the named parameters have (one of) these values: ``{optimizer: sgd}``, "
        "``{optimizer: [sgd, adam]}``, ``{optimizer: {not: sgd}}``, ``{layers: {low: 2, high: 4}}``; a list of such "
        "mappings: where one of them holds.",
    )

    if TYPE_CHECKING:
        type: str

    @model_serializer(mode="wrap")
    def _with_type(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        data: dict[str, Any] = handler(self)
        return data if "type" in data else {"type": self.type, **data}

    def conditions(self) -> tuple[dict[str, Test], ...]:
        return alternatives(self.when)

    def parents(self) -> list[str]:
        return list(dict.fromkeys(name for condition in self.conditions() for name in condition))

    @abstractmethod
    def may_pass(self, test: Test) -> bool:
        """True if some value passes a test of the kinds not, low and high."""

    @abstractmethod
    def draw(self, stream: Stream) -> Any:
        """A value at random."""

    @abstractmethod
    def contains(self, value: Any) -> bool:
        """True if the parameter can have this value."""

    @abstractmethod
    def taken(self, value: Any) -> Any:
        """A person's value as the parameter has it.

        Raises:
            ValueError: it cannot have it; says why, after the value.
        """

    @abstractmethod
    def distribution(self) -> BaseDistribution:
        """The Optuna distribution that people are shown, with the values of :meth:`seen`."""

    def seen(self, value: Any) -> Any:
        return value

    @abstractmethod
    def scale(self) -> BaseDistribution:
        """The Optuna distribution that samplers are asked for: numbers of choices and steps, or a range of floats."""

    @abstractmethod
    def on_scale(self, value: Any) -> Any:
        """The place of a value on :meth:`scale`."""

    @abstractmethod
    def from_scale(self, value: Any) -> Any:
        """The value at a place on :meth:`scale`, rounded to one that there is."""

    @abstractmethod
    def changed(self, value: Any, stream: Stream, factors: Sequence[float]) -> Any:
        """A parent's value, changed for its child (PBT); a number is multiplied by one of the factors."""

    @abstractmethod
    def share(self, value: Any) -> float | None:
        """The place of a value in its range, from 0 to 1; None: it has no such place."""

    @abstractmethod
    def at_share(self, share: float) -> Any:
        """The value at a place, from 0 to 1, in the range or in the list of values."""

    @abstractmethod
    def grid_size(self, points: int | list[Any] | None) -> float:
        """At most so many values in a grid; 0 where :meth:`grid_values` would refuse."""

    def grid_values(self, name: str, points: int | list[Any] | None) -> list[Any]:
        """The values in a grid, in order.

        Args:
            name: of the parameter, for messages.
            points: their number or list, as the study gives it.

        Raises:
            SpecError: no such values can be had.
        """
        if not isinstance(points, list):
            return self._grid_values(name, points)
        found: list[Any] = []
        few = shortened(str(points[:20])) if len(points) <= 20 else f"a list of {len(points):,}"
        for value in points:
            try:
                found.append(self.taken(value))
            except ValueError as error:
                raise SpecError(f"search.grid.points.{name} = {few}: {shown(value)} {error}.") from None
        if not points or len(set(map(repr, found))) < len(points):
            raise SpecError(
                f"search.grid.points.{name} = {few}: the list is empty or holds a value twice; mend the list."
            )
        return found

    @abstractmethod
    def _grid_values(self, name: str, points: int | None) -> list[Any]:
        """See :meth:`grid_values`; ``points`` is a number, or None: all values."""

    def check_size(self, where: str) -> None:
        """Refuse more values than a new study may have.

        Raises:
            ValueError: place, value, limit and cure.
        """
        for condition in self.conditions():
            for other, test in condition.items():
                named = len(test.wanted or ()) + len(test.unwanted)
                at_most(f"{where}.when.{other}", named, limits.CHOICES, "values; name fewer")


SEPARATOR = "."


class NestedParams(dict[str, Any]):
    """Parameters with a dictionary for each group; ``params["optimizer.lr"]`` finds the same value.

    >>> params = NestedParams({"optimizer.lr": 0.1, "optimizer.name": "sgd", "layers": 2})
    >>> params["optimizer"], params["optimizer.lr"]
    ({'lr': 0.1, 'name': 'sgd'}, 0.1)
    """

    def __init__(self, flat: Mapping[str, Any]) -> None:
        super().__init__(nested(flat))

    def __missing__(self, name: str) -> Any:
        found: Any = self
        for part in name.split(SEPARATOR) if isinstance(name, str) and SEPARATOR in name else [name]:
            if not isinstance(found, dict) or not dict.__contains__(found, part):
                raise KeyError(name)
            found = dict.__getitem__(found, part)
        return found

    def __reduce__(self) -> tuple[Any, ...]:
        return NestedParams, (dict(self),)


def nested(flat: Mapping[str, Any]) -> dict[str, Any]:
    """Groups as dictionaries; a name that is also the beginning of another one's stays as it is."""
    found: dict[str, Any] = {}
    if not any(SEPARATOR in name for name in flat):
        return dict(flat)
    whole = set(flat)
    for name, value in flat.items():
        *groups, last = name.split(SEPARATOR)
        if not all((*groups, last)) or any(one in whole for one in _beginnings(name)):
            found[name] = value
            continue
        place = found
        for group in groups:
            place = place.setdefault(group, {})
        place[last] = value
    return found


def flattened(values: Mapping[str, Any]) -> dict[str, Any]:
    """The inverse of :func:`nested`: every dictionary is a group.

    >>> flattened({"optimizer": {"lr": 0.1}, "layers": 2})
    {'optimizer.lr': 0.1, 'layers': 2}
    """
    found: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, Mapping) and value:
            found |= {f"{name}{SEPARATOR}{inner}": item for inner, item in flattened(value).items()}
        else:
            found[str(name)] = value
    return found


def flat_space(space: Mapping[Any, Any]) -> dict[Any, Any]:
    """A search space with groups as mappings, as one with dots in its names.

    A group is a mapping of mappings without a ``type`` of its own. Parts of one parameter that stand in two places (a
    study file's and the command line's) are put together.

    >>> flat_space({"optimizer": {"lr": {"type": "float"}}, "layers": {"type": "int"}})
    {'optimizer.lr': {'type': 'float'}, 'layers': {'type': 'int'}}
    """
    found: dict[Any, Any] = {}
    for name, item in space.items():
        group = isinstance(item, Mapping) and item and not isinstance(item.get("type"), str)
        if group and all(isinstance(one, Mapping) for one in item.values()) and set(item) - {"when"}:
            inner = {f"{name}{SEPARATOR}{below}": one for below, one in flat_space(item).items()}
        else:
            inner = {name: item}
        for key, one in inner.items():
            both = isinstance(found.get(key), Mapping) and isinstance(one, Mapping)
            found[key] = {**found[key], **one} if both else one
    return found


def clash(names: Iterable[str]) -> tuple[str, str] | None:
    known = set(names)
    return next(((group, name) for name in known for group in _beginnings(name) if group in known), None)


def _beginnings(name: str) -> list[str]:
    parts = name.split(SEPARATOR)
    return [SEPARATOR.join(parts[:n]) for n in range(1, len(parts))]
