"""A study outside its report: SVG pictures of a search and of repeats, and HTML for the output of a notebook's cell.

Pictures have no background, and colours that can be read on white and on dark. Cells have inline styles and the colours
of the notebook's theme, and their picture is an image: they are read where a page drops styles (GitHub) or scripts.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable, Sequence
from html import escape
from statistics import fmean
from typing import NamedTuple

from hpo_core.report.style import BEST, BLUE, FONT, round_ticks, scale, text
from hpo_core.study import Study
from hpo_core.views.failure_reasons import no_result_words
from hpo_core.views.formatting import number, parameter_value, plural
from hpo_core.views.rungs import halt_words
from hpo_core.views.summary import FrontMember, front_rows, summarize

MOST_DOTS = 800
"""Results drawn at most; of more, every so many-th."""
_INK, _GRID, _BLUE = "#808b96", "#80808040", "#4a90dc"
_WIDTH, _TOP, _BOTTOM = 760, 20, 290
_LEFT, _RIGHT = 76, _WIDTH - 20
Place = Callable[[float], float]


def search_picture(study: Study) -> str | None:
    """Picture of all results of a search in the order of their end; None before there is a finite one."""
    if (winner := study.best) is None:
        return None
    metric = study.spec.metric
    places: list[str] = []
    ended = sorted((one for trial in study.state.trials for one in trial.results), key=lambda one: one.ended)
    results = [(one, study.metric_value(one.loss)) for one in ended if one.loss is not None]
    known = scale((value for _, value in results), maximize=metric.mode == "max")
    height = _scaled(*_padded(*known.ends), _BOTTOM, _TOP)
    across = _scaled(-0.5, len(results) - 0.5, _LEFT, _RIGHT)
    parts = [
        f'<line x1="{_LEFT}" x2="{_RIGHT}" y1="{height(tick)}" y2="{height(tick)}" stroke="{_GRID}"/>'
        f'<text x="{_LEFT - 8}" y="{height(tick) + 4}" text-anchor="end">{words}</text>'
        for tick, words in zip(*known.ticks(), strict=True)
    ]
    step, lowest = -(-len(results) // MOST_DOTS), float("inf")
    for place, (one, value) in enumerate(results):
        x, y = across(place), height(known.place(value))
        if one.loss is not None and one.loss < lowest and not one.infeasible:
            places.append(f"{'H' if places else 'M'}{x}{'V' if places else ','}{y}")
            lowest = one.loss
        if (one.trial, one.resource) == (winner.trial, winner.resource):
            parts.append(_dot(x, y, BEST, 5, 1))
        elif place % step == 0:
            parts.append(_dot(x, y, _BLUE, 3, 0.6))
    every = -(-len(results) // 10)
    parts += [_below(across(place), f"{place + 1:,}") for place in range(every - 1, len(results), every)]
    parts.append(f'<path d="{"".join(places)}H{_RIGHT}" fill="none" stroke="{BEST}" stroke-width="1.5"/>')
    better = "smaller" if metric.mode == "min" else "larger"
    words = f"{metric.name} ({better} is better) of each result as they ended; line: best so far, dot: trial"
    return _svg(parts, f"{words} {winner.trial}")


def _scaled(low: float, high: float, start: float, end: float) -> Place:
    return lambda value: round(start + (value - low) / (high - low) * (end - start), 1)


def _dot(across: float, height: float, color: str, radius: int, opacity: float) -> str:
    return f'<circle cx="{across}" cy="{height}" r="{radius}" fill="{color}" opacity="{opacity}"/>'


def _below(across: float, words: str, bottom: float = _BOTTOM) -> str:
    return f'<text x="{across}" y="{bottom + 18}" text-anchor="middle">{words}</text>'


class DotRow(NamedTuple):
    """A row of dots."""

    label: str
    values: Sequence[float]
    color: str
    opacity: float = 0.8


def dots_picture(heading: str, rows: Sequence[DotRow], words: str) -> str:
    """A row of dots for each label, with a line at its mean; ``words`` stand below."""
    values = [value for row in rows for value in row.values]
    low, high = _padded(min(values), max(values))
    left, right, top, row_height = 220, _WIDTH - 24, 46, 46
    bottom = top + row_height * len(rows)
    x = _scaled(low, high, left, right)
    parts = [f'<text x="12" y="24" font-size="15" font-weight="600">{escape(heading)}</text>']
    parts += [
        f'<line x1="{x(tick)}" x2="{x(tick)}" y1="{top}" y2="{bottom}" stroke="{_GRID}"/>'
        + _below(x(tick), number(tick), bottom)
        for tick in round_ticks(low, high)
    ]
    for place, row in enumerate(rows):
        middle = top + row_height * (place + 0.5)
        mean = x(fmean(row.values))
        parts.append(f'<text x="{left - 12}" y="{middle + 4}" text-anchor="end">{escape(row.label)}</text>')
        parts += [_dot(x(value), middle, row.color, 6, row.opacity) for value in row.values]
        parts.append(
            f'<line x1="{mean}" x2="{mean}" y1="{middle - 15}" y2="{middle + 15}" stroke="{_INK}" stroke-width="2"/>'
        )
    return _svg(parts, words, left=left, bottom=bottom)


def _padded(low: float, high: float) -> tuple[float, float]:
    pad = 0.06 * (high - low) or 0.05 * abs(high) or 0.5
    return low - pad, high + pad


def _svg(parts: Sequence[str], *words: str, left: float = _LEFT, bottom: float = _BOTTOM) -> str:
    lines = [
        f'<text x="{left}" y="{bottom + 40 + 18 * place}">{escape(line)}</text>' for place, line in enumerate(words)
    ]
    height = bottom + 32 + 18 * len(words)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" '
        f'font-family="{escape(FONT)}" font-size="13" fill="{_INK}">{"".join([*parts, *lines])}</svg>'
    )


MOST_ROWS = 10
"""Members of the Pareto front that a cell lists."""
_LONGEST = 200
"""Characters of a cell of a table."""


class Bar:
    """A bar in a cell of a table.

    Args:
        done: its filled part, from 0 to 1.
    """

    def __init__(self, done: float) -> None:
        self.done = done

    def html(self) -> str:
        """The bar, 160 pixels wide."""
        return (
            '<div style="width:160px;height:8px;border-radius:4px;background:rgba(128,128,128,0.25)">'
            f'<div style="width:{100 * min(self.done, 1):.0f}%;height:8px;border-radius:4px;'
            f'background:{BLUE}"></div></div>'
        )


def table(head: Sequence[str], rows: Iterable[Sequence[object]], dim: Sequence[bool] = ()) -> str:
    """A table of escaped cells as wide as its content, in the notebook's own look.

    Args:
        dim: for each row, whether it is paler than the others.
    """
    style = "padding:2px 10px;text-align:{}"
    left = [not name or name == "bracket" for name in head]
    sides = [style.format("left" if one else "right") for one in left]
    titles = "".join(f'<th style="{side}">{text(name)}</th>' for name, side in zip(head, sides, strict=True))
    body = ""
    for place, row in enumerate(rows):
        pale = ' style="opacity:0.55"' if place < len(dim) and dim[place] else ""
        cells = "".join(f'<td style="{side}">{_cell(item)}</td>' for item, side in zip(row, sides, strict=True))
        body += f"<tr{pale}>{cells}</tr>"
    return (
        '<div style="overflow-x:auto"><table style="margin:4px 0;border-collapse:collapse">'
        f"<thead><tr>{titles}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def _cell(item: object) -> str:
    return item.html() if isinstance(item, Bar) else text("–" if item is None else item, _LONGEST)


def line(title: str, words: str) -> str:
    """A line of words with a pale title; both are escaped."""
    pale = f'<span style="opacity:0.65">{text(title)}</span> ' if title else ""
    return f"<div>{pale}{text(words, 1000)}</div>"


def headline(name: str, words: str) -> str:
    """The study's name, and how it goes."""
    return f"<div><b>{text(name, 100)}</b> {text(words, 1000)}</div>"


