"""Parameters and results: importances, one and two parameters at a time, parallel coordinates."""

from __future__ import annotations

import contextlib
import importlib
import json
import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from inspect import signature
from typing import TYPE_CHECKING, Any

from hpo_core.model.space import ListedParameter, NumberParameter, Parameter, same_scalar
from hpo_core.model.space.search_space import distributions, seen, shown
from hpo_core.report.series import Series
from hpo_core.report.style import (
    BEST,
    BLUE,
    DARKER,
    INK,
    WORST_TO_BEST,
    Figure,
    Trace,
    axis,
    axis_key,
    layout,
    log_ticks,
    one_below_the_other,
    panels,
    round_ticks,
    rounded,
    scale,
    text,
    ticks_with_ends,
)
from hpo_core.state import TrialRecord
from hpo_core.views.formatting import number

if TYPE_CHECKING:
    import optuna
    import plotly.graph_objects as go

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
        """True if there is more than one value."""
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


def _losses(series: Series, resource: int) -> list[float]:
    found = (result.loss for trial in series.trials for result in trial.results if result.resource == resource)
    return [loss for loss in found if loss is not None]


def _ped_anova(series: Series, resource: int) -> dict[str, float] | None:
    import optuna

    if len(set(_losses(series, resource))) < 2:
        return None
    study = _copied(series, resource, on_scale=True)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = optuna.importance.get_param_importances(study, evaluator=_evaluator_of_best(len(study.trials)))
    except (ValueError, RuntimeError):
        return None
    return dict(found) if found and all(map(math.isfinite, found.values())) else None


def _copied(series: Series, resource: int, *, on_scale: bool = False, most: int | None = None) -> optuna.Study:
    """The results at one resource as an Optuna study; a training that diverged counts as the worst of them.

    Args:
        on_scale: parameters as samplers see them; else values and ranges as people do, escaped.
        most: results; of more, every so many-th.
    """
    import optuna

    pairs = [(trial, result.loss) for trial in series.trials for result in trial.results if result.resource == resource]
    values = [series.study.metric_value(loss) for _, loss in pairs if loss is not None]
    worst = min(values, default=0.0) if series.maximize else max(values, default=0.0)
    space, trials = series.study.spec.search_space(), []
    for trial, loss in pairs[:: -(-len(pairs) // (most or len(pairs))) or 1]:
        if on_scale:
            own = {name: value for name, value in trial.params.items() if name in space.parameters}
            params, ranges = seen(space, own), distributions(space, own)
        else:
            params, ranges, _ = shown(space, trial.params)
            params = {escape(name): _safe(value) for name, value in params.items()}
            ranges = {escape(name): _safe_choices(each) for name, each in ranges.items()}
        value = worst if loss is None else series.study.metric_value(loss)
        with contextlib.suppress(ValueError, TypeError, KeyError):  # a value that the space cannot hold
            facts: dict[str, Any] = {"params": params, "distributions": ranges, "user_attrs": {"trial": trial.number}}
            trials.append(optuna.trial.create_trial(value=value, **facts))
    verbosity = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        study = optuna.create_study(direction="maximize" if series.maximize else "minimize")
    finally:
        optuna.logging.set_verbosity(verbosity)
    study.add_trials(trials)
    return study


def _safe(value: Any) -> Any:
    return escape(value) if isinstance(value, str) else value


def _safe_choices(known: optuna.distributions.BaseDistribution) -> optuna.distributions.BaseDistribution:
    import optuna

    if isinstance(known, optuna.distributions.CategoricalDistribution):
        return optuna.distributions.CategoricalDistribution([_safe(choice) for choice in known.choices])
    return known


def _evaluator_of_best(trials: int) -> optuna.importance.PedAnovaImportanceEvaluator:
    # The evaluator of what matters among the best tenth of the trials; Optuna asks for five at least.
    import optuna

    share = min(0.5, max(0.1, 5 / trials)) if trials else 0.1
    evaluator = optuna.importance.PedAnovaImportanceEvaluator
    name = "target_quantile" if "target_quantile" in signature(evaluator).parameters else "baseline_quantile"  # 4
    return evaluator(**{name: share})  # type: ignore[arg-type]


def parameter_figures(series: Series) -> list[Figure | None]:
    """All figures of parameters; of a population that has changed since, nothing compares."""
    found = importances(series)
    if series.lineage is not None:
        return [importance_bars(found) if found and found.resource == series.levels[0] else None]
    order = list(found.shares) if found else []
    bars: list[Figure | None] = []
    if found and len(_losses(series, found.resource)) >= 5:
        bars = [importance_bars(found), parameter_panels(series, found), contour(series, found)]
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
            "y": [escape(name) for name in names],
            "x": [round(share, 4) for share in shares],
            "text": [f"{100 * share:.0f}%" if share >= 0.005 else "&lt; 1%" for share in shares],
            "textposition": "outside",
            "cliponaxis": False,
            "marker": {"color": BLUE},
            "hoverinfo": "none",
        }
    ]
    caption = (
        f"How much each parameter decides who comes out best (PED-ANOVA), computed from the {found.results:,} "
        f"results at resource {found.resource:,} alone, because results at different resources do not compare."
    )
    labels = {"tickvals": [escape(name) for name in names], "ticktext": [text(name, 24) + "  " for name in names]}
    across = axis("share of importance", tickformat=".0%", range=[0, max(shares) * 1.12])
    up = axis("", showgrid=False, ticks="", autorange="reversed", **labels)
    shape = layout(90 + 32 * len(names), xaxis=across, yaxis=up)
    return Figure("importances", "Which parameters matter", caption, data, shape, zoom=False)


def _plain(figure: go.Figure) -> tuple[list[Trace], dict[str, Any]]:
    found = json.loads(figure.to_json())
    return found["data"], found["layout"]


