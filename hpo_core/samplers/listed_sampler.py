"""Configurations that the search method says itself (a grid, a record)."""

from __future__ import annotations

from collections.abc import Callable

from hpo_core.model.events import Event, TrialCreated
from hpo_core.model.rng import Stream
from hpo_core.model.space import SearchSpace
from hpo_core.model.trial import Params


class ListedSampler:
    """Asks a function of the trial's number; configurations that people give do not count.

    What they leave out is drawn at random, as :class:`~hpo_core.samplers.random_sampler.RandomSampler` does.
    """

    def __init__(self, configurations: Callable[[int], Params], space: SearchSpace, seed: int) -> None:
        self._configurations = configurations
        self._space = space
        self._seed = seed
        self._given = 0

    def propose(self, number: int, given: Params | None = None) -> Params:
        if given is not None:
            return self._space.draw(Stream(self._seed, "params", number), given)
        return self._configurations(number - self._given)

    def apply(self, event: Event) -> None:
        if isinstance(event, TrialCreated) and event.queued:
            self._given += 1
