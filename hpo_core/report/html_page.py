"""Frame of every page: sections of pictures and tables, style, script and Plotly in one HTML file."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

from plotly.offline import get_plotlyjs

from hpo_core.model.errors import StorageError
from hpo_core.report.style import Figure, text
from hpo_core.security.private_files import beside

RELOAD_SECONDS = 10
"""Time after which a live page loads itself again."""


@dataclass(frozen=True, slots=True)
class Section:
    """A part of a page without a picture: heading, caption and body, as HTML."""

    title: str
    caption: str
    body: str = ""


def html_page(
    title: str,
    body: str,
    figures: Sequence[Figure],
    footer: str,
    *,
    trials: Mapping[str, Any] | None = None,
    live: bool = False,
) -> str:
    """The page as text.

    Args:
        title: plain text; it is escaped here.
        body: HTML; holds the :func:`card` of every figure.
        figures: drawn by the page.
        footer: HTML.
        trials: what the table of trials shows (:mod:`hpo_core.report.trials_table`).
        live: whether the file is written anew, so that the page loads itself again now and then.
    """
    drawn = {figure.key: {"data": figure.data, "layout": figure.layout, "zoom": figure.zoom} for figure in figures}
    data = {"figures": drawn, "trials": trials, "live": RELOAD_SECONDS if live else 0}
    embedded = f'<script type="application/json" id="data">{_json(data)}</script>'
    head = f'<!DOCTYPE html><html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
    main = f"<main>{body}<footer>{footer}</footer></main>{embedded}"
    code = _asset("page.js") + (_asset("trials.js") if trials is not None else "")
    plotly = f"<script>{get_plotlyjs()}</script>" if figures or trials is not None else ""
    return (
        f'{head}<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<style>{_asset('page.css')}</style><script>{_THEME}</script></head><body>"
        f'<div id="top"><span id="live"></span><button id="theme"></button></div>{main}{plotly}'
        f"<script>{code}drawAll();if(data.live)reloadLater();</script></body></html>\n"
    )


_POLICY = (
    "default-src 'none'; script-src 'unsafe-inline' 'unsafe-eval'; style-src 'unsafe-inline'; img-src data: blob:; "
    "base-uri 'none'; form-action 'none'"
)
"""A page sends nothing anywhere, whatever stands in it. Plotly compiles shaders for parallel coordinates (eval)."""
_THEME = (
    "let t=null;try{t=localStorage.getItem('hpo-theme')}catch{}"
    "document.documentElement.dataset.theme=t==='dark'||t==='light'?t:"
    "matchMedia('(prefers-color-scheme: dark)').matches?'dark':'light'"
)
"""Runs before anything is drawn: a dark page does not flash."""


@cache
def _asset(name: str) -> str:
    return files("hpo_core.report").joinpath(name).read_text(encoding="utf-8")


def write_page(text: str, path: Path) -> Path:
    """Write a page to ``path`` and return it; folders above it are made, a file there is replaced as a whole.

    Raises:
        StorageError: the file cannot be written.
    """
    aside = beside(path)
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
        cure = "make room there" if error.errno in (errno.ENOSPC, errno.EDQUOT) else "make its folder writable"
        raise StorageError(
            f"Report {path} cannot be written ({error.strerror or error}). Choose another file, or {cure}; "
            "the study itself is untouched."
        ) from error
    return path


def card(part: Figure | Section) -> str:
    """A figure or a section with its heading and words."""
    if isinstance(part, Figure):
        width = f' style="--least:{part.min_width}px"' if part.min_width else ""
        body = f'<div class="scroll"><div id="{part.key}" class="plot"{width}></div></div>'
    else:
        body = part.body
    caption = f'<p class="caption">{part.caption}</p>' if part.caption else ""
    return f'<section class="card"><h2>{escape(part.title, quote=False)}</h2>{caption}{body}</section>'


def table(head: Sequence[str], rows: Iterable[Sequence[object]], most: int = 300) -> str:
    """An HTML table of escaped cells, each at most ``most`` characters; short ones stay on one line."""
    titles = [escape(name) for name in head]
    names = "".join(f"<th>{title}</th>" for title in titles)
    stack = ' class="stack"' if len(titles) > 3 else ""
    body = "".join(
        f"<tr>{''.join(_cell(item, most, title) for item, title in zip(row, titles, strict=True))}</tr>" for row in rows
    )
    return f'<div class="scroll"><table{stack}><thead><tr>{names}</tr></thead><tbody>{body}</tbody></table></div>'


def _cell(item: object, most: int, title: str) -> str:
    kind = ' class="n"' if len(str(item)) <= 16 else ""
    return f'<td{kind} data-label="{title}">{text(item, most)}</td>'


def _json(value: object) -> str:
    plain = json.dumps(value, allow_nan=False, separators=(",", ":"))
    return plain.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
