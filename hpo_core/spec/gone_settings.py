"""Settings and values that are gone: recorded studies without need of them are read, others refused in a sentence."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from hpo_core.model.errors import SpecError

_WITH_ALL = "2026-11-28"
_SINCE_THEN = "2026-11-29"


class GoneSetting(NamedTuple):
    """A setting that is gone, or some values of it."""

    place: tuple[str, ...]
    """``*``: any name."""
    read: tuple[Any, ...]
    """Recorded values with which a study is read; empty: with any."""
    now: str
    """End of the sentence `this version ...`."""
    instead: str = ""
    """Cure for a study file that sets it; empty: the setting stays, without the other values."""
    only: tuple[str, str] | None = None
    """Setting beside it, and the value of it that the setting belonged to; None: any."""
    until: str = _WITH_ALL
    """The last development version that had it."""


GONE = (
    GoneSetting(
        ("repeats",), (1,), "has 1 alone", "loop over seeds in the training function and report their mean",
        until="2026-11-27",
    ),
    GoneSetting(
        ("search", "repeats"), (1,), "has 1 alone",
        "loop over seeds in the training function, or set configs where parameters are drawn", ("method", "grid"),
    ),
    GoneSetting(
        ("search", "keep_last"), (False,), "has False alone", "checkpoints that nothing can load are removed",
        ("method", "pbt"),
    ),
    GoneSetting(
        ("search", "opponents_from"), (2,), "has 2 alone", "opponents come from the last two generations",
        ("method", "pbt"),
    ),
    GoneSetting(
        ("search", "study_record", "further"), ([],), "trains no trial beyond the search",
        "begin a study with a larger max_resource",
    ),
    GoneSetting(
        ("search", "bounds"), ({},), "has none", "narrow the range in the space", ("method", "pbt"),
    ),
    GoneSetting(
        ("search", "percentile"), (90,), "has 90 alone", "the tolerance is the paper's 90th percentile",
        ("method", "pasha"),
    ),
    GoneSetting(
        ("search", "early_stopping_rate"), (0,), "has 0 alone", "min_resource times reduction_factor says as much",
        ("method", "sha"),
    ),
    GoneSetting(("training", "grace"), (), "has 5 s", "a process has 5 s between SIGTERM and SIGKILL"),
    GoneSetting(("warm_start", "decay"), (), "has 0.5", "a sampler is shown half of the newest study's results"),
    GoneSetting(
        ("warm_start", "first"), (), "has 3", "the three best are tried first; name others in start_with",
        until=_SINCE_THEN,
    ),
    GoneSetting(
        ("space", "*", "default"), (), "has none", "name the configuration in start_with", until=_SINCE_THEN
    ),
    GoneSetting(
        ("space", "*", "static"), (), "has it elsewhere", "list the parameter in search.static (pbt)",
        until=_SINCE_THEN,
    ),
    GoneSetting(
        ("space", "*", "weights"), (None,), "draws all choices alike", "all choices are drawn alike",
        until=_SINCE_THEN,
    ),
    GoneSetting(
        ("search", "random"), ([],), "draws no parameter of a grid", "give it points, or use method: random",
        ("method", "grid"), _SINCE_THEN,
    ),
    GoneSetting(
        ("search", "order"), ("product",), "has one order", "points are tried in the order of the space",
        ("method", "grid"), _SINCE_THEN,
    ),
    GoneSetting(
        ("search", "configs"), (None,), "trains the whole grid", "give fewer points, or stop: {total_resource: N}",
        ("method", "grid"), _SINCE_THEN,
    ),
    GoneSetting(
        ("search", "opponents"), ("past",), "has past alone", "opponents come from the last two generations",
        ("method", "pbt"), _SINCE_THEN,
    ),
    GoneSetting(
        ("scaling", "most"), (None,), "has no such limit", "name the sizes in scaling.speedups", until=_SINCE_THEN
    ),
    GoneSetting(
        ("training", "max_lost"), (3,), "has 3, or no such limit where training.retries.lost is given",
        "give training: {retries: {lost: N}} instead, after which the study halts", until=_SINCE_THEN,
    ),
    GoneSetting(
        ("stop", "running"), ("finish",), "lets running jobs finish",
        "running jobs finish; interrupt the study to end them", until=_SINCE_THEN,
    ),
    GoneSetting(
        ("packing", "look_ahead"), (), "has one job for each device, or eight",
        "one job for each device is granted ahead, or eight where the search waits for no result", until=_SINCE_THEN,
    ),
    GoneSetting(
        ("packing", "demand", "unit_seconds"), (), "measures it", "it is measured", until=_SINCE_THEN
    ),
    GoneSetting(
        ("share", "slots"), (), "has as many as the largest cluster", "the pool has as many slots as the largest of "
        "its studies' clusters", until=_SINCE_THEN,
    ),
    GoneSetting(
        ("share", "preempt"), (), "ends no job for a share", "slots change hands as jobs end, so at rungs",
        until=_SINCE_THEN,
    ),
    GoneSetting(
        ("cluster", "interface"), (), "takes Dask's", "set jobqueue.slurm.interface in Dask's configuration",
        until=_SINCE_THEN,
    ),
    GoneSetting(
        ("cluster", "devices"), (), "takes the visible GPUs", "set CUDA_VISIBLE_DEVICES", until=_SINCE_THEN
    ),
    GoneSetting(("journal",), (), "tries for 60 s", "a journal that cannot be reached is tried again for 60 s"),
    GoneSetting(("data", "scheduler"), ("remaining", "randomized"), "has no such policy"),
    GoneSetting(
        ("tracking", "optuna"), (), "copies no study while it runs",
        "make a copy with hpo_core.load(NAME).study.to_optuna(URL)",
    ),
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
    of_kind = (gone for gone in GONE if gone.instead and (gone.only is None or gone.only[1] in loc))
    found = next((gone for gone in of_kind if _matches(gone.place, place)), None)
    return None if found is None else f"is no setting any more: {found.instead}. Drop it"


def _matches(place: tuple[str, ...], other: tuple[Any, ...]) -> bool:
    return len(place) == len(other) and all(one in ("*", part) for one, part in zip(place, other, strict=True))


def without_gone(recorded: Mapping[str, Any]) -> dict[str, Any]:
    """A recorded study without settings that are gone.

    Raises:
        SpecError: one had a value with which this version cannot go on.
    """
    found = dict(recorded)
    for gone in GONE:
        found = _without(found, gone, gone.place)
    tracking = found.get("tracking")
    if isinstance(tracking, Mapping) and tracking.get("mlflow") != "off":  # it may name a server
        found["tracking"] = {**tracking, "mlflow": None}
    training = found.get("training")
    if found.get("data") is not None and isinstance(training, Mapping) and training.get("gang", 1) != 1:
        raise SpecError(
            f"journal: training.gang = {training['gang']!r}, and data: this version trains each model that hops on one "
            f"worker; read this study with the last one that did otherwise, the development version of {_WITH_ALL}."
        )
    for other in ("packing", "data"):
        if found.get("share") is not None and found.get(other) is not None:
            raise SpecError(
                f"journal: share, and {other}: this version shares slots of plain jobs alone; read this study with the "
                f"last one that did otherwise, the development version of {_SINCE_THEN}."
            )
    return found


def _without(section: Any, gone: GoneSetting, place: tuple[str, ...]) -> Any:
    name, *rest = place
    if not isinstance(section, Mapping):
        return section
    if rest:
        return {key: _without(one, gone, tuple(rest)) if name in ("*", key) else one for key, one in section.items()}
    if name not in section or (gone.only is not None and section.get(gone.only[0]) != gone.only[1]):
        return section
    if gone.read and section[name] not in gone.read:
        raise SpecError(
            f"journal: {'.'.join(gone.place)} = {section[name]!r}: this version {gone.now}; read this study with "
            f"the last one that did otherwise, the development version of {gone.until}."
        )
    return {key: one for key, one in section.items() if key != name} if gone.instead else section
