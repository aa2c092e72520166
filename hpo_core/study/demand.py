"""How many slots a study could use now: what it claims of a pool that several studies share."""

from __future__ import annotations

from collections.abc import Iterable

from hpo_core.search.method import SearchMethod
from hpo_core.state import StudyState
from hpo_core.study.job_grants import Grants
from hpo_core.study.stop_rules import StopRules


def demand_of(
    state: StudyState, method: SearchMethod, rules: StopRules, grants: Grants, *, size: int, most: int
) -> int:
    """Slots of running jobs, of those to be tried again, and of those that could be granted before a report.

    Counted up to ``most``, so that a study without an end costs no more than another.

    Args:
        size: slots of a new job.
    """
    slots = state.slots_in_use
    if state.halted is not None or grants.trains_further or not grants.searching:
        waiting = sum(not state.trials[number].running for number in state.extended)
        return min(most, slots + (0 if state.further_held else waiting * size))
    slots += _slots_again(state, state.waiting)
    jobs = method.grantable(-(-max(0, most - slots) // size))
    left = rules.resource_left(state)
    if left is not None:
        jobs = min(jobs, max(0, left - state.resource_running + state.further_running))
    return min(most, slots + jobs * size)


def _slots_again(state: StudyState, trials: Iterable[int]) -> int:
    """Slots of jobs that are tried again: as many as before."""
    grants = (state.trials[number].granted for number in trials)
    return sum(grant.demand.slots for grant in grants if grant is not None)
