"""Independent uniform draws, each trial from its own stream."""

from __future__ import annotations

from hpo_core.model.events import Event
from hpo_core.model.rng import Stream
from hpo_core.model.space import SearchSpace
from hpo_core.model.trial import Params


class RandomSampler:
    """Trial ``n`` gets the same parameters whatever else happened in the study.

    So two studies with one seed compare the same configurations, whatever their method or cluster.
    """

    def __init__(self, space: SearchSpace, seed: int) -> None:
        self._space = space
        self._seed = seed

    def propose(self, number: int, given: Params | None = None) -> Params:
        return self._space.draw(Stream(self._seed, "params", number), given)

    def apply(self, event: Event) -> None:
        """Random search learns nothing."""
