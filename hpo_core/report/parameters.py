"""Parameters and results at one resource, on one copy of them as an Optuna study: four figures."""

from __future__ import annotations

import contextlib
import json
import math
import warnings
from dataclasses import dataclass
from html import escape
from inspect import signature
from typing import TYPE_CHECKING, Any

from hpo_core.model.space import ListedParameter, NumberParameter, Parameter
from hpo_core.report.style import (
    BEST,
    BLUE,
    DARKER,
    INK,
    LOG,
    WORST_TO_BEST,
    Figure,
    Trace,
    layout,
    scale,
    text,
)
from hpo_core.views.series import Series

if TYPE_CHECKING:
    import optuna
    import plotly.graph_objects as go

ENOUGH = 20
"""Results a rung needs before a share of importance says anything."""
COPIED = 1_000
"""Results of the copy; of more, every so many-th."""
SLICES, AXES = 5, 12
"""Parameters drawn one at a time, and along parallel axes."""
SURFACE = 150
"""Results that the surface over two parameters passes through; of more, every so many-th."""


@dataclass(frozen=True, slots=True)
class Importances:
    """Shares of importance that sum to one, largest first, and the results that were compared."""

    shares: dict[str, float]
    """By name as the copy has it: escaped, for Optuna's figures write names as HTML."""
    evaluator: optuna.importance.BaseImportanceEvaluator | None
    """None: too few results; the shares are all equal and only the order of the space."""
    resource: int
    """The lowest rung with enough results."""
    study: optuna.Study
    """The results there; a training that diverged counts as the worst of them."""

    @property
    def results(self) -> int:
        return len(self.study.trials)


def importances(series: Series) -> Importances | None:
    """Importances from the lowest rung with enough results; None before the first finite result.

    The lowest rung holds every configuration; the ones above hold the survivors of a selection, in which the
    parameters that decided it hardly vary any more.
    """
    counts = [
        sum(any(r.resource == resource for r in trial.results) for trial in series.trials) for resource in series.levels
    ]
    if not series.bests:
        return None
    level = next((k for k, count in enumerate(counts) if count >= ENOUGH), counts.index(max(counts)))
    study = _copied(series, series.levels[level])
    names = [escape(name) for name in series.study.spec.search_space().parameters]
    shares, evaluator = _ped_anova(study) if counts[level] >= ENOUGH else ({}, None)
    shares = shares or dict.fromkeys(names, 1 / len(names))
    ordered = sorted(names, key=lambda name: -shares.get(name, 0.0))
    return Importances({name: shares.get(name, 0.0) for name in ordered}, evaluator, series.levels[level], study)


def _ped_anova(study: optuna.Study) -> tuple[dict[str, float], optuna.importance.BaseImportanceEvaluator | None]:
    # What matters among the best tenth of the trials; Optuna asks for five at least.
    import optuna

    kind = optuna.importance.PedAnovaImportanceEvaluator
    name = "target_quantile" if "target_quantile" in signature(kind).parameters else "baseline_quantile"  # 4
    share: dict[str, Any] = {name: min(0.5, max(0.1, 5 / len(study.trials)))}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            evaluator = kind(**share)
            found = optuna.importance.get_param_importances(study, evaluator=evaluator)
    except (ValueError, RuntimeError):
        return {}, None
    known = len({trial.value for trial in study.trials}) > 1 and all(map(math.isfinite, found.values()))
    return (dict(found), evaluator) if known else ({}, None)


