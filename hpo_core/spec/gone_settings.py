"""Settings and values that are gone: recorded studies without need of them are read, others refused in a sentence."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from hpo_core.model.errors import SpecError

OTHER_VERSION = "read this study with the version that wrote it"
"""End of each refusal of a recorded study."""


class GoneSetting(NamedTuple):
    """A setting that is gone."""

    place: str
    """With ``*`` for any name."""
    instead: str
    """Cure for a study file that sets it."""
    read: tuple[Any, ...] = ()
    """Recorded values with which a study is read; empty: with any."""
    search: str = ""
    """Search method that it belonged to; empty: any, or it is no setting of a search."""


_SEEDS = "loop over seeds in the training function and report their mean"
GONE = (
    GoneSetting("repeats", _SEEDS, (1,)),
    GoneSetting("search.repeats", _SEEDS, (1,), "grid"),
    GoneSetting("search.random", "give the parameter points, or use method: random", ([],), "grid"),
    GoneSetting("search.order", "points are tried in the order of the space", ("product",), "grid"),
    GoneSetting("search.configs", "give fewer points, or stop: {total_resource: N}", (None,), "grid"),
    GoneSetting("search.keep_last", "checkpoints that nothing can load are removed", (False,), "pbt"),
    GoneSetting("search.opponents", "opponents come from the last two generations", ("past",), "pbt"),
    GoneSetting("search.opponents_from", "opponents come from the last two generations", (2,), "pbt"),
    GoneSetting("search.bounds", "narrow the range in the space", ({},), "pbt"),
    GoneSetting("search.percentile", "the tolerance is the paper's 90th percentile", (90,), "pasha"),
    GoneSetting(
        "search.early_stopping_rate", "min_resource times reduction_factor says as much", (0,), "sha"
    ),
    GoneSetting("search.source", "`hpo rerun` begins reruns", search="recorded"),
    GoneSetting("search.study_record.further", "begin a study with a larger max_resource", ([],)),
    GoneSetting("space.*.default", "name the configuration in start_with"),
    GoneSetting("space.*.static", "list the parameter in search.static (pbt)"),
    GoneSetting("space.*.weights", "all choices are drawn alike", (None,)),
    GoneSetting("scaling.most", "name the sizes in scaling.speedups", (None,)),
    GoneSetting(
        "training.max_lost", "give training: {retries: {lost: N}} instead, after which the study halts", (3,)
    ),
    GoneSetting("training.grace", "a process has 5 s between SIGTERM and SIGKILL"),
    GoneSetting("stop.running", "running jobs finish; interrupt the study to end them", ("finish",)),
    GoneSetting("warm_start.proposals", "name configurations in start_with"),
    GoneSetting("warm_start.decay", "a sampler is shown half of the newest study's results"),
    GoneSetting("warm_start.first", "the three best are tried first; name others in start_with"),
    GoneSetting("packing.devices", "workers that see no GPU share processors; CUDA_VISIBLE_DEVICES= hides the GPUs"),
    GoneSetting("packing.look_ahead", "one job for each device is granted ahead"),
    GoneSetting("packing.demand.unit_seconds", "it is measured"),
    GoneSetting("share.slots", "the pool has as many slots as the largest of its studies' clusters"),
    GoneSetting("share.preempt", "slots change hands as jobs end, so at rungs"),
    GoneSetting("cluster.interface", "set jobqueue.slurm.interface in Dask's configuration"),
    GoneSetting("cluster.prologue", "set jobqueue.slurm.job-script-prologue in Dask's configuration"),
    GoneSetting("cluster.wait", "a study waits as long as Slurm's queue takes"),
    GoneSetting("cluster.devices", "set CUDA_VISIBLE_DEVICES"),
    GoneSetting("journal", "a journal that cannot be reached is tried again for 60 s"),
    GoneSetting("tracking.wait_seconds", "the end of a study waits at most 10 min for its copy"),
    GoneSetting("tracking.optuna", "make a copy with hpo_core.load(NAME).study.to_optuna(URL)"),
)  # fmt: skip


GONE_KINDS = {
    "normal": "draw u with {type: float, low: 0.001, high: 0.999}; take statistics.NormalDist(mean, std).inv_cdf(u)",
    "lognormal": "use {type: float, log: true}, or draw u as for normal and take math.exp of the value",
    "kubernetes": "make the workers with a DaskCluster of the operator, and give {kind: address, address: tcp://...}",
}
"""Types of parameters and kinds of clusters that are gone, and what to do instead."""


def words_of_gone(place: tuple[Any, ...], loc: tuple[Any, ...]) -> str | None:
    """The cure for a setting that is gone; None: there was no such setting.

    Args:
        loc: the place with the methods and kinds on the way.
    """
    names = [("*" if place[0] == "space" and at == 1 else str(part)) for at, part in enumerate(place)]
    found = (gone for gone in GONE if gone.place == ".".join(names) and (not gone.search or gone.search in loc))
    return next((f"is no setting any more: {gone.instead}. Drop it" for gone in found), None)


def without_gone(recorded: Mapping[str, Any]) -> dict[str, Any]:
    """A recorded study without settings that are gone.

    Raises:
        SpecError: one had a value with which this version cannot go on.
    """
    found = dict(recorded)
    for gone in GONE:
        found = _without(found, gone, gone.place.split("."))
    tracking = found.get("tracking")
    if isinstance(tracking, Mapping) and tracking.get("mlflow") != "off":  # it may name a server
        found["tracking"] = {**tracking, "mlflow": None}
    training = found.get("training")
    if found.get("data") is not None and isinstance(training, Mapping) and training.get("gang", 1) != 1:
        raise SpecError(
            f"journal: training.gang = {training['gang']!r}, and data: this version trains each model that hops on one "
            f"worker; {OTHER_VERSION}."
        )
    for other in ("packing", "data"):
        if found.get("share") is not None and found.get(other) is not None:
            raise SpecError(
                f"journal: share, and {other}: this version shares slots of plain jobs alone; {OTHER_VERSION}."
            )
    return found


def _without(section: Any, gone: GoneSetting, place: list[str]) -> Any:
    name, *rest = place
    if not isinstance(section, Mapping):
        return section
    if rest:
        return {key: _without(one, gone, rest) if name in ("*", key) else one for key, one in section.items()}
    if name not in section or gone.search not in ("", section.get("method")):
        return section
    if gone.read and section[name] not in gone.read:
        raise SpecError(
            f"journal: {gone.place} = {section[name]!r}: is no setting any more ({gone.instead}); {OTHER_VERSION}."
        )
    return {key: one for key, one in section.items() if key != name}
