"""``scaling``: how fast gangs train, and how large they may become (``training: {gang: auto}``)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from hpo_core.model.settings import Part

if TYPE_CHECKING:
    from hpo_core.spec.study_spec import StudySpec

MOST = 1024


class ScalingSpec(Part):
    """How many slots a trial may grow to.

    Without ``speedups`` they follow from times that the study itself measures.
    """

    efficiency: float = Field(
        default=0.75,
        gt=0,
        le=1,
        description="A gang of g ranks trains at least efficiency * g times as fast as one; larger ones are not used.",
    )
    most: int | None = Field(
        default=None, ge=2, le=MOST, description="Slots that one trial may have at most; null: as many as are worth it."
    )
    speedups: dict[int, float] = Field(
        default_factory=dict,
        description="How many times as fast as one rank, by ranks: {2: 1.9, 4: 3.4}. Other sizes are not used.",
    )


def check_scaling(spec: StudySpec) -> None:
    """Refuse what could never grow, or would have no effect.

    Raises:
        ValueError: setting, value, rule and cure.
    """
    scaling = spec.scaling
    if spec.training.gang != "auto":
        if scaling != ScalingSpec():
            raise ValueError(
                f"scaling, and training.gang = {spec.training.gang}: the size of gangs is fixed, so scaling has no "
                "effect; set training.gang to auto, or drop scaling"
            )
        return
    for ranks, speedup in sorted(scaling.speedups.items()):
        if not 2 <= ranks <= (scaling.most or MOST):
            raise ValueError(
                f"scaling.speedups names {ranks} ranks; sizes must be from 2 to {scaling.most or MOST}"
                f"{' (scaling.most)' if scaling.most else ''}; drop it"
            )
        if not 0 < speedup <= ranks:
            raise ValueError(
                f"scaling.speedups[{ranks}] = {speedup} must be above 0 and at most {ranks}: so many times as fast as "
                "one rank"
            )
    if scaling.speedups and all(gain < scaling.efficiency * ranks for ranks, gain in scaling.speedups.items()):
        raise ValueError(
            f"scaling.speedups: no size reaches scaling.efficiency = {scaling.efficiency}, so no trial could ever "
            "grow; lower efficiency, or set training.gang to 1"
        )
