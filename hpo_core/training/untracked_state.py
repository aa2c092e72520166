"""LoopWatch: finds what a training loop changes and nobody saves, so that a resume would begin it anew.

It looks at the variables when the loop begins (``trial.steps()``), and again when the checkpoint is written. A
variable that has changed in between carries state from step to step. It warns and refuses nothing: only ``hpo check``
proves that a resume is exact. Names with a leading underscore are left out.
"""

from __future__ import annotations

import contextlib
import functools
import random
import re
import sys
import zlib
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from types import FrameType, FunctionType, MemberDescriptorType, MethodType, ModuleType
from typing import Any

import msgspec
import numpy as np

from hpo_core.training.saved_state import State, is_generator, is_module, is_torch, state_of
from hpo_core.training.user_code import is_library_file

MOST_ITEMS = 1000
"""Maximum number of items of a container that are looked at; a larger one is data, judged by its size alone."""
MOST_NESTED = 10 * MOST_ITEMS
"""Maximum number of items of a value with all containers inside it; further ones are judged by their size."""
MOST_BYTES = 1_000_000
"""Maximum size in bytes of an array that is looked at."""
MOST_OBJECTS = 5000
"""Number of objects that are looked into; it takes some milliseconds."""
MOST_DEPTH = 10
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
    """Generators among and inside these values, each once: the shortest expression that leads there, and the generator.

    The global ones are left out.

    Args:
        variables: values, by name.
        is_saved: says of an object that it is saved with the trial, and so not looked into.
    """
    known = global_generators()
    waiting = deque((name, value, 0) for name, value in variables)
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


def global_generators() -> set[int]:
    """Ids of the global generators, which are seeded and saved with every trial."""
    found = {id(getattr(random, "_inst", None)), id(getattr(np.random.mtrand, "_rand", None))}
    torch = sys.modules.get("torch")
    if torch is not None:
        found.add(id(torch.default_generator))
        found.update(map(id, getattr(torch.cuda, "default_generators", ())))
    return found


_WRAPPED = re.compile(r"(\.env)+\._np_random$")
_NAME = re.compile(r"[A-Za-z_]\w*")
_PLAIN_LINE = re.compile(r"(?P<names>[\w., ]+?) changes? in the loop and (is|are) not tracked\. If later steps or rep")
_ABOUT_ONE = re.compile(r"(?P<name>\S+) \(")
WARNINGS_MOST = 20
"""Maximum number of warnings of an attempt."""
_OURS = "hpo_core"
_LOADER = "utils.data.DataLoader"


class _Seen(msgspec.Struct, frozen=True):
    plain: bool
    fingerprint: Hashable
    generator: Any = None
    """The variable itself, where it is a random generator."""


