"""The frame of every page: style, script and Plotly in one HTML file, written whole or not at all."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from contextlib import suppress
from html import escape
from pathlib import Path

from plotly.offline import get_plotlyjs

from hpo_core.model.errors import StorageError
from hpo_core.report.style import Figure


def html_page(title: str, body: str, figures: Sequence[Figure], footer: str) -> str:
    """The page as text.

    Args:
        title: plain text; it is escaped here.
        body: HTML; holds the :func:`card` of every figure.
        footer: HTML.
    """
    plots = {figure.key: {"data": figure.data, "layout": figure.layout, "zoom": figure.zoom} for figure in figures}
    script = ""
    if figures:
        script = f"<script>{get_plotlyjs()}</script><script>const FIGURES={_json(plots)};{_DRAW}</script>"
    return (
        '<!DOCTYPE html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head><body><main>{body}"
        f"<footer>{footer}</footer></main>{script}</body></html>\n"
    )


def write_page(text: str, path: Path) -> Path:
    """Write a page to ``path`` and return it; folders above it are made, a file there is replaced as a whole.

    Raises:
        StorageError: the file cannot be written.
    """
    aside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        # In a private folder the page is private, too; elsewhere the user's umask says who may read it.
        mode = 0o666 if path.parent.stat().st_mode & 0o077 else 0o600
        with os.fdopen(os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, mode), "wb") as file:
            file.write(text.encode("utf-8", "replace"))
        aside.replace(path)
    except OSError as error:
        with suppress(OSError):
            aside.unlink()
        raise StorageError(
            f"Report {path} cannot be written ({error}). Free some space or choose another path; "
            "the study itself is untouched."
        ) from error
    return path


def card(figure: Figure) -> str:
    """Where a figure stands, with its words."""
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
