"""What a study asks of a sampler."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import msgspec

from hpo_core.model.events import Event
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
        """Take note of a fact."""
        ...


class EarlierResult(Filled, frozen=True):
    """What an earlier study found for one configuration, as the journal of the new study keeps it."""

    params: dict[str, Any]
    losses: dict[int, list[float]]
    """By units of training; one loss per objective."""
    proposed: int | None = None
    """The trial of the new study that tries it again."""


class SamplerContext(msgspec.Struct, frozen=True, kw_only=True):
    """What a study gives its sampler besides the sampler's own arguments."""

    space: SearchSpace
    seed: int
    objectives: int
    """How many metrics are optimized."""
    constraints: tuple[str, ...] = ()
    """Names of the values in ``JobCompleted.metrics`` that should be at most 0."""
    max_resource: int | None
    """Units of a full training; None: no upper limit."""
    past: Sequence[EarlierResult] = ()
    """Results of earlier studies (warm start)."""
    start_with: Sequence[Params] = ()
    """What people want in the first trials, whole or in part."""
