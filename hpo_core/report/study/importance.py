"""Which parameters matter, by Optuna's PED-ANOVA over results at one resource."""

from __future__ import annotations

import contextlib
import importlib
import math
import warnings
from dataclasses import dataclass
from inspect import signature
from typing import TYPE_CHECKING

from hpo_core.model.space.optuna_view import distributions, seen
from hpo_core.report.series import Series
from hpo_core.report.style import Figure, axis, layout, text

if TYPE_CHECKING:
    import optuna

ENOUGH = 20
"""Results a rung needs before a share of importance says anything."""


@dataclass(frozen=True, slots=True)
class Importances:
    """Shares that sum to one, largest first, and where they come from."""

    shares: dict[str, float]
    resource: int
    """Results at this resource were compared: the lowest rung with enough of them."""
    results: int
    enough: bool
    """False: too few results, the shares are all equal and only the order of the space."""


def prepare() -> None:
    """Import what importances need, which takes seconds and else happens when they are wanted."""
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
    if level is None:
        most = counts.index(max(counts))
        return Importances(dict.fromkeys(names, 1 / len(names)), series.levels[most], counts[most], False)
    resource = series.levels[level]
    shares = _ped_anova(series, resource)
    if shares is None:
        return Importances(dict.fromkeys(names, 1 / len(names)), resource, counts[level], False)
    ordered = sorted(names, key=lambda name: -shares.get(name, 0.0))
    return Importances({name: shares.get(name, 0.0) for name in ordered}, resource, counts[level], True)


def _ped_anova(series: Series, resource: int) -> dict[str, float] | None:
    import optuna

    ranges = series.study.spec.search_space()
    space = distributions(ranges, ranges.parameters)
    pairs = [(t, r.loss) for t in series.trials for r in t.results if r.resource == resource]
    finite = [loss for _, loss in pairs if loss is not None]
    if len(set(finite)) < 2:
        return None
    worst = max(finite)
    trials = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for trial, loss in pairs:
            own = {name: value for name, value in trial.params.items() if name in space}
            try:
                trials.append(
                    optuna.trial.create_trial(
                        params=seen(ranges, own),
                        distributions={name: space[name] for name in own},
                        value=worst if loss is None else loss,
                    )
                )
            except (ValueError, TypeError, KeyError):
                continue  # a value from elsewhere that the space cannot hold
        verbosity = optuna.logging.get_verbosity()
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        try:
            study = optuna.create_study()
            study.add_trials(trials)
            # Optuna asks for at least five trials in the top share.
            share = min(0.5, max(0.1, 5 / len(trials))) if trials else 0.1
            evaluator = _evaluator_of_best(share)
            found = optuna.importance.get_param_importances(study, evaluator=evaluator)
        except (ValueError, RuntimeError):
            return None
        finally:
            optuna.logging.set_verbosity(verbosity)
    if not found or not all(math.isfinite(value) for value in found.values()):
        return None
    return dict(found)


def importance_bars(found: Importances) -> Figure | None:
    """A bar per parameter."""
    if not found.enough:
        return None
    names = list(found.shares)[:20]
    shares = [found.shares[name] for name in names]
    data = [
        {
            "type": "bar",
            "orientation": "h",
            "y": list(range(len(names))),
            "x": [round(share, 4) for share in shares],
            "text": [f"{100 * share:.0f}%" if share >= 0.005 else "&lt; 1%" for share in shares],
            "textposition": "outside",
            "cliponaxis": False,
            "marker": {"color": "#1c6dd0"},
            "hoverinfo": "none",
            "width": 0.7,
        }
    ]
    caption = (
        f"How much each parameter decides who comes out best (PED-ANOVA), computed from the {found.results:,} "
        f"results at resource {found.resource:,} alone, because results at different resources do not compare."
    )
    shape = layout(
        90 + 32 * len(names),
        xaxis=axis("share of importance", tickformat=".0%", range=[0, max(shares) * 1.12]),
        yaxis=axis(
            "",
            range=[len(names) - 0.4, -0.6],
            tickvals=list(range(len(names))),
            showgrid=False,
            ticks="",
            ticktext=[text(name, 24) + "  " for name in names],
        ),
    )
    return Figure("importances", "Which parameters matter", caption, data, shape, zoom=False)


def _evaluator_of_best(share: float) -> optuna.importance.PedAnovaImportanceEvaluator:
    """The evaluator of what matters among the best ``share`` of the trials.

    Optuna 4 calls the share ``baseline_quantile``.
    """
    import optuna

    evaluator = optuna.importance.PedAnovaImportanceEvaluator
    name = "target_quantile" if "target_quantile" in signature(evaluator).parameters else "baseline_quantile"
    return evaluator(**{name: share})  # type: ignore[arg-type]
