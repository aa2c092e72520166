"""Which checkpoints may still be loaded or wanted (LiveCheckpoints), and which go first within a limit (Budget).

Without a limit a checkpoint stays exactly as long as something may load it, or a person may want it:

- what a running attempt started from, and what a failed one that will be repeated starts from;
- of every other trial that may go on, the newest checkpoint, and the one before it as a *fallback* should the newest
  turn out to be damaged. A paused trial may go on as long as its search method has not ruled it out: in ASHA always,
  for more configurations, asked for now or after the study has finished, may promote it;
- those behind the incumbent, or the whole Pareto front.

Everything else is dead at once: older checkpoints of a trial, all of a trial that was abandoned, stopped, passed over
at a barrier, is at the top of its ladder, or has no finite loss.

Within a limit, the live checkpoints and the room that running jobs need for theirs stay below it at any time. What
goes first, until the next job fits:

1. fallbacks, the oldest first: they cost nothing unless a disk fails;
2. checkpoints of paused trials, those first whose loss costs the least: the chance that the trial is promoted after
   all (:func:`promotion_chance`) times the units of training behind it, for such a trial starts from scratch; between
   equals the one with less training behind it, then the younger trial. The trial whose turn it is now keeps its own;
3. once no job runs, so that nothing else would free room: members of the Pareto front but the incumbent, the
   worst in the first objective first, and at last the checkpoint of the trial whose turn it is.

The incumbent's and those that running or repeated attempts load are pinned. If they leave no room for the next job,
fewer jobs run at once; if none runs, the study halts.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from enum import IntEnum

from hpo_core.model.events import (
    CheckpointCondemned,
    CheckpointRemoved,
    Event,
    JobCompleted,
    JobGranted,
    TrialAbandoned,
    TrialStopped,
)
from hpo_core.model.trial import Checkpoint
from hpo_core.search.method import SearchMethod
from hpo_core.spec import StudySpec
from hpo_core.state import StudyState, TrialRecord
from hpo_core.state.best_results import dominates


class Hold(IntEnum):
    """Why a checkpoint is live; the strongest reason counts."""

    FALLBACK = 0
    RESTING = 1
    """The newest one of a paused trial that may go on."""
    FRONT = 2
    """On the Pareto front."""
    PINNED = 3
    """May be loaded at any moment, or is the incumbent's."""


_STUDY = -1
"""Holder of what the study keeps for the user, next to the trials' numbers."""

_Holds = dict[str, tuple[Checkpoint, Hold]]


