"""Grants another study recorded, granted again in that order (``hpo rerun``; ASHA 5.4).

The recorded order fixes the promotions; the timing of the workers does not matter. A grant whose trial is
still training waits, and later ones of other trials go ahead, so no slot idles. A trial that goes on from another
one (PBT) waits for it, and since trials are numbered as recorded, so do the new trials after it.
"""

from __future__ import annotations

import heapq
from collections import Counter, deque

from hpo_core.model.events import Event, JobCompleted, JobGranted, TrialAbandoned
from hpo_core.search.halving.promotion_chance import Contest
from hpo_core.search.method import DONE, WAIT, Action, Promote, Reproduce, RungStatus, Sample
from hpo_core.spec import RecordedGrant, RecordedSearch


class Recorded:
    reads_curves = False

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
        self._ended: set[int] = set()
        self._at: dict[int, int] = {}  # by trial: rung of its latest result
        self._done: dict[tuple[int, int], int] = {}
        self._granted: dict[tuple[int, int], int] = {}
        self._expected: dict[tuple[int, int], list[RecordedGrant]] = {}
        for grant in settings.grants:
            self._expected.setdefault((grant.bracket, grant.rung), []).append(grant)
        self._uses = Counter(grant.trial for grant in settings.grants)  # by trial: results and children to come
        self._uses.update(parent for i in self._base if (parent := settings.grants[i].parent) is not None)
        self.running = 0
        self.ruled_out: list[int] = []

    def next_action(self) -> Action:
        grants = self.settings.grants
        base = self._base[self._next_base] if self._next_base < len(self._base) else None
        fresh = self._begin(grants[base]) if base is not None else None
        if self._ready and (base is None or fresh is None or self._ready[0] < base):
            grant = grants[self._ready[0]]
            return Promote(grant.trial, grant.bracket, grant.rung, grant.target)
        return fresh or (WAIT if self.running else DONE)

    def _begin(self, grant: RecordedGrant) -> Action | None:
        """A new trial, unless it waits for the one it goes on from."""
        if grant.parent is None and grant.initiator is None:
            return Sample(grant.bracket, grant.rung, grant.target)
        if grant.parent is not None and grant.parent not in self._ended:
            return None
        member = grant.trial if grant.member is None else grant.member
        initiator = grant.parent if grant.initiator is None else grant.initiator
        assert initiator is not None
        return Reproduce(initiator, grant.opponent, grant.parent, member, grant.rung, grant.target, None)

    def verdict(self) -> Event | None:
        return None

    def contest(self, bracket: int, rung: int) -> Contest | None:
        """The future is known: whoever has no grant left, nor a child to come, is ruled out."""
        return None

    def _used(self, trial: int) -> None:
        self._uses[trial] -= 1
        if not self._uses[trial] and not self.settings.keep_last:
            self.ruled_out.append(trial)

    def apply(self, event: Event) -> None:
        if isinstance(event, JobGranted):
            if event.retry:
                return
            self.running += 1
            place = (event.bracket, event.rung)
            self._granted[place] = self._granted.get(place, 0) + 1
            if self._ready and self.settings.grants[self._ready[0]].trial == event.trial:
                heapq.heappop(self._ready)
            else:
                parent = self.settings.grants[self._base[self._next_base]].parent
                self._next_base += 1
                if parent is not None:
                    self._used(parent)
        elif isinstance(event, JobCompleted):
            self.running -= 1
            place = (event.bracket, event.rung)
            self._done[place] = self._done.get(place, 0) + 1
            self._ended.add(event.trial)
            self._at[event.trial] = event.rung
            later = self._later.get(event.trial)
            if later:
                heapq.heappush(self._ready, later.popleft())
            self._used(event.trial)
        elif isinstance(event, TrialAbandoned):
            if self._at.get(event.trial, -1) < event.rung:
                self.running -= 1
            else:  # it stood there
                grants = self.settings.grants
                self._ready = [i for i in self._ready if grants[i].trial != event.trial]
                heapq.heapify(self._ready)
                self.ruled_out.append(event.trial)
            self._ended.add(event.trial)
            self._later.pop(event.trial, None)

    def rungs(self) -> list[RungStatus]:
        found = []
        for bracket in sorted({place[0] for place in self._expected}):
            ladder = sorted(k for b, k in self._expected if b == bracket)
            for k in ladder:
                grants = self._expected[bracket, k]
                done = self._done.get((bracket, k), 0)
                level = max(grant.target for grant in grants)
                below = max((g.target for g in self._expected.get((bracket, k - 1), ())), default=0)
                left = max(0, len(grants) - done)
                gone = self._granted.get((bracket, k + 1), 0)
                found.append(RungStatus(bracket, k, level, done, gone, 0, len(grants), left * (level - below)))
        return found

    def check(self) -> None:
        assert self.running >= 0