class LoopWatch:
    """Watches the variables of a training loop, and the random generators inside them.

    Args:
        variables: gives them, by name, as they are now (``watched_variables``).
        tracked: the tracked objects, by name.
    """

    def __init__(self, variables: Callable[[], Iterable[tuple[str, Any]]], tracked: Mapping[str, Any]) -> None:
        self._found: Callable[[], Iterable[tuple[str, Any]]] = variables
        self._names: frozenset[str] | None = None
        """Names of the variables that were there when the loop began."""
        tensors = frozenset(address_of(tensor) for item in tracked.values() for tensor in tensors_of(item))
        whole = [("", item) for item in tracked.values() if not unsaved_by_its_owner(item)]
        generators = {id(item) for _, item in held_generators(whole)}
        modules = {id(part) for item in tracked.values() if is_module(item) for part in item.modules()}
        self._saved = Saved(frozenset({*map(id, tracked.values()), *modules, *generators}), tensors)
        self._whole = generators | {id(item) for _, item in whole}
        """Ids of what is saved with all generators inside it."""
        self._states = [item for item in tracked.values() if isinstance(item, State)]
        self._before = {
            path: _Seen(is_plain(value), self._print(value), value if is_generator(value) else None)
            for path, value in self._watched()
        }

    def warnings(self) -> tuple[str, ...]:
        """What changed since and is not tracked, one line each with its cure; call it once, at the loop's end."""
        plain: list[str] = []
        lines: list[str] = []
        told: set[int] = set()
        for path, value in self._watched():
            before = self._before.get(path)
            if id(value) in told:
                continue
            line = _loader_line(path, value, self._saved.objects)
            if line is None and is_generator(value):
                line = self._generator_line(path, value)
            elif line is None and before is not None:
                changed = before.fingerprint != self._print(value)
                if changed and is_plain(value) and before.plain:
                    if not self._is_copy(path, value):
                        plain.append(path)
                elif changed or is_iterator(value):
                    line = _line(path, value)
            if line is not None:
                told.add(id(value))
                lines.append(line)
                if is_torch(value, _LOADER):
                    told |= {id(value.generator), id(getattr(value.sampler, "generator", None))}
        self.close()
        if plain:
            lines.append(_plain_line(plain))
        return tuple(lines[:WARNINGS_MOST])

    def close(self) -> None:
        """Let go of the variables."""
        self._found = tuple
        self._states = []
        self._before = {}

    def _is_copy(self, path: str, value: Any) -> bool:
        """Whether a tracked State has the value under the same name: a script's own variable, copied there and back."""
        return any(path in vars(state) and vars(state)[path] == value for state in self._states)

    def _generator_line(self, path: str, held: Any) -> str | None:
        before = self._before.get(path)
        same = before is not None and before.generator is held
        if before is not None and same and before.fingerprint == self._print(held):
            return None
        place, kind = _expression(path), _kind(held)
        cure = f"trial.track({_key(path)}={place})"
        if same:
            return f"{place} ({kind}) draws in the loop and is not tracked: {cure}."
        return (
            f"{place} ({kind}) is made in the loop and is not tracked, so a resumed job makes another one. Make it "
            f"before the loop (of an environment: reset(seed=trial.seed)), then {cure}."
        )

    def _print(self, value: Any) -> Hashable:
        try:
            return fingerprint(value, self._saved)
        except Exception:  # an object that cannot be looked at says nothing
            return None

    def _watched(self) -> Iterator[tuple[str, Any]]:
        """Variables that may carry state, and generators inside those that were there when the loop began."""
        variables = [
            (name, value)
            for name, value in self._found()
            if not name.rpartition(".")[2].startswith("_") and name != "self"
        ]
        if self._names is None:
            self._names = frozenset(name for name, _ in variables)
        for name, value in variables:
            with contextlib.suppress(Exception):  # a user's class may raise wherever it is asked
                if self._can_carry_state(value):
                    yield name, value
        lasting = [each for each in variables if each[0] in self._names]
        yield from held_generators(lasting, lambda value: id(value) in self._whole)

    def _can_carry_state(self, value: Any) -> bool:
        if isinstance(value, type | ModuleType) or callable_only(value) or is_generator(value):
            return False
        if id(value) in self._saved.objects or type(value).__module__.partition(".")[0] == _OURS:
            return False
        if is_module(value):
            return any(address_of(tensor) not in self._saved.tensors for tensor in tensors_of(value))
        if is_plain(value) or isinstance(value, Mapping | list | set) or hasattr(type(value), "__array__"):
            return True
        return is_iterator(value) or is_torch(value, _LOADER) or is_known_object(value)


def _loader_line(name: str, value: Any, saved: frozenset[int]) -> str | None:
    if not is_torch(value, _LOADER):
        return None
    if value.num_workers and value.persistent_workers and not hasattr(value, "load_state_dict"):
        return (
            f"{name} (DataLoader) keeps its workers from epoch to epoch, and their random states are not saved. A "
            "resumed job starts new ones, which may also change the order of a shuffle: persistent_workers=False."
        )
    generator = value.generator or getattr(value.sampler, "generator", None)
    if generator is not None and id(generator) not in saved:
        return (
            f"{name} (DataLoader) draws its order from a generator that is not tracked: "
            f"trial.track(order={name}.generator), or give it none (the global one is saved)."
        )
    return None


def _line(name: str, value: Any) -> str:
    kind = _kind(value)
    key = name.rpartition(".")[2]
    if is_iterator(value):
        return (
            f"{name} ({kind}) goes on from step to step, and its position cannot be saved: a resumed job begins it "
            "anew. Make a new iterator in each step, or choose the data by a tracked random generator."
        )
    if callable(getattr(type(value), "load_state_dict", None)):
        return f"{name} ({kind}) changes in the loop and is not tracked: trial.track({key}={name})."
    return (
        f"{name} ({kind}) changes in the loop and is not tracked. If later steps need it, keep it in an object with "
        "state_dict() and load_state_dict(), such as a buffer of a tracked module, and track that."
    )


