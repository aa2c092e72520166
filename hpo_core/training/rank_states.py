"""What a rank of a gang has of its own in a checkpoint: random streams, samplers, buffers of modules.

Parameters of modules and states of optimizers are the same on all ranks, or the ranks trained apart; they are saved
once, by rank 0. Everything else may differ from rank to rank. A rank whose own state differs from that of rank 0 has it
saved beside, so a gang of the same size goes on to the bit. In a gang of another size rank ``k`` takes up the state of
rank ``k mod g`` of the ``g`` that saved; where all drew alike, that is what one process would take up.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from hpo_core.checkpoints.tree_codec import tree_bytes, tree_digest, tree_of
from hpo_core.model.errors import ObjectiveError
from hpo_core.model.trial import Metrics, Point
from hpo_core.training.matching import is_optimizer
from hpo_core.training.ranks import OWN_DATA_CURE, Ranks
from hpo_core.training.saved_state import capture_all, is_module, is_torch, state_of

RANKS = "ranks"
"""Key of a checkpoint below which states of ranks lie that differ from rank 0's."""


def unwrapped(item: Any) -> Any:
    """The module that a wrapper for data-parallel training holds; anything else as it is.

    So names in a checkpoint have no prefix ``module.``, and it loads in a gang of any size, and without one.
    """
    if type(item).__name__ in ("DistributedDataParallel", "DataParallel") and is_torch(
        getattr(item, "module", None), "nn.Module"
    ):
        return item.module
    return item


def own_state(tracked: Mapping[str, Any]) -> bytes:
    """What this rank may have of its own, encoded.

    Raises:
        CheckpointError: a state holds a value that cannot be stored.
    """
    buffers = {name: _buffers(item) for name, item in tracked.items() if is_module(item)}
    others = {name: state_of(item) for name, item in tracked.items() if not is_module(item) and not is_optimizer(item)}
    return tree_bytes({"random": capture_all(), "buffers": buffers, "tracked": others})


def common_digests(tracked: Mapping[str, Any]) -> dict[str, str]:
    """Digests of what must be the same on all ranks, by name of the tracked module or optimizer."""
    found = {}
    for name, item in tracked.items():
        if is_module(item):
            buffers = _buffer_names(item)
            found[name] = tree_digest({key: value for key, value in item.state_dict().items() if key not in buffers})
        elif is_optimizer(item):
            found[name] = tree_digest(item.state_dict())
    return found


def differing(states: Sequence[bytes]) -> list[Any] | None:
    """States of the ranks for a checkpoint, None where it is that of rank 0; None: all are alike."""
    if all(state == states[0] for state in states):
        return None
    return [None if state == states[0] else np.frombuffer(state, np.uint8) for state in states]


def state_for(state: dict[str, Any], rank: int) -> dict[str, Any]:
    """The content of a checkpoint as this rank takes it up."""
    parts = state.get(RANKS)
    part = None if not parts else parts[rank % len(parts)]
    if part is None:
        return state
    own = tree_of(part.tobytes())
    tracked = dict(state["tracked"]) | own["tracked"]
    for name, buffers in own["buffers"].items():
        whole = tracked[name]
        tracked[name] = type(whole)((key, buffers.get(key, value)) for key, value in whole.items())
        if hasattr(whole, "_metadata"):
            tracked[name]._metadata = whole._metadata
    return state | {"random": own["random"], "tracked": tracked}


def _buffer_names(module: Any) -> set[str]:
    return {name for name, _ in module.named_buffers(remove_duplicate=False)}


def _buffers(module: Any) -> OrderedDict[str, Any]:
    names = _buffer_names(module)
    return OrderedDict((key, value) for key, value in module.state_dict().items() if key in names)


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
