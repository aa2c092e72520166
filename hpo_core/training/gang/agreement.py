"""What the ranks of a gang tell each other at the end of a job, and what they must agree on."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from hpo_core.model.errors import ObjectiveError
from hpo_core.model.trial import Metrics, Point
from hpo_core.training.gang.rank_states import common_digests, differing, own_state
from hpo_core.training.gang.ranks import OWN_DATA_CURE, Ranks


class _Curve(msgspec.Struct, frozen=True):
    """What one rank reported: metrics and the rank's part of the batch, by resource."""

    points: list[tuple[int, float, Metrics]]


class _States(msgspec.Struct, frozen=True):
    """What one rank would save."""

    digests: dict[str, str]
    state: bytes


_curves = msgspec.msgpack.Decoder(_Curve)
_states = msgspec.msgpack.Decoder(_States)


def average_metrics(ranks: Ranks, points: Sequence[Point], target: int) -> None:
    """Replace the metrics of each point by the mean over the ranks, weighted by their parts of the batch.

    Ranks that evaluate the same data have the same value, which is their mean; of ranks that evaluate a part each, it
    is the mean over the whole.

    Raises:
        ObjectiveError: a rank reported other metrics at the target.
    """
    own = _Curve([(point.resource, ranks.part_at(point.resource), point.metrics) for point in points])
    told = [_curves.decode(data).points for data in ranks.gather(msgspec.msgpack.encode(own))]
    by_rank = [{resource: (weight, metrics) for resource, weight, metrics in one} for one in told]
    last = [one.get(target, (0.0, {}))[1] for one in by_rank]
    for rank, metrics in enumerate(last):
        if metrics.keys() != last[0].keys():
            raise ObjectiveError(
                f"Rank {rank} of {ranks.size} reported {_listed(metrics)} at step {target}, and rank 0 "
                f"{_listed(last[0])}: report the same metrics on all ranks."
            )
    for point in points:
        there = [one[point.resource] for one in by_rank if point.resource in one]
        for name in point.metrics:
            point.metrics[name] = _mean([(weight, metrics[name]) for weight, metrics in there if name in metrics])


def agree_on_state(ranks: Ranks, tracked: Mapping[str, Any]) -> list[Any] | None:
    """What a checkpoint holds of the single ranks; None: nothing, they are all alike.

    Raises:
        ObjectiveError: ranks trained apart: their parameters, or states of their optimizers, differ.
        CheckpointError: a state holds a value that cannot be stored.
    """
    own = _States(common_digests(tracked), own_state(tracked))
    told = [_states.decode(data) for data in ranks.gather(msgspec.msgpack.encode(own))]
    first = told[0].digests
    for rank, one in enumerate(told):
        if one.digests.keys() != first.keys():
            raise ObjectiveError(
                f"Rank {rank} of {ranks.size} tracks {_listed(one.digests)}, and rank 0 {_listed(first)}: "
                "trial.track() must be given the same on all ranks."
            )
        apart = [name for name, digest in one.digests.items() if digest != first[name]]
        if apart:
            cure = (
                "Train trial.data_parallel(model), which averages the gradients, and give all ranks the same batch, of "
                "which each takes trial.shard()."
            )
            raise ObjectiveError(
                f"What is tracked as {_listed(dict.fromkeys(apart))} differs between rank {rank} of {ranks.size} and "
                f"rank 0: the ranks trained apart. {OWN_DATA_CURE if ranks.own_data else cure}"
            )
    return differing([one.state for one in told])


def _mean(weighted: Sequence[tuple[float, float]]) -> float:
    first = weighted[0][1]
    if all(value == first for _, value in weighted):
        return first
    total = math.fsum(weight for weight, _ in weighted)
    if not total or not all(math.isfinite(value) for _, value in weighted):
        return math.nan
    return math.fsum(weight * value for weight, value in weighted) / total


def _listed(names: Mapping[str, Any]) -> str:
    return ", ".join(map(repr, names)) or "nothing"
