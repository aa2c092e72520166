"""Attempts: the states of an attempt from its grant to its end, and the one table of what may follow what.

A loop keeps the state of each attempt of its study. Whether a placed attempt starts or trains already, its worker
alone knows (:mod:`hpo_core.training.child`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum

from hpo_core.model.trial import Job, JobKey


class AttemptState(StrEnum):
    """Where an attempt is."""

    WAITING = "waiting"
    """Granted, and without a slot."""
    PLACED = "placed"
    """Submitted to the executor: it starts or trains."""
    CANCELLING = "cancelling"
    """Submitted, and its end was asked for."""
    DOUBTED = "doubted"
    """Failed, and held back for a moment: an attempt on the same device may be to blame."""
    ENDED = "ended"
    """Reported; the study has not been told yet."""


_PLACED = (AttemptState.PLACED, AttemptState.CANCELLING)

TRANSITIONS: Mapping[str, tuple[tuple[AttemptState | None, ...], AttemptState | None]] = {
    "granted": ((None,), AttemptState.WAITING),
    "dropped": ((AttemptState.WAITING,), None),
    "withdrawn": ((AttemptState.WAITING,), AttemptState.ENDED),
    "placed": ((AttemptState.WAITING,), AttemptState.PLACED),
    "returned": (_PLACED, None),
    "cancelled": (_PLACED, AttemptState.CANCELLING),
    "doubted": (_PLACED, AttemptState.DOUBTED),
    "told": ((*_PLACED, AttemptState.DOUBTED, AttemptState.ENDED, None), None),
}
"""By transition: the states that it starts from, and the one that it leads to; None: the attempt is not known.

granted: the study wants it. dropped: the study no longer wants it. withdrawn: it was cancelled or refused before it was
placed. placed: it was submitted. returned: submitting it failed, so nobody will report it. cancelled: its end was asked
for. doubted: its report is held back. told: the study took its report; one that an earlier loop submitted is unknown.
"""

_NEXT = {(name, state): to for name, (froms, to) in TRANSITIONS.items() for state in froms}


class Attempts:
    """The attempts of one loop, by (trial, attempt)."""

    def __init__(self) -> None:
        self.waiting: list[Job] = []
        """Jobs without a slot, the oldest first."""
        self._states: dict[JobKey, AttemptState] = {}

    def __len__(self) -> int:
        return len(self._states)

    def state(self, key: JobKey) -> AttemptState | None:
        """None: it is not known here."""
        return self._states.get(key)

    def under_way(self) -> list[JobKey]:
        """Attempts that were submitted and that nobody told the study of, in order."""
        skipped = (AttemptState.WAITING, AttemptState.ENDED)
        return sorted(key for key, state in self._states.items() if state not in skipped)

    def synchronize(self, wanted: Iterable[Job]) -> None:
        """Wait with those of the wanted jobs that nobody works on yet, and with no others."""
        for job in self.waiting:
            self._move(job.key, "dropped")
        self.waiting = []
        self.granted([job for job in wanted if job.key not in self._states])

    def granted(self, jobs: Sequence[Job]) -> None:
        """Wait with these jobs, too."""
        self.waiting += jobs
        self._move_jobs(jobs, "granted")

    def placed(self, jobs: Sequence[Job]) -> None:
        """Note that these waiting jobs have their slots."""
        self._move_jobs(jobs, "placed")
        self._forget_waiting(len(jobs))

    def withdrawn(self, keys: Iterable[JobKey]) -> list[JobKey]:
        """Stop waiting with those of these jobs that wait; returns them."""
        found = [key for key in keys if self._states.get(key) is AttemptState.WAITING]
        for key in found:
            self._move(key, "withdrawn")
        self._forget_waiting(len(found))
        return found

    def cancelled(self, keys: Iterable[JobKey]) -> list[JobKey]:
        """Note that the end of these was asked for; returns those of them that were submitted, in order."""
        found = sorted(key for key in keys if self._states.get(key) in _PLACED)
        for key in found:
            self._move(key, "cancelled")
        return found

    def returned(self, key: JobKey) -> None:
        """Forget a job that could not be submitted."""
        self._move(key, "returned")

    def doubted(self, key: JobKey) -> None:
        """Hold its report back."""
        self._move(key, "doubted")

    def told(self, key: JobKey) -> None:
        """Forget an attempt that the study was told of."""
        if self._states.pop(key, None) not in TRANSITIONS["told"][0]:
            raise AssertionError(f"attempt {key} waits and cannot be told")

    def _move_jobs(self, jobs: Sequence[Job], transition: str) -> None:
        """Make the transition of many jobs at once: this is done for every job of every study."""
        states, ((before,), after) = self._states, TRANSITIONS[transition]
        assert after is not None
        for job in jobs:
            key = job.trial, job.attempt
            if states.get(key) is not before:
                raise AssertionError(f"attempt {key} is {states.get(key) or 'unknown'} and cannot be {transition}")
            states[key] = after

    def _move(self, key: JobKey, transition: str) -> None:
        state = self._states.get(key)
        try:
            to = _NEXT[transition, state]
        except KeyError:
            raise AssertionError(f"attempt {key} is {state or 'unknown'} and cannot be {transition}") from None
        if to is None:
            self._states.pop(key, None)
        else:
            self._states[key] = to

    def _forget_waiting(self, count: int) -> None:
        """Keep of the waiting jobs those that still wait, of which ``count`` do no longer."""
        if count == len(self.waiting):
            self.waiting = []
        elif count:
            states = self._states
            self.waiting = [job for job in self.waiting if states.get((job.trial, job.attempt)) is AttemptState.WAITING]
