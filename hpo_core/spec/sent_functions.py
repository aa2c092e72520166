"""Functions of a notebook or a script: named by their content, sent by value, kept beside their study.

A function that no other process can import is pickled (cloudpickle) with what it refers to, as that is at this moment,
into the study's folder: ``code/DIGEST.pkl``, its source beside it. The study names it
``by_value.sSOURCE.dDIGEST:NAME``.
So whoever trains, resumes, reruns or audits the study runs this function and no other. ``SOURCE`` is a digest of its
code and of the values that it reads (:mod:`hpo_core.spec.value_digest`): the same script in another process has the
same one, while the pickle of a class or tensor is another one in each process.

Their files are read and written by :mod:`hpo_core.training.by_value`, which unpickles them in the process that trains.
"""

from __future__ import annotations

import ast
import contextlib
import difflib
import functools
import hashlib
import inspect
import linecache
import re
import sys
import sysconfig
import textwrap
import types
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

from pydantic import BeforeValidator

from hpo_core.model.errors import SpecError
from hpo_core.model.syntax_tree import syntax_tree
from hpo_core.spec.value_digest import globals_read, is_made, must_be_sent, value_digest

MOST_BYTES = 16 * 1024 * 1024
"""Largest function with what it refers to: data belong in a file."""
_MOST_ITEMS = 1000
"""Items of a list or dictionary that are looked at one by one."""
_SHOWN_LINES = 12
FUNCTION = r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$"
"""Pattern of the name of a function: ``package.module:function``."""
_NAME = re.compile(r"by_value\.s([0-9a-f]{16})\.d([0-9a-f]{64}):([A-Za-z_]\w*)")
_MARK = re.compile(r"# in (.+), line (\d+)")


class Sent(NamedTuple):
    """A pickled function."""

    name: str
    """What the study says in place of ``module:function``."""
    content: bytes
    source: str
    """Source text of the function and of what it refers to."""


_given: dict[str, Sent] = {}
"""Functions that settings of this process were given, by name."""
_roots: dict[str, list[str]] = {}
"""Folders that functions given to settings, or what they refer to, are imported from, by name."""


# From a function to its name.


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


def _is_of_script(kind: type) -> bool:
    """Whether a class is one of the script or notebook, or was made by a function."""
    module = sys.modules.get(kind.__module__)
    return kind.__module__ == "__main__" or "<locals>" in kind.__qualname__ or is_made(module)


def folders_of(names: Sequence[str]) -> list[str]:
    """Folders that functions, which settings of this process were given, are imported from."""
    return list(dict.fromkeys(folder for name in names for folder in _roots.get(name, ())))


def given(name: str) -> Sent | None:
    """The function that a setting of this process was given under this name."""
    return _given.get(name)


def pickled(function: Callable[..., Any]) -> Sent:
    """Pickle a function with all that it refers to.

    Raises:
        SpecError: it holds something that cannot be pickled or sent, or is too large.
    """
    import cloudpickle

    called, references = _name_of(function), References(function)
    references.refuse_gpu()
    for module in references.made:  # and it stays so: nobody else can import it
        cloudpickle.register_pickle_by_value(module)
    try:
        content = _PYTHON + _dumps(function)
        digest = value_digest(function)[:16]
    except Exception as error:  # whatever the __reduce__ of an object raises
        raise SpecError(
            f"{called}() cannot be sent to the workers: {references.culprit()}{type(error).__name__}: {error}. "
            "Make it inside the function, or put the function into a module of its own."
        ) from error
    if len(content) > MOST_BYTES:
        raise SpecError(
            f"{called}() refers to {len(content):,} bytes, more than the {MOST_BYTES:,} that are sent with a function"
            f"{references.largest()}. Load large data inside the function, from a file."
        )
    source = references.text()
    name = f"by_value.s{digest}.d{hashlib.sha256(content).hexdigest()}:{called}"
    _roots[name] = _folders(references.modules)
    return Sent(name, content, source)


def _dumps(value: Any) -> bytes:
    """cloudpickle, which would pickle a cached function by its name in ``__main__``."""
    import io

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
    """Folders that these modules' top packages are imported from, without those of Python and of what is installed."""
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


def _name_of(function: Callable[..., Any]) -> str:
    """Name of a function for the study."""
    name = called_name(function)
    return name if name.isidentifier() else "function"


