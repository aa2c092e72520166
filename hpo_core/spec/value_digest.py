"""Digests of functions and values that are the same in every process that makes the same ones.

A pickle is not: it holds memory addresses (tensors), the order of sets, random identifiers (classes), and places of
source files. A value counts by what pickling would take of it, tensors and arrays by dtype, shape and bytes, a function
or class that other processes can import by its name, another one by its code and what it reads.
"""

from __future__ import annotations

import dis
import functools
import hashlib
import sys
import types
import typing
import weakref
from collections import ChainMap
from collections.abc import Callable, Iterable, Mapping, MutableMapping
from typing import Any

_PLAIN = frozenset({bool, int, float, complex, str, bytes, type(None), type(...), type(NotImplemented)})
"""Types whose text is the same in every process."""
_PROTOCOL = 4
"""The highest protocol of ``__reduce_ex__`` without buffers apart."""
_MADE_BY_PYTHON = frozenset(
    [
        *("__dict__", "__weakref__", "__module__", "__doc__", "__slotnames__"),
        *("__firstlineno__", "__static_attributes__", "_abc_impl"),
    ]
)
"""Attributes of classes that say nothing, or that differ from process to process."""
_CODE = (
    *("co_name", "co_code", "co_names", "co_varnames", "co_freevars", "co_cellvars"),
    *("co_flags", "co_argcount", "co_exceptiontable"),
)
_MADE_BY_PYDANTIC = "__pydantic_"
"""Attributes whose compiled schemas hold memory addresses; the annotations and fields say the same."""


def value_digest(value: Any) -> str:
    """SHA-256 of a value, in hexadecimal digits.

    Raises:
        RecursionError: it is nested too deep.
    """
    return _Walk({}, {}).digest(value).hex()


def must_be_sent(function: Callable[..., Any]) -> bool:
    """True if another process cannot import a function or class by its name."""
    module, name = getattr(function, "__module__", None), getattr(function, "__qualname__", None)
    if not module or not name or module == "__main__" or not name.isidentifier():
        return True
    found = sys.modules.get(module)
    return getattr(found, name, None) is not function or is_made(found)


def is_made(module: types.ModuleType | None) -> bool:
    """True if a module was made by this process, so that no other one can import it."""
    return module is not None and module.__name__ != "__main__" and getattr(module, "__spec__", None) is None


def globals_read(code: types.CodeType) -> set[str]:
    """Names of global variables that byte code reads, also in functions within it."""
    found = {one.argval for one in dis.get_instructions(code) if one.opname in ("LOAD_GLOBAL", "LOAD_NAME")}
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            found |= globals_read(constant)
    return found


def _hash(kind: str, *parts: bytes) -> bytes:
    found = hashlib.sha256(kind.encode(errors="surrogatepass"))
    for part in parts:
        found.update(b"%d:" % len(part))
        found.update(part)
    return found.digest()


