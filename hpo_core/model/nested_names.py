"""Names with dots: ``optimizer.lr`` is ``params["optimizer"]["lr"]`` to a training function."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

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
    """A name and another one that would be in a group of that name; None: there are none such."""
    known = set(names)
    return next(((group, name) for name in known for group in _beginnings(name) if group in known), None)


def _beginnings(name: str) -> list[str]:
    parts = name.split(SEPARATOR)
    return [SEPARATOR.join(parts[:n]) for n in range(1, len(parts))]
