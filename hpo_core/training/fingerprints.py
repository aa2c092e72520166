"""Fingerprints of objects, to see whether a training loop changed them. Nothing of an object is called.

Calling its ``state_dict()`` could draw random numbers (a loader's does) and so change the training that is watched.
"""

from __future__ import annotations

import functools
import random
import sys
import zlib
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from types import FunctionType, MemberDescriptorType, MethodType, ModuleType
from typing import Any

import msgspec
import numpy as np

from hpo_core.training.error_text import is_library_file
from hpo_core.training.saved_state import is_generator, is_module, is_torch, state_of

MOST_ITEMS = 1000
"""Maximum number of items of a container that are looked at; a larger one is data, judged by its size alone."""
MOST_NESTED = 10 * MOST_ITEMS
"""Maximum number of items of a value with all containers inside it; further ones are judged by their size."""
MOST_BYTES = 1_000_000
"""Maximum size in bytes of an array that is looked at."""
MOST_OBJECTS = 5000
"""Number of objects that are looked into; it takes some milliseconds."""
MOST_DEPTH = 10
_OURS = "hpo_core"
_LEAVES = (bool, int, float, complex, str, bytes, bytearray, type(None), range, slice, np.ndarray, np.generic)
_PLAIN = (bool, int, float, str, bytes, type(None))


class Saved(msgspec.Struct, frozen=True):
    """What is saved with the trial, and so does not count as changed."""

    objects: frozenset[int] = frozenset()
    """Ids of tracked objects and of their modules."""
    tensors: frozenset[int] = frozenset()
    """Addresses of their tensors."""


def is_plain(value: Any) -> bool:
    """Whether it is a number, text or None, or a small container of such."""
    if isinstance(value, _PLAIN):
        return True
    if isinstance(value, Mapping):
        return len(value) <= MOST_ITEMS and all(isinstance(item, _PLAIN) for item in value.values())
    return (
        isinstance(value, list | tuple | set)
        and len(value) <= MOST_ITEMS
        and all(isinstance(item, _PLAIN) for item in value)
    )


def is_iterator(value: Any) -> bool:
    """Whether it is an iterator with a position: a generator, ``itertools.cycle``, one over a loader; no file."""
    kind = type(value)
    return hasattr(kind, "__next__") and hasattr(kind, "__iter__") and not hasattr(kind, "readline")


def tensors_of(value: Any) -> list[Any]:
    """The tensors that a module, a container or a tensor holds."""
    if is_torch(value, "Tensor"):
        return [value]
    if is_module(value):
        return [*value.parameters(), *value.buffers()]
    items = value.values() if isinstance(value, Mapping) else value if isinstance(value, Sequence) else ()
    if isinstance(value, str | bytes) or len(items) > MOST_ITEMS:
        return []
    return [tensor for item in items if is_torch(item, "Tensor") or is_module(item) for tensor in tensors_of(item)]


def is_known_object(value: Any) -> bool:
    """Whether its attributes are looked at: what can be tracked, and objects of the user's own classes."""
    kind = type(value)
    if isinstance(value, type | ModuleType) or not hasattr(value, "__dict__") or callable_only(value):
        return False
    if callable(getattr(kind, "load_state_dict", None)):
        return True
    file = getattr(sys.modules.get(kind.__module__), "__file__", None)
    return file is not None and not is_library_file(file)


def callable_only(value: Any) -> bool:
    """Whether it is a function or the like."""
    return callable(value) and hasattr(value, "__code__")


def fingerprint(value: Any, saved: Saved) -> Hashable:
    """A fingerprint that changes where the value does, apart from what is saved; O(1) for large data."""
    return _print(value, saved, 0, [MOST_NESTED])


def _print(value: Any, saved: Saved, depth: int, left: list[int]) -> Hashable:
    """The fingerprint of a part; ``left[0]`` is the number of items of the whole value that may still be looked at."""
    if id(value) in saved.objects:
        return None
    if isinstance(value, _PLAIN):
        return type(value).__name__, repr(value) if len(str(value)) <= MOST_ITEMS else hash(value)
    if is_torch(value, "Tensor"):
        return None if address_of(value) in saved.tensors else (address_of(value), value._version)
    if is_module(value):
        return tuple(_print(tensor, saved, depth, left) for tensor in tensors_of(value))
    if isinstance(value, np.ndarray):
        if value.nbytes > MOST_BYTES or value.dtype.kind not in "biufc":
            return value.shape, str(value.dtype)
        return value.shape, str(value.dtype), zlib.crc32(np.ascontiguousarray(value).tobytes())
    if is_generator(value):
        # inside of others it is watched by itself, also where it is made there in the loop
        if depth:
            return _print(None, saved, depth, left)
        state = state_of(value)
        return state.numpy().tobytes() if is_torch(state, "Tensor") else repr(state)
    if isinstance(value, Mapping | list | tuple | set):
        return _of_container(value, saved, depth, left)
    if depth < 2 and is_known_object(value):
        found = [(name, _print(item, saved, depth + 1, left)) for name, item in list(vars(value).items())]
        return type(value).__qualname__, tuple(found)
    return type(value).__qualname__


def _of_container(value: Any, saved: Saved, depth: int, left: list[int]) -> Hashable:
    if len(value) > min(MOST_ITEMS, left[0]) or depth > 3:
        return type(value).__qualname__, len(value)
    left[0] -= len(value)
    if isinstance(value, Mapping):
        return tuple(
            (key if isinstance(key, _PLAIN) else id(key), _print(item, saved, depth + 1, left))
            for key, item in value.items()
        )
    items = sorted(value, key=repr) if isinstance(value, set) else value
    return tuple(_print(item, saved, depth + 1, left) for item in items)


def address_of(tensor: Any) -> int:
    """Address of its data; equal for two tensors that share them."""
    try:
        return int(tensor.data_ptr())
    except Exception:  # sparse and fake tensors have none
        return id(tensor)


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
            if id(value) in looked_into or _is_leaf(value) or is_saved(value):
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
    if not is_module(item):
        return False
    plain = sys.modules["torch"].nn.Module
    own = [type(module) for module in item.modules()]
    return all(kind.get_extra_state is plain.get_extra_state and kind.state_dict is plain.state_dict for kind in own)


def _is_leaf(value: Any) -> bool:
    is_ours = type(value).__module__.partition(".")[0] == _OURS
    return is_ours or isinstance(value, (*_LEAVES, type, ModuleType)) or is_torch(value, "Tensor")


def _inside(value: Any) -> Iterator[tuple[str, Any]]:
    """What an object holds: how an expression goes on from it, and the inner object."""
    if is_torch(value, "utils.data.DataLoader"):
        # its samplers are seeded anew by libraries, and its own generator is asked for apart
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
        if is_module(value):
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
    """Ids of the global generators, which are seeded and saved with every trial."""
    found = {id(getattr(random, "_inst", None)), id(getattr(np.random.mtrand, "_rand", None))}
    torch = sys.modules.get("torch")
    if torch is not None:
        found.add(id(torch.default_generator))
        found.update(map(id, getattr(torch.cuda, "default_generators", ())))
    return found
