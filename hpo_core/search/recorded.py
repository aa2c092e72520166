"""Grants another study recorded, granted again in that order (``hpo rerun``; ASHA 5.4).

The recorded order fixes the promotions; the timing of the workers does not matter. A grant whose trial is
still training waits, and later ones of other trials go ahead, so no slot idles.
"""

from __future__ import annotations

import heapq
from collections import deque

from hpo_core.events import Event, JobCompleted, JobGranted, TrialAbandoned
from hpo_core.search.base import DONE, WAIT, Action, Promote, Sample
from hpo_core.spec import RecordedSearch


class Recorded:
    def __init__(self, settings: RecordedSearch) -> None:
        self.settings = settings
        self._base: list[int] = []
        self._later: dict[int, deque[int]] = {}
        for i, grant in enumerate(settings.grants):
            if grant.trial in self._later:
                self._later[grant.trial].append(i)
            else:
                self._base.append(i)
                self._later[grant.trial] = deque()
        self._next_base = 0
        self._ready: list[int] = []
        self._done: dict[int, int] = {}
        self.running = 0

    def next_action(self) -> Action:
        grants = self.settings.grants
        base = self._base[self._next_base] if self._next_base < len(self._base) else None
        if self._ready and (base is None or self._ready[0] < base):
            grant = grants[self._ready[0]]
            return Promote(grant.trial, grant.bracket, grant.rung, grant.target)
        if base is not None:
            return Sample(grants[base].bracket, grants[base].rung, grants[base].target)
        return WAIT if self.running else DONE

    def apply(self, event: Event) -> None:
        if isinstance(event, JobGranted):
            if event.retry:
                return
            self.running += 1
            if self._ready and self.settings.grants[self._ready[0]].trial == event.trial:
                heapq.heappop(self._ready)
            else:
                self._next_base += 1
        elif isinstance(event, JobCompleted):
            self.running -= 1
            self._done[event.rung] = self._done.get(event.rung, 0) + 1
            later = self._later.get(event.trial)
            if later:
                heapq.heappush(self._ready, later.popleft())
        elif isinstance(event, TrialAbandoned):
            self.running -= 1
            self._later.pop(event.trial, None)

    def levels(self) -> list[int]:
        return [level for _, level in sorted({g.rung: g.target for g in self.settings.grants}.items())]

    def rung_sizes(self) -> list[tuple[int, int, int]]:
        return [(self._done.get(k, 0), self._done.get(k + 1, 0), 0) for k in range(len(self.levels()))]

    def check(self) -> None:
        assert self.running >= 0
