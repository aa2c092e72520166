"""Finds where a module has a name from, by reading its source; nothing is imported or run."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from hpo_core.spec.module_source import ModuleSource, find_module, read_module

_LOOKED_UP = frozenset({"getattr", "eval", "vars", "globals", "locals", "__import__", "import_module", "attrgetter"})
"""What a call of these returns may be anybody's."""


class UnknownOriginError(Exception):
    """The source does not say what a name stands for; the message says why."""


def origins(function: str, folders: Sequence[str] = ()) -> list[str]:
    """What ``module:name`` stands for where the module has it from others, as ``module:name``.

    Empty where the module itself defines the name (``def``, ``class``, a lambda, what a call returns), or lists it in
    ``__all__``. An alias (``remove = os.remove``) comes from where its value comes from.

    Args:
        folders: where modules are looked for before ``sys.path``.

    Raises:
        UnknownOriginError: there is no such name, or the source does not tell.
    """
    module, _, name = function.partition(":")
    return _Names(_read(module, folders), folders).origins(name)


def _read(module: str, folders: Sequence[str]) -> ModuleSource:
    try:
        source = read_module(module, folders)
    except ModuleNotFoundError:
        raise UnknownOriginError(f"there is no module {module!r} here") from None
    except SyntaxError as error:
        raise UnknownOriginError(f"the source of module {module!r} cannot be read ({error})") from None
    if source is None:
        raise UnknownOriginError(f"module {module!r} has no source that can be read")
    return source


class _Names:
    """The names of a module, and where it has them from."""

    def __init__(self, source: ModuleSource, folders: Sequence[str]) -> None:
        self._source = source
        self._module = source.module
        self._folders = folders

    def origins(self, name: str, above: tuple[str, ...] = ()) -> list[str]:
        """See the function of this name; ``above`` are names that this one is an alias of."""
        if name in self._source.listed:
            return []
        if name in above or self._source.is_global(name):
            raise self._unreadable(name)
        if name not in self._source.bindings:
            return [self._of_stars(name)]
        return [found for node in self._source.bindings[name] for found in self._of_binding(node, name, (*above, name))]

    def _of_stars(self, name: str) -> str:
        for module in reversed(self._source.stars):
            other = _read(module, self._folders)
            if name in other.listed or name in other.bindings or other.stars:
                return f"{module}:{name}"
        raise UnknownOriginError(f"module {self._module!r} does not define {name!r}")

    def _of_binding(self, node: ast.AST, name: str, above: tuple[str, ...]) -> Iterator[str]:
        if isinstance(node, ast.ImportFrom):
            original = next(alias.name for alias in node.names if (alias.asname or alias.name) == name)
            yield f"{self._source.imported_from(node)}:{original}"
        elif isinstance(node, ast.Import):
            raise UnknownOriginError(f"{name!r} is a module that {self._module!r} imports")
        elif isinstance(node, ast.expr):
            yield from self._of_value(node, name, above)
        elif not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            raise self._unreadable(name)

    def _of_value(self, value: ast.expr, name: str, above: tuple[str, ...]) -> Iterator[str]:
        if isinstance(value, ast.Name):
            yield from self.origins(value.id, above)
        elif isinstance(value, ast.Attribute):
            yield from self._of_attribute(value, above)
        elif isinstance(value, ast.IfExp | ast.BoolOp):
            for one in [value.body, value.orelse] if isinstance(value, ast.IfExp) else value.values:
                yield from self._of_value(one, name, above)
        elif not isinstance(value, ast.Lambda | ast.Constant | ast.Call) or _looks_up(value):
            raise self._unreadable(name)

    def _unreadable(self, name: str) -> UnknownOriginError:
        return UnknownOriginError(f"module {self._module!r} gives {name!r} its value in a way that cannot be read")

    def _of_attribute(self, value: ast.Attribute, above: tuple[str, ...]) -> Iterator[str]:
        """``a.b.c``: a function of a module that is imported, or part of something the module has."""
        *root, name = ast.unparse(value).split(".")
        for node in self._source.bindings.get(root[0], []):
            if isinstance(node, ast.Import):
                alias = next(alias for alias in node.names if (alias.asname or alias.name.partition(".")[0]) == root[0])
                yield f"{'.'.join([alias.name if alias.asname else root[0], *root[1:]])}:{name}"
            elif isinstance(node, ast.ImportFrom):
                original = next(alias.name for alias in node.names if (alias.asname or alias.name) == root[0])
                whole = ".".join([self._source.imported_from(node), original, *root[1:]])
                is_module = _is_module(whole, self._folders)
                yield f"{whole}:{name}" if is_module else f"{self._source.imported_from(node)}:{original}"
            elif root[0] not in above:
                yield from self._of_binding(node, root[0], (*above, root[0]))
        if root[0] not in self._source.bindings:
            raise UnknownOriginError(f"module {self._module!r} does not define {root[0]!r}")


def _is_module(name: str, folders: Sequence[str]) -> bool:
    try:
        find_module(name, folders)
    except (ImportError, OSError, ValueError, AttributeError):
        return False
    return True


def _looks_up(value: ast.expr) -> bool:
    called = value.func if isinstance(value, ast.Call) else None
    name = called.id if isinstance(called, ast.Name) else called.attr if isinstance(called, ast.Attribute) else ""
    return name in _LOOKED_UP
