"""Parameters and results: importances, one and two parameters at a time, parallel coordinates."""

from __future__ import annotations

import contextlib
import importlib
import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from inspect import signature
from statistics import fmean
from typing import TYPE_CHECKING, Any

from hpo_core.model.space import ListedParameter, NumberParameter, Parameter, same_scalar
from hpo_core.model.space.search_space import distributions, seen
from hpo_core.report.series import Series
from hpo_core.report.style import (
    BEST,
    BLUE,
    DARKER,
    FAILED,
    INK,
    WORST_TO_BEST,
    Figure,
    Trace,
    axis,
    axis_key,
    layout,
    level_color,
    log_ticks,
    one_below_the_other,
    panels,
    round_ticks,
    rounded,
    scale,
    text,
    ticks_with_ends,
    trace,
)
from hpo_core.state import TrialRecord
from hpo_core.views.formatting import number

if TYPE_CHECKING:
    import optuna

ENOUGH = 20
"""Results a rung needs before a share of importance says anything."""
LINES, AXES = 500, 12
"""Trials and parameters of the parallel coordinates."""
COLUMNS, DOTS = 3, 1_000
"""Panels of one parameter beside each other, and trials drawn in each."""
SURFACE = 150
"""Results that the surface over two parameters passes through; of more, every so many-th."""