def parameter_panels(series: Series, found: Importances) -> Figure | None:
    """Optuna's slices: the results at one resource over each parameter, most important first."""
    from optuna.visualization import plot_slice

    study = _copied(series, found.resource, most=DOTS)
    trials = study.trials  # each access copies them
    used = {name for trial in trials for name in trial.params}
    labels = {escape(name): text(name, 30) for name in found.shares if escape(name) in used}
    names, known = list(labels)[: 4 * COLUMNS], {escape(name): name for name in found.shares}
    ranges = series.study.spec.search_space().parameters
    if len(trials) < 5 or not names:
        return None
    data, drawn = _plain(plot_slice(study, params=names))
    places = scale((trial.value for trial in trials), maximize=series.maximize)
    shape = panels(len(names), COLUMNS, height=180, gap=66)
    for k, name in enumerate(sorted(names)):  # the order of Optuna's axes
        at, key = names.index(name), axis_key(k)
        across, up = shape[f"xaxis{axis_key(at)}"], shape[f"yaxis{axis_key(at)}"]
        kept = {"type": "linear"} | _side(drawn[f"xaxis{key}"])
        if kept["type"] == "log":  # Plotly would name a 2 and a 5 in each decade
            own = ParameterAxis(known[name], ranges[known[name]])
            every = -(-len(own.ticks) // 5)
            kept |= {"tickvals": [10**tick for tick in own.ticks[::every]], "ticktext": own.words[::every]}
        side = axis(f"<b>{labels[name]}</b>", automargin=False, tickangle=0, nticks=5, anchor=f"y{key}", **kept)
        side["title"]["standoff"] = 4
        drawn[f"xaxis{key}"] = across | side
        drawn[f"yaxis{key}"] = up | places.axis(text(series.metric, 16) * (at % COLUMNS == 0)) | {"anchor": f"x{key}"}
    best = -1 if series.study.best is None else series.study.best.trial
    for dots in data:
        numbers = [trials[at].user_attrs["trial"] for at in dots["marker"]["color"]]
        dots |= {"text": [f"trial {number}" for number in numbers], "hoverinfo": "text+x+y"}
        dots["marker"] = {
            "color": [BEST if number == best else BLUE for number in numbers],
            "size": [12 if number == best else 6 for number in numbers],
            "opacity": 0.8,
        }
    few = f" Of {found.results:,} results {len(trials):,} are drawn." if len(trials) < found.results else ""
    caption = (
        f"Each dot is a trial's value at resource {found.resource:,}, where all compare; the best trial is orange. A "
        f"training that diverged stands at the worst value.{few}"
    )
    axes = {key: value for key, value in drawn.items() if "axis" in key}
    narrow = {"layout": _one_below_the_other(names)}
    return Figure(
        "panels",
        "One parameter at a time",
        caption,
        data,
        layout(shape["height"] + 90, **axes),
        min_width=720,
        narrow=narrow,
    )


def _one_below_the_other(names: Sequence[str]) -> dict[str, Any]:
    # Panels of a narrow screen in the order of `names`; their axes are numbered by the alphabet.
    found = one_below_the_other(len(names), 230)
    ups = [found[f"yaxis{axis_key(at)}"] for at in range(len(names))]
    return found | {f"yaxis{axis_key(k)}": ups[names.index(name)] for k, name in enumerate(sorted(names))}


def contour(series: Series, found: Importances) -> Figure | None:
    """Optuna's contour of the metric over the two most important parameters."""
    from optuna.visualization import plot_contour

    study = _copied(series, found.resource, most=SURFACE)
    values: dict[str, set[Any]] = {}
    for trial in study.trials:
        for name, value in trial.params.items():
            values.setdefault(name, set()).add(value)
    names = [escape(name) for name in found.shares if len(values.get(escape(name), ())) > 1][:2]
    if not found.enough or len(names) < 2 or sum(set(names) <= set(trial.params) for trial in study.trials) < 10:
        return None
    places = scale((trial.value for trial in study.trials), maximize=series.maximize)
    plot = plot_contour(study, params=names, target=lambda trial: places.place(trial.values[0]), target_name="value")
    data, drawn = _plain(plot)
    for drawing in data:
        if drawing["type"] == "contour":
            colors = places.colors(series.metric, maximize=series.maximize)
            drawing |= colors | {"reversescale": False, "line": {"width": 0.5, "color": "#ffffff", "smoothing": 1.3}}
        else:
            drawing["marker"] = {"color": INK, "size": 5, "line": {"width": 1, "color": "#ffffff"}}
    caption = (
        f"The two parameters that matter most, and {text(series.metric)} at resource {found.resource:,}: {DARKER} is "
        "better. The surface joins the results, which are the dots; far from them it says nothing."
    )
    below = {"orientation": "h", "y": -0.22, "yanchor": "top", "title": {"side": "bottom"}}
    narrow = {"layout": {"height": 540}, "traces": {0: {"colorbar": below}}}
    sides = [axis(f"<b>{drawn[side]['title']['text']}</b>", **_side(drawn[side])) for side in ("xaxis", "yaxis")]
    shape = layout(500, xaxis=sides[0], yaxis=sides[1])
    return Figure("contour", "Two parameters together", caption, data, shape, narrow=narrow)


def _side(known: dict[str, Any]) -> dict[str, Any]:
    kept: dict[str, Any] = {
        key: known[key] for key in ("range", "type", "categoryarray", "categoryorder") if key in known
    }
    if choices := known.get("categoryarray"):
        words = [choice[1:-1] if choice[:1] == choice[-1:] == "'" else choice for choice in choices]
        kept |= {"tickvals": choices, "ticktext": words if len(set(words)) == len(words) else choices}
    return kept


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
