"""How fast the gangs of a simulated study train."""

from __future__ import annotations

from collections.abc import Callable

from hpo_core.spec import StudySpec
from hpo_core.study.gang_sizes import step_model

LINEAR = (
    "Gangs train as many times as fast as they have ranks, for nothing says how fast they are: give scaling.speedups "
    "or scaling.model.",
)


def gang_speedup(spec: StudySpec) -> Callable[[int], float]:
    """How many times as fast as one rank a gang trains, by its ranks: what ``scaling`` says, else as many times."""
    if spec.scaling.speedups:
        gains = {1: 1.0, **spec.scaling.speedups}
        return lambda ranks: max(gain for size, gain in gains.items() if size <= ranks)  # a rerun may have other sizes
    model = step_model(spec.scaling, {})
    if model is None:
        return float
    alone = model.step(1).total
    return lambda ranks: alone / model.step(ranks).total


def taken_as_linear(spec: StudySpec) -> bool:
    """Whether gangs are taken to be as fast as can be."""
    return spec.gangs and not spec.scaling.speedups and spec.scaling.model is None