# What a function refers to.


class ReadValue(NamedTuple):
    """A value that a function reads, and which is not a function of the script itself."""

    owner: str
    """Function or class that reads it."""
    how: str
    """``global``, ``closure variable``, ``default`` or ``attribute``."""
    name: str
    value: Any


class References:
    """The functions and classes that go with a function by value, and the values that they read."""

    def __init__(self, function: Any) -> None:
        self.uses: list[ReadValue] = []
        self.modules: list[str] = []
        """Modules that are imported for it."""
        self.made: list[types.ModuleType] = []
        """Modules that this process made, whose functions go with it."""
        self._parts: list[str] = []
        """Source texts, what is used before what uses it."""
        self._lines: dict[str, str] = {}
        self._seen: dict[int, Any] = {}
        self._visit(ReadValue(f"{_name_of(function)}()", "function", "", function))

    def text(self) -> str:
        """Source: imports and values, then functions and classes, each with its file and line."""
        values = "\n".join(self._lines[line] for line in sorted(self._lines))
        return "\n\n".join(filter(None, [values, *self._parts])) + "\n"

    def culprit(self) -> str:
        """The value that cannot be pickled, in words; empty where none is found by itself."""
        for use in self.uses:
            if _dumped(use.value) is None:
                return f"{use.how} {use.name!r} of {use.owner} is a {type(use.value).__name__}. "
        return ""

    def largest(self) -> str:
        """The largest value, in words."""
        sizes = [(len(_dumped(use.value) or b""), use) for use in self.uses]
        size, use = max(sizes, key=lambda one: one[0], default=(0, None))
        return "" if use is None else f"; {use.how} {use.name!r} of {use.owner} has {size:,}"

    def refuse_gpu(self) -> None:
        """Refuse values that lie on a GPU: unpickled, they would occupy it in every process, and forbid a fork."""
        for use in self.uses:
            if _is_on_gpu(use.value):
                raise SpecError(
                    f"{use.how} {use.name!r} of {use.owner} is a {type(use.value).__name__} on a GPU, which cannot be "
                    "sent to the workers. Make it inside the function, or move it to the CPU."
                )

    def _visit(self, use: ReadValue) -> None:
        value = use.value
        if id(value) in self._seen:
            return
        self._seen[id(value)] = value
        if isinstance(value, types.ModuleType):
            if is_made(value):
                self._made(value.__name__)
                self.uses.append(use)
            else:
                self.modules.append(value.__name__)
                self._say(use, f"import {value.__name__} as {use.name}")
        elif isinstance(value, types.MethodType):
            self._visit(use._replace(value=value.__func__))
            self._visit(ReadValue(use.owner, "attribute", "__self__", value.__self__))
        elif isinstance(value, functools._lru_cache_wrapper):
            self._visit(use._replace(value=value.__wrapped__))
        elif isinstance(value, functools.partial):
            self._visit(use._replace(value=value.func))
            for name, one in [*enumerate(value.args), *value.keywords.items()]:
                self._visit(ReadValue(f"{_name_of(value)}()", "argument", str(name), one))
        elif isinstance(value, types.FunctionType):
            self._function(use, value) if must_be_sent(value) else self._import(use, value)
        elif isinstance(value, type):
            self._class(value) if must_be_sent(value) else self._import(use, value)
        elif _is_of_script(type(value)):
            self._visit(use._replace(value=type(value)))
            self._object(use)
        elif type(value) in (list, tuple, dict) and len(value) <= _MOST_ITEMS and _written(value) is None:
            for key, one in value.items() if isinstance(value, dict) else enumerate(value):
                self._visit(use._replace(name=f"{use.name}[{key!r}]", value=one))
        else:
            self._value(use)

    def _made(self, name: str) -> None:
        module = sys.modules.get(name)
        if module is not None and is_made(module) and module not in self.made:
            self.made.append(module)

    def _import(self, use: ReadValue, value: Any) -> None:
        self.modules.append(value.__module__)
        self._say(use, f"from {value.__module__} import {value.__qualname__} as {use.name}")

    def _object(self, use: ReadValue) -> None:
        with contextlib.suppress(TypeError):
            for name, one in sorted(vars(use.value).items()):
                self._visit(ReadValue(f"{use.name or use.owner} ({type(use.value).__name__})", "attribute", name, one))

    def _function(self, use: ReadValue, function: types.FunctionType) -> None:
        owner = f"{function.__name__}()"
        self._made(function.__module__)
        for name in sorted(globals_read(function.__code__)):
            if name in function.__globals__:
                self._visit(ReadValue(owner, "global", name, function.__globals__[name]))
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            with contextlib.suppress(ValueError):  # not assigned yet
                self._visit(ReadValue(owner, "closure variable", name, cell.cell_contents))
        for number, one in enumerate([*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]):
            self._visit(ReadValue(owner, "default", str(number), one))
        self._part(function.__code__, function.__name__)

    def _class(self, found: type) -> None:
        self._made(found.__module__)
        for base in found.__bases__:
            if must_be_sent(base) and base is not object:
                self._visit(ReadValue(found.__name__, "base", base.__name__, base))
        for attribute in vars(found).values():
            for function in _functions_of(attribute):
                for name in sorted(globals_read(function.__code__)):
                    if name in function.__globals__ and function.__globals__.get("__name__") == found.__module__:
                        self._visit(
                            ReadValue(
                                f"{found.__name__}.{function.__name__}()", "global", name, function.__globals__[name]
                            )
                        )
        self._part(found, found.__qualname__)

    def _part(self, what: types.CodeType | type, name: str) -> None:
        try:
            file, line, text = _source_of_class(what) if isinstance(what, type) else _source_of_code(what)
        except (OSError, TypeError, SyntaxError):
            self._parts.append(f"# {name}: no source; SHA-256 of its code: {value_digest(what)}")
            return
        part = f"# in {file}, line {line}\n{textwrap.dedent(text).rstrip()}"
        if part not in self._parts:
            self._parts.append(part)

    def _value(self, use: ReadValue) -> None:
        self.uses.append(use)
        self._say(use, f"{use.name} = {_shown(use.value)}")

    def _say(self, use: ReadValue, line: str) -> None:
        if use.how == "global":
            self._lines[line] = line
        else:
            self._lines[f"~{use.owner} {use.name}"] = f"# {use.how} of {use.owner}: {line}"


