"""Studies as they stand side by side: each with its figures, repeats of one search over several seeds together."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hpo_core.errors import SpecError
from hpo_core.events import Entry, JobCompleted
from hpo_core.report.series import Series, read_series
from hpo_core.report.spread import Track
from hpo_core.state import StudyState

_REPEAT = re.compile(r"[-_.](?:seed|run|repeat|rep|s|r)?[-_.]?\d+$")


@dataclass(frozen=True, slots=True)
class Contender:
    """One study of a comparison."""

    series: Series
    by_resource: Track
    """Incumbent over the units of training used in all."""
    by_time: Track
    """Incumbent over active seconds."""

    @property
    def name(self) -> str:
        return self.series.study.name

    @property
    def best(self) -> float | None:
        """The best value of the metric."""
        best = self.series.study.best
        return None if best is None else self.series.study.metric_value(best.loss)

    @property
    def resource(self) -> int:
        """Units of training used in all."""
        return self.series.study.state.resource_used

    def facts(self) -> dict[str, Any]:
        """A row for programs."""
        series, study = self.series, self.series.study
        best = study.best
        return {
            "study": study.name,
            "method": study.spec.search.method,
            "sampler": study.spec.sampler.name,
            "seed": study.spec.seed,
            "status": study.status,
            "trials": len(study.state.trials),
            "jobs": study.state.completed_jobs,
            "best": self.best,
            "trial": None if best is None else best.trial,
            "at": None if best is None else best.resource,
            "params": None if best is None else study.state.trials[best.trial].params,
            "resource": self.resource,
            "seconds": round(series.wall, 3),
            "worker_seconds": round(series.busy, 3),
            "utilization": None if series.utilization is None else round(series.utilization, 4),
        }


@dataclass(frozen=True, slots=True)
class Group:
    """Studies that differ by seed alone (one, where nothing repeats it)."""

    name: str
    members: tuple[Contender, ...]

    def values(self) -> list[float]:
        """Best values of those that have one, in the order of the members."""
        return [member.best for member in self.members if member.best is not None]


def read_contender(entries: Sequence[Entry]) -> Contender:
    """Fold a study's entries.

    Raises:
        JournalError: the entries do not begin with the creation of a study, or have a gap.
    """
    series = read_series(entries)
    sign = series.study.spec.metric.sign
    state, steps, best = StudyState(), [], None
    for entry in entries:
        for event in entry.events:
            state.apply(event)
            if isinstance(event, JobCompleted) and state.incumbent is not None and state.incumbent.loss != best:
                best = state.incumbent.loss
                steps.append((float(state.resource_used), best))
    in_time = [(time, value * sign) for time, value, _ in series.steps]
    return Contender(series, (steps, float(state.resource_used)), (in_time, series.wall))


def grouped(contenders: Sequence[Contender]) -> list[Group]:
    """Repeats together: names that are equal up to a number at their end, and equal settings up to the seed.

    Raises:
        SpecError: the studies optimize different metrics.
    """
    first = contenders[0].series.study
    for other in contenders[1:]:
        if other.series.study.spec.metric != first.spec.metric:
            one, two = first.spec.metric, other.series.study.spec.metric
            raise SpecError(
                f"Study {first.name!r} optimizes {one.name} ({one.mode}), study {other.name!r} {two.name} "
                f"({two.mode}): they do not compare. Compare studies of one metric and mode."
            )
    found: dict[tuple[str, str], list[Contender]] = {}
    for contender in contenders:
        spec = contender.series.study.spec
        plain = spec.plain()
        settings = repr([plain[part] for part in ("objective", "metrics", "space", "search", "sampler", "stop")])
        found.setdefault((stem_of(contender.name), settings), []).append(contender)
    stems = [stem for stem, _ in found]
    return [
        Group(stem if len(members) > 1 and stems.count(stem) == 1 else members[0].name, tuple(members))
        for (stem, _), members in found.items()
    ]


def stem_of(name: str) -> str:
    """A study's name without the number of its repeat.

    >>> stem_of("asha-seed3"), stem_of("digits-2"), stem_of("pbt"), stem_of("7")
    ('asha', 'digits', 'pbt', '7')
    """
    return _REPEAT.sub("", name) or name
