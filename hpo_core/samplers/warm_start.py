"""The incumbents of earlier studies first, then whatever the sampler proposes."""

from __future__ import annotations

from collections.abc import Sequence

from hpo_core.model.events import Event, TrialCreated
from hpo_core.model.trial import Params
from hpo_core.samplers.sampler import Sampler


class WarmStarted:
    """The first k trials get the proposals of the spec, the others those of the sampler.

    Configurations that people give go before and do not count. The sampler is shown all of them, as after a resume.
    """

    def __init__(self, sampler: Sampler, proposals: Sequence[Params]) -> None:
        self.sampler = sampler
        self._proposals = proposals
        self._given = 0

    def propose(self, number: int, given: Params | None = None) -> Params | None:
        if given is not None:
            return self.sampler.propose(number, given)
        if number - self._given < len(self._proposals):
            return dict(self._proposals[number - self._given])
        return self.sampler.propose(number)

    def apply(self, event: Event) -> None:
        if isinstance(event, TrialCreated) and event.queued:
            self._given += 1
        self.sampler.apply(event)
