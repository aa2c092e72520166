"""One panel for each parameter: the result at one rung over the parameter's value."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hpo_core.model.space import ListedParameter, NumberParameter, Parameter
from hpo_core.report.scale import scale
from hpo_core.report.series import Series
from hpo_core.report.study.importance import Importances
from hpo_core.report.study.parameters import axis_ticks, position
from hpo_core.report.style import BEST, DARKER, FAILED, Figure, axis, layout, level_color, rounded, text
from hpo_core.state import TrialRecord
from hpo_core.views.formatting import number

COLUMNS = 3
DOTS = 1_000


def parameter_panels(series: Series, found: Importances) -> Figure | None:
    """Result at one rung over each parameter, most important first."""
    level = series.levels.index(found.resource)
    pairs: list[tuple[TrialRecord, float | None]] = []
    step = -(-len(series.trials) // DOTS) or 1
    for trial in series.trials[::step]:
        for result in trial.results:
            if result.resource == found.resource:
                value = None if result.loss is None else series.study.metric_value(result.loss)
                pairs.append((trial, value))
    if sum(value is not None for _, value in pairs) < 5:
        return None
    names = list(found.shares)[: 4 * COLUMNS]
    rows = -(-len(names) // COLUMNS)
    drawn = scale((value for _, value in pairs), maximize=series.maximize)
    height = 1 / rows
    data: list[dict[str, Any]] = []
    axes: dict[str, Any] = {}
    narrow: dict[str, Any] = {"height": 80 + 230 * len(names)}
    best = series.study.best
    ranges = series.study.spec.search_space().parameters
    for at, name in enumerate(names):
        row, column = divmod(at, COLUMNS)
        key = "" if at == 0 else str(at + 1)
        parameter = ranges[name]
        across = {"domain": [column / COLUMNS + 0.045, (column + 1) / COLUMNS - 0.02], "anchor": f"y{key}"}
        top = 1 - row * height
        up = {"domain": [top - height + 0.2 * height, top - 0.04 * height], "anchor": f"x{key}"}
        axes[f"xaxis{key}"] = _across(name, parameter) | across
        axes[f"yaxis{key}"] = drawn.axis(text(series.metric, 16) if column == 0 else "") | up
        bottom = 1 - (at + 1) / len(names)
        narrow[f"xaxis{key}"] = {"domain": [0, 1]}
        narrow[f"yaxis{key}"] = {"domain": [bottom + 0.24 / len(names), bottom + 0.98 / len(names)]}
        for group in range(level, len(series.levels)):
            here = [(t, v) for t, v in pairs if v is not None and series.reached(t) == group and name in t.params]
            color = level_color(group, len(series.levels))
            data.append(
                _dots(
                    here,
                    name,
                    parameter,
                    key=key,
                    legend=f"up to {series.levels[group]:,}",
                    color=color,
                    listed=at == 0,
                )
            )
        bad = drawn.low if series.maximize else drawn.high
        crosses: list[tuple[TrialRecord, float | None]] = []
        crosses += [(t, bad) for t, v in pairs if v is None and name in t.params]
        if crosses or at == 0:
            trace = _dots(
                crosses, name, parameter, key=key, legend="diverged", color=FAILED, listed=at == 0 and bool(crosses)
            )
            trace["marker"] |= {"symbol": "x", "opacity": 1}
            data.append(trace)
        if best is not None:
            winner = [(t, v) for t, v in pairs if t.number == best.trial and v is not None and name in t.params]
            trace = _dots(
                winner, name, parameter, key=key, legend=f"trial {best.trial}, the best", color=BEST, listed=at == 0
            )
            trace["marker"] |= {"size": 12, "opacity": 1}
            data.append(trace)
    caption = (
        f"Each dot is a trial's value at resource {found.resource:,}, where all compare; {DARKER} dots went "
        "further up, and good regions show many of them at the good end."
        f"{f' Every {step}th trial is drawn.' if step > 1 else ''}"
    )
    shape = layout(60 + 230 * rows, **axes)
    shape["margin"]["b"] = 4
    return Figure("panels", "One parameter at a time", caption, data, shape, min_width=720, narrow={"layout": narrow})


def _across(name: str, parameter: Parameter) -> dict[str, Any]:
    ticks, words, low, high, log = axis_ticks(parameter)
    discrete = isinstance(parameter, ListedParameter)
    pad = 0.4 if discrete else 0.07 * (high - low)
    if len(ticks) > 5 and not discrete:
        every = -(-len(ticks) // 5)
        ticks, words = ticks[::every], words[::every]
    drawn = axis(f"<b>{text(name, 30)}</b>", range=[low - pad, high + pad])
    if isinstance(parameter, NumberParameter) and not parameter.whole and not log:
        drawn["nticks"] = 5
    else:
        drawn |= {"tickvals": ticks, "ticktext": words}
    drawn["title"]["standoff"] = 4
    return drawn | {"automargin": False, "tickangle": 0}


def _dots(
    here: Sequence[tuple[TrialRecord, float | None]],
    name: str,
    parameter: Parameter,
    *,
    key: str,
    legend: str,
    color: str,
    listed: bool,
) -> dict[str, Any]:
    log = axis_ticks(parameter)[4]
    discrete = isinstance(parameter, ListedParameter)
    xs = []
    for trial, _ in here:
        # Equal choices lie on top of each other: spread them by a fixed amount that follows the trial's number.
        nudge = (trial.number * 0.618034 % 1 - 0.5) * 0.3 if discrete else 0.0
        xs.append(rounded(position(parameter, trial.params[name], log) + nudge))
    return {
        "type": "scatter",
        "mode": "markers",
        "name": legend,
        "legendgroup": legend,
        "showlegend": listed,
        "x": xs,
        "y": [rounded(v) for _, v in here if v is not None],
        "xaxis": f"x{key}",
        "yaxis": f"y{key}",
        "text": [f"trial {t.number}: {text(t.params[name], 24)} → {number(v)}" for t, v in here],
        "hoverinfo": "text",
        "marker": {"color": color, "size": 6, "opacity": 0.85},
    }
