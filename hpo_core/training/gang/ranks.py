"""Ranks: this rank of a gang among the others, while a training function runs."""

from __future__ import annotations

import warnings
import zlib
from typing import Any

from hpo_core.checkpoints.tree_bytes import tree_bytes, tree_digest, tree_of
from hpo_core.model.errors import ObjectiveError
from hpo_core.training.gang.rank_place import RankPlace
from hpo_core.training.random_state import capture_all, restore_all

_CHECKED_BYTES = 1 << 22
"""Larger batches are not compared between ranks."""


class Ranks:
    """What a rank shares with the others: gradients, parts of batches, small messages.

    Args:
        place: of this rank. The process group is set up.
    """

    def __init__(self, place: RankPlace) -> None:
        self.rank = place.rank
        self.size = place.size
        self._weight = 1 / place.size
        """Of this rank's gradients in their sum: its share of the latest batch."""
        self._checked: int | None = None
        """Step of the latest comparison of batches."""
        self._parts: dict[int, float] = {}
        self._alike = False
        """Whether all ranks began the loop with the same random state."""
        self._uneven = False
        """Whether parts of different sizes were drawn for since the random states were last made alike."""
        self._collectives = _collectives()
        """Collective calls before those of the training function; None: this torch does not count them."""

    def warnings(self) -> tuple[str, ...]:
        """What is wrong with how the training function used the gang."""
        if self._collectives is None or _collectives() != self._collectives:
            return ()
        return (
            f"the {self.size} ranks of the gang exchanged nothing: each trained on all of the data, as fast as one "
            "alone. Pass the model to trial.data_parallel() and each batch to trial.shard(), or set training.gang to 1",
        )

    def begin(self) -> None:
        """The loop begins; each rank must call it."""
        own = tree_digest(capture_all()).encode()
        self._alike = all(other == own for other in self.gather(own))

    def keep_alike(self) -> None:
        """Between two steps: give ranks that began alike the random state of rank 0, where they may have come apart.

        Dropout on a part of a batch draws as much as the part is large. Without this, the ranks would draw different
        orders of the data after the first batch that has no equal parts.
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
        warnings.filterwarnings("ignore", message="find_unused_parameters=True was specified")
        wrapped = torch.nn.parallel.DistributedDataParallel(
            module, **{"find_unused_parameters": True, **devices, **options}
        )

        def weighted_sum(_: Any, bucket: Any) -> Any:
            work = distributed.all_reduce(bucket.buffer().mul_(self._weight), async_op=True)
            return work.get_future().then(lambda done: done.value()[0])

        weighted_sum.__annotations__ = {}  # torch wants its own types there, or none
        wrapped.register_comm_hook(None, weighted_sum)
        return wrapped

    def shard(self, arrays: tuple[Any, ...], step: int) -> tuple[Any, ...]:
        """This rank's part of each of them: equal parts in the order of ranks, or with one example more or less.

        Raises:
            ObjectiveError: they have different lengths, or the ranks were given different ones.
        """
        counts = {len(array) for array in arrays}
        if len(counts) != 1:
            raise ObjectiveError(
                f"trial.shard() got {len(arrays)} values of {sorted(counts)} examples; give it what belongs to one "
                "batch."
            )
        count = counts.pop()
        if self._checked != step:
            self._checked = step
            self._compare(arrays, count)
        first, last = (count * rank // self.size for rank in (self.rank, self.rank + 1))
        self._weight = (last - first) / count if count else 1 / self.size
        self._uneven = self._uneven or count % self.size != 0
        if first == last and count:  # the mean over nothing is no number: one example that weighs nothing
            first, last = 0, 1
        return tuple(array[first:last] for array in arrays)

    def reports(self, resource: int) -> None:
        """Metrics of this resource are those of this rank's part of the latest batch, if they are of a part at all."""
        if self._weight != 1 / self.size:
            self._parts[resource] = self._weight

    def part_at(self, resource: int) -> float:
        """This rank's part of the batch when it reported metrics of a resource."""
        return self._parts.get(resource, 1 / self.size)

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
        if self._collectives is not None:
            self._collectives += 2  # these are ours
        return [part[: int(length)].numpy().tobytes() for part, length in zip(parts, lengths, strict=True)]

    def _compare(self, arrays: tuple[Any, ...], count: int) -> None:
        """Ranks whose random streams came apart would each train on a part of another order, unnoticed."""
        own = b"%d/%d" % (count, _checksum(arrays))
        told = self.gather(own)
        other = next((rank for rank, one in enumerate(told) if one != told[0]), None)
        if other is not None:
            raise ObjectiveError(
                f"trial.shard(): rank {other} of {self.size} has another batch than rank 0. All ranks must draw the "
                "same order: draw it from a generator of its own (torch.Generator().manual_seed(trial.seed)) that is "
                "tracked, not from one that dropout or augmentation draw from, too."
            )


def _collectives() -> int | None:
    """How many collective calls this process made so far, by anybody."""
    from torch.distributed import distributed_c10d

    try:
        group: Any = distributed_c10d._get_default_group()
        return int(group._get_sequence_number_for_group())
    except (RuntimeError, AttributeError, ValueError):
        return None


def _checksum(arrays: tuple[Any, ...]) -> int:
    """Of the values, where they are in this process's memory and small enough to be looked at."""
    found = 0
    for array in arrays:
        if isinstance(array, range | list | tuple):
            if len(array) <= _CHECKED_BYTES // 16 and all(isinstance(item, int) for item in array):
                found = zlib.crc32(repr(array).encode(), found)
        elif getattr(array, "nbytes", _CHECKED_BYTES + 1) <= _CHECKED_BYTES:
            device = getattr(array, "device", "cpu")
            if getattr(device, "type", device) == "cpu":
                values = array.detach().contiguous().numpy() if hasattr(array, "detach") else array
                found = zlib.crc32(memoryview(values.tobytes()), found)
    return found
