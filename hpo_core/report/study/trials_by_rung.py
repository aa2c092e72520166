"""How many results each rung holds, and how many of them were promoted."""

from __future__ import annotations

from collections import Counter
from typing import Any

from hpo_core.model.stage import FURTHER
from hpo_core.report.series import Series
from hpo_core.report.study.rung_bands import Band, stacked
from hpo_core.report.style import CANDIDATE, FAILED, INK, MUTED, Figure, axis, layout, text
from hpo_core.views.rungs import is_stopping

HEADING = 0.62
"""Room between two brackets, in bars."""


def rung_counts(series: Series) -> Figure | None:
    """Per rung: went on, will go on, stayed, failed; one bracket under the other."""
    if not any(trial.results or trial.abandoned for trial in series.trials):
        return None
    bands, rows = series.bands, rung_table(series)
    stopping = is_stopping(series.study.spec)
    heights = stacked(bands, below=0.0, between=HEADING)
    sizes = [sum(row) for row in rows]
    most = max(sizes)
    last = [band.kind in ("top", "ceiling") for band in bands.all]
    kinds = (
        ("went on" if stopping else "promoted", "#1c6dd0", "#ffffff", [row[0] for row in rows]),
        (_top_word(series), "#0b2f6b", "#ffffff", [row[2] if end else 0 for end, row in zip(last, rows, strict=True)]),
        (
            "passed, waits for a free worker" if stopping else "candidate, not promoted yet",
            CANDIDATE,
            INK,
            [row[1] for row in rows],
        ),
        (
            "stopped" if stopping else "not promoted",
            "#ced7e1",
            INK,
            [0 if end else row[2] for end, row in zip(last, rows, strict=True)],
        ),
        ("diverged or abandoned", FAILED, "#ffffff", [row[3] for row in rows]),
    )
    data: list[dict[str, Any]] = [
        {
            "type": "bar",
            "orientation": "h",
            "name": name,
            "y": heights,
            "x": counts,
            "width": 0.8,
            "text": [f"{count:,}" if count > 0.06 * most else "" for count in counts],
            "textposition": "inside",
            "insidetextanchor": "middle",
            "textangle": 0,
            "constraintext": "none",
            "textfont": {"color": ink},
            "marker": {"color": color},
            "hoverinfo": "x+name",
        }
        for name, color, ink, counts in kinds
        if any(counts)
    ]
    entered = _entered(series)
    data.append(
        {
            "type": "scatter",
            "mode": "text",
            "x": sizes,
            "y": heights,
            "textposition": "middle right",
            "text": [
                f" {_words(band, row, entered[k], top=_top_word(series))}"
                for k, (band, row) in enumerate(zip(bands.all, rows, strict=True))
            ],
            "textfont": {"color": MUTED, "size": 12},
            "hoverinfo": "none",
            "showlegend": False,
            "cliponaxis": False,
        }
    )
    across = axis("trials", tickformat=",d", range=[0, (1.6 if entered else 1.45) * most])
    if most < 8:
        across |= {"dtick": 1}
    labels = [_label(band) for band in bands.all]
    up = axis("", tickvals=heights, ticktext=labels, range=[-0.6, max(heights) + (1.2 if bands.several else 0.6)])
    height = 130 + round((46 if len(rows) < 8 else 34) * (max(heights) + 1 + bands.several))
    shape = layout(height, barmode="stack", xaxis=across, yaxis=up | {"showgrid": False, "ticks": ""})
    if bands.several:
        shape["annotations"] = [
            {
                "text": f"<b>{text(bands.heading(i), 80)}</b>",
                "x": 0,
                "xref": "x",
                "xanchor": "left",
                "y": max(heights[k] for k, band in enumerate(bands.all) if band.ladder == i) + 0.42,
                "yanchor": "bottom",
                "showarrow": False,
                "font": {"size": 13},
            }
            for i in range(len(bands.ladders))
        ]
    return Figure("rungs", "Trials by rung", _caption(series), data, shape, zoom=False)


def rung_table(series: Series) -> list[tuple[int, int, int, int]]:
    """Per band: (went on, will go on, other finite results, diverged or abandoned)."""
    bands = series.bands
    went, stayed, lost = ([0] * len(bands.all) for _ in range(3))
    for trial in series.trials:
        granted = trial.granted
        target = 0 if granted is None else trial.searched if granted.rung == FURTHER else granted.target
        for result in trial.results:
            at = bands.of(result.bracket, result.rung)
            if result.loss is None:
                lost[at] += 1
            elif target > result.resource:
                went[at] += 1
            else:
                stayed[at] += 1
        if trial.abandoned is not None and not trial.is_at(trial.abandoned):
            lost[bands.of(trial.abandoned.bracket, trial.abandoned.rung)] += 1
    rows = []
    for k, band in enumerate(bands.all):
        waiting = min(stayed[k], band.rung.waiting)
        rows.append((went[k], waiting, stayed[k] - waiting, lost[k]))
    return rows


def _entered(series: Series) -> Counter[int]:
    """Where brackets share their rungs: band to trials that began there."""
    bands = series.bands
    return Counter(bands.of(trial.bracket, 0) for trial in series.trials) if bands.entry_levels else Counter()


def _label(band: Band) -> str:
    return band.label if band.kind != "closed" else f'<span style="color:#98a3af">{band.label}</span>'


def _top_word(series: Series) -> str:
    ends = [band.rung.level for band in series.bands.all if band.kind in ("top", "ceiling")]
    if any(band.kind == "ceiling" for band in series.bands.all):
        return "reached the ceiling"
    full = getattr(series.study.spec.search, "max_resource", None)
    return "trained in full" if all(level == full for level in ends) else "reached the top"


def _words(band: Band, row: tuple[int, int, int, int], entered: int, *, top: str) -> str:
    size = sum(row)
    if not size:
        return "closed" if band.kind == "closed" else "none"
    if band.kind in ("top", "ceiling"):
        words = f"{row[2]:,} of {size:,} {top}"
    else:
        words = f"{row[0]:,} of {size:,} went on"
    return f"{words}; {entered:,} began here" if entered else words


def _caption(series: Series) -> str:
    bands = series.bands
    if len(bands.all) == 1:
        return "This search has one rung: every trial trains in full."
    words = "How many trials each rung holds and how many of them went on: few trials at the top mean training saved."
    if len({ladder.start for ladder in bands.ladders}) > 1:
        words += (
            " Brackets are searches side by side: the higher one starts, the longer its trials train before any of "
            "them is left behind."
        )
    elif bands.entry_levels:
        words += (
            " All brackets share these rungs: the trials of a higher bracket begin further up, without the tests below."
        )
    if any(band.kind == "closed" for band in bands.all):
        words += " Closed rungs open one by one, each when training up to the rung below it changed who is better."
    return words
