"""Makes a study's parts from its description: method, sampler, threads, and notices before it starts."""

from __future__ import annotations

from collections.abc import Mapping

from hpo_core.samplers import registry as samplers
from hpo_core.samplers.registry import notices as space_notices
from hpo_core.samplers.sampler import ListedSampler, Sampler, SamplerContext, WarmStarted
from hpo_core.search.method import SearchMethod
from hpo_core.search.search_settings import SearchContext
from hpo_core.spec.study_spec import StudySpec

THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")
"""Torch reads the first."""


def create_method(spec: StudySpec) -> SearchMethod:
    return spec.search.create(_search_context(spec))


def create_sampler(spec: StudySpec) -> Sampler:
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
        past=[one for one in warm.past or () if one.losses] if warm is not None else (),
        start_with=spec.start_with,
    )
    sampler = samplers.create(spec.sampler.name, spec.sampler.arguments, context)
    if warm is not None and warm.proposals:
        return WarmStarted(sampler, warm.proposals)
    return sampler


def is_pure(spec: StudySpec) -> bool:
    """True if the sampler's answers follow from the spec, the trial's number and what people enqueued.

    What a warm start proposes stands in the spec.
    """
    return spec.search.outline().own_configurations or spec.sampler.name in samplers.OURS


def all_at_once(spec: StudySpec) -> bool:
    """True if all configurations of a study whose models hop train at once, unless it says how many.

    Not where a sampler learns from results, or where a stop rule may end the study: all would be half trained.
    """
    outline, stop = spec.search.outline(), spec.stop
    runs_out = stop.total_resource is None and stop.seconds is None and stop.target is None
    return outline.one_shot and runs_out and (outline.population is not None or is_pure(spec))


def _search_context(spec: StudySpec) -> SearchContext:
    return SearchContext(spec.search_space(), spec.seed, len(spec.objectives), len(spec.start_with))


def threads_of(spec: StudySpec, cores: int) -> int | None:
    """Threads of one attempt; None: as the worker's environment says.

    Args:
        cores: of the machine of the study.
    """
    threads = spec.training.threads
    return spec.cluster.cores_each(cores) if threads == "auto" else threads


def oversubscription(spec: StudySpec, cores: int, environment: Mapping[str, str]) -> str:
    """A sentence where the attempts of this machine have more threads than it has cores; empty: nothing to say.

    Args:
        environment: of the workers.
    """
    workers = spec.cluster.size
    if spec.cluster.kind != "local" or workers is None:
        return ""
    given = environment.get(THREAD_VARIABLES[0], "")
    threads = threads_of(spec, cores) or (int(given) if given.isdigit() else 1)
    if workers * threads <= cores:
        return ""
    each = f" with {threads} threads each (training.threads, OMP_NUM_THREADS)" if threads > 1 else ""
    cure = "training.threads: auto, or fewer workers" if threads > 1 and workers <= cores else "fewer workers"
    return (
        f"{workers} workers{each} share {cores} CPU core{'' if cores == 1 else 's'}: jobs that compute on CPUs wait "
        f"for each other and take longer. Cure: {cure}."
    )


def notices(spec: StudySpec, extra: int = 0, reached: int = 0) -> list[str]:
    """Why no trial may be trained to the maximum resource, and what the sampler does not express; empty: nothing.

    Args:
        extra: configurations asked for after the study was created.
        reached: units of training behind the trial that has most of them.
    """
    listed = spec.search.outline().own_configurations
    found = space_notices(
        spec.sampler.name, spec.search_space(), ours=spec.sampler.name in samplers.OURS, listed=listed
    )
    top = spec.search.outline().max_resource
    if top is not None and reached >= top:
        return found
    units = spec.stop.total_resource
    if units is not None and top is not None and units < top:
        found.append(
            f"stop.total_resource = {units:,} ends the study before a trial can reach max_resource = {top:,}; "
            "raise the one or lower the other."
        )
    return found + spec.search.notices(extra)
