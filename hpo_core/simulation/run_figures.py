"""What people ask about one simulated run, gathered entry by entry."""

from __future__ import annotations

from array import array

from hpo_core.model.events import AttemptFailed, Entry, JobCompleted, JobGranted
from hpo_core.state.best_results import BestResults

LOAD_BINS = 240


class RunFigures:
    """Follows the entries of a run and keeps figures alone: of each attempt when it began and ended.

    Args:
        max_resource: R; None where there is none.
        highest_rung: whether the best result is that of the highest rung (``best_of``).
    """

    def __init__(self, max_resource: int | None, *, highest_rung: bool) -> None:
        self._top = max_resource
        self._bests = BestResults(highest_rung=highest_rung)
        self._running: dict[int, float] = {}
        """When its attempt was granted, by trial."""
        self._begins, self._ends = array("d"), array("d")
        self._rungs: dict[int, int] = {}
        self.steps: list[tuple[float, float]] = []
        """Changes of the incumbent: (time, loss)."""
        self.first_full: float | None = None
        """When the first trial was trained to R."""
        self.full = 0
        """Trials trained to R."""

    def take(self, entry: Entry) -> None:
        """Count the next entry."""
        for event in entry.events:
            if type(event) is JobGranted:
                self._running[event.trial] = entry.time
            elif type(event) is JobCompleted:
                self._ended(event.trial, entry.time)
                self._completed(event, entry.time)
            elif type(event) is AttemptFailed:
                self._ended(event.trial, entry.time)

    @property
    def rungs(self) -> tuple[tuple[int, int], ...]:
        """(resource, results there), ascending."""
        return tuple(sorted(self._rungs.items()))

    def load(self, seconds: float) -> tuple[float, ...]:
        """Busy workers on average in each of :data:`LOAD_BINS` equal parts of ``seconds``."""
        load = [0.0] * LOAD_BINS
        for begin, end in zip(self._begins, self._ends, strict=True):
            _spread(load, begin, end, seconds)
        return tuple(load)

    def _ended(self, trial: int, time: float) -> None:
        self._begins.append(self._running.pop(trial))
        self._ends.append(time)

    def _completed(self, event: JobCompleted, time: float) -> None:
        self._rungs[event.resource] = self._rungs.get(event.resource, 0) + 1
        if event.resource == self._top:
            self.full += 1
            if self.first_full is None:
                self.first_full = time
        if event.loss is not None and not event.infeasible:
            self._bests.take(event, event.resource)
        best = self._bests.incumbent
        if best is not None and (not self.steps or best.loss != self.steps[-1][1]):
            self.steps.append((time, best.loss))


def _spread(load: list[float], begin: float, end: float, whole: float) -> None:
    """Add one busy worker from ``begin`` to ``end`` to the bins of ``whole`` seconds."""
    if end <= begin:
        return
    per_bin = whole / len(load)
    first, last = begin / per_bin, min(end / per_bin, len(load) - 1e-9)
    low, high = int(first), int(last)
    if low == high:
        load[low] += last - first
        return
    load[low] += low + 1 - first
    load[high] += last - high
    for place in range(low + 1, high):
        load[place] += 1.0
