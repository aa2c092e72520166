"""Refuses settings of a new study that contradict each other: one table, a row for each contradiction."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from hpo_core.model.errors import SpecError
from hpo_core.model.rng import Stream
from hpo_core.model.short_text import shown
from hpo_core.model.space import SearchSpace
from hpo_core.model.space.parameter import clash
from hpo_core.model.space.search_space import given_values
from hpo_core.model.trial import Outcome, Params
from hpo_core.spec.sections import AddressClusterSpec

if TYPE_CHECKING:
    from hpo_core.spec.study_spec import StudySpec


class Refusal(NamedTuple):
    """Settings that no study may have together; the texts may name the figures of :func:`_figures` in braces."""

    settings: str
    """Which settings, with their values where these matter."""
    found: Callable[[StudySpec], bool]
    """True if a study has them."""
    why: str
    """Why they cannot be together."""
    cure: str
    """Change that resolves it."""


REFUSALS = (
    Refusal(
        "style optuna",
        lambda spec: spec.style == "optuna" and spec.search.outline().population is not None,
        "an Optuna objective cannot go on from another trial's weights, which {method} does",
        "use another method, or write the objective as train(trial) with trial.track() and trial.steps()",
    ),
    Refusal(
        "build",
        lambda spec: spec.build is not None and (spec.style == "optuna" or spec.objective is None),
        "checkpoints of an Optuna objective as it is, and of studies driven by hand, hold no model",
        "drop build, or write the objective as train(trial) with trial.track(model=...)",
    ),
    Refusal(
        "warm_start",
        lambda spec: spec.warm_start is not None and spec.search.outline().own_configurations,
        "search {method} says itself which configurations are tried",
        "drop warm_start, or use another method",
    ),
    Refusal(
        "start_with",
        lambda spec: bool(spec.start_with) and spec.search.record() is not None,
        "a rerun trains the recorded configurations",
        "drop start_with",
    ),
    Refusal(
        "search {method} without configs",
        lambda spec: spec.search.outline().endless and spec.stop == type(spec.stop)(),
        "it has no end",
        "give configs, or a stop rule (stop: total_resource, seconds or target)",
    ),
    Refusal(
        "training.threads = auto, and {cluster}",
        lambda spec: spec.training.threads == "auto" and spec.cluster.cores_each(1) is None,
        "that cluster does not say how many cores a worker has",
        "give a number",
    ),
    Refusal(
        "packing, and training.retries.out_of_memory = 0",
        lambda spec: spec.packing is not None and spec.training.allowed(Outcome.OUT_OF_MEMORY) == 0,
        "a job that ran out of memory beside others is tried again alone",
        "leave it at 1",
    ),
    Refusal(
        "training.process = kept, and packing",
        lambda spec: spec.training.process == "kept" and spec.packing is not None,
        "a process that waits for its next job holds memory that another job may be given",
        "leave process at fresh, or drop packing",
    ),
    Refusal(
        "data, without objective",
        lambda spec: spec.hops and spec.objective is None,
        "a study that is driven by hand has no workers that hold partitions",
        "give objective",
    ),
    Refusal(
        "data, and style optuna",
        lambda spec: spec.hops and spec.style == "optuna",
        "an Optuna objective as it is has no state that could hop from worker to worker",
        "write it as train(trial) with trial.track() and trial.steps(), or drop data",
    ),
    Refusal(
        "data, and packing",
        lambda spec: spec.hops and spec.packing is not None,
        "a worker trains one unit at a time (the schedule is an open shop), so there are never two jobs to place on it",
        "drop packing (several workers can share a device), or drop data and have the training function read all of it",
    ),
    Refusal(
        "training.gang = {gang}, and packing",
        lambda spec: spec.gangs and spec.packing is not None,
        "packing gives a job a part of one device, and the ranks of a gang need one each, all at once",
        "drop one of the two",
    ),
    Refusal(
        "training.gang = {gang}, and data",
        lambda spec: spec.gangs and spec.hops,
        "a model that hops trains on one worker at a time",
        "set training.gang to 1, or drop data and give each rank its part of a batch by trial.shard()",
    ),
    Refusal(
        "training.gang = {gang}, and style optuna",
        lambda spec: spec.gangs and spec.style == "optuna",
        "an Optuna objective knows no ranks",
        "write it as train(trial) with trial.track() and trial.steps(), or drop training.gang",
    ),
    Refusal(
        "training.gang = {gang} needs {least} slots at once, and cluster.workers gives {size}",
        lambda spec: spec.gangs and (size := spec.cluster.size) is not None and size < least_slots(spec),
        "no job could ever {begin}",
        "raise cluster.workers to {least}, or {smaller}",
    ),
    Refusal(
        "cluster.workers = {workers}, and data",
        lambda spec: spec.cluster.scales is not None and spec.hops,
        "models train where their partitions lie, and a worker that is given back takes its partitions along",
        "give cluster.workers one number",
    ),
    Refusal(
        "cluster.workers = {workers}, and training.gang = {gang}",
        lambda spec: spec.cluster.scales is not None and spec.gangs,
        "ranks are placed on workers that are there, and these come and go one by one",
        "give cluster.workers one number, or set training.gang to 1",
    ),
    Refusal(
        "cluster.workers = {workers}, and packing",
        lambda spec: spec.cluster.scales is not None and spec.packing is not None,
        "jobs are placed on devices that workers see, and a worker that is given back takes its device along",
        "give cluster.workers one number, or drop packing",
    ),
    Refusal(
        "cluster.workers = {workers}, and share",
        lambda spec: spec.cluster.scales is not None and spec.share is not None,
        "a study gives slots that it leaves idle to the pool, and so would not wait for workers that are still to come",
        "give cluster.workers one number, or drop share",
    ),
    Refusal(
        "scaling, and training.gang = {gang}",
        lambda spec: spec.training.gang != "auto" and spec.scaling != type(spec.scaling)(),
        "the size of gangs is fixed, so scaling has no effect",
        "set training.gang to auto, or drop scaling",
    ),
    Refusal(
        "share, and data",
        lambda spec: spec.share is not None and spec.hops,
        "models hop over workers that hold their partitions, and a pool gives any worker",
        "give the study workers of its own, and drop share",
    ),
    Refusal(
        "share, and packing",
        lambda spec: spec.share is not None and spec.packing is not None,
        "a pool gives slots, which say nothing of the devices of packed jobs",
        "give each packed study devices of its own (CUDA_VISIBLE_DEVICES of its workers), and drop share",
    ),
    Refusal(
        "share.pool is absent, and {cluster} starts workers for this study alone",
        lambda spec: spec.share is not None and not (spec.share.pool or isinstance(spec.cluster, AddressClusterSpec)),
        "nobody else could share them",
        "give the pool a name (share: {{pool: cpu}}), the same one in each study that shares",
    ),
)


def check_combinations(spec: StudySpec) -> None:
    """Refuse the first contradiction of the table that a study has.

    Raises:
        ValueError: settings, reason and cure.
    """
    for row in REFUSALS:
        if row.found(spec):
            raise ValueError(f"{row.settings}: {row.why}; {row.cure}".format_map(_figures(spec)))


def check_retraining(spec: StudySpec) -> None:
    """Refuse a study whose best trial cannot be a model that is trained again on new data.

    Raises:
        SpecError: reason and cure.
    """
    if spec.style == "optuna":
        raise SpecError(
            f"Study {spec.study!r} trains an Optuna objective as it is (style: optuna), whose checkpoints hold no "
            "model to register. Write it as train(trial) with trial.track(model=...), and name a study of that."
        )
    if spec.data is not None:
        raise SpecError(
            f"Study {spec.study!r} trains on partitions (data.partitions), and new data are given to a retraining as "
            "trial.params['data'], so its models would be trained on the old ones. Split the new data (hpo partition) "
            f"and begin a study on them, with warm_start: {{studies: [{spec.study}]}} if its results are to count."
        )
    if (record := spec.search.record()) is not None:
        raise SpecError(
            f"Study {spec.study!r} trained along the record of {record.source!r} and has no search to begin anew where "
            "the data change. Name the study of a search: study=NAME."
        )


def _figures(spec: StudySpec) -> dict[str, object]:
    grows = spec.training.gang == "auto"
    return {
        "method": spec.search.method,
        "cluster": spec.cluster.named,
        "gang": spec.training.gang,
        "workers": spec.cluster.scales,
        "least": least_slots(spec),
        "size": spec.cluster.size,
        "begin": "grow" if grows else "begin",
        "smaller": "set training.gang to 1" if grows else "lower training.gang",
    }


def least_slots(spec: StudySpec) -> int:
    gang = spec.training.gang
    scaling = spec.scaling
    given = [ranks for ranks, gain in scaling.speedups.items() if gain >= scaling.efficiency * ranks]
    return min(given, default=2) if gang == "auto" else gang


def check_given(spec: StudySpec, space: SearchSpace) -> None:
    """Check ``start_with`` and ``constants``.

    Raises:
        ValueError: place, value, rule and cure.
    """
    _check_names(spec)
    _check_completion(space, {}, "space")
    most = spec.search.sampled()
    if most is not None and len(spec.start_with) > most:
        raise ValueError(
            f"start_with holds {len(spec.start_with)} configurations, and search {spec.search.method} begins only "
            f"{most}; drop some, or let the search have more"
        )
    seen: dict[str, int] = {}
    for i, values in enumerate(spec.start_with):
        where = f"start_with[{i}]"
        given = given_values(space, values, where)
        _check_completion(space, given, where)
        first = seen.setdefault(json.dumps(given), i)
        if first != i and not space.complaints(given):
            raise ValueError(f"{where} is the same configuration as start_with[{first}]; drop one of them")


def _check_completion(space: SearchSpace, given: Params, where: str) -> None:
    # Draw one: with few configurations left, that would fail again and again while the study runs.
    if space.has_forbidden:
        try:
            space.draw(Stream(0, "check", 0), given)
        except SpecError as error:
            raise ValueError(f"{where}: {error}".rstrip(".")) from None


def _check_names(spec: StudySpec) -> None:
    for name in spec.constants:
        if name in spec.space:
            raise ValueError(
                f"constants.{name}: {name!r} is a parameter of the space too; drop it from one of the two (to hold a "
                "parameter fixed, take it out of the space)"
            )
        if not name:
            raise ValueError("constants: a name is empty; give it one")
    found = clash([*spec.space, *spec.constants])
    if found is not None:
        group, name = found
        raise ValueError(
            f"{shown(name)} is in the group {shown(group)}, which is a name of its own as well (space and constants "
            "together); rename one of them"
        )