def _functions_of(attribute: Any) -> Iterator[types.FunctionType]:
    for one in (
        attribute,
        getattr(attribute, "__func__", None),
        *(getattr(attribute, name, None) for name in ("fget", "fset", "fdel", "func")),
    ):
        if isinstance(one, types.FunctionType):
            yield one


def _source_of_code(code: types.CodeType) -> tuple[str, int, str]:
    lines, line = inspect.getsourcelines(code)
    return code.co_filename, line, "".join(lines)


def _source_of_class(found: type) -> tuple[str, int, str]:
    """File, line and text of a class; also of a notebook's, for which ``inspect`` finds none."""
    files = [getattr(sys.modules.get(found.__module__), "__file__", None)]
    files += [one.__code__.co_filename for attribute in vars(found).values() for one in _functions_of(attribute)]
    files += [file for file in reversed(linecache.cache) if "ipykernel" in file or "ipython-input" in file]
    for file in dict.fromkeys(filter(None, files)):
        text = "".join(linecache.getlines(file))
        if (node := find_node(text, found.__qualname__)) is not None:
            return file, *text_of_node(text, node)
    raise OSError


def find_node(text: str, qualname: str) -> ast.AST | None:
    """The last class or function of that name in a module's text."""
    try:
        nodes: list[ast.AST] = [syntax_tree(text)]
    except (SyntaxError, ValueError, RecursionError):
        return None
    for name in qualname.replace(".<locals>", "").split("."):
        nodes = [
            child
            for node in nodes
            for child in ast.walk(node)
            if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and child.name == name
        ]
    return nodes[-1] if nodes else None


def text_of_node(text: str, node: Any) -> tuple[int, str]:
    first = min([node.lineno, *(one.lineno for one in node.decorator_list)])
    return first, "\n".join(text.splitlines()[first - 1 : node.end_lineno])


_PLAIN = (bool, int, float, complex, str, bytes, type(None))


def _shown(value: Any) -> str:
    """A value for people: as Python writes it, or by its digest."""
    text = _written(value)
    return text if text is not None and len(text) <= 200 else f"...  # {type(value).__name__}, {_short_digest(value)}"


