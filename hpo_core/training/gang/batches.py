"""The batches of a gang whose ranks have a partition of the data each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction


def apportioned(count: int, sizes: Sequence[int]) -> list[int]:
    """How many of the first ``count`` examples come from each rank, where those of all ranks are merged evenly.

    Example i of a rank with n examples stands at (2 i + 1) / (2 n) of the unit; of equals the lower rank's is first.
    That is Webster's method of apportioning seats: with each further example no rank's part becomes smaller.

    Args:
        count: at most the sum of ``sizes``.
        sizes: examples of each rank.

    >>> [apportioned(count, [6, 3, 3]) for count in (4, 8, 12)]
    [[2, 1, 1], [4, 2, 2], [6, 3, 3]]
    """
    total = sum(sizes)
    found = [(2 * count * size + total) // (2 * total) for size in sizes]  # all that stand at count / total or before

    def place(rank: int, example: int) -> tuple[Fraction, int]:
        return Fraction(2 * example + 1, 2 * sizes[rank]), rank

    ranks = [rank for rank, size in enumerate(sizes) if size]
    while sum(found) > count:
        found[max((rank for rank in ranks if found[rank]), key=lambda rank: place(rank, found[rank] - 1))] -= 1
    while sum(found) < count:
        found[min(ranks, key=lambda rank: place(rank, found[rank]))] += 1
    return found


def parts_of_batches(sizes: Sequence[int], batch_size: int) -> Iterator[list[int]]:
    """Of each batch of all ranks together: how many examples come from each rank. The last batch may be smaller.

    >>> list(parts_of_batches([3, 2], 2))
    [[1, 1], [1, 1], [1, 0]]
    """
    total, before = sum(sizes), [0] * len(sizes)
    for first in range(0, total, batch_size):
        now = apportioned(min(first + batch_size, total), sizes)
        yield [end - begin for begin, end in zip(before, now, strict=True)]
        before = now