class ParameterAxis:
    """One parameter along an axis: positions of its values, and ticks."""

    def __init__(self, name: str, parameter: Parameter) -> None:
        self.name, self.parameter = name, parameter
        self.listed, self.log, self.whole = isinstance(parameter, ListedParameter), False, True
        if isinstance(parameter, ListedParameter):
            last = len(parameter.listed()) - 1
            self.ticks = [float(k) for k in range(last + 1)]
            self.words = [text(choice, 16) for choice in parameter.listed()]
            self.low, self.high = 0.0 if last else -0.5, last or 0.5
            return
        assert isinstance(parameter, NumberParameter)
        low, high = parameter.ends
        self.low, self.high = float(low), float(high)
        if low == high:
            self.ticks, self.words, self.low, self.high = [low], [number(low)], low - 0.5, high + 0.5
            return
        self.log, self.whole = parameter.log, parameter.whole
        if self.log:
            self.low, self.high = math.log10(low), math.log10(high)
        self._divide()

    def _divide(self) -> None:
        """Find ticks between the ends."""
        if self.log:
            places = [math.log10(tick) for tick in log_ticks(self.low, self.high)]
            self.ticks = ticks_with_ends(self.low, self.high, places)
            self.words = [number(float(f"{10**tick:.6g}")) for tick in self.ticks]
            return
        ticks = round_ticks(self.low, self.high)
        if self.whole:
            ticks = [tick for tick in ticks if tick.is_integer()] or [self.low, self.high]
        self.ticks = ticks_with_ends(self.low, self.high, ticks)
        self.words = [number(tick) for tick in self.ticks]

    @property
    def varies(self) -> bool:
        """Whether there is more than one value."""
        return len(self.ticks) > 1

    def fit(self, values: Sequence[Any]) -> None:
        """End the axis of a number at the smallest and the largest of some values."""
        places = [self.place(value) for value in values]
        if not self.listed and max(places) > min(places):
            self.low, self.high, self.whole = min(places), max(places), False
            self._divide()

    def place(self, value: Any) -> float:
        """Position of a value."""
        if isinstance(self.parameter, ListedParameter):
            same = [same_scalar(item, value) for item in self.parameter.listed()]
            return float(same.index(True)) if True in same else 0.0
        return math.log10(value) if self.log else float(value)

    def spread_out(self, trial: TrialRecord, turn: float = 0.618034) -> float:
        """Position of a trial's value; equal choices are moved by what follows from the trial's number."""
        moved = (trial.number * turn % 1 - 0.5) * 0.4 if self.listed else 0.0
        return self.place(trial.params[self.name]) + moved

    def axis(self, *, most: int = 8, pad: float = 0.0, **more: Any) -> dict[str, Any]:
        """The axis as Plotly wants it, with ``most`` ticks, padded by a share of its length."""
        room = 0.5 if self.listed else pad * (self.high - self.low)
        every = 1 if self.listed else -(-len(self.ticks) // most)
        return axis(
            f"<b>{text(self.name, 30)}</b>",
            range=[self.low - room, self.high + room],
            tickvals=self.ticks[::every],
            ticktext=self.words[::every],
            **more,
        )


@dataclass(frozen=True, slots=True)
class Importances:
    """Shares of importance that sum to one, largest first, and where they come from."""

    shares: dict[str, float]
    resource: int
    """The lowest rung with enough results: those were compared."""
    results: int
    enough: bool
    """False: too few results; the shares are all equal and only the order of the space."""


def prepare() -> None:
    """Import what importances need ahead of time: it takes seconds."""
    with contextlib.suppress(ImportError):  # said by whoever needs it
        importlib.import_module("optuna.importance")


def importances(series: Series) -> Importances | None:
    """Importances from the lowest rung with enough results; None before the first result.

    The lowest rung holds every configuration; the ones above hold the survivors of a selection, in which the
    parameters that decided it hardly vary any more. A diverged trial counts, as the worst.
    """
    counts = [
        sum(any(r.resource == resource for r in trial.results) for trial in series.trials) for resource in series.levels
    ]
    if not any(counts):
        return None
    level = next((k for k, count in enumerate(counts) if count >= ENOUGH), None)
    names = list(series.study.spec.search_space().parameters)
    at = counts.index(max(counts)) if level is None else level
    shares = None if level is None else _ped_anova(series, series.levels[at])
    if shares is None:
        return Importances(dict.fromkeys(names, 1 / len(names)), series.levels[at], counts[at], False)
    ordered = sorted(names, key=lambda name: -shares.get(name, 0.0))
    return Importances({name: shares.get(name, 0.0) for name in ordered}, series.levels[at], counts[at], True)


def _ped_anova(series: Series, resource: int) -> dict[str, float] | None:
    import optuna

    ranges = series.study.spec.search_space()
    space = distributions(ranges, ranges.parameters)
    pairs = [(t, r.loss) for t in series.trials for r in t.results if r.resource == resource]
    finite = [loss for _, loss in pairs if loss is not None]
    if len(set(finite)) < 2:
        return None
    trials = []
    verbosity = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for trial, loss in pairs:
                own = {name: value for name, value in trial.params.items() if name in space}
                with contextlib.suppress(ValueError, TypeError, KeyError):  # a value that the space cannot hold
                    trials.append(
                        optuna.trial.create_trial(
                            params=seen(ranges, own),
                            distributions={name: space[name] for name in own},
                            value=max(finite) if loss is None else loss,
                        )
                    )
            study = optuna.create_study()
            study.add_trials(trials)
            # Optuna asks for at least five trials in the top share.
            share = min(0.5, max(0.1, 5 / len(trials))) if trials else 0.1
            found = optuna.importance.get_param_importances(study, evaluator=_evaluator_of_best(share))
    except (ValueError, RuntimeError):
        return None
    finally:
        optuna.logging.set_verbosity(verbosity)
    return dict(found) if found and all(map(math.isfinite, found.values())) else None


def _evaluator_of_best(share: float) -> optuna.importance.PedAnovaImportanceEvaluator:
    """The evaluator of what matters among the best ``share`` of the trials."""
    import optuna

    evaluator = optuna.importance.PedAnovaImportanceEvaluator
    name = "target_quantile" if "target_quantile" in signature(evaluator).parameters else "baseline_quantile"  # 4
    return evaluator(**{name: share})  # type: ignore[arg-type]


def parameter_figures(series: Series) -> list[Figure | None]:
    """All figures of parameters; of a population that has changed since, nothing compares."""
    found = importances(series)
    if series.lineage is not None:
        return [importance_bars(found) if found and found.resource == series.levels[0] else None]
    order = list(found.shares) if found else []
    bars = [importance_bars(found), parameter_panels(series, found), contour(series, found)] if found else []
    return [*bars, parallel_coordinates(series, order)]


def importance_bars(found: Importances) -> Figure | None:
    """A bar per parameter."""
    if not found.enough:
        return None
    names = list(found.shares)[:20]
    shares = [found.shares[name] for name in names]
    data: list[Trace] = [
        {
            "type": "bar",
            "orientation": "h",
            "y": list(range(len(names))),
            "x": [round(share, 4) for share in shares],
            "text": [f"{100 * share:.0f}%" if share >= 0.005 else "&lt; 1%" for share in shares],
            "textposition": "outside",
            "cliponaxis": False,
            "marker": {"color": BLUE},
            "hoverinfo": "none",
            "width": 0.7,
        }
    ]
    caption = (
        f"How much each parameter decides who comes out best (PED-ANOVA), computed from the {found.results:,} "
        f"results at resource {found.resource:,} alone, because results at different resources do not compare."
    )
    labels = {"tickvals": list(range(len(names))), "ticktext": [text(name, 24) + "  " for name in names]}
    shape = layout(
        90 + 32 * len(names),
        xaxis=axis("share of importance", tickformat=".0%", range=[0, max(shares) * 1.12]),
        yaxis=axis("", range=[len(names) - 0.4, -0.6], showgrid=False, ticks="", **labels),
    )
    return Figure("importances", "Which parameters matter", caption, data, shape, zoom=False)


def parameter_panels(series: Series, found: Importances) -> Figure | None:
    """One panel for each parameter: the result at one rung over its value, most important first."""
    step = -(-len(series.trials) // DOTS) or 1
    pairs = [
        (trial, None if result.loss is None else series.study.metric_value(result.loss))
        for trial in series.trials[::step]
        for result in trial.results
        if result.resource == found.resource
    ]
    if sum(value is not None for _, value in pairs) < 5:
        return None
    names = list(found.shares)[: 4 * COLUMNS]
    drawn = scale((value for _, value in pairs), maximize=series.maximize)
    bad = drawn.low if series.maximize else drawn.high
    levels, best = series.levels, series.study.best
    ranges = series.study.spec.search_space().parameters
    shape = panels(len(names), COLUMNS, height=180, gap=66)
    data: list[Trace] = []
    for at, name in enumerate(names):
        key, side = axis_key(at), ParameterAxis(name, ranges[name])
        ticks = {"tickvals": None, "nticks": 5} if not (side.whole or side.log) else {}
        shape[f"xaxis{key}"] |= side.axis(most=5, pad=0.07, automargin=False, tickangle=0) | ticks
        shape[f"xaxis{key}"]["title"]["standoff"] = 4
        shape[f"yaxis{key}"] |= drawn.axis(text(series.metric, 16) if at % COLUMNS == 0 else "")
        own = [(trial, value) for trial, value in pairs if name in trial.params]
        groups: list[tuple[str, str, list[tuple[TrialRecord, float | None]], dict[str, Any]]] = [
            (
                f"up to {levels[level]:,}",
                level_color(level, len(levels)),
                [(trial, value) for trial, value in own if value is not None and series.reached(trial) == level],
                {"opacity": 0.85},
            )
            for level in range(levels.index(found.resource), len(levels))
        ]
        groups.append(("diverged", FAILED, [(t, bad) for t, value in own if value is None], {"symbol": "x"}))
        if best is not None:
            winner: list[tuple[TrialRecord, float | None]] = [
                (t, v) for t, v in own if t.number == best.trial and v is not None
            ]
            groups.append((f"trial {best.trial}, the best", BEST, winner, {"size": 12}))
        for legend, color, dots, marker in groups:
            points = [
                (side.spread_out(t), value, f"trial {t.number}: {text(t.params[name], 24)} → {number(value)}")
                for t, value in dots
            ]
            where: dict[str, Any] = {"xaxis": f"x{key}", "yaxis": f"y{key}", "legendgroup": legend}
            listed = at == 0 and (bool(dots) or legend != "diverged")
            data.append(trace(legend, points, color, marker=marker, showlegend=listed, **where))
    caption = (
        f"Each dot is a trial's value at resource {found.resource:,}, where all compare; {DARKER} dots went "
        "further up, and good regions show many of them at the good end."
        f"{f' Every {step}th trial is drawn.' if step > 1 else ''}"
    )
    drawn_layout = layout(shape.pop("height") + 90, **shape)
    narrow = {"layout": one_below_the_other(len(names), 230)}
    return Figure("panels", "One parameter at a time", caption, data, drawn_layout, min_width=720, narrow=narrow)


def contour(series: Series, found: Importances) -> Figure | None:
    """The metric over the two most important parameters: Plotly's surface through results, and all results as dots."""
    space = series.study.spec.search_space().parameters
    sides = [ParameterAxis(name, space[name]) for name in found.shares if name in space]
    sides = [side for side in sides if side.varies][:2]
    if not found.enough or len(sides) < 2:
        return None
    known = [
        (trial, series.study.metric_value(result.loss))
        for trial in series.trials
        for result in trial.results
        if result.resource == found.resource
        and result.loss is not None
        and all(side.name in trial.params for side in sides)
    ]
    if len(known) < 10:
        return None
    drawn = scale((value for _, value in known), maximize=series.maximize)
    cells: dict[tuple[float, float], list[float]] = {}
    for trial, value in known[:: -(-len(known) // SURFACE)]:
        x, y = (rounded(side.place(trial.params[side.name])) for side in sides)
        cells.setdefault((x, y), []).append(drawn.place(value))
    listed = any(side.listed for side in sides)
    surface: Trace = {
        "type": "heatmap" if listed else "contour",
        "x": [x for x, _ in cells],
        "y": [y for _, y in cells],
        "z": [rounded(fmean(values)) for values in cells.values()],
        "connectgaps": not listed,
        "hoverinfo": "none",
        "showlegend": False,
        **({} if listed else {"line": {"width": 0.5, "color": "#ffffff", "smoothing": 1.3}, "ncontours": 14}),
        **drawn.colors(series.metric, maximize=series.maximize),
    }

    def dots(chosen: list[tuple[TrialRecord, float]], legend: str, color: str, **marker: Any) -> Trace:
        points = [
            (
                sides[0].spread_out(trial),
                sides[1].spread_out(trial, 0.754878),
                f"trial {trial.number}: {number(value)}<br>"
                + "<br>".join(f"{text(side.name, 24)} = {text(trial.params[side.name], 24)}" for side in sides),
            )
            for trial, value in chosen
        ]
        return trace(legend, points, color, marker={**marker, "line": {"width": 1, "color": "#ffffff"}})

    data = [surface, dots(known, "results", INK, size=5, opacity=0.75)]
    best = series.study.best
    if winner := [(t, v) for t, v in known if best is not None and t.number == best.trial]:
        data.append(dots(winner, f"trial {winner[0][0].number}, the best", BEST, size=12))
    between = "The mean of each pair of choices" if listed else "The surface joins the results"
    caption = (
        f"The two parameters that matter most, and {text(series.metric)} at resource {found.resource:,}: {DARKER} is "
        f"better. {between}, which are the dots; far from them it says nothing."
    )
    below = {"orientation": "h", "y": -0.22, "yanchor": "top", "title": {"side": "bottom"}}
    narrow = {"layout": {"height": 540}, "traces": {0: {"colorbar": below}}}
    shape = layout(500, xaxis=sides[0].axis(), yaxis=sides[1].axis())
    return Figure("contour", "Two parameters together", caption, data, shape, narrow=narrow)


def parallel_coordinates(series: Series, order: Sequence[str]) -> Figure | None:
    """Every trial a line through its parameters, coloured by its final value."""
    ranked = [trial for trial in series.ranked_trials() if trial.loss is not None]
    if len(ranked) < 2:
        return None
    shown = sorted(ranked, key=lambda t: (-series.reached(t), t.loss))[:LINES]
    names = list(order)[:AXES]
    finals = [series.final(trial) or 0.0 for trial in shown]
    drawn = scale(finals, maximize=series.maximize)
    placed = [rounded(drawn.place(value)) for value in finals]
    ranges = series.study.spec.search_space().parameters
    dimensions = [_dimension(ParameterAxis(name, ranges[name]), shown) for name in names]
    levels = series.levels
    if len(levels) > 1:
        reached = [float(series.reached(trial)) for trial in shown]
        words = [f"{level:,}" for level in levels]
        dimensions.append(_parallel("trained for", reached, [0, len(levels) - 1], list(range(len(levels))), words))
    low, high = drawn.ends
    pad = 0 if high > low else 0.5
    ticks = ticks_with_ends(low, high, drawn.ticks()[0])
    words = [number(10**at if drawn.log else at) for at in ticks]
    dimensions.append(_parallel(series.metric, placed, [low - pad, high + pad], ticks, words))
    sign = 1 if series.maximize else -1  # Plotly draws larger colours on top
    ends = sorted([sign * (low - pad), sign * (high + pad)])
    colors = {"color": [sign * at for at in placed], "colorscale": WORST_TO_BEST, "cmin": ends[0], "cmax": ends[1]}
    data: list[Trace] = [
        {
            "type": "parcoords",
            "dimensions": dimensions,
            "labelangle": 0,
            "labelside": "top",
            "labelfont": {"size": 12},
            "tickfont": {"size": 11},
            "rangefont": {"size": 1, "color": "rgba(0,0,0,0)"},
            "line": colors,
        }
    ]
    few = f" Of {len(ranked):,} the {LINES} trained longest are drawn." if len(shown) < len(ranked) else ""
    left_out = f" {len(order) - AXES} less important parameters are left out." if len(order) > AXES else ""
    off = any(name not in trial.params for name in names for trial in shown)
    unused = " Lines through <i>off</i> do not use that parameter." if off else ""
    caption = (
        f"Each line is a trial from its parameters to its final value, the {DARKER} the better; drag along an axis "
        f"to keep only the lines through that stretch.{unused}{few}{left_out}"
    )
    few_axes = [*range(min(2, len(names))), len(dimensions) - 1]
    if len(few_axes) < len(dimensions):
        caption += " A narrow window shows the most important parameters alone."
    return Figure(
        "parallel",
        "Parameters and results",
        caption,
        data,
        layout(440, margin={"l": 70, "r": 60, "t": 60, "b": 30}),
        min_width=110 * len(dimensions),
        zoom=False,
        narrow={"layout": {"margin": {"l": 46, "r": 40}}, "dimensions": few_axes},
    )


def _dimension(side: ParameterAxis, trials: Sequence[TrialRecord]) -> dict[str, Any]:
    """A parameter as a parallel axis; trials that do not use it go through a place below its values."""
    ticks, words, low = side.ticks, side.words, side.low
    off = low - 0.14 * (side.high - low)
    values = [side.place(trial.params[side.name]) if side.name in trial.params else off for trial in trials]
    if any(side.name not in trial.params for trial in trials):
        ticks, words, low = [off, *ticks], ["off", *words], off
    return _parallel(side.name, values, [low, side.high], ticks, words)


def _parallel(
    label: str, values: Sequence[float], ends: list[float], ticks: Sequence[float], words: list[str]
) -> dict[str, Any]:
    found = {"label": text(label, 15), "values": [rounded(value) for value in values], "range": ends}
    return found | {"tickvals": ticks, "ticktext": words}
