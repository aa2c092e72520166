"""What a user should know of a study before it starts, and until it is no longer true."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpo_core.samplers.registry import OURS
from hpo_core.samplers.registry import notices as space_notices

if TYPE_CHECKING:
    from hpo_core.spec.study_spec import StudySpec


def notices(spec: StudySpec, extra: int = 0, reached: int = 0) -> list[str]:
    """Why no trial may be trained to the maximum resource, and what the sampler does not express; empty: nothing.

    Args:
        extra: configurations asked for after the study was created.
        reached: units of training behind the trial that has most of them.
    """
    listed = spec.search.outline().own_configurations
    found = space_notices(spec.sampler.name, spec.search_space(), ours=spec.sampler.name in OURS, listed=listed)
    top = spec.search.outline().max_resource
    if top is not None and reached >= top:
        return found
    units = spec.stop.total_resource
    if units is not None and top is not None and units < top * spec.repeats:
        times = f" in all of its {spec.repeats} repeats" if spec.repeats > 1 else ""
        found.append(
            f"stop.total_resource = {units:,} ends the study before a trial can reach max_resource = {top:,}{times}; "
            "raise the one or lower the other."
        )
    return found + spec.search.notices(extra)
