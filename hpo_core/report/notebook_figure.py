"""Plotly figure that every notebook shows, also where its server lacks Plotly's extension."""

from __future__ import annotations

from html import escape, unescape
from typing import Any

import plotly.graph_objects as go
import plotly.io

_FALLBACK = '<iframe title="{title}" srcdoc="{page}" width="100%" height="{height}" style="border:0"></iframe>'
_DATA_ALONE = "plotly_mimetype"
"""Plotly's choice in Jupyter: data for the server's extension and nothing else, so a blank cell without it."""


class NotebookFigure(go.Figure):  # type: ignore[misc]
    """A figure with a page and a sentence beside its data, for programs that cannot draw the data.

    The page loads plotly.js (5 MB) from ``cdn.plot.ly``, as Plotly's own ``notebook_connected``: each figure of a saved
    notebook would hold it otherwise. Without a network: ``plotly.io.renderers.default = "notebook"``.
    """

    def _repr_mimebundle_(self, *arguments: Any, **settings: Any) -> dict[str, Any]:
        found = dict(super()._repr_mimebundle_(*arguments, **settings))
        title = self.layout.title.text or "figure"
        if plotly.io.renderers.default == _DATA_ALONE:
            page = self.to_html(include_plotlyjs="cdn")
            height = int(self.layout.height or 450) + 20
            found["text/html"] = _FALLBACK.format(title=title, page=escape(page), height=height)
        return found | {"text/plain": f"{unescape(title)} ({len(self.data)} traces; drawn by Plotly)"}

    def _ipython_display_(self) -> None:
        if plotly.io.renderers.default != _DATA_ALONE:
            super()._ipython_display_()
            return
        from IPython.display import display

        display(self._repr_mimebundle_(), raw=True)
