"""How much work jobs did at once at each oversubscription ratio, as the attempts of a study say."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from hpo_core.placement.demands import Estimates, deciding_parameters
from hpo_core.placement.demands.learned_ratio import RatioSeen
from hpo_core.study import Study
from hpo_core.views.usage_words import usage_of


def learned_of(study: Study) -> Estimates:
    """What the attempts of a packed study say; that of earlier studies is in the history."""
    spec, state = study.spec, study.state
    by = deciding_parameters(spec.search_space(), spec.constants, None if spec.packing is None else spec.packing.by)
    estimates = Estimates(objective="", code="", study=spec.study, by=by)
    params = [{**spec.constants, **trial.params} for trial in state.trials]
    for trial in state.trials:
        for result in trial.all_results:
            usage = usage_of(result)
            if usage is not None and usage.alone is not None:
                beside = [(params[number], permille) for number, permille in usage.beside]
                estimates.learn(params[trial.number], usage, at=result.ended, beside=beside)
    return estimates


def measured_ratios(study: Study) -> dict[str, list[RatioSeen]]:
    """By architecture, where the study states no ratio for it: what is known of each, by rising ratio."""
    packing = study.spec.packing
    if packing is None:
        return {}
    learned = learned_of(study).ratios
    names = [name for name in learned.ratios() if packing.finds_ratio(name)]
    return {name: seen for name in names if (seen := learned.seen(name))}


def measured_ratio_lines(found: Mapping[str, Iterable[RatioSeen]]) -> list[str]:
    """An architecture a line.

    >>> measured_ratio_lines({"A100": [RatioSeen(ratio=1.0, load=0.9, work=0.9, attempts=12),
    ...     RatioSeen(ratio=1.5, load=1.4, work=1.25, attempts=9)]})
    ['oversubscription measured on A100: work at once 0.90 at ratio 1 (12 attempts), 1.25 at 1.5 (9)']
    """
    lines = []
    for name, seen in found.items():
        first, *rest = [f"{one.work:.2f} at ratio {one.ratio:g} ({one.attempts} attempts)" for one in seen]
        rest = [text.replace("ratio ", "").replace(" attempts", "") for text in rest]
        lines.append(f"oversubscription measured on {name}: work at once {', '.join([first, *rest])}")
    return lines
