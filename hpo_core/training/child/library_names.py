"""LibraryNames: whether an attempt replaced names of libraries (monkey patches), or put its own objects into them.

Only functions, classes and public plain settings count, and objects of the user's code that were put into containers:
caches and counters of libraries change with use, and results do not depend on them.
"""

from __future__ import annotations

import collections
import ctypes
import functools
import gc
import logging
import sys
import threading
import types
import warnings
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Any

import numpy as np

from hpo_core.training.child.module_state import (
    IGNORED,
    OURS,
    PLAIN,
    is_heap_type,
    is_of_library_file,
    is_users,
    is_users_object,
)
from hpo_core.training.saved_state import is_generator


def _namespaces() -> Iterator[tuple[str, Any]]:
    """Modules of libraries, their classes, those inside of classes, and their objects, with their names."""
    seen: set[int] = set()
    for name, module in list(sys.modules.items()):
        if not isinstance(module, types.ModuleType) or is_users(module) or name.partition(".")[0] == OURS:
            continue
        yield name, module
        waiting = [(f"{name}.{key}", value) for key, value in list(vars(module).items()) if not key.startswith("__")]
        while waiting:
            path, value = waiting.pop()
            if id(value) in seen:
                continue
            if issubclass(type(value), type) and is_heap_type(value):
                seen.add(id(value))
                yield f"{value.__module__}.{value.__qualname__}", value
                inside = f"{value.__qualname__}."
                waiting += [
                    (path, each)
                    for each in list(vars(value).values())
                    if issubclass(type(each), type) and each.__qualname__.startswith(inside)
                ]
            elif _is_plain_object(value):
                seen.add(id(value))
                yield path, value


def _is_plain_object(value: Any) -> bool:
    """Whether it is an object of a class that a library wrote in Python, with attributes, that is no logger."""
    kind: Any = type(value)
    if not is_heap_type(kind) or isinstance(value, type | types.ModuleType | logging.Logger | threading.local):
        return False
    return kind.__setattr__ is object.__setattr__ and type(getattr(value, "__dict__", None)) is dict


_CONTAINERS = (dict, list, set, collections.deque, collections.OrderedDict, collections.defaultdict)


class LibraryNames:
    """What names of libraries mean: made in the zygote, compared in its children."""

    def __init__(self) -> None:
        self._names: list[str] = []
        self._owners: list[Any] = []
        self._spaces: list[dict[str, Any]] = []
        self._before: list[list[Any]] = []
        self._containers: list[tuple[str, Any, int]] = []
        self._known: set[int] = set()
        self.look_at_new()

    def look_at_new(self) -> str:
        """Look at modules that were imported since; returns what in them is an object of the user; empty: nothing."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of libraries, about names of theirs
            found = [each for each in _namespaces() if id(each[1]) not in self._known]
            first = not self._known
            for name, owner in found:
                self._known.add(id(owner))
                space = vars(owner)
                # the dict of a class itself, not the view on it: half the time
                space = space if isinstance(space, dict) else gc.get_referents(space)[0]
                self._names.append(name)
                self._owners.append(owner)
                self._spaces.append(space)
                self._before.append(list(space.values()))
                for key, value in list(space.items()):
                    if not first and is_users_object(value) and not isinstance(value, types.ModuleType):
                        return f"{name}.{key} is an object of the training code"
                    if type(value) in _CONTAINERS and not key.startswith("__") and _has_settings(owner):
                        self._containers.append((f"{name}.{key}", value, len(value)))
            self._versions = _Versions(self._spaces)
        return ""

    def change(self) -> str:
        """The first name that means something else, or container that got an object of the user; empty: none."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return self._change()

    def _change(self) -> str:
        for place in self._versions.changed():
            space, before = self._spaces[place], self._before[place]
            now = list(space.values())
            if list(map(id, now)) != list(map(id, before)):
                if line := _changed(self._names[place], self._owners[place], space, before):
                    return line
                self._before[place] = now
        for name, container, size in self._containers:
            if len(container) != size and _holds_users_object(container):
                return f"{name} holds an object of the training code"
        return ""


def _has_settings(owner: Any) -> bool:
    """Whether it is a module or class: what other objects hold changes with use."""
    return isinstance(owner, type | types.ModuleType)