def _plain_line(names: list[str]) -> str:
    values = ", ".join(f"{name.rpartition('.')[2]}=..." for name in names)
    one = len(names) == 1
    return (
        f"{', '.join(names)} {'changes' if one else 'change'} in the loop and {'is' if one else 'are'} not tracked. If "
        f"later steps or reports need {'it' if one else 'them'}: state = hpo_core.State({values}); "
        "trial.track(state=state)."
    )


def _kind(value: Any) -> str:
    kind = type(value)
    if kind.__module__ in ("builtins", "collections"):
        return kind.__qualname__
    return f"{kind.__module__.partition('.')[0]} {kind.__qualname__}"


def _expression(path: str) -> str:
    """The expression for a generator; of a wrapped environment of gymnasium the one that its users know.

    >>> _expression("env.env.env._np_random"), _expression("pair[0].rng")
    ('env.unwrapped.np_random', 'pair[0].rng')
    """
    return _WRAPPED.sub(".unwrapped.np_random", path)


def _key(path: str) -> str:
    """A name to track it under: the last one of its path."""
    names = [name for name in _NAME.findall(path) if name != "cell_contents" and not name.startswith("__")]
    return (names[-1] if names else "generator").strip("_") or "generator"


def merged_warnings(jobs: Iterable[Iterable[str]]) -> tuple[str, ...]:
    """The warnings of several jobs, each variable named once.

    A job sees more change than one that is shorter, so their lines differ where they name several variables.
    """
    plain: dict[str, None] = {}
    lines: dict[str, str] = {}
    for line in (line for job in jobs for line in job):
        if (found := _PLAIN_LINE.match(line)) is not None:
            plain |= dict.fromkeys(name for name in found["names"].split(", ") if name not in lines)
        elif (about := _ABOUT_ONE.match(line)) is not None:
            plain.pop(about["name"], None)
            lines.setdefault(about["name"], line)
        else:
            lines.setdefault(line, line)
    return (*lines.values(), *([_plain_line(list(plain))] if plain else []))


def untrackable(name: str, item: Any) -> str:
    """Why an object without ``state_dict()`` cannot be tracked, and what to track instead."""
    start = f"trial.track({name}=...) got a {type(item).__module__}.{type(item).__qualname__}".replace(
        " builtins.", " "
    )
    if is_plain(item):
        return (
            f"{start}, which cannot be loaded in place. Keep plain values in a State: state = "
            f"hpo_core.State({name}=...); trial.track(state=state); then use state.{name}."
        )
    if is_iterator(item):
        return (
            f"{start}, an iterator whose position cannot be saved. Make a new one in each step, or choose the data by "
            "a random generator and track that."
        )
    if is_torch(item, _LOADER):
        return (
            f"{start}, which has no state between epochs. Track nothing for it (the global generators are saved), or "
            f"its own generator: trial.track({name}={name}.generator)."
        )
    return (
        f"{start}, which has no state_dict() and load_state_dict(). Track objects that have both, or a random "
        "generator of python, numpy or torch; plain values go into hpo_core.State(...)."
    )


Variables = Callable[[], Iterator[tuple[str, Any]]]
_SWITCHED = "training"
"""A torch module's attribute that evaluation switches off and on."""


def variables_of_function(frame: FrameType) -> Variables:
    """Local variables, attributes of ``self``, and the module's variables that the function names."""

    def found() -> Iterator[tuple[str, Any]]:
        local = dict(frame.f_locals)
        yield from local.items()
        if "self" in local and is_known_object(local["self"]) and not is_module(local["self"]):
            yield from ((f"self.{name}", value) for name, value in vars(local["self"]).items())
        variables = frame.f_globals
        yield from (
            (name, variables[name]) for name in frame.f_code.co_names if name in variables and name not in local
        )

    return found


def variables_of_objects(owners: Mapping[str, Any], loaders: Mapping[str, Any]) -> Variables:
    """Attributes of these objects, named ``Owner.attribute``, and data loaders."""

    def found() -> Iterator[tuple[str, Any]]:
        yield from loaders.items()
        for owner, item in owners.items():
            yield from ((f"{owner}.{name}", value) for name, value in list(vars(item).items()) if name != _SWITCHED)

    return found
