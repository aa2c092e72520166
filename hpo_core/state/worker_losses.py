"""Losses: trials that lose their workers, compared with others; tells a harmful trial from a dying cluster.

A loss is an attempt that is LOST on a worker that is named: worker or zygote died while it ran. An attempt lost with
its controller names none, and says nothing. All counts begin anew with each controller, which has workers of its own.

The rule, decided after each loss of a trial at its present target:

- It has lost three or more, and of the other trials some *ended by themselves* since its first loss (with a
  result or a failure of their own) and none lost a worker: it is abandoned.
- It has lost three or more, and that is no accident: with ``lost`` and ``ended`` of the other trials counted
  since its first loss, the chance of so many losses in a row, ``((lost + 1) / (lost + ended + 2)) ** losses``, is below
  one in a hundred, and others have ended in this study: it is abandoned as well. So several harmful trials do not hide
  each other, one that runs alone is abandoned at its seventh loss, and in a study whose workers die at random hardly
  any trial is.
- It has used up ``retries.lost`` (10) otherwise: the study halts, and a person decides.

A study that sets ``training.retries.lost`` itself has the last rule alone.

So that there is something to compare, a trial with two losses lets other work go first, and waits for
what runs, until another attempt has ended by itself. At most :data:`MOST_DEFERRED` trials do, so that a dying cluster
does not open trial after trial.
"""

from __future__ import annotations

from hpo_core.model.events import AttemptFailed
from hpo_core.model.trial import Outcome

MOST_DEFERRED = 3
ACCIDENT = 0.01
_NOT_BY_ITSELF = frozenset({Outcome.LOST, Outcome.PREEMPTED, Outcome.STORAGE})


class Losses:
    """Counts of one controller; costs nothing while no trial has lost a worker.

    Args:
        enders: the first two trials of the study of which an attempt ended by itself.
    """

    def __init__(self, enders: tuple[int, ...] = ()) -> None:
        self.enders = enders
        self._now = 0
        self._latest_end = 0
        self._count: dict[int, int] = {}
        self._first: dict[int, int] = {}
        self._last: dict[int, int] = {}
        self._lost_at: dict[int, int] = {}
        self._ended_at: dict[int, int] = {}

    def failed(self, event: AttemptFailed) -> None:
        if event.outcome not in _NOT_BY_ITSELF:
            self.ended(event.trial)
        elif event.outcome is Outcome.LOST and event.worker:
            self._now += 1
            self._count[event.trial] = self._count.get(event.trial, 0) + 1
            self._first.setdefault(event.trial, self._now)
            self._last[event.trial] = self._lost_at[event.trial] = self._now

    def ended(self, trial: int) -> None:
        self._now += 1
        self._latest_end = self._now
        if len(self.enders) < 2 and trial not in self.enders:
            self.enders += (trial,)
        if self._count:
            self._ended_at[trial] = self._now

    def forget(self, trial: int, *, stays: bool = True) -> None:
        """Drop the losses of a trial that reached its target, or does not go on.

        Args:
            stays: whether others are still compared with them.
        """
        if not self._count:
            return
        if not stays:
            self._lost_at.pop(trial, None)
        for table in (self._count, self._first, self._last):
            table.pop(trial, None)
        if not self._count:
            self._lost_at.clear()
            self._ended_at.clear()

    def count(self, trial: int) -> int:
        return self._count.get(trial, 0)

    def defers(self, trial: int, most: int) -> bool:
        """True if other work goes before its next attempt."""
        return self.count(trial) >= max(1, most - 1) and self._latest_end < self._last[trial]

    def is_at_fault(self, trial: int, most: int) -> bool:
        """True if the trial itself, and not the cluster, is what costs it its workers."""
        count = self.count(trial)
        if count < most:
            return False
        ended, lost = self.others(trial)
        if ended and not lost:
            return True
        return ((lost + 1) / (lost + ended + 2)) ** count < ACCIDENT and any(n != trial for n in self.enders)

    def others(self, trial: int) -> tuple[int, int]:
        first = self._first[trial]
        ended = sum(number != trial and when > first for number, when in self._ended_at.items())
        lost = sum(number != trial and when > first for number, when in self._lost_at.items())
        return ended, lost
