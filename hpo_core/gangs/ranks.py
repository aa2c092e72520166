"""Ranks: this rank of a gang among the others, while a training function runs, and in a checkpoint.

Parameters of modules and states of optimizers are the same on all ranks, or the ranks trained apart; they are saved
once, by rank 0. Everything else (random streams, samplers, buffers) may differ from rank to rank. A rank whose own
state differs from that of rank 0 has it saved beside, so a gang of the same size goes on to the bit. In a gang of
another size rank ``k`` takes up the state of rank ``k mod g`` of the ``g`` that saved; where all drew alike, that is
what one process would take up.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from hpo_core.checkpoints.tree_codec import tree_bytes, tree_digest, tree_of
from hpo_core.gangs.process_group import LOST_PEER, GangError, is_lost_peer, join, leave
from hpo_core.model.errors import ObjectiveError
from hpo_core.model.trial import Metrics, Point
from hpo_core.training.inherited_state import is_optimizer
from hpo_core.training.request import RankPlace
from hpo_core.training.saved_state import capture_all, is_module, restore_all, state_of


class Ranks:
    """A rank's link to the others: gradients, parts of batches, small messages.

    Args:
        place: of this rank.
    """

    def __init__(self, place: RankPlace) -> None:
        self._place = place
        self.rank = place.rank
        self.size = place.size
        self._weight = 1 / place.size
        """Weight of this rank's gradients in their sum: its part of the latest batch."""
        self._parts: dict[int, float] = {}
        self._alike = False
        """True if all ranks began the loop with the same random state."""
        self._uneven = False
        """True if parts of different sizes were drawn for since the random states were last made alike."""

    def join(self, *, stall_timeout: float | None, alive: Callable[[], None]) -> None:
        join(self._place, stall_timeout=stall_timeout, alive=alive)

    def leave(self) -> None:
        leave()

    def state_for(self, state: dict[str, Any]) -> dict[str, Any]:
        parts = state.get(RANKS)
        part = None if not parts else parts[self.rank % len(parts)]
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

    def lost(self, error: BaseException, message: str) -> str:
        """Message of an attempt that ended since another rank did not come or went; empty for any other error."""
        if is_lost_peer(error):
            return f"It {LOST_PEER} ({message})"
        return message if isinstance(error, GangError) else ""

    def begin(self) -> None:
        own = tree_digest(capture_all()).encode()
        self._alike = all(other == own for other in self.gather(own))

    def end_step(self) -> None:
        """Keep the ranks alike. Each rank must call it.

        Ranks that began alike get the random state of rank 0, where they may have come apart: dropout on a part of a
        batch draws as much as the part is large. Without this, the ranks would draw different orders of the data after
        the first batch that has no equal parts.
        """
        if self._alike and self._uneven:
            states = self.gather(tree_bytes(capture_all()))
            if self.rank:
                restore_all(tree_of(states[0]))
            self._uneven = False

    def data_parallel(self, module: Any, **options: Any) -> Any:
        """The module wrapped by torch's ``DistributedDataParallel``; gradients are weighted by the parts of the batch.

        Gradients are summed in the same order after a resume: without ``find_unused_parameters`` torch orders them
        anew after the first backward pass, and sums of four or more ranks differ in their last bits then.
        """
        import torch
        from torch import distributed

        cuda = next((tensor.device for tensor in module.parameters() if tensor.device.type == "cuda"), None)
        devices = {} if cuda is None else {"device_ids": [cuda.index]}
        settings = {"find_unused_parameters": True, **devices, **options}
        wrapped = torch.nn.parallel.DistributedDataParallel(module, **settings)

        def weighted_sum(_: Any, bucket: Any) -> Any:
            work = distributed.all_reduce(bucket.buffer().mul_(self._weight), async_op=True)
            return work.get_future().then(lambda done: done.value()[0])

        weighted_sum.__annotations__ = {}  # torch wants its own types there, or none
        wrapped.register_comm_hook(None, weighted_sum)
        return wrapped

    def shard(self, arrays: tuple[Any, ...]) -> tuple[Any, ...]:
        """This rank's part of each array: equal parts in the order of ranks, or with one example more or less.

        Raises:
            ObjectiveError: they have different lengths.
        """
        counts = {len(array) for array in arrays}
        if len(counts) != 1:
            raise ObjectiveError(
                f"trial.shard() got {len(arrays)} values of {sorted(counts)} examples; give it what belongs to one "
                "batch."
            )
        count = counts.pop()
        first, last = (count * rank // self.size for rank in (self.rank, self.rank + 1))
        self._weight = (last - first) / count if count else 1 / self.size
        self._uneven = self._uneven or count % self.size != 0
        if first == last and count:  # the mean over nothing is no number: one example that weighs nothing
            first, last = 0, 1
        return tuple(array[first:last] for array in arrays)

    def reports(self, resource: int) -> None:
        """Note that metrics of this resource belong to this rank's part of the latest batch."""
        if self._weight != 1 / self.size:
            self._parts[resource] = self._weight

    def gather(self, data: bytes) -> list[bytes]:
        """The bytes of all ranks, by rank; each rank must call it."""
        import torch
        from torch import distributed

        own = torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else torch.empty(0, dtype=torch.uint8)
        lengths = [torch.zeros(1, dtype=torch.int64) for _ in range(self.size)]
        distributed.all_gather(lengths, torch.tensor([len(data)]))
        longest = max(int(length) for length in lengths)
        padded = torch.zeros(longest, dtype=torch.uint8)
        padded[: len(data)] = own
        parts = [torch.zeros(longest, dtype=torch.uint8) for _ in range(self.size)]
        distributed.all_gather(parts, padded)
        return [part[: int(length)].numpy().tobytes() for part, length in zip(parts, lengths, strict=True)]

    def average_metrics(self, points: Sequence[Point], target: int) -> None:
        """Replace the metrics of each point by the mean over the ranks, weighted by their parts of the batch.

        Ranks that evaluate the same data have the same value, which is their mean; of ranks that evaluate a part each,
        it is the mean over the whole.

        Raises:
            ObjectiveError: a rank reported other metrics at the target.
        """
        own = [(one.resource, self._parts.get(one.resource, 1 / self.size), one.metrics) for one in points]
        told = map(_curves.decode, self.gather(msgspec.msgpack.encode(own)))
        by_rank = [{resource: (weight, metrics) for resource, weight, metrics in one} for one in told]
        last = [one.get(target, (0.0, {}))[1] for one in by_rank]
        for rank, metrics in enumerate(last):
            if metrics.keys() != last[0].keys():
                raise ObjectiveError(
                    f"Rank {rank} of {self.size} reported {_listed(metrics)} at step {target}, and rank 0 "
                    f"{_listed(last[0])}: report the same metrics on all ranks."
                )
        for point in points:
            there = [one[point.resource] for one in by_rank if point.resource in one]
            for name in point.metrics:
                point.metrics[name] = _mean([(weight, metrics[name]) for weight, metrics in there if name in metrics])

    def agree_on_state(self, tracked: Mapping[str, Any]) -> dict[str, list[Any]]:
        """Part of the checkpoint that holds the states of single ranks; empty where all are alike.

        Raises:
            ObjectiveError: ranks trained apart: their parameters, or states of their optimizers, differ.
            CheckpointError: a state holds a value that cannot be stored.
        """
        own = common_digests(tracked), own_state(tracked)
        told = [_states.decode(data) for data in self.gather(msgspec.msgpack.encode(own))]
        first = told[0][0]
        for rank, (digests, _) in enumerate(told):
            if digests.keys() != first.keys():
                raise ObjectiveError(
                    f"Rank {rank} of {self.size} tracks {_listed(digests)}, and rank 0 {_listed(first)}: "
                    "trial.track() must be given the same on all ranks."
                )
            if apart := [name for name, digest in digests.items() if digest != first[name]]:
                raise ObjectiveError(
                    f"What is tracked as {_listed(dict.fromkeys(apart))} differs between rank {rank} of {self.size} "
                    "and rank 0: the ranks trained apart. Train trial.data_parallel(model), which averages the "
                    "gradients, and give all ranks the same batch, of which each takes trial.shard()."
                )
        states = differing([state for _, state in told])
        return {} if states is None else {RANKS: states}


RANKS = "ranks"
"""Key of a checkpoint below which states of ranks lie that differ from rank 0's."""


def own_state(tracked: Mapping[str, Any]) -> bytes:
    """State that may differ between ranks, encoded.

    Raises:
        CheckpointError: a state holds a value that cannot be stored.
    """
    buffers = {name: _buffers(item) for name, item in tracked.items() if is_module(item)}
    others = {name: state_of(item) for name, item in tracked.items() if not is_module(item) and not is_optimizer(item)}
    return tree_bytes({"random": capture_all(), "buffers": buffers, "tracked": others})


def common_digests(tracked: Mapping[str, Any]) -> dict[str, str]:
    found = {}
    for name, item in tracked.items():
        if is_module(item):
            buffers = _buffers(item)
            found[name] = tree_digest({key: value for key, value in item.state_dict().items() if key not in buffers})
        elif is_optimizer(item):
            found[name] = tree_digest(item.state_dict())
    return found


def differing(states: Sequence[bytes]) -> list[Any] | None:
    """States of the ranks for a checkpoint, None where it is that of rank 0; None: all are alike."""
    if all(state == states[0] for state in states):
        return None
    return [None if state == states[0] else np.frombuffer(state, np.uint8) for state in states]


def _buffers(module: Any) -> OrderedDict[str, Any]:
    names = {name for name, _ in module.named_buffers(remove_duplicate=False)}
    return OrderedDict((key, value) for key, value in module.state_dict().items() if key in names)


_curves = msgspec.msgpack.Decoder(list[tuple[int, float, Metrics]])
"""Report of one rank: resource, the rank's part of the batch, metrics."""
_states = msgspec.msgpack.Decoder(tuple[dict[str, str], bytes])
"""State that one rank would save: digests of what is common, and its own state."""


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
