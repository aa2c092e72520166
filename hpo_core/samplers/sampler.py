"""Sampler: what a study asks of it and gives it, and the simple samplers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import msgspec

from hpo_core.model.events import Event, TrialCreated
from hpo_core.model.rng import Stream
from hpo_core.model.settings import Filled
from hpo_core.model.space import SearchSpace
from hpo_core.model.trial import Params


class Sampler(Protocol):
    """Proposes parameters for new trials.

    Its answers are recorded (:class:`~hpo_core.model.events.TrialCreated`), so replay never asks again.
    """

    def propose(self, number: int, given: Params | None = None) -> Params | None:
        """Parameters for trial ``number``; None: there are no further ones, now or later.

        Must not depend on anything but settings and applied events.

        Args:
            given: values that a person wants in it; the sampler adds the others, and never answers None.
        """
        ...

    def apply(self, event: Event) -> None:
        """Learn from a fact of the study; a sampler that learns nothing has none of its own."""
        return


class EarlierResult(Filled, frozen=True):
    """One configuration's result in an earlier study, as the journal of the new study keeps it."""

    params: dict[str, Any]
    losses: dict[int, list[float]]
    """By units of training; one loss per objective. Empty: its configuration is tried, and samplers see none."""
    proposed: int | None = None
    """The trial of the new study that tries it again."""


class SamplerContext(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that a sampler gets from its study besides its own arguments."""

    space: SearchSpace
    seed: int
    objectives: int
    """Number of metrics to optimize."""
    constraints: tuple[str, ...] = ()
    """Names of the values in ``JobCompleted.metrics`` that should be at most 0."""
    max_resource: int | None
    """Units of a full training; None: no upper limit."""
    past: Sequence[EarlierResult] = ()
    """Results of earlier studies (warm start)."""
    start_with: Sequence[Params] = ()
    """Parameters that people want in the first trials, whole or in part."""


class RandomSampler(Sampler):
    """Trial ``n`` gets the same parameters whatever else happened in the study.

    So two studies with one seed compare the same configurations, whatever their method or cluster.
    """

    def __init__(self, space: SearchSpace, seed: int) -> None:
        self._space = space
        self._seed = seed

    def propose(self, number: int, given: Params | None = None) -> Params:
        return self._space.draw(Stream(self._seed, "params", number), given)


class ListedSampler(RandomSampler):
    """Asks a function of the trial's number; configurations that people give do not count.

    What they leave out is drawn at random.
    """

    def __init__(self, configurations: Callable[[int], Params], space: SearchSpace, seed: int) -> None:
        super().__init__(space, seed)
        self._configurations = configurations
        self._given = 0

    def propose(self, number: int, given: Params | None = None) -> Params:
        return self._configurations(number - self._given) if given is None else super().propose(number, given)

    def apply(self, event: Event) -> None:
        if isinstance(event, TrialCreated) and event.queued:
            self._given += 1


class FiniteSampler:
    """Each of some configurations once, in an order that follows from the seed; after the last one there are none.

    One that was created already is passed over, whoever proposed it: this sampler before a restart, a warm start, a
    person.
    """

    def __init__(self, configurations: list[Params], space: SearchSpace, seed: int) -> None:
        self._random = RandomSampler(space, seed)
        self._upcoming = iter(Stream(seed, "listed", 0).shuffled(configurations))
        self._created: set[str] = set()

    def propose(self, number: int, given: Params | None = None) -> Params | None:
        if given is not None:
            return self._random.propose(number, given)
        return next((dict(one) for one in self._upcoming if repr(sorted(one.items())) not in self._created), None)

    def apply(self, event: Event) -> None:
        if isinstance(event, TrialCreated):
            self._created.add(repr(sorted(event.params.items())))  # tells 1, 1.0 and True apart


class RecordedSampler(Sampler):
    """Trial ``n`` gets the parameters ``n``."""

    def __init__(self, params: list[dict[str, Any]]) -> None:
        self._params = params

    def propose(self, number: int, given: Params | None = None) -> Params:
        return dict(self._params[number])


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
