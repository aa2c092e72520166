"""The studies of a comparison; repeats over several seeds form a group."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from hpo_core.model.errors import SpecError
from hpo_core.model.events import Entry
from hpo_core.report.median_band import Track
from hpo_core.report.series import Series, read_series

_REPEAT = re.compile(r"[-_.](?:seed|run|repeat|rep|s|r)?[-_.]?\d+$")
_DATED = re.compile(r"-\d{8}-\d{6}(?:-[0-9a-f]{4})?$")
"""What an unnamed flow run puts behind a study's name, and `make demo`."""
_ASIDE = ("study", "seed", "tracking", "prefect")
"""Parts of a study that say what it is called and where it is shown: all others must be equal in repeats."""


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


def read_contender(entries: Iterable[Entry]) -> Contender:
    """Replay a study, in one pass over its entries.

    Raises:
        JournalError: the entries do not begin with the creation of a study, or have a gap.
    """
    series = read_series(entries)
    by_resource = [(float(step.resource), step.loss) for step in series.steps]
    by_time = [(step.time, step.loss) for step in series.steps]
    return Contender(series, (by_resource, float(series.study.state.resource_used)), (by_time, series.wall))


def grouped(contenders: Sequence[Contender]) -> list[Group]:
    """Repeats together: names that are equal up to a number or date at their end, equal settings, different seeds.

    Of studies with one seed, each is in another group: they show no spread over seeds.

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
    groups: list[tuple[str, str, list[Contender]]] = []
    for contender in contenders:
        stem, settings = stem_of(contender.name), _settings(contender)
        for other_stem, other_settings, members in groups:
            if (stem, settings) == (other_stem, other_settings) and _seed(contender) not in map(_seed, members):
                members.append(contender)
                break
        else:
            groups.append((stem, settings, [contender]))
    stems = [stem for stem, _, _ in groups]
    return [
        Group(stem if len(members) > 1 and stems.count(stem) == 1 else members[0].name, tuple(members))
        for stem, _, members in groups
    ]


def stem_of(name: str) -> str:
    """A study's name without the number of its repeat, and without date and time.

    >>> stem_of("asha-seed3"), stem_of("digits-2"), stem_of("pbt"), stem_of("7")
    ('asha', 'digits', 'pbt', '7')
    >>> stem_of("retrain-20261121-140102-ab12"), stem_of("digits-2-20261121-140102")
    ('retrain', 'digits')
    """
    plain = _DATED.sub("", name)
    return _REPEAT.sub("", plain) or plain


def _seed(contender: Contender) -> int:
    return contender.series.study.spec.seed


def _settings(contender: Contender) -> str:
    plain = {key: value for key, value in contender.series.study.spec.plain().items() if key not in _ASIDE}
    if plain["warm_start"] is not None:
        plain["warm_start"].pop("past")  # drawn from the study's own seed
    return repr(plain)
