"""How many ranks, and so slots, the next job gets."""

from __future__ import annotations

from hpo_core.model.events import JobGranted
from hpo_core.search.method import SearchMethod
from hpo_core.spec import StudySpec
from hpo_core.state import StudyState


def gang_size(spec: StudySpec, state: StudyState, method: SearchMethod, failed: JobGranted | None = None) -> int:
    """Ranks of the next job.

    A rerun follows its record; a job that is tried again has as many ranks as before.

    Args:
        failed: the grant of the job that is tried again; None: it is a new one.
    """
    if failed is not None:
        return failed.demand.slots
    return method.recorded_slots() or spec.training.gang
