"""UserVariables: whether an attempt changed a variable or class of the user's modules.

The zygote looks once, right before it forks; the child looks again after each attempt and names the first difference.
Values are compared as deep as they go. One that holds more than Python shows cannot be compared, and is not trusted.
Large arrays are not read: a page of memory that the child wrote to is its own, and no longer shared with the zygote.
"""

from __future__ import annotations

import collections
import contextlib
import contextvars
import ctypes
import datetime
import decimal
import enum
import fractions
import functools
import gc
import hashlib
import io
import itertools
import logging
import mmap
import operator
import os
import re
import struct
import sys
import threading
import types
import uuid
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import PurePath
from typing import Any

import numpy as np

from hpo_core.training.saved_state import State, is_generator, is_torch, state_of
from hpo_core.training.untracked_state import global_generators
from hpo_core.training.user_code import is_library_file

MOST_VALUES = 1_000_000
"""Maximum number of values that are compared; where there are more, nobody can tell, and a process is not kept."""
WHOLE_BYTES = 1 << 16
"""Largest buffer whose content is compared; of a larger one, it is whether a page was written to."""
OURS = "hpo_core"
IGNORED = {
    "__loader__", "__spec__", "__builtins__", "__cached__", "__warningregistry__", "__abstractmethods__", "_abc_impl",
    "__weakref__",
}  # fmt: skip
"""Names in modules and classes that Python keeps for itself."""
PLAIN = (type(None), bool, int, float, complex, str, bytes)
_OF_PLAIN = (int, float, complex, str, bytes)
"""Types whose values do not change; objects of classes derived from them have attributes, too."""
_BY_TEXT = (
    range, slice, PurePath, datetime.date, datetime.time, datetime.timedelta, datetime.tzinfo, decimal.Decimal,
    fractions.Fraction, uuid.UUID, np.dtype, np.generic, type(Ellipsis), type(NotImplemented),
)  # fmt: skip
_BY_IDENTITY = (
    types.CodeType, types.MethodDescriptorType, types.GenericAlias, types.UnionType,
    types.WrapperDescriptorType, types.GetSetDescriptorType, types.MemberDescriptorType,
    types.ClassMethodDescriptorType, weakref.ref, np.ufunc, operator.itemgetter, operator.attrgetter,
    operator.methodcaller, re.Match, re.Pattern, types.TracebackType, struct.Struct, logging.Logger, logging.Manager,
)  # fmt: skip
"""Values that do not change, or (loggers) are put back."""
_OF_ARROW = ("Array", "Type", "Table", "RecordBatch", "Schema", "Field", "Scalar")
"""Ends of names of pyarrow's types whose values do not change."""
_LINKS: tuple[type, ...] = (
    types.MethodType, functools.partial, staticmethod, classmethod, property, types.CellType, types.MappingProxyType,
    type({}.keys()), type({}.values()), type({}.items()),
)  # fmt: skip
"""Values that are no more than what they refer to."""
_ITERABLES: tuple[Iterable[Any], ...] = ([], (), {}, range(0), "", "\u00e9", set(), b"", bytearray())
_ITERATORS: tuple[type, ...] = (
    itertools.count, itertools.cycle, itertools.repeat, itertools.chain, itertools.islice, itertools.starmap,
    itertools.compress, itertools.filterfalse, enumerate, zip, map, filter, reversed, type(reversed([])),
    *map(type, map(iter, _ITERABLES)), type(iter(int, 1)),
)  # fmt: skip
_OF_TORCH = ("device", "dtype", "Size", "layout", "memory_format", "qscheme", "finfo", "iinfo")
"""Types of torch whose values do not change."""
_CACHE = type(functools.cache(lambda: None))

Token = Any
"""Plain values that are equal where the value is unchanged."""


class Unknown(Exception):
    """A value that cannot be compared; says which type it has."""


def is_users(module: Any) -> bool:
    """Whether a module is the user's code: of no installed library, or made by the user's code without a file."""
    if not isinstance(module, types.ModuleType):
        return False
    file = vars(module).get("__file__")
    if isinstance(file, str):
        return not is_of_library_file(file)
    if vars(module).get("__spec__") is not None or module.__name__ == "__main__":
        return False
    top = sys.modules.get(module.__name__.partition(".")[0])
    return top is None or top is module or is_users(top)


