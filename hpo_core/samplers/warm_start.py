"""The incumbents of earlier studies first, then whatever the sampler proposes."""

from __future__ import annotations

from collections.abc import Sequence

from hpo_core.model.events import Event
from hpo_core.model.trial import Params
from hpo_core.samplers.sampler import Sampler


class WarmStarted:
    """The first k trials get the proposals of the spec, the others those of the sampler.

    The sampler is shown all of them, as after a resume.
    """

    def __init__(self, sampler: Sampler, proposals: Sequence[Params]) -> None:
        self.sampler = sampler
        self._proposals = proposals

    def propose(self, number: int) -> Params | None:
        if number < len(self._proposals):
            return dict(self._proposals[number])
        return self.sampler.propose(number)

    def apply(self, event: Event) -> None:
        self.sampler.apply(event)
