"""How fast the gangs of a simulated study train."""

from __future__ import annotations

from collections.abc import Callable

from hpo_core.model.trial import Job
from hpo_core.spec import StudySpec
from hpo_core.study.gang_sizes import step_model

LINEAR = (
    "Gangs train as many times as fast as they have ranks, for nothing says how fast they are: give scaling.speedups "
    "or scaling.model.",
)


def gang_speedup(spec: StudySpec) -> Callable[[Job], float] | None:
    """How many times as fast as one rank a job trains, by the study's ``scaling``; None: nothing is said there."""
    gains = {1: 1.0, **spec.scaling.speedups}
    if spec.scaling.speedups:
        return lambda job: gains[job.demand.slots]
    model = step_model(spec.scaling, {})
    if model is None:
        return None
    alone = model.step(1).total
    return lambda job: alone / model.step(job.demand.slots).total


def taken_as_linear(spec: StudySpec) -> bool:
    """Whether gangs are taken to be as fast as can be."""
    return spec.training.gang != 1 and gang_speedup(spec) is None
