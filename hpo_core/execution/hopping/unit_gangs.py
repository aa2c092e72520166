"""How many ranks the units of a study may have, by its settings (``training: {gang: auto}`` and ``data``)."""

from __future__ import annotations

from hpo_core.hopper.gang_limit import GangLimit
from hpo_core.hopper.unit_times import UnitTimes
from hpo_core.placement.scaling.speedups import speedups
from hpo_core.spec import StudySpec
from hpo_core.spec.slots.scaling import MOST
from hpo_core.study.gang_sizes import step_model


def gang_limit_of(spec: StudySpec, times: UnitTimes) -> GangLimit:
    """With the speed-ups that ``scaling`` gives or models; else they are measured."""
    scaling = spec.scaling
    gains = dict(scaling.speedups)
    if not gains and (model := step_model(scaling, {})) is not None:
        gains = speedups(model, range(1, (scaling.most or MOST) + 1))
    return GangLimit(times, efficiency=scaling.efficiency, most=scaling.most, gains=gains)