def _is_users_class(kind: type) -> bool:
    """Whether a class is the user's: of a module of theirs, or of none (it was sent by value)."""
    if not isinstance(kind.__module__, str) or kind.__module__.startswith("_cython_"):
        return False
    module = sys.modules.get(kind.__module__)
    return module is None or kind.__module__ == "__main__" or is_users(module)


_installed: list[str] = []
"""Files, or beginnings of them, of the training function's package, where it is installed among the libraries."""


@functools.cache
def is_of_library_file(file: str) -> bool:
    """Whether a file is of a library, and not of the training function's package."""
    return is_library_file(file) and not file.startswith(tuple(_installed))


def take_package_as_users(function: Callable[..., Any]) -> None:
    """Take the package of the training function as the user's, wherever it is installed."""
    top: Any = sys.modules.get(str(getattr(function, "__module__", "")).partition(".")[0])
    folders = [f"{folder}/" for folder in getattr(top, "__path__", ())]
    files = folders or [file for file in (getattr(top, "__file__", None),) if file]
    if top is not None and top.__name__ not in (OURS, *sys.stdlib_module_names):
        _installed[:] = files
        is_of_library_file.cache_clear()


def is_users_object(value: Any) -> bool:
    """Whether a function or class was defined in, or an object is of a class of, the user's code."""
    if isinstance(value, types.FunctionType):
        return not is_of_library_file(value.__code__.co_filename)
    kind = value if isinstance(value, type) else type(value)
    return _is_users_class(kind)


def _offered_by_libraries() -> frozenset[int]:
    """Ids of functions, classes and the like that modules of libraries hold; what a library holds inside is its own.

    The global random generators are among them: they are seeded for each attempt.
    """
    found = {*global_generators(), *map(id, (sys.__stdin__, sys.__stdout__, sys.__stderr__))}
    for module in list(sys.modules.values()):
        if isinstance(module, types.ModuleType) and not is_users(module):
            found.update(id(value) for value in list(vars(module).values()) if callable(value))
    return frozenset(found)


class PageReader:
    """Tells which pages of this process are its own: written to since its fork, while its parent lives."""

    _OWN = (1 << 56) | (1 << 63)
    _OF_FILE = 1 << 61
    _SWAPPED = 1 << 62

    def __init__(self) -> None:
        self._file = os.open("/proc/self/pagemap", os.O_RDONLY | os.O_CLOEXEC)

    def close(self) -> None:
        os.close(self._file)

    def written(self, first: int, last: int) -> bool:
        """Whether any of these pages (numbers, the last one excluded) was written to, or nobody can tell."""
        data = os.pread(self._file, 8 * (last - first), 8 * first)
        flags = np.frombuffer(data, np.uint64)
        own = (flags & np.uint64(self._OWN | self._OF_FILE)) == np.uint64(self._OWN)
        return len(flags) < last - first or bool((own | ((flags & np.uint64(self._SWAPPED)) != 0)).any())