class LiveCheckpoints:
    """The live checkpoints of a study; follows its events, O(rungs) each.

    Args:
        state: must have applied an event before it comes here.
        method: likewise.
    """

    def __init__(self, state: StudyState, method: SearchMethod) -> None:
        self.state = state
        self.method = method
        self.bytes = 0
        """Bytes of all live checkpoints together."""
        self.fallbacks: dict[str, tuple[int, Checkpoint]] = {}
        """Trial and checkpoint of fallbacks that nothing else holds, by URI, the oldest first."""
        self.resting: dict[int, Checkpoint] = {}
        """The checkpoint from which each paused trial would go on."""
        self._dead: list[str] = []
        self._live: _Holds = {}
        self._holders: dict[str, dict[int, Hold]] = {}
        self._held: dict[int, _Holds] = {}
        self._ruled_out: set[int] = set()
        self._read = 0
        self._ruled_out.update(self._news())
        for trial in state.trials:
            self._hold(trial.number, self._wanted(trial))
        self._hold(_STUDY, _kept_for_the_user(state))

    def apply(self, event: Event) -> None:
        kind = type(event)
        if kind in _OF_ONE_TRIAL:
            self._settle(event.trial)  # type: ignore[union-attr]
        elif type(event) is JobCompleted:
            written = event.checkpoint
            if any((event.trial, event.resource) == (member.trial, member.resource) for member in self.state.front):
                self._hold(_STUDY, _kept_for_the_user(self.state))
            self._settle(event.trial)
            if written is not None and written.uri not in self._live:
                self._dead.append(written.uri)
        elif type(event) is CheckpointCondemned or type(event) is CheckpointRemoved:
            self._hold(_STUDY, _kept_for_the_user(self.state))
            for number in dict.fromkeys((event.trial, *self.state.waiting)):
                self._settle(number)
        for number in self._news():
            if number not in self._ruled_out:
                self._ruled_out.add(number)
                self._settle(number)

    def __len__(self) -> int:
        return len(self._live)

    def __contains__(self, uri: str) -> bool:
        return uri in self._live

    @property
    def uris(self) -> set[str]:
        return set(self._live)

    def why(self, uri: str) -> Hold | None:
        """The strongest reason a checkpoint is live; None: it is not."""
        found = self._live.get(uri)
        return None if found is None else found[1]

    def take_dead(self) -> list[str]:
        """URIs that died since this was asked last (or since this object was made)."""
        dead, self._dead = self._dead, []
        return [uri for uri in dead if uri not in self._live]

    def check(self) -> None:
        """Assert that what was carried along equals what follows from the state now."""
        ruled_out = set(self.method.ruled_out)
        assert self._read == len(self.method.ruled_out) and ruled_out == self._ruled_out
        expected: dict[str, Hold] = {}
        wanted = [self._wanted(trial) for trial in self.state.trials]
        for holds in (*wanted, _kept_for_the_user(self.state)):
            for uri, (_, hold) in holds.items():
                expected[uri] = max(hold, expected.get(uri, hold))
        assert {uri: hold for uri, (_, hold) in self._live.items()} == expected
        assert self.bytes == sum(checkpoint.size for checkpoint, _ in self._live.values())
        assert set(self.fallbacks) == {uri for uri, hold in expected.items() if hold is Hold.FALLBACK}

    def _news(self) -> list[int]:
        known = self.method.ruled_out
        if self._read == len(known):
            return []
        news = known[self._read :]
        self._read = len(known)
        return news

    def _settle(self, number: int) -> None:
        self._hold(number, self._wanted(self.state.trials[number]))

    def _wanted(self, trial: TrialRecord) -> _Holds:
        found: _Holds = {}
        if trial.abandoned is None and trial.number not in self._ruled_out:
            reasons = (Hold.PINNED if trial.running or trial.waiting else Hold.RESTING, Hold.FALLBACK)
            for checkpoint, hold in zip(trial.good_checkpoints(), reasons, strict=False):
                found[checkpoint.uri] = (checkpoint, hold)
        start = self.state.loaded(trial.number)
        if start is not None:
            found[start.uri] = (start, Hold.PINNED)
        return found

    def _hold(self, holder: int, wanted: _Holds) -> None:
        before = self._held.pop(holder, {})
        if wanted:
            self._held[holder] = wanted
        for uri in before:
            if uri not in wanted:
                del self._holders[uri][holder]
                self._weigh(uri, before[uri][0], holder)
        for uri, (checkpoint, hold) in wanted.items():
            if uri not in before or before[uri][1] is not hold:
                self._holders.setdefault(uri, {})[holder] = hold
                self._weigh(uri, checkpoint, holder)
        if holder != _STUDY:
            self.resting.pop(holder, None)
            for checkpoint, hold in wanted.values():
                if hold is Hold.RESTING:
                    self.resting[holder] = checkpoint

    def _weigh(self, uri: str, checkpoint: Checkpoint, holder: int) -> None:
        holders = self._holders[uri]
        if not holders:
            del self._holders[uri], self._live[uri]
            self.fallbacks.pop(uri, None)
            self.bytes -= checkpoint.size
            self._dead.append(uri)
            return
        if uri not in self._live:
            self.bytes += checkpoint.size
        hold = max(holders.values())
        self._live[uri] = (checkpoint, hold)
        if hold is Hold.FALLBACK:
            self.fallbacks[uri] = (next(iter(holders)), checkpoint)
        else:
            self.fallbacks.pop(uri, None)


_OF_ONE_TRIAL = frozenset({JobGranted, TrialAbandoned, TrialStopped})


def _kept_for_the_user(state: StudyState) -> _Holds:
    best = state.incumbent
    return {
        checkpoint.uri: (checkpoint, Hold.PINNED if member is best else Hold.FRONT)
        for member, checkpoint in reversed(state.front_checkpoints())
    }


_Key = tuple[float, ...]
"""Total violation, losses and trial number: what results at one rung are ordered by."""