def members_table(members: Sequence[FrontMember]) -> str:
    """A row for each result: trial, units of training, values, parameters."""
    rows = front_rows(members)
    cells = [["–" if item is None else parameter_value(item) for item in row.values()] for row in rows]
    return table(list(rows[0]), cells)


def study_cell(study: Study) -> str:
    """A study: how it stands, its best trial or Pareto front, and a picture."""
    summary = summarize(study)
    words = f"{summary.status}, {plural(summary.trials, 'trial')}, {plural(summary.jobs, 'job')} done"
    parts = [headline(study.name, words)]
    if study.state.halted is not None:
        parts.append(line("halted:", halt_words(study.spec, study.state.halted)))
    if summary.front:
        several = len(study.spec.objectives) > 1
        shown = summary.front[:MOST_ROWS]
        more = f", the first {MOST_ROWS}" if len(summary.front) > MOST_ROWS else ""
        title = f"Pareto front: {plural(len(summary.front), 'result')}{more}" if several else "best result:"
        parts += [line(title, ""), members_table(shown)]
    else:
        parts.append(line("", no_result_words(study) or "no result yet"))
    if (svg := search_picture(study)) is not None:
        data = base64.b64encode(svg.encode()).decode()
        words = f"{study.spec.metric.name} of the trials"
        parts.append(f'<img alt="{text(words)}" style="max-width:100%" src="data:image/svg+xml;base64,{data}">')
    return f'<div style="text-align:left">{"".join(parts)}</div>'
