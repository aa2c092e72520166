"""Refuses gangs (``training.gang``) where they are not built, or could never begin."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpo_core.spec.clusters import LocalCudaClusterSpec

if TYPE_CHECKING:
    from hpo_core.spec.study_spec import StudySpec


def check_gang(spec: StudySpec) -> None:
    """Refuse what the rest of a study does not fit.

    Raises:
        ValueError: setting, value, rule and cure.
    """
    gang = spec.training.gang
    if gang == 1:
        return
    named = f"training.gang = {gang}"
    if spec.packing is not None:
        raise ValueError(
            f"{named}, and packing: a rank of a gang has a slot of its own, and shares no device; drop one of the two"
        )
    if spec.data is not None and gang != "auto":
        raise ValueError(
            f"{named}, and data: how many ranks a model that hops has follows from how many models are left; set "
            "training.gang to auto, or drop data and give each rank its part of a batch by trial.shard()"
        )
    if spec.data is not None and spec.share is not None:
        raise ValueError(
            f"{named}, data, and share: workers that several studies share run units of one rank; drop share, or set "
            "training.gang to 1"
        )
    if spec.repeats > 1:
        raise ValueError(
            f"{named}, and repeats = {spec.repeats}: a gang trains one seed; set repeats to 1, or training.gang to 1"
        )
    if spec.style == "optuna":
        raise ValueError(
            f"{named}, and style optuna: an Optuna objective knows no ranks; write it as train(trial) with "
            "trial.track() and trial.steps(), or drop training.gang"
        )
    cluster = spec.cluster
    size = cluster.size
    if isinstance(cluster, LocalCudaClusterSpec) and cluster.devices is not None:
        size = len(cluster.devices)
    least = least_slots(spec)
    if size is not None and size < least:
        setting = "cluster.devices" if isinstance(cluster, LocalCudaClusterSpec) else "cluster.workers"
        never, cure = ("grow", "set training.gang to 1") if gang == "auto" else ("begin", "lower training.gang")
        raise ValueError(
            f"{named} needs {least} slots at once, and {setting} gives {size}: no job could ever {never}; raise "
            f"{setting} to {least}, or {cure}"
        )


def least_slots(spec: StudySpec) -> int:
    """Slots that a gang of the study needs at once; with ``gang: auto`` that the first step of growth needs."""
    gang = spec.training.gang
    least = min(_given_sizes(spec), default=2) if gang == "auto" else gang
    return least if spec.data is None else max(least, 3)  # one model is fewer than half of three workers


def _given_sizes(spec: StudySpec) -> list[int]:
    """Sizes that a trial may grow to, where speed-ups are given."""
    return [ranks for ranks, gain in spec.scaling.speedups.items() if gain >= spec.scaling.efficiency * ranks]