class Budget:
    """A study's limits on its checkpoints: whether another job fits, and what goes to make it fit.

    A job is expected to write as much as the largest checkpoint so far and 2 % (counters and losses in it change its
    length); until the first result shows how much that is, a limit in bytes lets one job run alone. A checkpoint that
    is larger still can exceed the limit by the difference, until what it needs has been removed.
    """

    def __init__(self, spec: StudySpec, live: LiveCheckpoints) -> None:
        self.limits = spec.checkpoints
        self.live = live
        self.largest: int | None = None
        """Bytes of the largest checkpoint so far; None: not known yet."""
        outline = spec.search.outline()
        self._several_brackets = outline.several_brackets
        self._reduction_factor = outline.reduction_factor
        self._objectives = len(spec.objectives)
        self._saves = True
        self._state = live.state
        self._rungs: dict[tuple[int, int], _RungOrder] = {}
        """Results by bracket (0 where they share their rungs) and units of training."""
        self._at: dict[int, _RungOrder] = {}
        """The rung of each trial's latest result."""

    def apply(self, event: Event) -> None:
        self.live.apply(event)
        if type(event) is not JobCompleted:
            return
        if event.checkpoint is not None:
            self.largest = max(self.largest or 0, event.checkpoint.size)
            self._saves = True
        elif event.loss is not None and self.largest is None:
            self.largest = 0
            self._saves = False  # an objective that tracks nothing
        place = (event.stage.bracket if self._several_brackets else 0, event.resource)
        rung = self._rungs.setdefault(place, _RungOrder(several=self._objectives > 1))
        losses = event.losses or (event.loss,) * self._objectives
        ranked = (math.inf if loss is None or math.isnan(loss) else loss for loss in losses)
        rung.add((event.violation, *ranked, event.trial))
        self._at[event.trial] = rung

    def over(self, more: int) -> bool:
        """True if the limit would not hold with so many more jobs than run now."""
        jobs = len(self._state.running) + more
        limits = self.limits
        if limits.max_count is not None and len(self.live) + jobs * self._saves > limits.max_count:
            return True
        if limits.max_bytes is None:
            return False
        if self.largest is None:
            return jobs > 1
        return self.live.bytes + jobs * self.room > limits.max_bytes

    def fitting(self, most: int, turn: int | None = None) -> int:
        """Number of further jobs that fit beside what is kept, or in place of what may go; at most ``most``.

        Args:
            turn: the trial that would be granted.
        """
        jobs, limits = len(self._state.running), self.limits
        free = most
        if limits.max_count is not None and self._saves:
            free = min(free, limits.max_count - len(self.live) - jobs)
        if limits.max_bytes is not None and self.largest is None:
            free = min(free, 1 - jobs)
        elif limits.max_bytes is not None and self.room:
            free = min(free, (limits.max_bytes - self.live.bytes) // self.room - jobs)
        free = max(0, free)
        return free + (free < most and self.removal(free + 1, turn) is not None)

    @property
    def room(self) -> int:
        return 0 if self.largest is None else self.largest + self.largest // 50

    def removal(self, more: int, turn: int | None = None) -> CheckpointRemoved | None:
        """Choose the checkpoint that goes next so that ``more`` jobs fit; None: they fit, or nothing can go.

        Args:
            turn: the trial that would be granted.
        """
        if not self.over(more):
            return None
        for trial, checkpoint in self.live.fallbacks.values():
            return CheckpointRemoved(trial, checkpoint.resource, 0.0)
        rungs = [rung for rung in self._rungs.values() if rung.waiting]
        if choices := [choice for rung in rungs if (choice := self._choice(rung, turn)) is not None]:
            _, resource, trial, chance = min(choices)
            return CheckpointRemoved(-trial, resource, chance)
        return None if self._state.running else self._last_resort(turn)

    def _choice(self, rung: _RungOrder, turn: int | None) -> tuple[float, int, int, float] | None:
        for key in rung.worst_first():
            trial = int(key[-1])
            checkpoint, record = self.live.resting.get(trial), self._state.trials[trial]
            if checkpoint is None or self._at[trial] is not rung:
                if self._at[trial] is not rung or not (record.running or record.waiting):
                    rung.forget(key)  # it never rests here again
            elif trial != turn and self.live.why(checkpoint.uri) is Hold.RESTING:
                chance = promotion_chance(rung.place(key), len(rung.results), self._reduction_factor)
                return chance * checkpoint.resource, checkpoint.resource, -trial, chance
        return None

    def _last_resort(self, turn: int | None) -> CheckpointRemoved | None:
        for member, checkpoint in reversed(self._state.front_checkpoints()):
            if self.live.why(checkpoint.uri) is Hold.FRONT:
                return CheckpointRemoved(member.trial, checkpoint.resource, 0.0)
        own = None if turn is None else self.live.resting.get(turn)
        if turn is None or own is None or self.live.why(own.uri) is not Hold.RESTING:
            return None
        return CheckpointRemoved(turn, own.resource, 1.0)

    def shortage(self) -> str:
        must_stay = "what must stay (the checkpoints of the best so far, and those that waiting jobs load)"
        name, least = self.least
        if name == "max_count":
            limit = f"max_count = {self.limits.max_count}"
            need = f"{must_stay} are {len(self.live)}, and a job writes one more"
        else:
            limit = f"max_bytes = {self.limits.max_bytes:,}"
            need = f"{must_stay} are {self.live.bytes:,} bytes, and a job may write {self.room:,} more"
        return (
            f"checkpoints.{limit} leaves no room for a job: {need}. Start a new study with "
            f"checkpoints: {{{name}: {least}}} or more, or make the checkpoints smaller"
        )

    @property
    def least(self) -> tuple[str, int]:
        """The limit that is too small, and the least with which one more job fits."""
        if self.limits.max_count is not None and len(self.live) + self._saves > self.limits.max_count:
            return "max_count", len(self.live) + 2
        return "max_bytes", self.live.bytes + 2 * self.room

    def check(self) -> None:
        """Assert that orders are orders, and that every trial that rests can be found."""
        self.live.check()
        assert all(self._at[trial].holds(trial) for trial in self.live.resting)
        assert all(rung.results == sorted(rung.results) for rung in self._rungs.values())


class _RungOrder:
    """The results at one rung in order, and those of them whose trials may rest there.

    Args:
        several: whether there are several objectives. Then a feasible result stands behind those that dominate it.
    """

    __slots__ = ("_dominators", "_several", "results", "waiting")

    def __init__(self, *, several: bool) -> None:
        self.results: list[_Key] = []
        self.waiting: list[_Key] = []
        """Results of trials that rest here, or may do so again."""
        self._several = several
        self._dominators: dict[_Key, int] = {}
        """Number of results that dominate the result of a trial that waits."""

    def add(self, key: _Key) -> None:
        if self._several:
            for other in self._dominators:
                self._dominators[other] += _dominates(key, other)
            better = self.results[: bisect_left(self.results, key)]
            self._dominators[key] = sum(_dominates(other, key) for other in better)
        insort(self.results, key)
        insort(self.waiting, key)

    def forget(self, key: _Key) -> None:
        del self.waiting[bisect_left(self.waiting, key)]
        self._dominators.pop(key, None)

    def place(self, key: _Key) -> int:
        if self._several and not key[0]:
            return self._dominators[key] + 1
        return bisect_left(self.results, key) + 1

    def worst_first(self) -> list[_Key]:
        return sorted(self.waiting, key=self.place, reverse=True) if self._several else self.waiting[::-1]

    def holds(self, trial: int) -> bool:
        return any(key[-1] == trial for key in self.waiting)


def _dominates(one: _Key, other: _Key) -> bool:
    return not one[0] and not other[0] and dominates(one[1:-1], other[1:-1])


def promotion_chance(place: int, results: int, reduction_factor: float) -> float:
    """Estimate the probability that a trial is among the best 1/eta of its rung at some moment.

    With results in random order, ``place - results / eta`` is a random walk whose spread is that of ``results`` draws
    with probability 1/eta; to be promoted it has to come back to 0. By the reflection principle the chance is twice the
    tail of the normal distribution. How many results are still to come is left out: with it no checkpoint was chosen
    better (``benchmarks/checkpoint_removal.py``).

    >>> promotion_chance(3, 9, 3), round(promotion_chance(5, 9, 3), 3), round(promotion_chance(9, 9, 3), 5)
    (1.0, 0.18, 6e-05)
    """
    share = 1 / reduction_factor
    behind = place - results * share
    if behind <= 0:
        return 1.0
    chance = math.erfc(behind / math.sqrt(2 * (results + 1) * share * (1 - share)))
    return float(f"{chance:.9g}")  # erfc's last bits differ between machines, and an audit computes the chance again
