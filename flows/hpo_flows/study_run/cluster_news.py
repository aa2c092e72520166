"""What happens to a cluster while a study runs."""

from __future__ import annotations

import time
from collections.abc import Callable

from hpo_core.model.trial import Job, Report
from hpo_core.pool.seat import PoolSeat
from hpo_core.pool.words import standing_of

POOL_NEWS_SECONDS = 10.0
"""Between two lines about the pool at least."""


class ClusterNews:
    """Observer that has the news of the cluster told.

    Args:
        tell: tells what is new, if anything.
    """

    def __init__(self, tell: Callable[[], None]) -> None:
        self._tell = tell

    def on_report(self, report: Report, granted: list[Job]) -> None:
        """A report is no news of the cluster."""

    def on_tick(self) -> None:
        """Time passed."""
        self._tell()

    def close(self) -> None:
        """Nothing is open."""


class PoolNews(ClusterNews):
    """Observer that has it told when a study's share of its pool changes much, or studies come and go there.

    Args:
        seat: of the study in its pool.
        tell: tells a line.
    """

    def __init__(self, seat: PoolSeat, tell: Callable[[str], None]) -> None:
        super().__init__(self._look)
        self._seat = seat
        self._say = tell
        self._said: tuple[int, tuple[str, ...]] = (-1, ())
        self._next = 0.0

    def _look(self) -> None:
        seat, now = self._seat, time.monotonic()
        if seat.position is None or now < self._next:
            return
        found = seat.position.share, tuple(sorted(row.study for row in seat.others))
        came_or_went = found[1] != self._said[1]
        if not came_or_went and abs(found[0] - self._said[0]) <= 1:  # one slot more or less: studies take turns with it
            return
        if found[1] or self._said[1]:
            self._next = now + POOL_NEWS_SECONDS
            self._say(standing_of(seat.row, seat.others).words)
        self._said = found
