"""How many slots a study could use now: what it claims of a pool that several studies share."""

from __future__ import annotations

from hpo_core.search.method import SearchMethod
from hpo_core.state import StudyState
from hpo_core.study.job_grants import Grants
from hpo_core.study.stop_rules import StopRules


def demand_of(state: StudyState, method: SearchMethod, rules: StopRules, grants: Grants, *, most: int) -> int:
    """Running jobs, those to be tried again, and those that could be granted before anything is reported.

    Counted up to ``most``, so that a study without an end costs no more than another.
    """
    running = len(state.running)
    if state.halted is not None or grants.trains_further or not grants.searching:
        waiting = sum(not state.trials[number].running for number in state.extended)
        return min(most, running + (0 if state.further_held else waiting))
    more = len(state.waiting) + method.grantable(max(0, most - running - len(state.waiting)))
    left = rules.resource_left(state)
    if left is not None:
        more = min(more, max(0, left - state.resource_running + state.further_running))
    return min(most, running + more)
