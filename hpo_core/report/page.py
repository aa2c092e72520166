"""The page: one HTML file that needs nothing else, written whole or not at all."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from html import escape
from pathlib import Path
from types import MappingProxyType

from plotly.offline import get_plotlyjs

from hpo_core.errors import StorageError
from hpo_core.events import Entry
from hpo_core.report.importance import importance_bars, importances
from hpo_core.report.jobs import jobs_over_time
from hpo_core.report.ladder import climbing
from hpo_core.report.learning import incumbent, learning_curves
from hpo_core.report.panels import panels
from hpo_core.report.parameters import parallel_coordinates
from hpo_core.report.rungs import rung_counts
from hpo_core.report.series import Series, read_series
from hpo_core.report.style import Figure
from hpo_core.report.tables import best_parameters, failures, head, top_trials

NO_LINKS: Mapping[str, str] = MappingProxyType({})


def write_report(entries: Sequence[Entry], path: Path, *, links: Mapping[str, str] = NO_LINKS) -> Path:
    """Write a study's report to ``path`` and return it.

    Args:
        entries: the study's journal from its first entry on; a prefix gives the report as of then.
        path: an ``.html`` file; folders above it are made. It is replaced as a whole or left as it was.
        links: name -> address, shown in the head (MLflow run, checkpoint).

    Raises:
        JournalError: the entries do not begin with the creation of a study, or have a gap.
        StorageError: the file cannot be written.
    """
    page = render(read_series(entries), links)
    aside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        aside.write_bytes(page.encode("utf-8", "replace"))
        aside.replace(path)
    except OSError as error:
        with suppress(OSError):
            aside.unlink()
        raise StorageError(
            f"Report {path} cannot be written ({error}). Free some space or choose another path; "
            "the study itself is untouched."
        ) from error
    return path


def figures(series: Series) -> list[Figure]:
    """All figures that this study has something to show in, in reading order."""
    found = importances(series)
    order = list(found.shares) if found else []
    drawn = [
        incumbent(series),
        learning_curves(series),
        climbing(series),
        rung_counts(series),
        jobs_over_time(series),
        importance_bars(found) if found else None,
        panels(series, found) if found else None,
        parallel_coordinates(series, order),
    ]
    return [figure for figure in drawn if figure is not None]


def render(series: Series, links: Mapping[str, str] = NO_LINKS) -> str:
    """The page as text."""
    drawn = figures(series)
    cards = "".join(_card(figure) for figure in drawn if figure.key != "rungs")
    first = best_parameters(series) + "".join(_card(figure) for figure in drawn if figure.key == "rungs")
    if not drawn:
        empty = '<h2>Nothing to draw yet</h2><p class="caption">No job was granted.</p>'
        cards = f'<section class="card">{empty}</section>'
    plots = {figure.key: {"data": figure.data, "layout": figure.layout, "zoom": figure.zoom} for figure in drawn}
    script = ""
    if drawn:
        script = f"<script>{get_plotlyjs()}</script><script>const FIGURES={_json(plots)};{_DRAW}</script>"
    title = escape(series.study.name)
    return (
        '<!DOCTYPE html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{title} – report</title><style>{_STYLE}</style></head><body><main>{head(series, links)}"
        f'<div class="{"pair" if len(series.study.spec.space) < 12 else "pair long"}">{first}</div>{cards}'
        f"{top_trials(series)}{failures(series)}<footer>A projection of the journal up to entry "
        f"{series.study.seq - 1}; write it again at any time.</footer></main>{script}</body></html>\n"
    )


def _card(figure: Figure) -> str:
    width = f' style="min-width:{figure.min_width}px"' if figure.min_width else ""
    return (
        f'<section class="card"><h2>{escape(figure.title)}</h2><p class="caption">{figure.caption}</p>'
        f'<div class="scroll"><div id="{figure.key}" class="plot"{width}></div></div></section>'
    )


def _json(value: object) -> str:
    """JSON that cannot end the script it stands in."""
    plain = json.dumps(value, allow_nan=False, separators=(",", ":"))
    return plain.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


_DRAW = """
const touch = matchMedia('(pointer: coarse)').matches || innerWidth < 600;
for (const [key, figure] of Object.entries(FIGURES)) {
  if (touch || !figure.zoom) figure.layout.dragmode = false;
  if (innerWidth < 600 && figure.layout.legend) {
    Object.assign(figure.layout.legend, {y: -64 / (figure.layout.height - 80), yanchor: 'top', font: {size: 11}});
    figure.layout.height += 60;
  }
  document.getElementById(key).style.minHeight = figure.layout.height + 'px';
  Plotly.newPlot(key, figure.data, figure.layout, {responsive: true, displaylogo: false,
    ...(touch || !figure.zoom ? {displayModeBar: false} : {}),
    modeBarButtonsToRemove: ['select2d', 'lasso2d', 'autoScale2d']});
}
"""

_STYLE = """
*{box-sizing:border-box}body{margin:0;background:#f5f7fa;color:#1f2933;font:15px/1.5 Inter,'Segoe UI',Roboto,
'Helvetica Neue',Arial,sans-serif}main{max-width:1200px;margin:0 auto;padding:28px 20px 40px}
h1{font-size:28px;line-height:1.2;margin:0 0 4px;overflow-wrap:anywhere}h2{font-size:19px;margin:0 0 2px}
h3{font-size:13px;margin:10px 0 4px;color:#64707d;font-weight:600}
p{margin:4px 0}a{color:#1c6dd0}
code{background:#e9edf2;border-radius:5px;padding:2px 7px;font-size:13px;overflow-wrap:anywhere}
.about,.caption,footer{color:#64707d}.caption{max-width:90ch;margin-bottom:8px}
.pill{display:inline-block;vertical-align:middle;font-size:13px;font-weight:600;padding:2px 11px;
border-radius:99px}
.finished{background:#d3f9d8;color:#1b6e2c}.running{background:#d0ebff;color:#0b4f8a}
.halted{color:#8f2f00}.pill.halted{background:#ffe3d1}.open{background:#e9edf2;color:#46525e}
.links{display:flex;flex-wrap:wrap;gap:4px 18px}.next{margin-top:8px}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(148px,1fr));gap:12px;margin:18px 0}
.tile,.card{background:#fff;border:1px solid #e3e8ee;border-radius:12px}
.tile{padding:12px 16px}.label,.small{font-size:12.5px;color:#64707d;overflow-wrap:anywhere}
.value{font-size:23px;font-weight:650;line-height:1.3;white-space:nowrap}
.card{padding:18px 20px;margin:0 0 18px}.scroll{overflow-x:auto}.plot{width:100%}
.pair{display:flex;flex-wrap:wrap;gap:0 18px}.pair>.card{flex:1 1 300px;min-width:0}
.pair>.card+.card{flex:2 1 480px}
table{border-collapse:collapse;font-size:13.5px;font-variant-numeric:tabular-nums}
.long{align-items:flex-start}.scroll+.scroll{margin-top:14px}
th,td{text-align:left;padding:5px 16px 5px 0;border-bottom:1px solid #e9edf2;vertical-align:top}
th{font-weight:600;color:#64707d;white-space:nowrap}td{overflow-wrap:anywhere;min-width:48px}
td.n{white-space:nowrap}footer{font-size:13px;margin-top:8px}
@media(max-width:600px){.pair>.card,.pair>.card+.card{flex:1 1 100%}
main{padding:16px 10px}.card{padding:14px 12px}h1{font-size:23px}.value{font-size:19px}}
@media print{body{background:#fff}.card{break-inside:avoid}}
"""
