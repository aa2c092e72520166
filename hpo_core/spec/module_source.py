"""Reads modules from their source: who defines a name; the files of a training function's code.

Nothing is imported or run.
"""

from __future__ import annotations

import ast
import sys
import sysconfig
from collections.abc import Collection, Iterator, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from typing import NamedTuple

from hpo_core.model.syntax_tree import syntax_tree
from hpo_core.spec.sent_functions import names_value

MAX_FILES = 1000
MAX_FILE_BYTES = 1_000_000


class CodeFile(NamedTuple):
    """One file: its path below the folder that it is imported from."""

    root: Path
    name: str
    """Relative to ``root``, with slashes: ``lab/train.py``."""

    @property
    def path(self) -> Path:
        return self.root / self.name


class ModuleSource:
    """The text of a module, and what it says of names."""

    def __init__(self, spec: ModuleSpec, text: str) -> None:
        self.tree = syntax_tree(text, spec.origin or spec.name)

    def definition(self, name: str) -> ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | None:
        """The one statement of the module that binds this name, where that is a ``def`` or ``class`` at its top."""
        makers = [node for node in ast.walk(self.tree) if name in _bound(node)]
        found = makers[0] if len(makers) == 1 and makers[0] in self.tree.body else None
        return found if isinstance(found, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) else None

    def names(self) -> list[str] | None:
        """Names that its statements bind, at any depth; None: it may have others, as by ``import *`` or ``exec``."""
        nodes = list(ast.walk(self.tree))
        names = dict.fromkeys(name for node in nodes for name in _bound(node))
        used = {node.id for node in nodes if isinstance(node, ast.Name)}
        return None if used & _BINDERS or {"*", "__getattr__"} & set(names) else list(names)


_BINDERS = {"exec", "globals", "locals", "setattr", "vars"}
"""Functions by which code can bind a name that no statement shows."""


def _bound(node: ast.AST) -> list[str]:
    if isinstance(node, ast.alias):
        return [node.asname or node.name.partition(".")[0]]
    if isinstance(node, ast.Name):
        return [] if isinstance(node.ctx, ast.Load) else [node.id]
    if isinstance(node, ast.Global):
        return node.names
    return [name for name in (getattr(node, "name", None), getattr(node, "rest", None)) if name]


def imported_from(node: ast.ImportFrom, package: str) -> str:
    if not node.level:
        return node.module or ""
    above = package.split(".") if package else []
    return ".".join([*above[: len(above) - node.level + 1], *([node.module] if node.module else [])])


def read_module(module: str, folders: Sequence[str] = ()) -> ModuleSource | None:
    """The source of a module; None where it has none that can be read here.

    Args:
        folders: where modules are looked for before ``sys.path``.

    Raises:
        ModuleNotFoundError: there is no such module; ``name`` says what is missing, it or a package above.
        SyntaxError: its source is no Python.
    """
    try:
        spec = find_module(module, folders)
        text = spec.loader.get_source(module)  # type: ignore[union-attr]
        return None if text is None or len(text) > MAX_FILE_BYTES else ModuleSource(spec, text)
    except (ModuleNotFoundError, SyntaxError):
        raise
    except (OSError, ImportError, AttributeError, ValueError, RecursionError):
        return None


def find_module(module: str, folders: Sequence[str] = ()) -> ModuleSpec:
    """Place from which a module would be imported; the packages above it are not.

    Raises:
        ModuleNotFoundError: there is no such module.
    """
    path: list[str] | None = None
    spec: ModuleSpec | None = None
    parts = module.split(".")
    for depth in range(1, len(parts) + 1):
        name = ".".join(parts[:depth])
        spec = _find(name, path, folders)
        if spec is None:
            raise ModuleNotFoundError(f"there is no module {name!r}", name=name)
        path = list(spec.submodule_search_locations or ())
    assert spec is not None
    return spec


def _find(name: str, path: list[str] | None, folders: Sequence[str]) -> ModuleSpec | None:
    places = [*folders, *sys.path] if path is None else path
    for finder in sys.meta_path:
        find = getattr(finder, "find_spec", None)
        found = find and find(name, places if finder is PathFinder else path)
        if found is not None:
            return found  # type: ignore[no-any-return]
    return None


def code_files(functions: Sequence[str], folders: Sequence[str], leave_out: Collection[str] = ()) -> list[CodeFile]:
    """Files of the modules of these functions and of all that they import from the same places, sorted by name.

    Installed packages are left out; the list of the environment's packages has their versions. A module that is
    imported by a computed name is not seen.

    Args:
        functions: ``package.module:function``; those that were sent by value have no module.
        folders: where modules are looked for first.
        leave_out: packages that are not followed.
    """
    roots = [Path(folder).resolve() for folder in folders]
    found: dict[str, CodeFile] = {}
    waiting = [function.partition(":")[0] for function in functions if not names_value(Path(function).name)]
    seen: set[str] = set()
    ignored = set(leave_out)
    while waiting and len(found) < MAX_FILES:
        module = waiting.pop()
        if module in seen or module.partition(".")[0] in ignored:
            continue
        seen.add(module)
        for file in _files_of(module, roots):
            if file.name not in found:
                found[file.name] = file
                waiting += _imports(_read(file), ".".join(file.name.removesuffix(".py").split("/")[:-1]))
    return [found[name] for name in sorted(found)]


def _files_of(module: str, roots: Sequence[Path]) -> list[CodeFile]:
    parts = module.split(".")
    for root in roots:
        if found := _below(root, parts):
            return found
    top = _top_level_root(parts[0])
    return [] if top is None else _below(top, parts)


def _below(root: Path, parts: Sequence[str]) -> list[CodeFile]:
    stems = ["/".join(parts[: depth + 1]) for depth in range(len(parts))]
    names = (next((n for n in (f"{stem}/__init__.py", f"{stem}.py") if (root / n).is_file()), None) for stem in stems)
    return [CodeFile(root, name) for name in names if name is not None]


def _top_level_root(name: str) -> Path | None:
    try:
        spec = find_module(name)
    except (ImportError, ValueError, AttributeError):
        return None
    if spec.origin is None or not spec.origin.endswith(".py"):
        return None
    file = Path(spec.origin).resolve()
    root = file.parent.parent if file.name == "__init__.py" else file.parent
    installed = {Path(path).resolve() for path in sysconfig.get_paths().values()}
    return None if any(root == place or place in root.parents for place in installed) else root


def _read(file: CodeFile) -> bytes:
    try:
        return b"" if file.path.stat().st_size > MAX_FILE_BYTES else file.path.read_bytes()
    except OSError:
        return b""


def _imports(text: str | bytes, package: str) -> Iterator[str]:
    try:
        tree = syntax_tree(text)
    except (ValueError, SyntaxError, RecursionError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = imported_from(node, package)
            if module:
                yield module
            yield from (f"{module}.{alias.name}".lstrip(".") for alias in node.names if alias.name != "*")
