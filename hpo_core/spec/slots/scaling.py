"""``scaling``: how fast gangs train, and how large they may become (``training: {gang: auto}``)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import Field

from hpo_core.model.settings import Part

if TYPE_CHECKING:
    from hpo_core.spec.study_spec import StudySpec

MOST = 1024


class StepSpec(Part):
    """What one training step costs, for a model of it."""

    seconds: float = Field(ge=1e-9, le=1e9, description="Of a step on one slot, at the global batch size.")
    gradient_mb: float = Field(
        ge=1e-6, le=1e9, description="Megabytes (10^6 bytes) of all gradients: 4 for a million parameters."
    )
    network_gbps: float = Field(
        ge=1e-6, le=1e6, description="Gigabits a second between the slots that software reaches."
    )


class ScalingSpec(Part):
    """How many slots a trial may grow to.

    Without ``speedups`` they follow from times that the study itself measures; with ``model`` these correct the model.
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
    model: StepSpec | None = Field(
        default=None, description="Figures of a training step, where speedups are not known."
    )
    all_reduce: Literal["butterfly", "tree", "ring"] = Field(
        default="butterfly",
        description="How ranks sum gradients: log2(g) rounds, twice as many, or 2 (g - 1) / g (NCCL, gloo). Says how "
        "communication grows with g.",
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
    if scaling.speedups and scaling.model is not None:
        raise ValueError("scaling.speedups, and scaling.model: the speed-ups are given already; drop one of the two")
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
