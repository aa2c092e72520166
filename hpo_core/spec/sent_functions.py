"""Functions of a notebook or a script: named by their content, sent by value, kept beside their study.

A function that no other process can import is pickled (cloudpickle) with what it refers to, as that is at this moment,
into the study's folder: ``code/DIGEST.pkl``. The study names it ``by_value.dDIGEST:NAME``.
So whoever trains, resumes, reruns or audits the study runs this function and no other. The same script may have another
pickle in another process, so a study that goes on takes the one that it keeps, unless it is told to take another.

Their files are read and written by :mod:`hpo_core.training.by_value`, which unpickles them in the process that trains.
"""

from __future__ import annotations

import functools
import hashlib
import io
import pickletools
import re
import sys
import sysconfig
import types
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

from pydantic import BeforeValidator

from hpo_core.model.errors import SpecError

MOST_BYTES = 16 * 1024 * 1024
"""Largest function with what it refers to: data belong in a file."""
FUNCTION = r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$"
"""Pattern of the name of a function: ``package.module:function``."""
_NAME = re.compile(r"by_value(?:\.s[0-9a-f]{16})?\.d([0-9a-f]{64}):([A-Za-z_]\w*)")
"""Earlier development versions named a digest of the source before that of the pickle."""


class Sent(NamedTuple):
    """A pickled function."""

    name: str
    """What the study says in place of ``module:function``."""
    content: bytes


_given: dict[str, Sent] = {}
"""Functions that settings of this process were given, by name."""
_roots: dict[str, list[str]] = {}
"""Folders that functions given to settings, or what they refer to, are imported from, by name."""


def function_name(value: Any) -> Any:
    """Name of a function that a setting is given: ``module:function``, or by value; what is no function as it is."""
    if not callable(value):
        return value
    if not must_be_sent(value):
        name = f"{value.__module__}:{value.__qualname__}"
        _roots[name] = _folders([value.__module__])
        return name
    sent = pickled(value)
    _given[sent.name] = sent
    return sent.name


if TYPE_CHECKING:
    FunctionName = Any
    """A setting that is given a function, or its name; it holds the name."""
else:
    FunctionName = Annotated[str, BeforeValidator(function_name)]


def folders_of(names: Sequence[str]) -> list[str]:
    """Folders that functions, which settings of this process were given, are imported from."""
    return list(dict.fromkeys(folder for name in names for folder in _roots.get(name, ())))


def given(name: str) -> Sent | None:
    """The function that a setting of this process was given under this name."""
    return _given.get(name)


def must_be_sent(function: Callable[..., Any]) -> bool:
    module, name = getattr(function, "__module__", None), getattr(function, "__qualname__", None)
    if not module or not name or module == "__main__" or not name.isidentifier():
        return True
    found = sys.modules.get(module)
    return getattr(found, name, None) is not function or _is_made(found)


def _is_made(module: types.ModuleType | None) -> bool:
    # True if a module was made by this process, so that no other one can import it.
    return module is not None and module.__name__ != "__main__" and getattr(module, "__spec__", None) is None


def pickled(function: Callable[..., Any]) -> Sent:
    """Pickle a function with all that it refers to.

    Raises:
        SpecError: it holds something that cannot be pickled, or is too large.
    """
    import cloudpickle

    name = called_name(function)
    called = name if name.isidentifier() else "function"
    module = sys.modules.get(getattr(function, "__module__", None) or "")
    if _is_made(module):  # nobody else can import it
        cloudpickle.register_pickle_by_value(module)
    try:
        content = _PYTHON + _dumps(function)
    except Exception as error:  # whatever the __reduce__ of an object raises
        raise SpecError(
            f"{called}() cannot be sent to the workers: {type(error).__name__}: {error}. Make what it reads inside the "
            "function, or put the function into a module of its own."
        ) from error
    if len(content) > MOST_BYTES:
        raise SpecError(
            f"{called}() refers to {len(content):,} bytes, more than the {MOST_BYTES:,} that are sent with a function. "
            "Load large data inside the function, from a file."
        )
    sent = f"by_value.d{hashlib.sha256(content).hexdigest()}:{called}"
    _roots[sent] = _folders([name for name in names_in(content) if name in sys.modules and name != "__main__"])
    return Sent(sent, content)


def names_in(content: bytes) -> list[str]:
    """Names in a pickled function that may be modules'; nothing is unpickled."""
    texts = {text for _, text, _ in pickletools.genops(content.partition(b"\n")[2]) if isinstance(text, str)}
    return sorted(text for text in texts if all(map(str.isidentifier, text.split("."))))


def _dumps(value: Any) -> bytes:
    import cloudpickle

    class Pickler(cloudpickle.Pickler):  # type: ignore[misc]
        def reducer_override(self, obj: Any) -> Any:
            if isinstance(obj, functools._lru_cache_wrapper) and must_be_sent(obj.__wrapped__):
                return _cached, (obj.__wrapped__, obj.cache_parameters())
            return super().reducer_override(obj)

    with io.BytesIO() as file:
        Pickler(file).dump(value)
        return file.getvalue()


def _cached(function: Callable[..., Any], settings: dict[str, Any]) -> Callable[..., Any]:
    found: Callable[..., Any] = functools.lru_cache(**settings)(function)
    return found


_PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}\n".encode()
"""First line of a pickled function: byte code is of one version."""
_INSTALLED = frozenset(
    Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "platstdlib", "purelib", "platlib")
)


def _folders(modules: Sequence[str]) -> list[str]:
    found = []
    for module in modules:
        file = getattr(sys.modules.get(module), "__file__", None)
        path = Path(file or "/").resolve()
        if file is not None and not _INSTALLED & set(path.parents):
            found.append(str(path.parents[module.count(".") + (path.name == "__init__.py")]))
    return list(dict.fromkeys(found))


def called_name(function: Callable[..., Any]) -> str:
    """Name of what is called for people: of a function, of that in a ``partial``, or of the class of an object."""
    while isinstance(function, functools.partial):
        function = function.func
    return getattr(function, "__name__", None) or type(function).__name__


def digest_of(name: str | None) -> str | None:
    """SHA-256 of a function that was sent by value, from its name; None for one that is imported."""
    found = _NAME.fullmatch(name or "")
    return found and found[1]


def plain_name(name: str | None) -> str:
    """Name of a function without the digest of its pickle; empty: none."""
    found = _NAME.fullmatch(name or "")
    return name or "" if found is None else f"by_value:{found[2]}"


def names_value(name: str | None) -> bool:
    """True if a setting names a function by value, or tries to."""
    return (name or "").partition(":")[0].partition(".")[0] == "by_value"


def short_name(name: str | None) -> str:
    """Name of a function for people: of one sent by value its own, and the first figures of its digest."""
    found = _NAME.fullmatch(name or "")
    return name or "" if found is None else f"{found[2]} (by value, {found[1][:8]})"
