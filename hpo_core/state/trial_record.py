"""TrialRecord: everything known of one trial."""

from __future__ import annotations

import msgspec

from hpo_core.model.events import (
    AttemptFailed,
    CheckpointRemoved,
    JobCompleted,
    JobGranted,
    TrialAbandoned,
    TrialStopped,
)
from hpo_core.model.trial import Checkpoint, Params


class TrialRecord(msgspec.Struct, gc=False):
    """Everything known of one trial. Only :class:`StudyState` writes to it.

    Hundreds of thousands of them live at once: tuples instead of lists keep them out of the cycle
    collector's sight, which otherwise costs more than all decisions together.
    """

    number: int
    bracket: int
    params: Params
    parent: int | None = None
    results: tuple[JobCompleted, ...] = ()
    """Results in the order of their resource."""
    attempts: int = 0
    """Attempts granted so far; the next one gets this number."""
    granted: JobGranted | None = None
    """The latest grant."""
    running: bool = False
    """True if the latest grant awaits its report."""
    failures: tuple[AttemptFailed, ...] = ()
    """Failed attempts at the present target."""
    condemned: frozenset[int] = frozenset()
    """Resources whose checkpoint is not there to use: it cannot be loaded, or was removed."""
    removed: tuple[CheckpointRemoved, ...] = ()
    """Checkpoints that were removed to stay within the budget."""
    abandoned: TrialAbandoned | None = None
    stopped: TrialStopped | None = None
    """Set where the search said that the trial does not go on."""
    queued: bool = False
    """True if a person gave its configuration, or a part of it (``start_with``, ``enqueue``)."""
    base: int = 0
    """Units of training behind the parent when the trial was created."""

    @property
    def resource(self) -> int:
        return self.results[-1].resource if self.results else self.base

    @property
    def rung(self) -> int:
        return self.results[-1].stage.rung if self.results else -1

    @property
    def loss(self) -> float | None:
        return self.results[-1].loss if self.results else None

    @property
    def infeasible(self) -> bool:
        return bool(self.results) and self.results[-1].violation > 0

    @property
    def status(self) -> str:
        """``running``, ``abandoned``, ``waiting`` (to be tried again), ``stopped``, ``paused`` (at a rung), ``new``."""
        if self.abandoned is not None:
            return "abandoned"
        if self.running:
            return "running"
        if self.failures:
            return "waiting"
        if self.stopped is not None:
            return "stopped"
        return "paused" if self.results else "new"

    @property
    def has_ended(self) -> bool:
        return self.status in ("abandoned", "stopped", "paused")

    def is_at(self, abandoned: TrialAbandoned) -> bool:
        return self.rung >= abandoned.rung

    def good_checkpoints(self) -> list[Checkpoint]:
        """Checkpoints to start from, the newest first: the two newest, without condemned ones.

        The older ones are given up when a newer one comes, and never taken up again.
        """
        newest = [result.checkpoint for result in self.results if result.checkpoint is not None][-2:]
        return [checkpoint for checkpoint in reversed(newest) if checkpoint.resource not in self.condemned]

    def checkpoint(self) -> Checkpoint | None:
        return next(iter(self.good_checkpoints()), None)

    @property
    def waiting(self) -> bool:
        return bool(self.failures) and not self.running and self.abandoned is None and self.stopped is None


def is_complete(result: JobCompleted) -> bool:
    """True if no objective is missing (a PBT fitness may have gaps); only such results enter the front."""
    return all(loss == loss for loss in result.losses)
