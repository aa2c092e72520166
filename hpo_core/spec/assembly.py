"""Builds the search method and the sampler that a study describes."""

from __future__ import annotations

from hpo_core.samplers import registry as samplers
from hpo_core.samplers.sampler import ListedSampler, Sampler, SamplerContext, WarmStarted
from hpo_core.search.method import SearchMethod
from hpo_core.search.search_settings import SearchContext
from hpo_core.spec.study_spec import StudySpec


def create_method(spec: StudySpec) -> SearchMethod:
    """The search method of a study, before its first event."""
    return spec.search.create(_search_context(spec))


def create_sampler(spec: StudySpec) -> Sampler:
    """The sampler of a study; after the proposals of a warm start, where it has some."""
    configurations = spec.search.configurations(_search_context(spec))
    if configurations is not None:
        return ListedSampler(configurations, spec.search_space(), spec.seed)
    warm = spec.warm_start
    context = SamplerContext(
        space=spec.search_space(),
        seed=spec.seed,
        objectives=len(spec.objectives),
        constraints=tuple(spec.constraints),
        max_resource=spec.search.outline().max_resource,
        past=warm.past if warm is not None else (),
        start_with=spec.first_configurations,
    )
    sampler = samplers.create(spec.sampler.name, spec.sampler.arguments, context)
    if warm is not None and warm.proposals:
        return WarmStarted(sampler, warm.proposals)
    return sampler


def is_pure(spec: StudySpec) -> bool:
    """Whether the sampler's answers follow from the spec, the trial's number and what people enqueued.

    What a warm start proposes stands in the spec.
    """
    return spec.search.outline().own_configurations or spec.sampler.name in samplers.OURS


def all_at_once(spec: StudySpec) -> bool:
    """Whether all configurations of a study whose models hop train at once, unless it says how many.

    Not where a sampler learns from results, or where a stop rule may end the study: all would be half trained.
    """
    outline, stop = spec.search.outline(), spec.stop
    runs_out = stop.total_resource is None and stop.seconds is None and stop.target is None
    return outline.one_shot and runs_out and (outline.population is not None or is_pure(spec))


def _search_context(spec: StudySpec) -> SearchContext:
    return SearchContext(spec.search_space(), spec.seed, len(spec.objectives), len(spec.start_with))