def _copied(series: Series, resource: int) -> optuna.Study:
    import optuna

    pairs = [(trial, result.loss) for trial in series.trials for result in trial.results if result.resource == resource]
    values = [series.study.metric_value(loss) for _, loss in pairs if loss is not None]
    worst = min(values, default=0.0) if series.maximize else max(values, default=0.0)
    space = series.study.spec.search_space().parameters
    ranges = {name: _range(space[name], [t.params[name] for t, _ in pairs if name in t.params]) for name in space}
    trials = []
    for trial, loss in pairs[:: -(-len(pairs) // COPIED) or 1]:
        own = {name: _safe(value) for name, value in trial.params.items() if ranges.get(name) is not None}
        facts: dict[str, Any] = {
            "params": {escape(name): value for name, value in own.items()},
            "distributions": {escape(name): ranges[name] for name in own},
            "user_attrs": {"trial": trial.number},
        }
        with contextlib.suppress(ValueError, TypeError, KeyError):  # a value that the space cannot hold
            value = worst if loss is None else series.study.metric_value(loss)
            trials.append(optuna.trial.create_trial(value=value, **facts))
    return _study(trials, maximize=series.maximize)


def _study(trials: list[optuna.trial.FrozenTrial], *, maximize: bool) -> optuna.Study:
    import optuna

    verbosity = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        study = optuna.create_study(direction="maximize" if maximize else "minimize")
    finally:
        optuna.logging.set_verbosity(verbosity)
    study.add_trials(trials)
    return study


def _safe(value: Any) -> Any:
    return value if value is None or isinstance(value, int | float) else escape(str(value))


def _range(parameter: Parameter, values: list[Any]) -> optuna.distributions.BaseDistribution | None:
    # One range for all trials, also where that of a trial depends on its other parameters: Optuna compares ranges.
    import optuna

    if isinstance(parameter, ListedParameter):
        return optuna.distributions.CategoricalDistribution([_safe(choice) for choice in parameter.listed()])
    assert isinstance(parameter, NumberParameter)
    if not values:
        return None
    low, high = min(values), max(values)
    return optuna.distributions.FloatDistribution(low, high, log=parameter.log and low > 0)


def parameter_figures(series: Series) -> list[Figure | None]:
    """All figures of parameters; of a population that has changed since, nothing compares."""
    found = importances(series)
    if found is None:
        return []
    if series.lineage is not None:
        return [importance_bars(found)] if found.resource == series.levels[0] else []
    others = [build(series, found) for build in (parameter_panels, contour, parallel_coordinates)]
    return [importance_bars(found), *others]


def importance_bars(found: Importances) -> Figure | None:
    """Optuna's bar per parameter."""
    from optuna.visualization import plot_param_importances

    if found.evaluator is None:
        return None
    names = list(found.shares)[:20]
    plot = plot_param_importances(found.study, evaluator=found.evaluator, params=names)
    plot.update_traces(marker_color=BLUE, hoverinfo="none", hovertemplate=None)
    plot.update_xaxes(title_text="share of importance")
    plot.update_yaxes(title_text="", ticks="", ticksuffix="  ")
    caption = (
        f"How much each parameter decides who comes out best (PED-ANOVA), computed from the {found.results:,} "
        f"results at resource {found.resource:,} alone, because results at different resources do not compare."
    )
    shape = _styled(plot, 90 + 32 * len(names))
    return Figure("importances", "Which parameters matter", caption, *shape, zoom=False)


def parameter_panels(series: Series, found: Importances) -> Figure | None:
    """Optuna's slices: the results over each of the most important parameters."""
    from optuna.visualization import plot_slice

    trials = found.study.trials  # each access copies them
    used = {name for trial in trials for name in trial.params}
    names = [name for name in found.shares if name in used][:SLICES]
    if len(trials) < 5 or not names:
        return None
    plot = plot_slice(found.study, params=names, target_name=text(series.metric, 24))
    plot.update_xaxes(nticks=4, tickfont_size=11)
    plot.update_yaxes(scale((trial.value for trial in trials), maximize=series.maximize).axis(""))
    plot.update_yaxes(title_text=text(series.metric, 24), col=1 if len(names) > 1 else None)
    best = -1 if series.study.best is None else series.study.best.trial
    for dots in plot.data:
        numbers = [trials[at].user_attrs["trial"] for at in dots.marker.color]
        dots.text, dots.hoverinfo = [f"trial {number}" for number in numbers], "text+x+y"
        dots.marker = {
            "color": [BEST if number == best else BLUE for number in numbers],
            "size": [12 if number == best else 6 for number in numbers],
            "opacity": 0.8,
        }
    few = f" The {SLICES} parameters that matter most are drawn." if len(names) < len(used) else ""
    caption = (
        f"Each dot is a trial's value at resource {found.resource:,}, where all compare; the best trial is orange. A "
        f"training that diverged stands at the worst value.{few}"
    )
    return Figure("panels", "One parameter at a time", caption, *_styled(plot, 300), min_width=180 * len(names))


def contour(series: Series, found: Importances) -> Figure | None:
    """Optuna's contour of the metric over the two most important parameters."""
    from optuna.visualization import plot_contour

    trials = found.study.trials
    values: dict[str, set[Any]] = {}
    for trial in trials:
        for name, value in trial.params.items():
            values.setdefault(name, set()).add(value)
    names = [name for name in found.shares if len(values.get(name, ())) > 1][:2]
    both = [trial for trial in trials if set(names) <= set(trial.params)]
    if found.evaluator is None or len(names) < 2 or len(both) < 10:
        return None
    some = _study(both[:: -(-len(both) // SURFACE)], maximize=series.maximize)
    places = scale((trial.value for trial in some.trials), maximize=series.maximize)
    plot = plot_contour(
        some, params=names, target=lambda trial: places.kept(trial.values[0]), target_name=text(series.metric, 16)
    )
    look = {"reversescale": not series.maximize, "colorscale": WORST_TO_BEST}
    plot.update_traces(look, selector={"type": "contour"})
    dots = {"color": INK, "size": 5, "line": {"width": 1, "color": "#ffffff"}}
    plot.update_traces(marker=dots, selector={"type": "scatter"})
    caption = (
        f"The two parameters that matter most, and {text(series.metric)} at resource {found.resource:,}: {DARKER} is "
        "better. The surface joins the results, which are the dots; far from them it says nothing."
    )
    return Figure("contour", "Two parameters together", caption, *_styled(plot, 500))


def _styled(plot: go.Figure, height: int) -> tuple[list[Trace], dict[str, Any]]:
    plot.update_layout(layout(height), title=None, width=None, overwrite=False)
    for side in (*plot.select_xaxes(), *plot.select_yaxes()):
        side.update(LOG if side.type == "log" else {})
        if side.categoryarray is not None:  # as Python writes them
            side.update(tickvals=side.categoryarray, ticktext=[word.strip("'") for word in side.categoryarray])
    found = json.loads(plot.to_json())
    return found["data"], found["layout"]


def parallel_coordinates(series: Series, found: Importances) -> Figure | None:
    """Optuna's lines through the parameters of each result, coloured by its value."""
    from optuna.visualization import plot_parallel_coordinate

    trials = found.study.trials
    if len(trials) < 5:
        return None
    names = list(found.shares)[:AXES]
    places = scale((trial.value for trial in trials), maximize=series.maximize)
    some = _study(trials[:: -(-len(trials) // SURFACE)], maximize=series.maximize)
    plot = plot_parallel_coordinate(
        some, params=names, target=lambda trial: places.kept(trial.values[0]), target_name=text(series.metric, 15)
    )
    left_out = (
        f" {len(found.shares) - AXES} less important parameters are left out." if len(found.shares) > AXES else ""
    )
    caption = (
        f"Each line is a trial, from its value at resource {found.resource:,} to its parameters, the {DARKER} the "
        f"better.{left_out}"
    )
    wide = 110 * (1 + len(names))
    return Figure("parallel", "Parameters and results", caption, *_styled(plot, 440), min_width=wide, zoom=False)