def _short_digest(value: Any) -> str:
    try:
        return f"SHA-256 {value_digest(value)[:16]}"
    except RecursionError:
        return "nested too deep"


def _written(value: Any, depth: int = 3) -> str | None:
    if isinstance(value, _PLAIN):
        return repr(value)
    if type(value) not in (set, frozenset, list, tuple, dict) or len(value) > _MOST_ITEMS or depth == 0:
        return None
    items = [_written(one, depth - 1) for one in value]
    if isinstance(value, dict):
        values = [_written(one, depth - 1) for one in value.values()]
        items = [None if None in pair else ": ".join(map(str, pair)) for pair in zip(items, values, strict=True)]
    if None in items:
        return None
    text = ", ".join(sorted(map(str, items)) if isinstance(value, set | frozenset) else map(str, items))
    return f"[{text}]" if isinstance(value, list) else f"({text})" if isinstance(value, tuple) else f"{{{text}}}"


def _dumped(value: Any) -> bytes | None:
    try:
        return _dumps(value)
    except Exception:  # whatever the __reduce__ of an object raises
        return None


def _is_on_gpu(value: Any) -> bool:
    torch = sys.modules.get("torch")
    if torch is None:
        return False
    if isinstance(value, torch.Tensor):
        return bool(value.is_cuda)
    if isinstance(value, torch.nn.Module):
        return any(one.is_cuda for one in [*value.parameters(), *value.buffers()])
    if isinstance(value, list | tuple | dict):
        return any(_is_on_gpu(one) for one in (value.values() if isinstance(value, dict) else value))
    return False


# What a name says.


def digest_of(name: str | None) -> str | None:
    """SHA-256 of a function that was sent by value, from its name; None for one that is imported."""
    found = _NAME.fullmatch(name or "")
    return found and found[2]


def source_digest_of(name: str | None) -> str | None:
    """Digest of the source of a function that was sent by value, from its name; None for one that is imported."""
    found = _NAME.fullmatch(name or "")
    return found and found[1]


def stable_name(name: str | None) -> str:
    """Name of a function that is the same in every process that has the same source; empty: none."""
    found = _NAME.fullmatch(name or "")
    return name or "" if found is None else f"by_value.s{found[1]}:{found[3]}"


def names_value(name: str | None) -> bool:
    """Whether a setting names a function by value, or tries to."""
    return (name or "").partition(":")[0].partition(".")[0] == "by_value"


def short_name(name: str | None) -> str:
    """Name of a function for people: of one sent by value its own, and the first figures of its source's digest."""
    found = _NAME.fullmatch(name or "")
    return name or "" if found is None else f"{found[3]} (by value, source {found[1][:8]})"


# Comparison.


class SourcePart(NamedTuple):
    """The text of a function or class, and where it stood."""

    file: str
    line: int
    text: str


def parts_of(source: str) -> list[SourcePart]:
    """The functions and classes of a source that was kept."""
    found: list[SourcePart] = []
    file, line, lines = "", 0, list[str]()
    for one in [*source.splitlines(), "# in -, line 0"]:
        if (mark := _MARK.fullmatch(one)) is not None:
            if file:
                found.append(SourcePart(file, line, "\n".join(lines).rstrip()))
            file, line, lines = mark[1], int(mark[2]), []
        else:
            lines.append(one)
    return found


def texts_of(source: str) -> list[str]:
    """A source that was kept, in texts that can be parsed: imports and values, then each function or class."""
    return [source.partition("# in ")[0], *(part.text for part in parts_of(source))]


def difference(kept: str, new: str) -> str:
    """The lines that differ between two sources, at most a dozen; empty: none."""
    before, after = (_comparable(one).splitlines() for one in (kept, new))
    lines = [
        line
        for line in difflib.unified_diff(before, after, "the study's", "given now", n=1, lineterm="")
        if not line.startswith(("---", "+++", "@@"))
    ]
    more = len(lines) - _SHOWN_LINES
    return "\n".join([*lines[:_SHOWN_LINES], *([f"... and {more} lines more"] if more > 0 else [])])


def _comparable(source: str) -> str:
    """A source without the places that its parts came from, which differ from machine to machine."""
    return "\n".join(line for line in source.splitlines() if _MARK.fullmatch(line) is None).strip()
