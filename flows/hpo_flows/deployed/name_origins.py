"""Finds where a module has a name from, by reading its source; nothing is imported or run."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from typing import Any

from hpo_core.spec.code_files import MAX_FILE_BYTES

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
    return _Source(module, folders).origins(name)


class _Source:
    """The top level of a module's source."""

    def __init__(self, module: str, folders: Sequence[str]) -> None:
        self._folders = folders
        spec = _spec_of(module, folders)
        if spec is None:
            raise UnknownOriginError(f"there is no module {module!r} here")
        self._module = module
        self._package = module if spec.submodule_search_locations is not None else module.rpartition(".")[0]
        self._bindings: dict[str, list[ast.AST]] = {}
        self._stars: list[str] = []
        self._listed: set[str] = set()
        try:
            text = spec.loader.get_source(module)  # type: ignore[union-attr]
            if text is None or len(text) > MAX_FILE_BYTES:
                raise UnknownOriginError(f"module {module!r} has no source that can be read")
            self._tree = ast.parse(text)
            self._read(self._tree.body)
        except (OSError, ImportError, AttributeError, ValueError, SyntaxError, RecursionError) as error:
            raise UnknownOriginError(f"the source of module {module!r} cannot be read ({error})") from None

    def origins(self, name: str, above: tuple[str, ...] = ()) -> list[str]:
        """See the function of this name; ``above`` are names that this one is an alias of."""
        if name in self._listed:
            return []
        if name in above or any(isinstance(node, ast.Global) and name in node.names for node in ast.walk(self._tree)):
            raise self._unreadable(name)
        if name not in self._bindings:
            return [self._of_stars(name)]
        return [found for node in self._bindings[name] for found in self._of_binding(node, name, (*above, name))]

    def _of_stars(self, name: str) -> str:
        for module in reversed(self._stars):
            if _Source(module, self._folders).has(name):
                return f"{module}:{name}"
        raise UnknownOriginError(f"module {self._module!r} does not define {name!r}")

    def has(self, name: str) -> bool:
        """Whether ``from module import *`` brings this name, as far as one can see."""
        return name in self._listed or name in self._bindings or bool(self._stars)

    def _of_binding(self, node: ast.AST, name: str, above: tuple[str, ...]) -> Iterator[str]:
        if isinstance(node, ast.ImportFrom):
            original = next(alias.name for alias in node.names if (alias.asname or alias.name) == name)
            yield f"{self._from(node)}:{original}"
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
        for node in self._bindings.get(root[0], []):
            if isinstance(node, ast.Import):
                alias = next(alias for alias in node.names if (alias.asname or alias.name.partition(".")[0]) == root[0])
                yield f"{'.'.join([alias.name if alias.asname else root[0], *root[1:]])}:{name}"
            elif isinstance(node, ast.ImportFrom):
                original = next(alias.name for alias in node.names if (alias.asname or alias.name) == root[0])
                whole = ".".join([self._from(node), original, *root[1:]])
                is_module = _spec_of(whole, self._folders) is not None
                yield f"{whole}:{name}" if is_module else f"{self._from(node)}:{original}"
            elif root[0] not in above:
                yield from self._of_binding(node, root[0], (*above, root[0]))
        if root[0] not in self._bindings:
            raise UnknownOriginError(f"module {self._module!r} does not define {root[0]!r}")

    def _from(self, node: ast.ImportFrom) -> str:
        if not node.level:
            return node.module or ""
        above = self._package.split(".")
        base = above[: len(above) - node.level + 1]
        return ".".join([*base, *([node.module] if node.module else [])])

    # What the top level binds.

    def _bind(self, name: str, node: ast.AST) -> None:
        self._bindings.setdefault(name, []).append(node)

    def _read(self, body: Sequence[ast.AST]) -> None:
        for node in body:
            match node:
                case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                    self._bind(name, node)
                case ast.ImportFrom(names=[ast.alias(name="*")]):
                    self._stars.append(self._from(node))
                case ast.Import(names=names):
                    for alias in names:
                        self._bind(alias.asname or alias.name.partition(".")[0], node)
                case ast.ImportFrom(names=names):
                    for alias in names:
                        self._bind(alias.asname or alias.name, node)
                case ast.Assign(targets=targets, value=value):
                    for target in targets:
                        self._assign(target, value)
                    self._read([value])
                case ast.AnnAssign(target=target, value=ast.expr() as value):
                    self._assign(target, value)
                    self._read([value])
                case ast.AnnAssign():
                    pass  # a type alone
                case ast.AugAssign(target=target, value=value):
                    self._assign(target, value, whole=False)
                    self._read([value])
                case ast.Expr(value=ast.Call(func=ast.Attribute(value=ast.Name(id="__all__")), args=args)):
                    self._list(args)
                case _:
                    self._read_inside(node)

    def _read_inside(self, node: ast.AST) -> None:
        """Bodies of ``if``, ``try``, ``with`` and loops, and what else binds a name."""
        for target in (getattr(node, "target", None), getattr(node, "optional_vars", None)):
            if isinstance(target, ast.expr):
                self._assign(target, getattr(node, "value", None), whole=isinstance(node, ast.NamedExpr))
        if isinstance(name := getattr(node, "name", getattr(node, "rest", None)), str):
            self._bind(name, node)  # an exception, or part of a pattern
        if not isinstance(node, ast.Lambda | ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp):
            self._read(list(ast.iter_child_nodes(node)))

    def _assign(self, target: ast.expr, value: ast.expr | None, *, whole: bool = True) -> None:
        """Args: whole: whether the target gets this value, and not a part of it or more."""
        if isinstance(target, ast.Name) and target.id == "__all__":
            self._list([value])
        elif isinstance(target, ast.Name):
            self._bind(target.id, value if whole and value is not None else _UNKNOWN)
        elif isinstance(target, ast.Starred):
            self._assign(target.value, None, whole=False)
        elif isinstance(target, ast.Tuple | ast.List):
            pairs: list[Any] = [None] * len(target.elts)
            if whole and isinstance(value, ast.Tuple | ast.List) and len(value.elts) == len(target.elts):
                pairs = value.elts
            for one, given in zip(target.elts, pairs, strict=True):
                self._assign(one, given, whole=given is not None)

    def _list(self, values: Sequence[ast.AST | None]) -> None:
        for value in values:
            if isinstance(value, ast.Constant) and isinstance(value.value, str):
                self._listed.add(value.value)
            elif isinstance(value, ast.List | ast.Tuple):
                self._list(value.elts)
            elif isinstance(value, ast.BinOp):
                self._list([value.left, value.right])


_UNKNOWN = ast.Pass()
"""Stands for a value that the source does not say."""


def _looks_up(value: ast.expr) -> bool:
    called = value.func if isinstance(value, ast.Call) else None
    name = called.id if isinstance(called, ast.Name) else called.attr if isinstance(called, ast.Attribute) else ""
    return name in _LOOKED_UP


def _spec_of(module: str, folders: Sequence[str]) -> ModuleSpec | None:
    """How a module would be imported; the packages above it are not."""
    spec: ModuleSpec | None = None
    parts = module.split(".")
    for depth in range(1, len(parts) + 1):
        name, path = ".".join(parts[:depth]), None
        if depth > 1:
            if spec is None or spec.submodule_search_locations is None:
                return None
            path = list(spec.submodule_search_locations)
        try:
            spec = PathFinder.find_spec(name, list(folders)) if path is None and folders else None
            if spec is None:
                found = (finder.find_spec(name, path) for finder in sys.meta_path)
                spec = next((one for one in found if one is not None), None)
        except (OSError, ImportError, ValueError, AttributeError):
            return None
    return spec
