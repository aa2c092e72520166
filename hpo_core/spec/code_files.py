"""Finds the files of a training function's code, by reading its imports; nothing is imported or run."""

from __future__ import annotations

import ast
import importlib.util
import sysconfig
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

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


def code_files(functions: Sequence[str], folders: Sequence[str], leave_out: Collection[str] = ()) -> list[CodeFile]:
    """Files of the modules of these functions and of all that they import from the same places, sorted by name.

    Installed packages are left out; the list of the environment's packages has their versions. A module that is
    imported by a computed name is not seen.

    Args:
        functions: ``package.module:function``.
        folders: where modules are looked for first.
        leave_out: packages that are not followed.
    """
    roots = [Path(folder).resolve() for folder in folders]
    found: dict[str, CodeFile] = {}
    waiting = [function.partition(":")[0] for function in functions]
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
                waiting += _imports(file)
    return [found[name] for name in sorted(found)]


def _files_of(module: str, roots: Sequence[Path]) -> list[CodeFile]:
    """The module's file, and the ``__init__.py`` of each package above it."""
    parts = module.split(".")
    for root in roots or ():
        if found := _below(root, parts):
            return found
    top = _top_level_root(parts[0])
    return [] if top is None else _below(top, parts)


def _below(root: Path, parts: Sequence[str]) -> list[CodeFile]:
    found = []
    for depth in range(1, len(parts) + 1):
        stem = "/".join(parts[:depth])
        for name in (f"{stem}/__init__.py", f"{stem}.py"):
            if (root / name).is_file():
                found.append(CodeFile(root, name))
                break
    return found


def _top_level_root(name: str) -> Path | None:
    """The folder that a package is imported from where it is no installed one (an editable install, say)."""
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError, AttributeError):
        return None
    if spec is None or spec.origin is None or not spec.origin.endswith(".py"):
        return None
    file = Path(spec.origin).resolve()
    root = file.parent.parent if file.name == "__init__.py" else file.parent
    installed = {Path(path).resolve() for path in sysconfig.get_paths().values()}
    return None if any(root == place or place in root.parents for place in installed) else root


def _imports(file: CodeFile) -> Iterator[str]:
    """Names of modules that a file imports; of ``from a import b`` both ``a`` and ``a.b``."""
    try:
        if file.path.stat().st_size > MAX_FILE_BYTES:
            return
        tree = ast.parse(file.path.read_bytes())
    except (OSError, ValueError, SyntaxError, RecursionError):
        return
    package = file.name.removesuffix(".py").split("/")[:-1]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*above, *([node.module] if node.module else [])])
            if module:
                yield module
            yield from (f"{module}.{alias.name}".lstrip(".") for alias in node.names if alias.name != "*")
