"""What a study asks of a sampler."""

from __future__ import annotations

from typing import Protocol

from hpo_core.model.events import Event
from hpo_core.model.trial import Params
from hpo_core.spec import StudySpec


class Sampler(Protocol):
    """Proposes parameters for new trials.

    Its answers are recorded (:class:`~hpo_core.model.events.TrialCreated`), so replay never asks again.
    """

    def propose(self, number: int) -> Params:
        """Parameters for trial ``number``. Must not depend on anything but settings and applied events."""
        ...

    def apply(self, event: Event) -> None:
        """Take note of a fact."""
        ...


def is_pure(spec: StudySpec) -> bool:
    """Whether the sampler's answers follow from the spec and the trial's number alone.

    What a warm start proposes stands in the spec.
    """
    return spec.search.method in ("recorded", "grid") or spec.sampler.name == "random"


def create_sampler(spec: StudySpec) -> Sampler:
    """The sampler a spec names; after the proposals of a warm start, where it has some."""
    sampler = _create(spec)
    if spec.warm_start is not None and spec.warm_start.proposals:
        from hpo_core.samplers.warm_start import WarmStarted

        return WarmStarted(sampler, spec.warm_start.proposals)
    return sampler


def _create(spec: StudySpec) -> Sampler:
    if spec.search.method == "recorded":
        from hpo_core.samplers.recorded_params import RecordedSampler

        return RecordedSampler(spec.search.params)
    if spec.search.method == "grid":
        from hpo_core.samplers.grid_sampler import GridSampler

        return GridSampler(spec)
    if spec.sampler.name == "random":
        from hpo_core.samplers.random_sampler import RandomSampler

        return RandomSampler(spec.search_space(), spec.seed)
    from hpo_core.samplers.optuna_sampler import OptunaSampler

    return OptunaSampler(spec)
