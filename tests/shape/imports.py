"""Which module imports which, read from the source: lazy imports count, imports for type checkers alone do not."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
_PACKAGES = {"hpo_core": ROOT / "hpo_core", "hpo_flows": ROOT / "flows" / "hpo_flows"}


def modules() -> dict[str, Path]:
    found = {}
    for package, folder in _PACKAGES.items():
        for path in sorted(folder.rglob("*.py")):
            parts = path.relative_to(folder).with_suffix("").parts
            found[".".join((package, *parts)).removesuffix(".__init__")] = path
    return found


@cache
def tree(path: Path) -> ast.Module:
    """The syntax tree of a file, parsed once for all tests."""
    return ast.parse(path.read_text())


@cache
def imported(path: Path, *, for_types: bool = False) -> frozenset[str]:
    """Dotted names that a file imports, anywhere in it.

    Args:
        for_types: whether those under ``if TYPE_CHECKING`` count.
    """
    found: set[str] = set()
    for node in _nodes(tree(path), for_types):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
            found.update(f"{node.module}.{alias.name}" for alias in node.names)
    return frozenset(found)


def _nodes(node: ast.AST, for_types: bool) -> Iterator[ast.AST]:
    for child in ast.iter_child_nodes(node):
        if not for_types and isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            for other in child.orelse:
                yield from (other, *_nodes(other, for_types))
            continue
        yield child
        yield from _nodes(child, for_types)


@cache
def graph() -> dict[str, set[str]]:
    known = modules()
    found = {}
    for name, path in known.items():
        names = imported(path) & known.keys()
        exact = {one for one in names if not any(other.startswith(one + ".") for other in names)}
        found[name] = {one for one in exact if one != name and not name.startswith(one + ".")}
    return found


def cycles(edges: Mapping[str, set[str]]) -> list[list[str]]:
    """Groups of modules that import each other in a circle (Tarjan's strongly connected components)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(name: str) -> None:
        index[name] = low[name] = len(index)
        stack.append(name)
        for other in sorted(edges[name]):
            if other not in index:
                visit(other)
                low[name] = min(low[name], low[other])
            elif other in stack:
                low[name] = min(low[name], index[other])
        if low[name] == index[name]:
            group = stack[stack.index(name) :]
            del stack[stack.index(name) :]
            if len(group) > 1:
                found.append(sorted(group))

    for name in edges:
        if name not in index:
            visit(name)
    return found
