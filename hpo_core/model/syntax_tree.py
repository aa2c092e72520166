"""Syntax trees of Python code, one at a time."""

from __future__ import annotations

import ast
import threading

_lock = threading.RLock()
"""CPython 3.11 and 3.12 count the depth of a tree for all threads together: where two of them make one at once, either
raises SystemError (``AST constructor recursion depth mismatch``) or RecursionError. Threads of libraries parse, too,
and know no lock of ours; then it is done again."""
_TIMES = 100


def syntax_tree(text: str | bytes, file: str = "<unknown>") -> ast.Module:
    with _lock:
        for left in reversed(range(_TIMES)):
            try:
                return ast.parse(text, file)
            except SystemError:
                if not left:
                    raise
        raise AssertionError("unreachable")
