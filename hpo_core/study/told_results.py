"""Results as a loop by hand tells them: metrics that become a report."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import msgspec

from hpo_core.model.errors import ObjectiveError
from hpo_core.model.seed_repeats import mean_metrics
from hpo_core.model.trial import Job, Metrics, Outcome, Report
from hpo_core.spec import StudySpec


def told_report(spec: StudySpec, job: Job, told: Mapping[str, float] | Sequence[Mapping[str, float]]) -> Report:
    """The report of a job from its metrics, or from those of each seed repeat.

    Raises:
        ObjectiveError: a metric or constraint is absent or no number; more or fewer repeats than the study has.
    """
    if isinstance(told, Mapping):
        single = [told]
    else:
        single = list(told)
        if len(single) != spec.repeats:
            raise ObjectiveError(
                f"Study {spec.study!r}, trial {job.trial}: tell got the metrics of {len(single)} repeats, and the "
                f"study has repeats: {spec.repeats}. Give a mapping for each of them, or their means as one mapping."
            )
    values = [_numbers(spec, job, metrics) for metrics in single]
    metrics = values[0] if len(values) == 1 else mean_metrics(values)
    judged = (*(metric.name for metric in spec.objectives), *spec.constraints)
    finite = all(math.isfinite(metrics.get(name, 0.0)) for name in judged)
    return Report(
        trial=job.trial,
        attempt=job.attempt,
        outcome=Outcome.COMPLETED if finite else Outcome.DIVERGED,
        metrics=metrics,
        repeats=tuple(values) if len(values) > 1 else msgspec.UNSET,
    )


def _numbers(spec: StudySpec, job: Job, metrics: Mapping[str, float]) -> Metrics:
    objectives = [metric.name for metric in spec.objectives]
    bad = [name for name in objectives if name not in metrics]
    if spec.any_metric and len(bad) < len(objectives):
        bad = []
    bad += [name for name in spec.constraints if name not in metrics]
    bad += [k for k, item in metrics.items() if isinstance(item, bool | str) or not hasattr(item, "__float__")]
    if bad:
        what = "constraint" if bad[0] in spec.constraints else "metric"
        raise ObjectiveError(
            f"Study {spec.study!r}, trial {job.trial}: {what} {bad[0]!r} is {metrics.get(bad[0])!r} in "
            f"{dict(metrics)!r}; tell needs it as a number. Report it, or name another one in the study."
        )
    return {name: float(item) for name, item in metrics.items()}