class _Walk:
    """Digests of values that refer to each other: each is computed once, and one within itself counts by its depth."""

    def __init__(self, known: MutableMapping[int, tuple[Any, bytes]], entered: dict[int, int]) -> None:
        self._known = known
        """Value (so that it stays alive) and digest, by id."""
        self._entered = entered
        """Depths of the values that are being walked, by id."""

    def digest(self, value: Any) -> bytes:
        if type(value) in _PLAIN:
            return _hash(type(value).__name__, repr(value).encode(errors="surrogatepass"))
        key = id(value)
        if key in self._known:
            return self._known[key][1]
        if key in self._entered:
            return _hash("above", b"%d" % (len(self._entered) - self._entered[key]))
        self._entered[key] = len(self._entered)
        try:
            found = self._of(value)
        finally:
            del self._entered[key]
        self._known[key] = value, found
        return found

    def _all(self, kind: str, values: Iterable[Any]) -> bytes:
        return _hash(kind, *[self.digest(one) for one in values])

    def _of(self, value: Any) -> bytes:
        kind = type(value)
        if kind in (list, tuple):
            if _PLAIN.issuperset(map(type, value)):
                return _hash(kind.__name__, repr(value).encode(errors="surrogatepass"))
            return self._all(kind.__name__, value)
        if kind is dict:
            return self._mapping("dict", value)
        if kind in (set, frozenset):  # each by itself: their order, and so who comes first, differs
            return _hash("set", *sorted(_Walk(ChainMap({}, self._known), self._entered).digest(one) for one in value))
        if isinstance(value, type):
            return self._class(value) if must_be_sent(value) else _named(value)
        if isinstance(value, types.FunctionType):
            return self._function(value) if must_be_sent(value) else _named(value)
        if isinstance(value, types.ModuleType):
            made = {name: one for name, one in vars(value).items() if is_made(value) and not name.startswith("__")}
            return self._all("module", (value.__name__, made))
        if isinstance(value, types.CodeType):
            return self._all("code", [*(getattr(value, name) for name in _CODE), *value.co_consts])
        if isinstance(value, types.MethodType):
            return self._all("method", (value.__func__, value.__self__))
        if isinstance(value, functools._lru_cache_wrapper):
            return self._all("cache", (value.__wrapped__, value.cache_parameters()))
        if isinstance(value, weakref.WeakSet):
            return self._all("weak set", (frozenset(value),))
        if isinstance(value, functools.cached_property | typing.TypeVar):  # a lock, a random identifier
            return self._all(kind.__name__, (getattr(value, "func", None), getattr(value, "__name__", None)))
        try:
            return self._numbers(value) or self._pickled(value)
        except RecursionError:
            raise
        except Exception:  # whatever the __reduce__ of an object raises: it cannot be pickled
            return self._all("object", (kind,))

    def _mapping(self, kind: str, value: Mapping[Any, Any]) -> bytes:
        keys = {self.digest(key): key for key in value}
        return _hash(kind, *[part for one in sorted(keys) for part in (one, self.digest(value[keys[one]]))])

    def _function(self, value: types.FunctionType) -> bytes:
        read = {name: value.__globals__[name] for name in globals_read(value.__code__) if name in value.__globals__}
        cells = [_content(cell) for cell in value.__closure__ or ()]
        return self._all(
            "function", (value.__code__, read, cells, value.__defaults__, value.__kwdefaults__, vars(value))
        )

    def _class(self, value: type) -> bytes:
        attributes = {
            name: one
            for name, one in vars(value).items()
            if name not in _MADE_BY_PYTHON and not name.startswith(_MADE_BY_PYDANTIC)
        }
        return self._all("class", (type(value), value.__qualname__, value.__bases__, attributes))

    def _numbers(self, value: Any) -> bytes | None:
        """Digest of a tensor or array; None for other values."""
        torch, numpy = sys.modules.get("torch"), sys.modules.get("numpy")
        if torch is not None and isinstance(value, torch.UntypedStorage | torch.storage.TypedStorage):
            return _hash("storage", bytes(value.untyped().cpu().tolist()))
        if torch is not None and isinstance(value, torch.Tensor):
            if value.layout != torch.strided or value.is_quantized:
                return None
            about: Any = type(value), str(value.dtype), tuple(value.shape), value.requires_grad, vars(value)
            flat = value.detach().resolve_conj().resolve_neg().cpu().contiguous().reshape(-1)
            content = b"" if value.is_meta else flat.view(torch.uint8).numpy().tobytes()
            return _hash("tensor", self._all("about", about), content)
        if numpy is not None and isinstance(value, numpy.ndarray):
            about = (type(value), str(value.dtype), value.shape, getattr(value, "__dict__", None))
            plain = numpy.asarray(value)
            if plain.dtype.names:  # between its fields lies anything
                return self._all("rows", (about, [plain[name] for name in plain.dtype.names]))
            content = self.digest(plain.tolist()) if plain.dtype.kind in "OT" else plain.tobytes()
            return _hash("array", self._all("about", about), content)
        return None

    def _pickled(self, value: Any) -> bytes:
        """Digest of the parts that pickling takes of an object."""
        import cloudpickle

        reduce = cloudpickle.Pickler.dispatch_table.get(type(value))
        parts = value.__reduce_ex__(_PROTOCOL) if reduce is None else reduce(value)
        if isinstance(parts, str):
            return self._all("global", (type(value), parts))
        made, arguments, state, items, pairs = (*parts, *(None,) * 5)[:5]
        return self._all(
            "object", (made, arguments, state, *(None if one is None else list(one) for one in (items, pairs)))
        )


def _named(value: Any) -> bytes:
    return _hash("name", f"{value.__module__}:{value.__qualname__}".encode())


def _content(cell: types.CellType) -> Any:
    try:
        return (cell.cell_contents,)
    except ValueError:  # not assigned yet
        return ()
