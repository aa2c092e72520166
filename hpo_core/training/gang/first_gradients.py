"""Whether all ranks of a gang compute the same gradients: then each of them trains on the same data."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any

PASSES = 3
"""Backward passes that are compared; where a job has fewer, those."""
_BYTES = 1 << 20
"""Of the gradients of a pass so many bytes are looked at: the first bucket of torch's DistributedDataParallel."""


class FirstGradients:
    """Checksums of this rank's first gradients, as they are before they are averaged.

    Gradients of different data differ, however the ranks came to their parts: by ``trial.shard``, a sampler, or their
    own arithmetic with ``trial.rank``. So only ranks that train on the same data have the same, to the bit, in each
    pass. Ranks that do so and draw different dropout masks have not, and are not noticed.
    """

    def __init__(self) -> None:
        self._checksums: list[int] = []
        self.judged = False
        """Whether enough was compared."""

    def add(self, gradients: Any) -> None:
        """Take up those of one backward pass, a tensor; zeros and what is not finite say nothing of the data."""
        if self.judged or len(self._checksums) >= PASSES or gradients.is_sparse:
            return
        import torch

        looked_at = gradients.detach().reshape(-1)[: _BYTES // gradients.element_size()].cpu()
        if looked_at.any() and looked_at.isfinite().all():
            self._checksums.append(zlib.crc32(memoryview(looked_at.contiguous().view(torch.uint8).numpy())))

    def encoded(self) -> bytes:
        """What this rank tells the others."""
        return b"/".join(b"%d" % one for one in self._checksums)

    def are_same(self, told: Sequence[bytes], *, last: bool) -> bool:
        """Whether all ranks have the same ones; False until enough passes were made.

        Args:
            told: by all ranks, this one included.
            last: whether no further pass comes.
        """
        passes = [len(one.split(b"/")) if one else 0 for one in told]
        self.judged = last or min(passes) >= PASSES or len(set(told)) > 1
        return self.judged and min(passes) > 0 and len(set(told)) == 1
