"""How many trials got how far."""

from __future__ import annotations

from typing import Any

from hpo_core.report.series import Series
from hpo_core.report.style import CANDIDATE, FAILED, INK, MUTED, Figure, axis, layout


def rung_counts(series: Series) -> Figure | None:
    """Per rung: went on, waits as a candidate, stayed, failed."""
    if not any(trial.results or trial.abandoned for trial in series.trials):
        return None
    rows = rung_table(series)
    labels = [f"Rung {k} ({resource:,})" for k, resource in enumerate(series.levels)]
    top = len(rows) - 1
    sizes = [sum(row) for row in rows]
    most = max(sizes)
    kinds = (
        ("promoted", "#1c6dd0", "#ffffff", [row[0] for row in rows]),
        ("trained in full", "#0b2f6b", "#ffffff", [row[2] if k == top else 0 for k, row in enumerate(rows)]),
        ("candidate, not promoted yet", CANDIDATE, INK, [row[1] for row in rows]),
        ("not promoted", "#ced7e1", INK, [row[2] if k < top else 0 for k, row in enumerate(rows)]),
        ("diverged or abandoned", FAILED, "#ffffff", [row[3] for row in rows]),
    )
    data: list[dict[str, Any]] = [
        {
            "type": "bar", "orientation": "h", "name": name, "y": labels, "x": counts,
            "text": [f"{count:,}" if count > 0.06 * most else "" for count in counts],
            "textposition": "inside", "insidetextanchor": "middle", "textangle": 0, "constraintext": "none",
            "textfont": {"color": ink}, "marker": {"color": color}, "hoverinfo": "x+name",
        }
        for name, color, ink, counts in kinds
        if any(counts)
    ]  # fmt: skip
    data.append({
        "type": "scatter", "mode": "text", "x": sizes, "y": labels, "textposition": "middle right",
        "text": [f" {row[0]:,} of {n:,} went on" if k < top else f" {row[2]:,} of {n:,} trained in full"
                 for k, (row, n) in enumerate(zip(rows, sizes, strict=True))],
        "textfont": {"color": MUTED, "size": 12}, "hoverinfo": "none", "showlegend": False, "cliponaxis": False,
    })  # fmt: skip
    across = axis("trials", tickformat=",d", range=[0, 1.4 * most])
    if most < 8:
        across |= {"dtick": 1}
    if top:
        caption = "How many trials each rung holds and how many of them went on: a narrow top is the saving."
    else:
        caption = "This search has one rung: every trial trains in full."
    shape = layout(130 + 46 * len(rows), barmode="stack", xaxis=across, yaxis=axis())
    return Figure("rungs", "How many got how far", caption, data, shape, zoom=False)


def rung_table(series: Series) -> list[tuple[int, int, int, int]]:
    """Per level: (promoted, candidates, other finite results, diverged or abandoned)."""
    waiting_at: dict[int, int] = {}
    for rung in series.study.method.rungs():
        waiting_at[rung.level] = waiting_at.get(rung.level, 0) + rung.waiting
    rows = []
    for resource in series.levels:
        promoted = finite = lost = 0
        for trial in series.trials:
            result = next((r for r in trial.results if r.resource == resource), None)
            if result is None:
                gone = trial.abandoned
                target = trial.granted.target if trial.granted is not None else 0
                lost += gone is not None and target == resource
            elif result.loss is None:
                lost += 1
            elif trial.granted is not None and trial.granted.target > resource:
                promoted += 1
            else:
                finite += 1
        waiting = min(finite, waiting_at.get(resource, 0))
        rows.append((promoted, waiting, finite - waiting, lost))
    return rows
