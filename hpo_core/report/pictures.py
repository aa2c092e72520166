"""A study outside its report: SVG pictures of a search, HTML for a notebook's cell, single figures (``result.plot``).

Pictures have no background, and colours that can be read on white and on dark. Cells have inline styles and the colours
of the notebook's theme, and their picture is an image: they are read where a page drops styles (GitHub) or scripts.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable, Sequence
from html import escape
from typing import TYPE_CHECKING

from hpo_core.model.errors import HpoError
from hpo_core.report.curves import front_figure, incumbent, learning_curves
from hpo_core.report.ladder import ladder_figure
from hpo_core.report.parameters import importance_bars, importances, parallel_coordinates, parameter_panels
from hpo_core.report.style import BEST, FONT, Figure, scale, text
from hpo_core.report.timelines import jobs_over_time
from hpo_core.study import Study
from hpo_core.views.failure_reasons import no_result_words
from hpo_core.views.formatting import parameter_value, plural
from hpo_core.views.rungs import halt_words
from hpo_core.views.series import Series
from hpo_core.views.summary import FrontMember, front_rows, summarize

if TYPE_CHECKING:
    from plotly.graph_objects import Figure as PlotlyFigure

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
    low, high = known.ends
    pad = 0.06 * (high - low) or 0.05 * abs(high) or 0.5
    height = _scaled(low - pad, high + pad, _BOTTOM, _TOP)
    across = _scaled(-0.5, len(results) - 0.5, _LEFT, _RIGHT)
    parts = [
        f'<line x1="{_LEFT}" x2="{_RIGHT}" y1="{height(tick)}" y2="{height(tick)}" stroke="{_GRID}"/>'
        f'<text x="{_LEFT - 8}" y="{height(tick) + 4}" text-anchor="end">{words}</text>'
        for tick, words in zip(*known.ticks(), strict=True)
    ]
    step, lowest = -(-len(results) // MOST_DOTS), float("inf")
    for place, (one, value) in enumerate(results):
        x, y = across(place), height(known.place(value))
        if one.loss is not None and one.loss < lowest and not one.violation:
            places.append(f"{'H' if places else 'M'}{x}{'V' if places else ','}{y}")
            lowest = one.loss
        if (one.trial, one.resource) == (winner.trial, winner.resource):
            parts.append(_dot(x, y, BEST, 5, 1))
        elif place % step == 0:
            parts.append(_dot(x, y, _BLUE, 3, 0.6))
    parts.append(f'<path d="{"".join(places)}H{_RIGHT}" fill="none" stroke="{BEST}" stroke-width="1.5"/>')
    better = "smaller" if metric.mode == "min" else "larger"
    words = f"{metric.name} ({better} is better) of each result as they ended; line: best so far, dot: trial"
    return _svg(parts, f"{words} {winner.trial}")


def _scaled(low: float, high: float, start: float, end: float) -> Place:
    return lambda value: round(start + (value - low) / (high - low) * (end - start), 1)


def _dot(across: float, height: float, color: str, radius: int, opacity: float) -> str:
    return f'<circle cx="{across}" cy="{height}" r="{radius}" fill="{color}" opacity="{opacity}"/>'


def _svg(parts: Sequence[str], *words: str) -> str:
    lines = [
        f'<text x="{_LEFT}" y="{_BOTTOM + 40 + 18 * place}">{escape(line)}</text>' for place, line in enumerate(words)
    ]
    height = _BOTTOM + 32 + 18 * len(words)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" '
        f'font-family="{escape(FONT)}" font-size="13" fill="{_INK}">{"".join([*parts, *lines])}</svg>'
    )


MOST_ROWS = 10
"""Members of the Pareto front that a cell lists."""
_LONGEST = 200
"""Characters of a cell of a table."""


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table of escaped cells as wide as its content, in the notebook's own look."""
    side = ' style="padding:2px 10px;text-align:right"'
    titles = "".join(f"<th{side}>{text(name)}</th>" for name in head)
    body = ""
    for row in rows:
        cells = "".join(f"<td{side}>{text('–' if item is None else item, _LONGEST)}</td>" for item in row)
        body += f"<tr>{cells}</tr>"
    return (
        '<div style="overflow-x:auto"><table style="margin:4px 0;border-collapse:collapse">'
        f"<thead><tr>{titles}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def line(title: str, words: str) -> str:
    pale = f'<span style="opacity:0.65">{text(title)}</span> ' if title else ""
    return f"<div>{pale}{text(words, 1000)}</div>"


def headline(name: str, words: str) -> str:
    return f"<div><b>{text(name, 100)}</b> {text(words, 1000)}</div>"


def members_table(members: Sequence[FrontMember]) -> str:
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


class Plots:
    """Plotly figures of a study, those of the report, each by a method.

    Each raises :class:`HpoError` where the study has nothing to draw yet.
    """

    def __init__(self, series: Series) -> None:
        self._series = series

    def history(self) -> PlotlyFigure:
        """Best value over time, with all results."""
        return self._drawn(incumbent(self._series))

    def curves(self) -> PlotlyFigure:
        """Learning curves of the trials."""
        return self._drawn(learning_curves(self._series))

    def front(self) -> PlotlyFigure:
        """Results of several metrics, and the Pareto front."""
        return self._drawn(front_figure(self._series))

    def rungs(self) -> PlotlyFigure:
        """Promotions of the trials from rung to rung."""
        return self._drawn(ladder_figure(self._series))

    def parallel(self) -> PlotlyFigure:
        """Parallel coordinates of parameters and metric."""
        found = importances(self._series)
        return self._drawn(parallel_coordinates(self._series, found) if found else None)

    def importances(self) -> PlotlyFigure:
        """Importance of each parameter (PED-ANOVA)."""
        found = importances(self._series)
        return self._drawn(importance_bars(found) if found else None)

    def slices(self) -> PlotlyFigure:
        """Metric over each parameter."""
        found = importances(self._series)
        return self._drawn(parameter_panels(self._series, found) if found else None)

    def jobs(self) -> PlotlyFigure:
        """Jobs of each worker over time."""
        return self._drawn(jobs_over_time(self._series))

    def _drawn(self, found: Figure | None) -> PlotlyFigure:
        if found is None:
            raise HpoError(
                f"Study {self._series.study.name!r} has nothing for this picture yet: too few results, or a search "
                "that has none of it."
            )
        return found.plotly()
