"""The Pareto front: the results that no other result dominates."""

from __future__ import annotations

from bisect import bisect_left
from typing import Protocol, TypeVar


class HasLosses(Protocol):
    """A result with one loss per objective; smaller is better."""

    @property
    def losses(self) -> tuple[float, ...]: ...


Result = TypeVar("Result", bound=HasLosses)


def dominates(one: tuple[float, ...], other: tuple[float, ...]) -> bool:
    """Whether losses ``one`` are at most ``other`` in every objective and smaller in one.

    >>> dominates((1, 2), (1, 3)), dominates((1, 2), (1, 2)), dominates((1, 2), (2, 1))
    (True, False, False)
    """
    for a, b in zip(one, other, strict=True):
        if a > b:
            return False
    return one != other


def add_to_front(front: list[Result], result: Result) -> bool:
    """Add a result to a front unless a member dominates or equals it; return whether it was added.

    Members that it dominates are removed. The front stays sorted by its losses, the first objective first. O(log n)
    comparisons plus the shift of a list for two objectives, O(n) comparisons for more.
    """
    losses = result.losses
    at = bisect_left(front, losses, key=lambda member: member.losses)
    if at < len(front) and front[at].losses == losses:
        return False
    two = len(losses) == 2  # then the second loss falls along the front, and neighbours decide
    for i in range(at - 1, -1, -1):
        if dominates(front[i].losses, losses):
            return False
        if two:
            break
    end = at
    if two:
        while end < len(front) and dominates(losses, front[end].losses):
            end += 1
        front[at:end] = [result]
    else:
        front[at:] = [result, *(member for member in front[at:] if not dominates(losses, member.losses))]
    return True
