"""How many threads an attempt computes with, and whether that is more than the machine has cores."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hpo_core.spec.study_spec import StudySpec

VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")
"""What the libraries read when they are loaded; torch reads the first."""


def threads_of(spec: StudySpec, cores: int) -> int | None:
    """Threads of one attempt; None: as the worker's environment says.

    Args:
        cores: of the machine of the study.
    """
    threads = spec.training.threads
    return spec.cluster.cores_each(cores) if threads == "auto" else threads


def check_threads(spec: StudySpec) -> None:
    """Refuse ``auto`` where nobody knows how many cores a worker has.

    Raises:
        ValueError: place, value, rule and cure.
    """
    if spec.training.threads == "auto" and spec.cluster.cores_each(1) is None:
        raise ValueError(
            f"training.threads = auto needs to know how many cores a worker has, and {spec.cluster.named} does not "
            "say; give a number"
        )


def oversubscription(spec: StudySpec, cores: int, environment: Mapping[str, str]) -> str:
    """A sentence where the attempts of this machine have more threads than it has cores; empty: nothing to say.

    Args:
        environment: of the workers.
    """
    workers = spec.cluster.size
    if spec.cluster.kind != "local" or workers is None:
        return ""
    given = environment.get(VARIABLES[0], "")
    threads = threads_of(spec, cores) or (int(given) if given.isdigit() else 1)
    if workers * threads <= cores:
        return ""
    each = f" with {threads} threads each (training.threads, OMP_NUM_THREADS)" if threads > 1 else ""
    cure = "training.threads: auto, or fewer workers" if threads > 1 and workers <= cores else "fewer workers"
    return (
        f"{workers} workers{each} share {cores} CPU core{'' if cores == 1 else 's'}: jobs that compute on CPUs wait "
        f"for each other and take longer. Cure: {cure}."
    )
