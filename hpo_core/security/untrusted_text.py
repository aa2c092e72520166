"""Escapes texts of users and libraries for terminals, JSON and Markdown, so that nothing in them takes effect."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable
from typing import Any

_JOINERS = frozenset("\u200c\u200d")
"""Zero-width joiners, which some scripts and emoji need."""
_SUSPECT = re.compile(r"[^\t\n\x20-\x7e]")
_UNSAFE = frozenset({"Cc", "Cf", "Zl", "Zp", "Cs", "Co", "Cn"})
_MARKDOWN = re.compile(r"[\\`*_{}\[\]<>|~#$!&]|:(?=//)|(?<=www)\.|@|^[-+=]", re.IGNORECASE)
_ENTITIES = {"<": "&lt;", ">": "&gt;", "&": "&amp;"}


def terminal_text(text: str, *, lines: bool = False) -> str:
    """Escape control characters: escape sequences, line breaks, changes of text direction.

    >>> terminal_text("a\\x1b[2J\\nb\\u202ec")
    'a\\\\x1b[2J\\\\nb\\\\u202ec'

    Args:
        lines: keep line breaks and tabs, for tracebacks.
    """
    shown = _SUSPECT.sub(_escaped, text)
    return shown if lines else shown.replace("\n", "\\n").replace("\t", "\\t")


def _escaped(found: re.Match[str]) -> str:
    character = found[0]
    if character in _JOINERS or unicodedata.category(character) not in _UNSAFE:
        return character
    code = ord(character)
    if character == "\r":
        return "\\r"
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def json_text(text: str) -> str:
    """JSON text with control characters escaped, safe to print; they can only occur within its strings."""
    return _SUSPECT.sub(_escaped_for_json, text)


def _escaped_for_json(found: re.Match[str]) -> str:
    character = found[0]
    if character in _JOINERS or unicodedata.category(character) not in _UNSAFE:
        return character
    units = character.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[i]:02x}{units[i + 1]:02x}" for i in range(0, len(units), 2))


def markdown_text(value: Any) -> str:
    """A value as plain text in Markdown: no link, image, code, table cell or HTML can begin or end in it.

    >>> markdown_text("a|b <img src=x> [c](http://d)")
    'a\\\\|b &lt;img src=x&gt; \\\\[c\\\\](http\\\\://d)'
    """
    text = terminal_text(str(value))
    return _MARKDOWN.sub(lambda found: _ENTITIES.get(found[0], f"\\{found[0]}"), text)


def markdown_code(value: Any) -> str:
    """A value as a Markdown code span, with any backticks in it; also valid within a table.

    >>> markdown_code("a`b"), markdown_code("x")
    ('`` a`b ``', '`x`')
    """
    text = terminal_text(str(value)).replace("|", "\\|")
    longest = max((len(run) for run in re.findall("`+", text)), default=0)
    fence, space = "`" * (longest + 1), " " if longest or text != text.strip() or not text else ""
    return f"{fence}{space}{text}{space}{fence}"


def markdown_row(cells: Iterable[Any]) -> str:
    """A row of a Markdown table; cells are untrusted values."""
    shown = (
        f"{cell:.6g}" if isinstance(cell, float) else "" if cell is None else markdown_text(cell) for cell in cells
    )
    return f"| {' | '.join(shown)} |"
