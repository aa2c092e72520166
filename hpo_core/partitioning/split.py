"""Which example goes into which partition: shuffled once, dealt out in turn."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Rows = NDArray[np.int64]
"""Numbers of examples."""


@dataclass(frozen=True, slots=True)
class Split:
    """Rows of each partition, in the order in which they are written."""

    partitions: list[Rows]
    validation: list[Rows]


def split(
    count: int,
    parts: int,
    *,
    validation: int = 0,
    validation_parts: int = 0,
    seed: int = 0,
    classes: NDArray[np.int64] | None = None,
) -> Split:
    """Shuffle ``count`` examples and deal them out; every example is in one partition.

    Counts differ by one at most, among the partitions and among those for validation; with ``classes`` also the counts
    of each class. The order within a partition is random in any case.

    The order is that of 64-bit words of PCG64, a stream that NumPy keeps the same between its versions.

    Args:
        validation: so many examples are for validation; of each class its share.
        classes: the class of each example.
    """
    words = np.random.PCG64(seed).random_raw(count)
    order = np.argsort(words, kind="stable")
    rank = np.empty(count, np.int64)
    rank[order] = np.arange(count)
    # Sorted by class, a class is a run of neighbours: whoever deals in turn gives each partition its share of the run.
    rows = order if classes is None else np.lexsort((rank, classes))
    place = np.arange(count, dtype=np.int64)
    is_validation = (place + 1) * validation // count > place * validation // count
    return Split(
        partitions=_dealt(rows[~is_validation], parts, rank),
        validation=_dealt(rows[is_validation], validation_parts, rank),
    )


def _dealt(rows: Rows, parts: int, rank: Rows) -> list[Rows]:
    dealt = (rows[part::parts] for part in range(parts))
    return [mine[np.argsort(rank[mine])] for mine in dealt]
