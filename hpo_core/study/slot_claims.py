"""What a study claims of the slots that several studies share: how many it could use, now and later."""

from __future__ import annotations

from collections.abc import Iterable

from hpo_core.search.method import SearchMethod
from hpo_core.spec import StudySpec
from hpo_core.state import StudyState
from hpo_core.study.gang_sizes import gang_size, largest_size
from hpo_core.study.job_grants import Grants
from hpo_core.study.stop_rules import StopRules


class SlotClaims:
    """The part of :class:`~hpo_core.study.study.Study` that says how many slots it could use."""

    spec: StudySpec
    state: StudyState
    method: SearchMethod
    rules: StopRules
    _grants: Grants

    def demand(self, most: int) -> int:
        """Slots that it could use now: of running jobs, of those to be tried again, and of those it could grant.

        The size of the stack of jobs (Li et al. 2020, 5.3), times kappa where trials grow. Where checkpoints are
        limited it may grant fewer. Counted up to ``most``, so that a study without an end costs no more than another.
        """
        grows = self.spec.training.gang == "auto"
        size = largest_size(self.spec, self.state, most) if grows else self.job_slots
        state, slots = self.state, self.state.slots_in_use
        if state.halted is not None or self._grants.trains_further or not self._grants.searching:
            waiting = sum(not state.trials[number].running for number in state.extended)
            return min(most, slots + (0 if state.further_held else waiting * size))
        slots += _slots_again(state, state.waiting)
        jobs = self.method.grantable(-(-max(0, most - slots) // size))
        left = self.rules.resource_left(state)
        if left is not None:
            jobs = min(jobs, max(0, left - state.resource_running + state.further_running))
        return min(most, slots + jobs * size)

    def spare(self, most: int) -> int:
        """Slots beyond its demand that it could use once a job ends, counted up to ``most``: where trials grow.

        A trial that is promoted as its job ends may have kappa slots, where its job had fewer.
        """
        if self.spec.training.gang != "auto" or self.state.halted is not None:
            return 0
        grown = largest_size(self.spec, self.state, most) * len(self.state.running)
        return max(0, min(most, grown) - self.state.slots_in_use)

    @property
    def job_slots(self) -> int:
        """Slots that the next job needs; one that grows needs one and takes more."""
        return 1 if self.spec.training.gang == "auto" else gang_size(self.spec, self.state, self.method)


def _slots_again(state: StudyState, trials: Iterable[int]) -> int:
    """Slots of jobs that are tried again: as many as before."""
    grants = (state.trials[number].granted for number in trials)
    return sum(grant.demand.slots for grant in grants if grant is not None)
