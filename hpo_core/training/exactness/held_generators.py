"""Finds random generators inside objects: an environment's, an augmentation's, one in a dict of a dict.

Nothing of an object is called, so no property and no ``__getattr__`` of the user's either.
"""

from __future__ import annotations

import functools
import random
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import FunctionType, MemberDescriptorType, MethodType, ModuleType
from typing import Any

import numpy as np

from hpo_core.training.exactness.fingerprints import MOST_ITEMS, is_generator, is_loader, is_tensor, is_torch_module

MOST_OBJECTS = 5000
"""So many objects are looked into; it takes some milliseconds."""
MOST_DEPTH = 10
_OURS = "hpo_core"
_LEAVES = (bool, int, float, complex, str, bytes, bytearray, type(None), range, slice, np.ndarray, np.generic)


def held_generators(
    variables: Iterable[tuple[str, Any]], is_saved: Callable[[Any], bool] = lambda _: False
) -> Iterator[tuple[str, Any]]:
    """Generators inside these values, each once: the shortest expression that leads there, and the generator.

    Values that are generators themselves, and the global ones, are left out.

    Args:
        variables: values, by name.
        is_saved: says of an object that it is saved with the trial, and so not looked into.
    """
    known = _global_generators()
    waiting: deque[tuple[str, Any, int]] = deque()
    for name, value in variables:
        if is_generator(value):
            known.add(id(value))
        waiting.append((name, value, 0))
    looked_into: dict[int, Any] = {}  # alive while their ids count
    while waiting and len(looked_into) < MOST_OBJECTS:
        path, value, depth = waiting.popleft()
        try:
            if _is_leaf(value) or id(value) in looked_into or is_saved(value):
                continue
            found = is_generator(value)
            inside = [] if found or depth == MOST_DEPTH else list(_inside(value))
        except Exception:  # an object that cannot be looked at says nothing
            continue
        if found and id(value) not in known:
            known.add(id(value))
            yield path, value
        looked_into[id(value)] = value
        waiting.extend((f"{path}{step}", inner, depth + 1) for step, inner in inside)


def unsaved_by_its_owner(item: Any) -> bool:
    """Whether a tracked object leaves out its generators: a torch module, unless its class saves more by itself."""
    torch = sys.modules.get("torch")
    if torch is None or not is_torch_module(item):
        return False
    plain = torch.nn.Module
    own = [type(module) for module in item.modules()]
    return all(kind.get_extra_state is plain.get_extra_state and kind.state_dict is plain.state_dict for kind in own)


def _is_leaf(value: Any) -> bool:
    if isinstance(value, (*_LEAVES, type, ModuleType)) or is_tensor(value):
        return True
    return type(value).__module__.partition(".")[0] == _OURS


def _inside(value: Any) -> Iterator[tuple[str, Any]]:
    """What an object holds: how an expression goes on from it, and the inner object."""
    if is_loader(value):  # its samplers are seeded anew by libraries, and its own generator is asked for apart
        yield from ((".dataset", value.dataset), (".collate_fn", value.collate_fn))
        return
    if isinstance(value, Mapping):
        if type(value).__module__ in ("builtins", "collections") and len(value) <= MOST_ITEMS:
            yield from ((f"[{key!r}]", item) for key, item in list(value.items()) if isinstance(key, str | int))
    elif isinstance(value, list | tuple | deque):
        if len(value) <= MOST_ITEMS:
            yield from ((f"[{place}]", item) for place, item in enumerate(list(value)))
    elif isinstance(value, functools.partial):
        yield from ((".func", value.func), (".args", value.args), (".keywords", value.keywords))
    elif isinstance(value, MethodType):
        yield ".__self__", value.__self__
    elif isinstance(value, FunctionType):
        for place, cell in enumerate(value.__closure__ or ()):
            try:
                yield f".__closure__[{place}].cell_contents", cell.cell_contents
            except ValueError:  # not filled yet
                continue
    try:
        held = object.__getattribute__(value, "__dict__")
    except AttributeError:
        held = {}
    if isinstance(held, dict):
        if is_torch_module(value):
            held = {name: item for name, item in held.items() if name not in _bookkeeping()}
        yield from ((f".{name}", item) for name, item in list(held.items()) if isinstance(name, str))
    for kind in type(value).__mro__:
        for name, slot in vars(kind).items():
            if isinstance(slot, MemberDescriptorType) and kind.__module__ != "builtins":
                try:
                    yield f".{name}", slot.__get__(value, type(value))
                except AttributeError:  # not set yet
                    continue


@functools.cache
def _bookkeeping() -> frozenset[str]:
    """Attributes of every torch module that hold no object of the user, but for the modules inside it."""
    return frozenset(vars(sys.modules["torch"].nn.Module())) - {"_modules"}


def _global_generators() -> set[int]:
    """Ids of those that are seeded and saved with every trial."""
    found = {id(getattr(random, "_inst", None)), id(getattr(np.random.mtrand, "_rand", None))}
    torch = sys.modules.get("torch")
    if torch is not None:
        found.add(id(torch.default_generator))
        found.update(map(id, getattr(torch.cuda, "default_generators", ())))
    return found