@functools.cache
def tells_pages() -> bool:
    """Whether this kernel tells which pages a forked process shares: tried once, by a fork."""
    area = mmap.mmap(-1, 4 * mmap.PAGESIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    area[:] = b"x" * len(area)
    first = np.frombuffer(area, np.uint8).ctypes.data // mmap.PAGESIZE
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid == 0:
        code = 1
        with contextlib.suppress(BaseException):
            pages = PageReader()
            before = pages.written(first, first + 4)
            area[2 * mmap.PAGESIZE] = 1
            code = int(before or not pages.written(first, first + 4) or pages.written(first, first + 2))
        os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


class ValueWalk:
    """Makes tokens of values; each object is looked into once in all.

    Args:
        pages: None: in the zygote, where nothing was written to yet.
        offered: ids of what is not looked into.
    """

    def __init__(self, pages: PageReader | None, offered: frozenset[int]) -> None:
        self._pages = pages
        self._offered = offered
        self._seen: set[int] = set()
        self._left = MOST_VALUES
        self.alive: list[Any] = []
        """What was looked at: no other object gets the id of one of these."""
        self.caches: list[tuple[Any, Any]] = []
        """Caches of functions, and how much they were used."""

    def tokens(self, value: Any) -> list[Token]:
        """Tokens of a value and of all that it holds."""
        found: list[Token] = []
        waiting = [value]
        while waiting:
            self._left -= 1
            if self._left < 0:
                raise Unknown(f"more than {MOST_VALUES:,} values")
            one = waiting.pop()
            kind = type(one)
            if kind in PLAIN:
                found.append((kind, one if kind is not float else one.hex()))
            elif isinstance(one, _BY_TEXT):
                found.append((kind, repr(one)))
            else:
                found.append(id(one))
                if id(one) not in self._seen:
                    self._seen.add(id(one))
                    self.alive.append(one)
                    waiting += self._inside(one, kind, found)
        return found

    def _inside(self, one: Any, kind: type, found: list[Token]) -> Iterable[Any]:
        """What a value holds, which is looked at as well; its own state goes to ``found``."""
        if kind is object or id(one) in self._offered or isinstance(one, _BY_IDENTITY):
            return ()
        if isinstance(one, dict):
            found.append(len(one))
            factory = getattr(one, "default_factory", None) if isinstance(one, collections.defaultdict) else None
            return (factory, *one.keys(), *one.values(), *_attributes(one))
        if isinstance(one, list | tuple | set | frozenset | collections.deque):
            found.append(len(one))
            return (*one, *_attributes(one))
        if isinstance(one, types.ModuleType):  # those that can be imported are looked at by themselves
            loose = is_users(one) and sys.modules.get(one.__name__) is not one
            return _variables(vars(one)) if loose else ()
        if isinstance(one, types.FunctionType):
            if one.__code__.co_filename == functools.__file__:  # singledispatch has a cache, which fills with use
                return vars(one).get("__wrapped__"), vars(one).get("registry")
            own = (one.__code__, one.__defaults__, one.__kwdefaults__, vars(one), *_cells(one))
            # a library's function around one of the user's: a decorator
            return own if is_of_library_file(one.__code__.co_filename) else (*own, *_globals_of(one))
        if isinstance(one, type):
            if not _is_users_class(one):
                return ()
            found.append(len(type.__subclasses__(one)))
            return _variables(vars(one))
        if isinstance(one, np.ndarray):
            found.append((one.shape, one.strides, str(one.dtype), one.ctypes.data, one.flags.writeable))
            if one.dtype.hasobject:
                return (*one.flat, *_attributes(one))
            found.append(self._array(one))
            return tuple(_attributes(one))
        if is_torch(one, "Tensor"):
            return self._tensor(one, found)
        if isinstance(one, bytearray | memoryview | mmap.mmap) or kind.__name__ == "array":
            found.append(self._buffer(np.frombuffer(one, np.uint8)))
            return ()
        if isinstance(one, np.random.SeedSequence):
            found.append(repr(one.state))
            return ()
        if isinstance(one, np.random.BitGenerator):
            found.append(repr(one.state))
            return ()
        if is_generator(one):
            state = state_of(one)
            found.append(state.numpy().tobytes() if is_torch(state, "Tensor") else repr(state))
            return ()
        return self._of_object(one, kind, found)

    def _of_object(self, one: Any, kind: type, found: list[Token]) -> Iterable[Any]:
        if isinstance(one, _LINKS):
            return gc.get_referents(one)
        if isinstance(one, _CACHE):
            self.caches.append((one, _use(one)))
            return (one.__wrapped__,)
        if isinstance(one, types.GeneratorType):
            found.append(None if one.gi_frame is None else one.gi_frame.f_lasti)
            # the iterators of its loops have no names
            return [each for each in gc.get_referents(one) if not isinstance(each, types.FrameType)]
        if isinstance(one, io.IOBase):
            found.append("closed" if one.closed else one.tell() if one.seekable() else "open")
            if isinstance(one, io.BytesIO | io.StringIO) and not one.closed:
                found.append(one.getvalue())
            return ()
        if isinstance(one, _ITERATORS):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                reduced = one.__reduce__()
            # iterators inside are made anew by each call: their states count, not their ids
            found.append(_reduced(reduced))
            return gc.get_referents(one)
        if kind.__module__ == "_thread" and hasattr(one, "release"):
            found.append(repr(one).split()[0])  # locked or unlocked
            return ()
        if any(is_torch(one, name) for name in _OF_TORCH):
            found.append(repr(one))
            return ()
        if isinstance(one, contextvars.ContextVar):
            with contextlib.suppress(LookupError):
                return (one.get(),)
            return ()
        if hasattr(one, "arrays") and hasattr(one, "axes"):  # the blocks of a pandas DataFrame
            return (*one.arrays, *one.axes)
        library = kind.__module__.partition(".")[0]
        if (library == OURS and kind is not State) or kind.__name__ == "cython_function_or_method":
            return ()
        if library == "pandas" and hasattr(one, "_cache"):  # an index, which fills it with use
            return tuple(item for name, item in vars(one).items() if name != "_cache")
        if kind.__module__.startswith("pandas._libs."):  # how blocks are shared
            return ()
        if kind.__module__ == "pyarrow.lib" and kind.__name__.endswith(_OF_ARROW):
            return ()
        if isinstance(one, threading.local):
            return (vars(one),)  # of this thread, which object.__getattribute__ does not give
        if isinstance(one, types.BuiltinFunctionType | types.MethodWrapperType):
            return (one.__self__,)  # a list, of its append
        if isinstance(one, _OF_PLAIN):
            found.append(next(each for each in _OF_PLAIN if isinstance(one, each)).__repr__(one))
        elif not isinstance(one, BaseException | enum.Enum) and _has_hidden_state(kind):
            raise Unknown(f"a {kind.__module__}.{kind.__qualname__}")
        found.append(kind)
        return tuple(_attributes(one))

    def _tensor(self, one: Any, found: list[Token]) -> Iterable[Any]:
        if one.layout is not sys.modules["torch"].strided:
            raise Unknown(f"a tensor of layout {one.layout}")
        try:
            address = one.data_ptr()
        except RuntimeError:  # one without data
            address = 0
        found.append((address, one._version, tuple(one.shape), str(one.dtype), one.requires_grad))
        if one.device.type == "cpu" and address:
            storage = one.untyped_storage()
            found.append(self._memory(storage.data_ptr(), storage.nbytes(), lambda: bytes(storage)))
        hooks = one._backward_hooks, getattr(one, "_post_accumulate_grad_hooks", None)
        return (one.grad if one.is_leaf else None, *hooks, vars(one))

    def _array(self, array: Any) -> Token:
        utilities: Any = getattr(np.lib, "array_utils", np)  # numpy below 2
        low, high = utilities.byte_bounds(array)
        return self._memory(low, high - low, array.tobytes)

    def _buffer(self, array: Any) -> Token:
        return self._memory(array.ctypes.data, array.nbytes, array.tobytes)

    def _memory(self, address: int, size: int, content: Callable[[], bytes]) -> Token:
        """Token of ``size`` bytes at an address."""
        if size <= WHOLE_BYTES or not tells_pages():
            return hashlib.blake2b(content(), digest_size=16).digest() if size else b""
        first, last = -(-address // mmap.PAGESIZE), (address + size) // mmap.PAGESIZE
        edges = _at(address, first * mmap.PAGESIZE - address)
        edges += _at(last * mmap.PAGESIZE, (address + size) % mmap.PAGESIZE)
        return edges, self._pages is not None and self._pages.written(first, last)


_HEAP_TYPE = 1 << 9


def is_heap_type(kind: type) -> bool:
    """Whether a class was made by a class statement or call, so that its attributes can be replaced."""
    return bool(kind.__flags__ & _HEAP_TYPE)


@functools.cache
def _has_hidden_state(kind: type) -> bool:
    """Whether objects of a type hold more than Python shows: their size is that of attributes and slots otherwise."""
    words = sum(isinstance(item, types.MemberDescriptorType) for base in kind.__mro__ for item in vars(base).values())
    words += (kind.__dictoffset__ > 0) + (kind.__weakrefoffset__ > 0)
    return kind.__itemsize__ > 0 or kind.__basicsize__ > object.__basicsize__ + 8 * words


def _at(address: int, size: int) -> bytes:
    return ctypes.string_at(address, size) if size else b""


def _reduced(value: Any) -> Token:
    if isinstance(value, tuple | list):
        return tuple(map(_reduced, value))
    if isinstance(value, _ITERATORS):
        return _reduced(value.__reduce__())
    if isinstance(value, _BY_TEXT):
        return repr(value)
    return value if isinstance(value, PLAIN) else id(value)


def _use(cache: Any) -> tuple[int, int]:
    """How often results were put into a cache, and how many it holds."""
    about = cache.cache_info()
    return about.misses, about.currsize


def _variables(space: Mapping[str, Any]) -> tuple[Any, ...]:
    """Names and values in a module or class."""
    return tuple(each for name, item in list(space.items()) if name not in IGNORED for each in (name, item))


def _globals_of(function: types.FunctionType) -> Iterator[Any]:
    """Global variables of a function that was sent by value; those of a module are looked at with it."""
    module = sys.modules.get(function.__module__ or "")
    if module is None or vars(module) is not function.__globals__:
        for name, value in function.__globals__.items():
            if name not in IGNORED:
                yield name
                yield value


def _cells(function: types.FunctionType) -> Iterator[Any]:
    for cell in function.__closure__ or ():
        yield from gc.get_referents(cell)


def _attributes(one: Any) -> Iterator[Any]:
    """Values of an object's attributes: those of its ``__dict__`` and its slots."""
    try:
        held = object.__getattribute__(one, "__dict__")
    except AttributeError:
        held = {}
    if isinstance(held, dict):
        for name, item in list(held.items()):
            yield name
            yield item
    for kind in type(one).__mro__:
        for name, slot in vars(kind).items() if kind.__flags__ & _HEAP_TYPE else ():
            if isinstance(slot, types.MemberDescriptorType):
                with contextlib.suppress(AttributeError):  # not set yet
                    value = slot.__get__(one, type(one))
                    yield name
                    yield value


def _users_roots(modules: dict[str, types.ModuleType]) -> Iterator[tuple[str, Any]]:
    """Variables of the user's modules, and attributes of their classes, by name."""
    for name, module in modules.items():
        variables = [each for each in vars(module).items() if each[0] not in IGNORED]
        for key, value in variables:
            if isinstance(value, type) and value.__module__ == name:
                yield from (
                    (f"{name}.{key}.{attribute}", item)
                    for attribute, item in vars(value).items()
                    if attribute not in IGNORED
                )
        yield from ((f"{name}.{key}", value) for key, value in variables)


class UserVariables:
    """Variables of the user's modules; made in the zygote, compared in its children.

    Args:
        more: further values, by name: those that are no module's, such as a function that was sent by value.
    """

    def __init__(self, more: Callable[[], Iterable[tuple[str, Any]]] = tuple) -> None:
        self._more = more
        self._modules = {name: module for name, module in list(sys.modules.items()) if is_users(module)}
        self._offered = _offered_by_libraries()
        self._before, self._walk, self._problem = self._look(None)

    def _look(self, pages: PageReader | None) -> tuple[dict[str, list[Token]], ValueWalk, str]:
        walk, found = ValueWalk(pages, self._offered), dict[str, list[Token]]()
        for name, value in (*_users_roots(self._modules), *self._more()):
            try:
                found[name] = walk.tokens(value)
            except Unknown as unknown:
                return found, walk, f"nobody can tell whether {name} changed: it holds {unknown}"
            except Exception as error:  # a class of the user's that raises wherever it is asked
                return found, walk, f"nobody can tell whether {name} changed: {type(error).__name__}: {error}"
        return found, walk, ""

    def change(self) -> str:
        """What is not as it was, for people; empty: nothing. Caches of functions that were empty are emptied."""
        if self._problem:
            return self._problem
        replaced = [name for name, module in self._modules.items() if sys.modules.get(name) is not module]
        if replaced:
            return f"module {replaced[0]} was replaced"
        for cache, use in self._walk.caches:
            if _use(cache) != use:
                if use[1]:
                    return f"the cache of {cache.__module__}.{cache.__qualname__} changed"
                cache.cache_clear()
        pages = PageReader()
        try:
            after, _, problem = self._look(pages)
        finally:
            pages.close()
        if problem:
            return problem
        if after == self._before:
            return ""
        for name, tokens in after.items():
            if name not in self._before:
                return f"{name} is new"
            if tokens != self._before[name]:
                return f"{name} changed"
        gone = next((name for name in self._before if name not in after), None)
        return f"{gone} is gone" if gone else "the order of variables changed"