def _holds_users_object(container: Any) -> bool:
    """Whether a container has an object of the training code in it, or in a tuple of it."""
    items = chain(container, container.values() if isinstance(container, dict) else ())
    return any(is_users_object(each) for item in items for each in (item if type(item) is tuple else (item,)))


_VERSION_AT = 24
"""Bytes from the start of a dict to its version."""


class _Versions:
    """Finds which of many dicts were written to, by the version that CPython up to 3.13 keeps in each.

    Reading all values takes some 10 ms where torch is loaded. Where there is no version, all dicts are returned.
    """

    def __init__(self, dicts: Sequence[dict[str, Any]]) -> None:
        self._dicts = dicts
        self._places = _places(dicts)
        self._before = _numbers_at(self._places) if _has_versions() else None

    def changed(self) -> Sequence[int]:
        """Places of the dicts that were written to since the last call."""
        if self._before is None:
            return range(len(self._dicts))
        now = _numbers_at(self._places)
        found: list[int] = np.flatnonzero(now != self._before).tolist()
        self._before = now
        return found


def _places(dicts: Iterable[dict[str, Any]]) -> Any:
    """Where the versions lie in memory, in words."""
    return np.array([(id(one) + _VERSION_AT) // 8 - 1 for one in dicts], np.int64)


def _numbers_at(places: Any) -> Any:
    """The words there; of dicts that are alive."""
    memory: Any = (ctypes.c_uint64 * (1 << 44)).from_address(8)
    return np.frombuffer(memory, np.uint64)[places]


@functools.cache
def _has_versions() -> bool:
    if sys.implementation.name != "cpython" or sys.version_info >= (3, 14):
        return False
    tried: dict[str, Any] = {"one": [1], "other": 2}
    watched: Any = type("Watched", (), {"one": 1})
    one = watched()
    spaces = [tried, vars(sys.modules[__name__]), gc.get_referents(vars(watched))[0], vars(one)]
    places = _places(spaces)
    seen = _numbers_at(places)
    tried["one"] = [1]
    watched.one = one.two = 2
    return [a == b for a, b in zip(seen, _numbers_at(places), strict=True)] == [False, True, False, False]


def _is_wrapped_by_owner(name: str, old: Any, new: Any) -> bool:
    """Whether a library put a function of its own around one of its functions, as torch does with ``step``."""
    return (
        isinstance(new, types.FunctionType)
        and is_of_library_file(new.__code__.co_filename)
        and new.__module__.partition(".")[0] == name.partition(".")[0]
        and new.__name__ == getattr(old, "__name__", None)
    )


_ONCE = ("loaded", "initialized")
"""Ends of names by which libraries note what they did once."""


def _changed(name: str, owner: Any, space: dict[str, Any], before: list[Any]) -> str:
    """What in a module, class or object of a library is not as it was; empty: nothing that matters."""
    items = list(space.items())  # what is new comes last, unless something was deleted
    if len(items) < len(before):
        return f"{name} lost an attribute" if _has_settings(owner) else ""
    for (key, value), old in zip(items, before, strict=False):
        if value is old or key in IGNORED:
            continue
        if isinstance(value, types.ModuleType) or isinstance(old, types.ModuleType):
            continue  # a library that loads its parts when they are used
        if (callable(old) and not _is_wrapped_by_owner(name, old, value)) or _is_users(value):
            return f"{name}.{key} was replaced"
        if is_generator(old) or is_generator(value):
            return f"{name}.{key} was replaced"
        is_setting = not key.startswith("_") and not key.lower().endswith(_ONCE) and type(old) in _settings_of(owner)
        if is_setting and type(value) in PLAIN and value != old:
            return f"{name}.{key} changed"
    for key, value in items[len(before) :]:
        if isinstance(value, types.ModuleType):
            continue
        if _is_users(value) or (name in _OF_PYTHON and (type(value) in PLAIN or name == "builtins") and key[0] != "_"):
            return f"{name}.{key} is new"
    return ""


_OF_PYTHON = ("builtins", "sys")


def _settings_of(owner: Any) -> tuple[type, ...]:
    """Types of values that are settings: numbers of classes may be counters, and values of objects are their own."""
    if isinstance(owner, types.ModuleType):
        return PLAIN
    return (bool, str, float, type(None)) if isinstance(owner, type) else ()


def _is_users(value: Any) -> bool:
    return is_users_object(value) or (type(value) in _CONTAINERS and _holds_users_object(value))
