"""Each hyperparameter along the training that led to the best result."""

from __future__ import annotations

from typing import Any

from hpo_core.model.errors import HpoError
from hpo_core.model.parameter_schedule import Schedule
from hpo_core.model.space import ListedParameter, Parameter
from hpo_core.report.scale import log_ticks, round_ticks
from hpo_core.report.series import Series
from hpo_core.report.study.parameters import axis_ticks, position
from hpo_core.report.style import BEST, Figure, axis, layout, level_color, rounded, text
from hpo_core.state import TrialRecord
from hpo_core.views.formatting import number

DOTS = 1_500
"""Of the whole population, per parameter."""
ROWS = 12


def schedules(series: Series) -> Figure | None:
    """One row per parameter that changed: the best trial's as a step line, the population's as pale dots."""
    best = series.study.best
    if series.lineage is None or best is None:
        return None
    try:
        found = series.lineage.schedule(best.trial, best.resource)
    except HpoError:  # a journal that was cut in the middle of its past
        return None
    space = series.study.spec.search_space().parameters
    changing = [name for name in space if name in found.names and len(found.values(name)) > 1]
    constant = [f"{text(name)} = {_word(found.values(name)[0][2])}" for name in found.names if name not in changing]
    if not changing:
        return None
    names = changing[:ROWS]
    height, data = 1 / len(names), []
    axes: dict[str, Any] = {
        "xaxis": axis("resource trained for", range=[0, found.end], anchor=f"y{len(names)}" if len(names) > 1 else "y")
    }
    step = -(-len(series.trials) // DOTS) or 1
    for row, name in enumerate(names):
        key = "" if row == 0 else str(row + 1)
        top = 1 - row * height
        shown = [trial for trial in series.trials[::step] if name in trial.params]
        axes[f"yaxis{key}"], place = _up(name, space[name], shown, found)
        axes[f"yaxis{key}"] |= {"domain": [top - 0.86 * height, top - 0.02 * height]}
        data += [
            _dots(name, shown, place, key=key, listed=row == 0),
            _steps(name, found, place, key=key, listed=row == 0, trial=best.trial),
        ]
    same = f" Unchanged: {', '.join(constant)}." if constant else ""
    left_out = f" {len(changing) - ROWS} more parameters are left out." if len(changing) > ROWS else ""
    caption = (
        f"The orange line is what trial {best.trial} and its ancestors were trained with, {len(found.segments)} trials "
        f"one after the other; dots are what the population tried.{same}{left_out} A plain script can train along it: "
        f"<code>Schedule.from_json(path).at(step)</code>."
    )
    shape = layout(80 + 130 * len(names), **axes)
    return Figure("schedules", "Schedules that led to the best result", caption, data, shape)


def _up(name: str, parameter: Parameter, shown: list[TrialRecord], found: Schedule) -> tuple[dict[str, Any], Any]:
    """The axis of one parameter, and the place of a value on it."""
    ticks, words, low, high, log = axis_ticks(parameter)

    def place(value: Any) -> float:
        return position(parameter, value, log)

    pad = 0.4
    if not isinstance(parameter, ListedParameter):
        places = [place(trial.params[name]) for trial in shown] + [place(value) for _, _, value in found.values(name)]
        low, high = min(places), max(places)
        pad = 0.08 * (high - low) or 0.5
        spread = log_ticks(low, high) if log else round_ticks(low, high)
        if len(spread) > 1:
            every = -(-len(spread) // 5)
            words = [number(tick) for tick in spread[::every]]
            ticks = [place(tick) for tick in spread[::every]]
    up = axis(f"<b>{text(name, 22)}</b>", range=[low - pad, high + pad], tickvals=ticks, ticktext=words)
    return up, place


def _steps(name: str, found: Schedule, place: Any, *, key: str, listed: bool, trial: int) -> dict[str, Any]:
    xs: list[float | None] = []
    ys: list[float | None] = []
    words: list[str] = []
    for start, end, value in found.values(name):
        if xs and xs[-1] != start:  # inactive in between
            xs.append(None)
            ys.append(None)
            words.append("")
        xs += [start, end]
        ys += [rounded(place(value))] * 2
        words += [f"{text(name)} = {_word(value)} from {start:,} to {end:,}"] * 2
    return {
        "type": "scatter",
        "mode": "lines",
        "name": f"trial {trial} and its ancestors",
        "legendgroup": "best",
        "showlegend": listed,
        "x": xs,
        "y": ys,
        "yaxis": f"y{key}",
        "text": words,
        "hoverinfo": "text",
        "line": {"color": BEST, "width": 3},
    }


def _dots(name: str, shown: list[TrialRecord], place: Any, *, key: str, listed: bool) -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": "markers",
        "name": "the population",
        "legendgroup": "population",
        "showlegend": listed,
        "x": [0.5 * (trial.base + trial.resource) for trial in shown],
        "y": [rounded(place(trial.params[name])) for trial in shown],
        "yaxis": f"y{key}",
        "text": [f"trial {t.number}: {text(name)} = {_word(t.params[name])}" for t in shown],
        "hoverinfo": "text",
        "marker": {"color": level_color(0, 3), "size": 4, "opacity": 0.7},
    }


def _word(value: Any) -> str:
    return number(value) if isinstance(value, float) else text(value, 24)
