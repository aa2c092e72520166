"""What the ranks of a gang tell each other at the end of a job, and what they must agree on."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from hpo_core.model.errors import ObjectiveError
from hpo_core.model.trial import Metrics
from hpo_core.training.gang.rank_states import common_digests, differing, own_state
from hpo_core.training.gang.ranks import Ranks

CLOSE = 1e-6
"""Relative difference up to which two ranks count as having reported one value: sums in another order."""


class _Told(msgspec.Struct, frozen=True):
    """What one rank tells the others."""

    metrics: Metrics
    digests: dict[str, str] = {}
    state: bytes = b""


_told = msgspec.msgpack.Decoder(_Told)


def agree_on_metrics(ranks: Ranks, metrics: Metrics) -> tuple[Metrics, tuple[str, ...]]:
    """The metrics of rank 0, which count, and warnings where other ranks have other values.

    Raises:
        ObjectiveError: a rank reported other metrics.
    """
    all_told = _exchange(ranks, _Told(metrics))
    return all_told[0].metrics, _differences(all_told)


def agree_on_state(ranks: Ranks, metrics: Metrics, tracked: Mapping[str, Any]) -> tuple[Metrics, list[Any] | None]:
    """The metrics of rank 0, and what a checkpoint holds of the other ranks (None: nothing, they are all alike).

    Raises:
        ObjectiveError: ranks trained apart: their parameters, or states of their optimizers, differ.
        CheckpointError: a state holds a value that cannot be stored.
    """
    all_told = _exchange(ranks, _Told(metrics, common_digests(tracked), own_state(tracked) if tracked else b""))
    first = all_told[0]
    for rank, told in enumerate(all_told):
        if told.digests.keys() != first.digests.keys():
            raise ObjectiveError(
                f"Rank {rank} of {ranks.size} tracks {_listed(told.digests)}, and rank 0 {_listed(first.digests)}: "
                "trial.track() must be given the same on all ranks."
            )
        apart = [name for name, digest in told.digests.items() if digest != first.digests[name]]
        if apart:
            raise ObjectiveError(
                f"{', '.join(apart)} of rank {rank} of {ranks.size} differ from those of rank 0: the ranks trained "
                "apart. Train trial.data_parallel(model), which averages the gradients, and give all ranks the same "
                "batch, of which each takes trial.shard()."
            )
    return first.metrics, differing([told.state for told in all_told])


def _exchange(ranks: Ranks, told: _Told) -> list[_Told]:
    return [_told.decode(data) for data in ranks.gather(msgspec.msgpack.encode(told))]


def _differences(all_told: Sequence[_Told]) -> tuple[str, ...]:
    first = all_told[0].metrics
    lines: dict[str, str] = {}
    for rank, told in enumerate(all_told):
        if told.metrics.keys() != first.keys():
            raise ObjectiveError(
                f"Rank {rank} of {len(all_told)} reported {_listed(told.metrics)}, and rank 0 {_listed(first)}: report "
                "the same metrics on all ranks."
            )
        for name, value in told.metrics.items():
            if not (math.isclose(value, first[name], rel_tol=CLOSE) or (math.isnan(value) and math.isnan(first[name]))):
                lines[name] = (
                    f"{name} is {value:g} on rank {rank} and {first[name]:g} on rank 0, whose value counts. Evaluate "
                    "the same data on all ranks, or average over them (torch.distributed.all_reduce) before "
                    "trial.report()."
                )
    return tuple(lines.values())


def _listed(names: Mapping[str, Any]) -> str:
    return ", ".join(map(repr, names)) or "nothing"
