"""The grants of another study, granted again in the same order (``hpo rerun``; ASHA 5.4).

The recorded order fixes the promotions; the timing of the workers does not matter. A grant whose trial is
still training waits, and later ones of other trials go ahead, so no slot idles. A trial that goes on from another
one (PBT) waits for it, and since trials are numbered as recorded, so do the new trials after it.
"""

from __future__ import annotations

import heapq
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal

import msgspec
from pydantic import Field

from hpo_core.model.events import Event, JobCompleted, JobGranted, TrialAbandoned
from hpo_core.model.settings import Filled
from hpo_core.model.trial import Params
from hpo_core.search.method import DONE, WAIT, Action, Promote, Reproduce, RungStatus, Sample, SearchMethod
from hpo_core.search.search_settings import Outline, Record, SearchContext, SearchSettings

Number = Annotated[int, msgspec.Meta(ge=0)]
Target = Annotated[int, msgspec.Meta(ge=1)]


class RecordedGrant(Filled, frozen=True):
    """One grant of the recorded study."""

    trial: Number
    rung: Number
    target: Target
    bracket: int = 0
    parent: int | None = None
    """The trial it goes on from, where that is another one (PBT)."""
    initiator: int | None = None
    opponent: int | None = None
    member: int | None = None
    slots: Target = 1
    """Ranks of its gang."""


class RecordedStudy(Filled, frozen=True):
    """The grants of another study, and all that its repetition needs of it."""

    source: str
    """Name of the other study."""
    grants: list[RecordedGrant]
    """Grants in the order in which they were made."""
    params: list[dict[str, Any]]
    """Parameters of the trials, by number."""
    numbers: list[int] = msgspec.field(default_factory=list)
    """Numbers of the trials in the source, whose training seeds they keep; empty: equal."""
    visits: list[dict[int, list[int]]] = msgspec.field(default_factory=list)
    """By trial and epoch (from 1): order in which the model visited the partitions."""
    unit_is_whole: bool = False
    """True if one unit is a whole training, as in the source."""
    any_metric: bool = False
    """True if one of several metrics suffices, as in the source (PBT)."""
    keep_last: bool = False
    """True if the last checkpoint of every trial is kept."""


class RecordedSearch(SearchSettings):
    """Trains again along the grants another study recorded (``hpo rerun``); decides nothing itself."""

    title: ClassVar[str] = "Recorded"
    offered: ClassVar[bool] = False

    method: Literal["recorded"] = "recorded"
    study_record: RecordedStudy = Field(description="What it granted; `hpo rerun` fills it in.")

    @property
    def max_resource(self) -> int:
        return max((grant.target for grant in self.study_record.grants), default=1)

    def create(self, context: SearchContext) -> Recorded:
        return Recorded(self.study_record)

    def outline(self) -> Outline:
        grants = self.study_record.grants
        return Outline(
            max_resource=self.max_resource,
            several_brackets=len({grant.bracket for grant in grants}) > 1,
            members=any(grant.initiator is not None for grant in grants),
            own_configurations=True,
        )

    def unit_is_whole(self) -> bool:
        return self.study_record.unit_is_whole

    def accepts_any_metric(self) -> bool:
        return self.study_record.any_metric

    def configurations(self, context: SearchContext) -> Callable[[int], Params]:
        return lambda number: dict(self.study_record.params[number])

    def refuse_extension(self, study: str, method: SearchMethod | None = None) -> str:
        source = self.study_record.source
        return (
            f"Study {study!r} trains again along the record of {source!r} and has no configurations of its own; "
            f"extend {source!r} instead."
        )

    def record(self) -> Record:
        return Record(self.study_record.source, self.study_record.params)

    def number_of_seed(self, trial: int) -> int:
        return self.study_record.numbers[trial] if self.study_record.numbers else trial

    def order_of_visits(self, trial: int) -> Mapping[int, Sequence[int]]:
        return self.study_record.visits[trial] if trial < len(self.study_record.visits) else {}


class Recorded(SearchMethod):
    """Grants in the recorded order; decides nothing."""

    def __init__(self, settings: RecordedStudy) -> None:
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
        return self._next()[0]

    def recorded_slots(self) -> int:
        return self._next()[1]

    def _next(self) -> tuple[Action, int]:
        # Return what to do with a free slot now, and its slots in the record (0: nothing is to be done).
        grants = self.settings.grants
        base = self._base[self._next_base] if self._next_base < len(self._base) else None
        fresh = self._begin(grants[base]) if base is not None else None
        if self._ready and (base is None or fresh is None or self._ready[0] < base):
            grant = grants[self._ready[0]]
            return Promote(grant.trial, grant.bracket, grant.rung, grant.target), grant.slots
        if base is not None and fresh is not None:
            return fresh, grants[base].slots
        return (WAIT if self.running else DONE), 0

    def grantable(self, most: int) -> int:
        count = len(self._ready)
        for i in self._base[self._next_base :]:
            if count >= most or self._begin(self.settings.grants[i]) is None:
                break
            count += 1
        return min(count, most)

    def _begin(self, grant: RecordedGrant) -> Action | None:
        if grant.parent is None and grant.initiator is None:
            return Sample(grant.bracket, grant.rung, grant.target)
        if grant.parent is not None and grant.parent not in self._ended:
            return None
        member = grant.trial if grant.member is None else grant.member
        initiator = grant.parent if grant.initiator is None else grant.initiator
        assert initiator is not None
        return Reproduce(
            initiator,
            grant.opponent,
            grant.parent,
            member=member,
            generation=grant.rung,
            target=grant.target,
            params=None,
        )

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
                left_for_next = self._granted.get((bracket, k + 1), 0)
                found.append(
                    RungStatus(
                        bracket,
                        k,
                        level,
                        results=done,
                        promoted=left_for_next,
                        waiting=0,
                        expected=len(grants),
                        units=left * (level - below),
                    )
                )
        return found

    def check(self) -> None:
        assert self.running >= 0
