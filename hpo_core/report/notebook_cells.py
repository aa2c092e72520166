"""A study in a notebook: HTML for the output of a cell.

Styles are inline, colours are those of the notebook's theme, and the picture is an image: so that it looks the same in
JupyterLab, VS Code and a page that nbconvert wrote, without a network, and is still read where a page drops styles
(GitHub) or scripts.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Sequence

from hpo_core.report.pictures import search_picture
from hpo_core.report.style import BLUE, text
from hpo_core.study import Study
from hpo_core.views.failure_reasons import no_result_words
from hpo_core.views.formatting import parameter_value, plural
from hpo_core.views.rungs import halt_words
from hpo_core.views.summary import FrontMember, front_rows, summarize

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
