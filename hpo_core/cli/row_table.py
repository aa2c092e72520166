"""Rows as a table, or one below the other where the terminal is too narrow: nothing in them is ever cut."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Any

from rich.cells import cell_len, set_cell_size
from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from hpo_core.security.untrusted_text import terminal_text

UNBROKEN = 16
"""A cell of at most so many characters (a number, a date) stays on one line; a longer one may be folded, but not
below this width."""
_NAME = 24
"""So much of the first column comes before room for long cells."""
_GAP = "  "


class RowTable:
    """Rows of one shape; the first column names what a row is about."""

    def __init__(self, rows: Sequence[dict[str, Any]]) -> None:
        self._titles = [terminal_text(title) for title in rows[0]]
        self._rows = [[cell_text(value) for value in row.values()] for row in rows]

    @property
    def row_count(self) -> int:
        return len(self._rows)

    @property
    def full_width(self) -> int:
        """Width at which nothing is folded."""
        return sum(map(self._longest, range(len(self._titles)))) + self._gaps

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        widths = self._widths(options.max_width)
        yield Text("\n").join(self._stacked() if widths is None else self._lines(console, widths))

    @property
    def _gaps(self) -> int:
        return len(_GAP) * (len(self._titles) - 1)

    def _longest(self, column: int) -> int:
        return max(cell_len(text) for text in [self._titles[column], *(row[column] for row in self._rows)])

    def _widths(self, room: int) -> list[int] | None:
        """Widths of the columns; None where they do not fit side by side.

        A long first cell gets a line of its own, where the others still fit: it is a name, which people copy.
        """
        widths = [min(self._longest(column), UNBROKEN) for column in range(len(self._titles))]
        widths[0] = cell_len(self._titles[0])
        spare = room - sum(widths) - self._gaps
        if spare < 0:
            return None
        others = [(column, self._longest(column)) for column in range(1, len(widths))]
        for column, most in [(0, min(self._longest(0), _NAME)), *others, (0, self._longest(0))]:
            more = min(most - widths[column], spare)
            widths[column] += more
            spare -= more
        return widths

    def _lines(self, console: Console, widths: Sequence[int]) -> Iterator[Text]:
        yield Text("\n").join(_beside(console, self._titles, widths, "bold"))
        for first, *others in self._rows:
            if cell_len(first) > widths[0]:
                yield Text(first)
                first = ""
            yield from _beside(console, [first, *others], widths)

    def _stacked(self) -> Iterator[Text]:
        """Each row as lines ``title  value``, with an empty line between rows; the terminal itself breaks long ones."""
        room = max(map(cell_len, self._titles))
        for number, row in enumerate(self._rows):
            if number:
                yield Text()
            for title, cell in zip(self._titles, row, strict=True):
                if cell:
                    yield Text.assemble((set_cell_size(title, room) + _GAP, "bold"), cell)


def _beside(console: Console, cells: Sequence[str], widths: Sequence[int], style: str = "") -> Iterator[Text]:
    """Cells side by side, in as many lines as the longest of them needs."""
    folded = [
        [line.plain.rstrip() for line in Text(cell, overflow="fold").wrap(console, width)] or [""]
        for cell, width in zip(cells, widths, strict=True)
    ]
    for number in range(max(map(len, folded))):
        parts = [lines[number] if number < len(lines) else "" for lines in folded]
        padded = [set_cell_size(part, width) for part, width in zip(parts, widths, strict=True)]
        yield Text(_GAP.join(padded).rstrip(), style=style)


def print_rows(console: Console, rows: Sequence[dict[str, Any]]) -> None:
    """Print rows: as wide as they are in a pipe, within the terminal's width else."""
    table = RowTable(rows)
    piped = not console.is_terminal and "COLUMNS" not in os.environ
    width = max(table.full_width, console.width) if piped else console.width
    console.print(table, width=width, soft_wrap=True)


def cell_text(value: Any) -> str:
    """A value in a table of the terminal: numbers with five digits."""
    return f"{value:.5g}" if isinstance(value, float) else "" if value is None else terminal_text(str(value))
