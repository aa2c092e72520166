"""What jobs of one key needed, merged from their measurements; and the ratios that were found."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import msgspec

from hpo_core.model.devices.measurement import Measurement, found_ratios, is_cpu


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
    """By objective, source and architecture."""
    sources: dict[tuple[str, str], list[Measurement]] = {}
    for one in found:
        sources.setdefault((one.objective, one.code), []).append(one)
    newest = [one for _, group in sorted(sources.items()) for _, one in sorted(found_ratios(group).items())]
    names = FoundRatio.__struct_fields__
    return [FoundRatio(**{name: getattr(one, name) for name in names}) for one in newest]


def measured_needs(found: Iterable[Measurement]) -> list[MeasuredNeed]:
    """By objective, source, architecture and key; of one objective the source that was measured last comes first."""
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
