"""What jobs of one key needed, merged from their measurements; and what ratios attempts showed to be good."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from hpo_core.model.devices.measurement import Measurement, is_cpu
from hpo_core.placement.estimates import Estimates
from hpo_core.placement.learned_ratio import RatioSeen
from hpo_core.study import Study


class MeasuredNeed(msgspec.Struct, frozen=True, kw_only=True):
    """One key on one architecture: the largest memory, the means of the rest."""

    objective: str
    code: str
    """Digest of the objective's source."""
    architecture: str
    params: dict[str, Any]
    memory: int | None
    """Bytes that its device shares out: a GPU's memory, or the computer's; None: not measured."""
    compute: float | None
    """Share of a GPU's time, 0 to 1."""
    cores: float
    unit_seconds: float
    startup_seconds: float
    measurements: int
    """Attempts that ended well enough to count."""
    out_of_memory: int | None
    """The most bytes that were not enough; None: it never ran out."""
    study: str
    """The last one that measured it."""
    measured_at: float


def measured_needs(found: Iterable[Measurement]) -> list[MeasuredNeed]:
    """Needs of each objective, source, architecture and key; the source that was measured last comes first."""
    groups: dict[tuple[str, str, str, str], list[Measurement]] = {}
    for one in found:
        groups.setdefault((one.objective, one.code, one.architecture, one.key), []).append(one)
    needs = [_merged(group) for group in groups.values()]
    last: dict[tuple[str, str], float] = {}
    for need in needs:
        source = need.objective, need.code
        last[source] = max(last.get(source, 0.0), need.measured_at)

    def order(need: MeasuredNeed) -> tuple[Any, ...]:
        source = need.objective, need.code
        return need.objective, -last[source], need.code, need.architecture, -(need.memory or 0), repr(need.params)

    return sorted(needs, key=order)


def _merged(group: list[Measurement]) -> MeasuredNeed:
    newest = max(group, key=lambda one: one.measured_at)
    counted = [one for one in group if not one.out_of_memory]
    shares = [one.compute for one in counted if one.compute is not None]
    peak = max((one.memory if is_cpu(one.architecture) else one.device_memory or 0 for one in group), default=0)

    def mean(values: list[float]) -> float:
        return math.fsum(values) / max(len(values), 1)

    return MeasuredNeed(
        objective=newest.objective,
        code=newest.code,
        architecture=newest.architecture,
        params=newest.params,
        memory=peak or None,
        compute=mean(shares) if shares else None,
        cores=mean([one.cores for one in counted]),
        unit_seconds=mean([one.unit_seconds for one in counted]),
        startup_seconds=mean([one.startup_seconds for one in counted]),
        measurements=len(counted),
        out_of_memory=max(one.out_of_memory for one in group) or None,
        study=newest.study,
        measured_at=newest.measured_at,
    )


def learned_of(study: Study) -> Estimates:
    """What the attempts of a packed study say; that of earlier studies is in the history."""
    spec, state = study.spec, study.state
    estimates = Estimates(objective="", code="", study=spec.study, by=spec.deciding)
    params = [{**spec.constants, **trial.params} for trial in state.trials]
    for trial in state.trials:
        for result in trial.all_results:
            if result.usage and result.usage.load is not None:
                estimates.learn(params[trial.number], result.usage, at=result.ended)
    return estimates


def measured_ratios(study: Study) -> dict[str, list[RatioSeen]]:
    """Known ratios of each architecture for which the study states none, by rising ratio."""
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
