"""Syntax trees of Python code, one at a time."""

from __future__ import annotations

import ast
import threading
from typing import Literal, overload

_lock = threading.RLock()
"""CPython 3.11 and 3.12 count the depth of a tree for all threads together: where two of them make one at once, either
raises SystemError (``AST constructor recursion depth mismatch``) or RecursionError. Threads of libraries parse, too,
and know no lock of ours; then it is done again."""
_TIMES = 100


@overload
def syntax_tree(text: str | bytes, file: str = ..., mode: Literal["exec"] = ...) -> ast.Module: ...
@overload
def syntax_tree(text: str | bytes, file: str, mode: Literal["eval"]) -> ast.Expression: ...
def syntax_tree(text: str | bytes, file: str = "<unknown>", mode: str = "exec") -> ast.AST:
    with _lock:
        for left in reversed(range(_TIMES)):
            try:
                return ast.parse(text, file, mode)
            except SystemError:
                if not left:
                    raise
        raise AssertionError("unreachable")
