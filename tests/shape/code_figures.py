"""Figures of the code: lines, files, questions about modes, names, docstrings (printed by `tests.shape.figures`)."""

from __future__ import annotations

import ast
import io
import itertools
import re
import tokenize
from collections import Counter, defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from tests.shape.imports import graph, modules, tree

SMALL = 40
"""A file with fewer code lines is small."""
MODES = {"packing", "data", "share", "gang", "scaling", "packs", "hops", "shares", "gangs", "grows"}
"""Sections of a study file that change how jobs are placed, and what a spec says of them."""
STAND_FOR_MODES = {
    *("packing_settings", "uses_mps", "shared_devices", "pool_name", "job_slots", "room_word", "unit_word"),
    *("partitions", "trained_partitions", "partition_folder", "measures_speedups"),
}
"""Properties of a spec whose value says nothing but which mode the study is in, where they are a condition."""
_RIDDLE = re.compile(r"(Of|Those|Its|So|That)\b")
_QUESTION = re.compile(r"(What|Whether|How)\b")


@cache
def code_lines(path: Path) -> int:
    """Lines of a file with code: no blank lines, comments or docstrings."""
    docstrings = {line for node in _documented(tree(path)) for line in range(node.lineno, (node.end_lineno or 0) + 1)}
    skipped = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(path.read_text()).readline):
        if token.type not in skipped:
            lines.update(range(token.start[0], token.end[0] + 1))
    return len(lines - docstrings)


def _documented(top: ast.AST) -> Iterator[ast.Constant]:
    """Docstrings of a module and of what is defined in it, and the strings below attributes."""
    for node in ast.walk(top):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.value


def all_code_lines() -> int:
    return sum(code_lines(path) for path in modules().values())


def small_files() -> list[str]:
    return [name for name, path in modules().items() if 0 < code_lines(path) < SMALL]


def single_importers() -> list[str]:
    importers = Counter(target for targets in graph().values() for target in targets)
    return [name for name, path in modules().items() if importers[name] == 1 and path.name != "__init__.py"]


def mode_questions() -> list[tuple[str, int]]:
    """Lines (module, line) that ask which mode a study is in, outside the spec.

    A question compares ``spec.packing``, ``spec.data``, ``spec.share``, ``training.gang`` or ``spec.scaling``, or takes
    it as a condition; also through a local name, an assertion, or a property of the spec that stands for a mode.
    """
    found = set()
    for name, path in modules().items():
        if not name.startswith("hpo_core.spec"):
            found |= {(name, line) for line in _questions(tree(path))}
    return sorted(found)


def _questions(top: ast.AST) -> Iterator[int]:
    aliases = frozenset(_aliases(top))
    for node in ast.walk(top):
        if isinstance(node, ast.Compare) and _is_mode(node.left, aliases):
            yield node.lineno
        elif isinstance(node, ast.If | ast.IfExp | ast.While | ast.Assert) and _is_mode(node.test, aliases):
            yield node.test.lineno
        elif isinstance(node, ast.BoolOp):
            yield from (value.lineno for value in node.values if _is_mode(value, aliases))
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not) and _is_mode(node.operand, aliases):
            yield node.lineno


def _aliases(top: ast.AST) -> Iterator[str]:
    """Local names that such a section is assigned to: ``packing = study.spec.packing``."""
    for node in ast.walk(top):
        if isinstance(node, ast.Assign | ast.AnnAssign | ast.NamedExpr) and node.value is not None:
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                pairs = [(target, node.value)]
                if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                    pairs = list(zip(target.elts, node.value.elts, strict=False))
                yield from (one.id for one, value in pairs if isinstance(one, ast.Name) and _is_mode(value))


def _is_mode(node: ast.expr, aliases: frozenset[str] = frozenset()) -> bool:
    """Whether an expression is such a section: ``study.spec.packing``, ``self._spec.training.gang``, or a name."""
    if isinstance(node, ast.NamedExpr):
        return _is_mode(node.value, aliases)
    if isinstance(node, ast.Name):
        return node.id in aliases
    if not isinstance(node, ast.Attribute) or node.attr not in MODES | STAND_FOR_MODES:
        return False
    names = ast.unparse(node.value).split(".")
    return bool({"spec", "_spec", "training", "_training"} & set(names))


def doubled_classes() -> dict[str, list[str]]:
    found: dict[str, list[str]] = defaultdict(list)
    for name, path in modules().items():
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found[node.name].append(name)
    return {name: places for name, places in found.items() if len(places) > 1}


def riddles() -> list[tuple[str, int, str]]:
    """Docstrings (module, line, first words) that begin with a word that points at something not named."""
    return [
        (name, found.lineno, str(found.value)[:60])
        for name, path in modules().items()
        for found in _documented(tree(path))
        if _RIDDLE.match(str(found.value))
    ]


def docstrings() -> tuple[int, int]:
    """Number of functions of both packages, and of those that have a docstring."""
    kinds = ast.FunctionDef | ast.AsyncFunctionDef
    found = [node for path in modules().values() for node in ast.walk(tree(path)) if isinstance(node, kinds)]
    return len(found), sum(ast.get_docstring(node) is not None for node in found)


def questions() -> list[tuple[str, str]]:
    """Docstrings (module, first words) of modules, classes and functions that begin with What, Whether or How."""
    kinds = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Module
    return [
        (name, text[:60])
        for name, path in modules().items()
        for node in ast.walk(tree(path))
        if isinstance(node, kinds) and (text := ast.get_docstring(node) or "") and _QUESTION.match(text)
    ]


def questions_of_attributes() -> list[tuple[str, str]]:
    """Strings below attributes (module, first words) that begin with What, Whether or How."""
    kinds = ast.FunctionDef | ast.ClassDef | ast.Module
    return [
        (name, below.value.value[:60])
        for name, path in modules().items()
        for node in ast.walk(tree(path))
        for above, below in itertools.pairwise(node.body if isinstance(node, kinds) else [])
        if isinstance(above, ast.Assign | ast.AnnAssign) and isinstance(below, ast.Expr)
        and isinstance(below.value, ast.Constant) and isinstance(below.value.value, str)
        and _QUESTION.match(below.value.value)
    ]  # fmt: skip
