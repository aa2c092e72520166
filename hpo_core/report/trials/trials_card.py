"""Where the table of trials and the section of one stand in the page; ``trials.js`` fills them."""

from __future__ import annotations

from hpo_core.report.study.series import Series


def trials_card(series: Series) -> str:
    """HTML of both; empty where there is no trial."""
    if not series.trials:
        return ""
    return (
        '<section class="card"><h2>All trials</h2>'
        '<p class="caption">Click a title to sort, a number to see that trial. The filter takes words, and '
        "comparisons of a column: <code>state=winner</code>, <code>trained_for&gt;=9</code>.</p>"
        '<div class="bar"><input id="trials-filter" type="search" placeholder="Filter" aria-label="Filter">'
        '<select id="trials-sort" aria-label="Sort"></select>'
        '<button id="trials-back" aria-label="Page before">‹</button><span class="small" id="trials-count"></span>'
        '<button id="trials-on" aria-label="Next page">›</button>'
        '<button id="trials-csv">Download CSV</button></div>'
        '<div class="scroll"><table id="trials" class="stack"></table></div></section>'
        '<section class="card" id="trial" hidden></section>'
    )
