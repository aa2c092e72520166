"""LiveCheckpoints: the checkpoints that may still be loaded or wanted.

Without a limit a checkpoint stays exactly as long as something may load it, or a person may want it:

- what a running attempt started from, and what a failed one that will be repeated starts from;
- of every other trial that may go on, the newest checkpoint, and the one before it as a *fallback* should the newest
  turn out to be damaged. A paused trial may go on as long as its search method has not ruled it out: in ASHA always,
  for more configurations, asked for now or after the study has finished, may promote it;
- those behind the incumbent, or the whole Pareto front;
- of a trial that a person has trained further than the search did, or wants to, the newest one, and as its fallback the
  one before it.

Everything else is dead at once: older checkpoints of a trial, all of a trial that was abandoned, stopped, passed over
at a barrier, is at the top of its ladder, or has no finite loss.

Limits on all of this: :mod:`hpo_core.checkpoints.budget`.
"""

from __future__ import annotations

from enum import IntEnum

from hpo_core.model.events import (
    CheckpointCondemned,
    CheckpointRemoved,
    Event,
    JobCompleted,
    JobGranted,
    TrialAbandoned,
    TrialExtended,
    TrialExtensionEnded,
    TrialStopped,
)
from hpo_core.model.trial import Checkpoint
from hpo_core.search.method import SearchMethod
from hpo_core.state import StudyState, TrialRecord


class Hold(IntEnum):
    """Why a checkpoint is live; the strongest reason counts."""

    FALLBACK = 0
    RESTING = 1
    """The newest one of a paused trial that may go on."""
    FRONT = 2
    """On the Pareto front, or the last one of a trial that a person had trained further."""
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
        """Take note of a fact."""
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
            for number in dict.fromkeys((event.trial, *self.state.waiting, *self.state.extended)):
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
        """URIs of all live checkpoints."""
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

    def further_start(self, number: int) -> Checkpoint | None:
        """Return where training beyond the search begins: a checkpoint of the trial or its nearest ancestor, or None.

        Only those that are live, so that none is tried in vain.
        """
        trial = self.state.trials[number]
        own = [*trial.further_checkpoints()[:1], *(result.checkpoint for result in trial.results)]
        there = [checkpoint for checkpoint in own if checkpoint is not None and self._is_there(number, checkpoint)]
        if there:
            return max(there, key=lambda checkpoint: checkpoint.resource)
        while trial.parent is not None:
            trial = self.state.trials[trial.parent]
            for checkpoint in trial.good_checkpoints():
                if checkpoint.uri in self._live:
                    return checkpoint
        return None

    def _is_there(self, number: int, checkpoint: Checkpoint) -> bool:
        return checkpoint.uri in self._live and checkpoint.resource not in self.state.trials[number].condemned

    def _settle(self, number: int) -> None:
        self._hold(number, self._wanted(self.state.trials[number]))

    def _wanted(self, trial: TrialRecord) -> _Holds:
        """Return what a trial holds, by URI."""
        found: _Holds = {}
        if trial.abandoned is None and trial.number not in self._ruled_out:
            reasons = (Hold.PINNED if trial.running or trial.waiting else Hold.RESTING, Hold.FALLBACK)
            for checkpoint, hold in zip(trial.good_checkpoints(), reasons, strict=False):
                found[checkpoint.uri] = (checkpoint, hold)
        if trial.further or trial.number in self.state.extended:
            found |= self._wanted_further(trial)
        start = self.state.loaded(trial.number)
        if start is not None:
            found[start.uri] = (start, Hold.PINNED)
        return found

    def _wanted_further(self, trial: TrialRecord) -> _Holds:
        """Return what a trial holds that was trained beyond the search, or will be."""
        wanted = self.state.extended.get(trial.number)
        newest = Hold.FRONT if wanted is None else Hold.PINNED
        own = [] if trial.abandoned is not None else trial.further_checkpoints()
        found: _Holds = {c.uri: (c, hold) for c, hold in zip(own, (newest, Hold.FALLBACK), strict=False)}
        start = None if wanted is None else wanted.checkpoint
        if start is not None and (not own or own[0].resource < start.resource):
            owner = self.state.trials[self.state.owner_of(trial.number, start)]
            if start.resource not in owner.condemned:
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
        """The strongest hold on a checkpoint after one of them changed."""
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


_OF_ONE_TRIAL = frozenset({JobGranted, TrialAbandoned, TrialStopped, TrialExtended, TrialExtensionEnded})


def _kept_for_the_user(state: StudyState) -> _Holds:
    best = state.incumbent
    return {
        checkpoint.uri: (checkpoint, Hold.PINNED if member is best else Hold.FRONT)
        for member, checkpoint in reversed(state.front_checkpoints())
    }
