"""What jobs of one key needed, merged from their measurements; and the ratios that were found."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from hpo_core.model.devices.measurement import Measurement, found_ratios, is_cpu, key_of
from hpo_core.placement.demands import Estimates, deciding_parameters
from hpo_core.placement.demands.learned_ratio import RatioSeen
from hpo_core.placement.demands.pair_speeds import KeptApart, PairSpeeds
from hpo_core.study import Study
from hpo_core.views.trial_story import usage_of


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


class FoundRatio(msgspec.Struct, frozen=True, kw_only=True):
    """The oversubscription ratio that ``hpo tune-packing`` found last for one objective on one architecture."""

    objective: str
    code: str
    architecture: str
    oversubscribe: float
    speedup: float
    """Units per second over those at ratio 1."""
    study: str
    measured_at: float


def ratios_found(found: Iterable[Measurement]) -> list[FoundRatio]:
    """Latest ratio of each objective, source and architecture."""
    sources: dict[tuple[str, str], list[Measurement]] = {}
    for one in found:
        sources.setdefault((one.objective, one.code), []).append(one)
    newest = [one for _, group in sorted(sources.items()) for _, one in sorted(found_ratios(group).items())]
    names = FoundRatio.__struct_fields__
    return [FoundRatio(**{name: getattr(one, name) for name in names}) for one in newest]


def measured_needs(found: Iterable[Measurement]) -> list[MeasuredNeed]:
    """Needs of each objective, source, architecture and key; the source that was measured last comes first."""
    groups: dict[tuple[str, str, str, str], list[Measurement]] = {}
    for one in (one for one in found if not one.oversubscribe):
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


class FoundApart(msgspec.Struct, frozen=True, kw_only=True):
    """Two kinds of one objective that later studies keep apart."""

    objective: str
    code: str
    """Digest of the objective's source."""
    kept_apart: KeptApart


def found_apart(found: Iterable[Measurement]) -> list[FoundApart]:
    """What measurements say, by objective and source."""
    pairs: dict[tuple[str, str], PairSpeeds] = {}
    for one in found:
        of_source = pairs.setdefault((one.objective, one.code), PairSpeeds())
        of_source.add(one.architecture, key_of(one.params), one, one.beside)
    return [
        FoundApart(objective=objective, code=code, kept_apart=one)
        for (objective, code), of_source in sorted(pairs.items())
        for one in of_source.kept_apart()
    ]


def kept_apart_in(study: Study) -> list[KeptApart]:
    """What the attempts of a packed study say; those of earlier studies are in the history."""
    packing = study.spec.packing
    return learned_of(study).pairs.kept_apart() if packing is not None and packing.learn_pairs else []


def kept_apart_words(pair: KeptApart) -> str:
    """A pair in a line.

    >>> kept_apart_words(KeptApart(architecture="A100", one='{"width":1}', other='{"width":8}', one_speed=0.5,
    ...     other_speed=0.4, attempts=12.0))
    'kept apart on A100: width=1 and width=8, together 0.90 times as fast as one alone (0.50 + 0.40, 12 attempts)'
    """
    both = f"two of {_kind(pair.one)}" if pair.one == pair.other else f"{_kind(pair.one)} and {_kind(pair.other)}"
    return (
        f"kept apart on {pair.architecture}: {both}, together {pair.together:.2f} times as fast as one alone "
        f"({pair.one_speed:.2f} + {pair.other_speed:.2f}, {pair.attempts:.0f} attempts)"
    )


def kept_apart_lines(pairs: Iterable[KeptApart], most: int = 8) -> list[str]:
    """The pairs that gain least, one a line, and how many more there are."""
    lines = [kept_apart_words(one) for one in pairs]
    return [*lines[:most], *([f"and {len(lines) - most:,} more pairs kept apart"] if len(lines) > most else [])]


def _kind(key: str) -> str:
    try:
        values = msgspec.json.decode(key)
    except msgspec.DecodeError:  # a digest
        return key[:15]
    return " ".join(f"{name}={value}" for name, value in values.items()) or "any job"
