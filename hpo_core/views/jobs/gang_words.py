"""How many slots the jobs of a study get, in one line."""

from __future__ import annotations

from hpo_core.study import Study
from hpo_core.study.gang_sizes import largest_size


def gang_words(study: Study) -> str:
    """The size of its gangs, or what one may grow to and why; empty where each job takes a slot."""
    gang, scaling = study.spec.training.gang, study.spec.scaling
    if gang != "auto":
        return "" if gang == 1 else f"{gang} ranks a job"
    if study.spec.data is not None:
        known = "given" if scaling.speedups or scaling.model is not None else "measured"
        most = f", at most {scaling.most}" if scaling.most else ""
        return (
            "auto: while fewer models are left than half of the workers, a unit trains on several partitions at once "
            f"(at least {scaling.efficiency:.0%} of linear{most}; speed-ups {known})"
        )
    largest = largest_size(study.spec, study.state, max(2, study.state.capacity))
    found = (
        f"auto: a trial may grow to {largest} slot{'s' * (largest > 1)} (at least {scaling.efficiency:.0%} of linear"
    )
    if scaling.speedups:
        return f"{found}, speed-ups given)"
    relative = {} if study.state.speeds is None else study.state.speeds.relative
    times = ", ".join(
        f"{ranks} ranks are {1 / seconds:.2f} times as fast" for ranks, seconds in relative.items() if ranks > 1
    )
    return f"{found}; measured: {times or 'nothing yet'})"
