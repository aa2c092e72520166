"""The best results of a study, by one of two rules."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

import msgspec

from hpo_core.model.events import JobCompleted
from hpo_core.model.trial import Metrics
from hpo_core.state.trial_record import is_complete


def dominates(one: tuple[float, ...], other: tuple[float, ...]) -> bool:
    """True if losses ``one`` are at most ``other`` in every objective and smaller in one.

    >>> dominates((1, 2), (1, 3)), dominates((1, 2), (1, 2)), dominates((1, 2), (2, 1))
    (True, False, False)
    """
    for a, b in zip(one, other, strict=True):
        if a > b:
            return False
    return one != other


def add_to_front(front: list[Incumbent], result: Incumbent) -> bool:
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


class Incumbent(msgspec.Struct, frozen=True):
    """Best finite loss by the study's rule (``best_of``): of all rungs (ASHA 3.3), or of the highest one.

    Between equal losses the earlier one stays. With several objectives: a result that no other one dominates.
    """

    trial: int
    resource: int
    loss: float
    metrics: Metrics
    losses: tuple[float, ...] = ()
    """All objectives as losses, where there are several."""


class BestResults:
    """The incumbent and the Pareto front over feasible, finite results.

    Args:
        highest_rung: only those at the largest resource that has one count.
    """

    def __init__(self, *, highest_rung: bool = False) -> None:
        self.incumbent: Incumbent | None = None
        """With several objectives the best in the first one; between equals there, in the next one."""
        self.front: list[Incumbent] = []
        """The Pareto front, ascending by loss; with one objective the incumbent alone.

        A trial may be in it with several results; of equal ones the earliest stays."""
        self._highest_rung = highest_rung
        self._rung = 0

    def take(self, event: JobCompleted) -> None:
        assert event.loss is not None
        if event.losses and not is_complete(event):
            return
        if self._highest_rung:
            if event.resource < self._rung:
                return
            if event.resource > self._rung:
                self._rung, self.incumbent, self.front = event.resource, None, []
        if event.losses:
            add_to_front(self.front, Incumbent(event.trial, event.resource, event.loss, event.metrics, event.losses))
            self.incumbent = self.front[0]
        elif self.incumbent is None or event.loss < self.incumbent.loss:
            self.incumbent = Incumbent(event.trial, event.resource, event.loss, event.metrics)
            self.front = [self.incumbent]

    def check(self, results: Sequence[JobCompleted]) -> None:
        usable = [event for event in results if is_complete(event)]
        top = max((event.resource for event in usable), default=0)
        counted = [event for event in usable if event.resource == top or not self._highest_rung]
        members = [_losses(member) for member in self.front]
        assert members == sorted(set(members))
        assert not any(dominates(one, other) for one in members for other in members)
        for losses in {_losses(event) for event in counted}.difference(members):
            assert any(dominates(one, losses) for one in members), f"{losses} is missing among the best"
        found = {(event.trial, event.resource, _losses(event)) for event in counted}
        assert all((member.trial, member.resource, _losses(member)) in found for member in self.front)
        assert self.incumbent is (self.front[0] if self.front else None)


def _losses(result: JobCompleted | Incumbent) -> tuple[float, ...]:
    assert result.loss is not None
    return result.losses or (result.loss,)
