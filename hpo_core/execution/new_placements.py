"""Placements that the journal does not hold yet."""

from __future__ import annotations

import msgspec

from hpo_core.model.devices.share import Share
from hpo_core.model.events import JobPlaced
from hpo_core.placement.placer import JobKey


class NewPlacements:
    """Collects jobs that begin on shared devices, so that one entry of the journal tells of many.

    Of jobs that end before they are asked for, nothing is kept: their reports say where they ran.
    """

    def __init__(self) -> None:
        self._running: dict[JobKey, JobPlaced] = {}
        self._new: dict[JobKey, None] = {}

    def begin(self, key: JobKey, share: Share | None, now: float) -> None:
        """A job began; without a share there is nothing to tell.

        Args:
            now: of the study's clock.
        """
        if share is None:
            return
        amounts = (share.compute, share.memory, share.cores)
        self._running[key] = JobPlaced(*key, share.device, share.architecture, share=amounts, began=now)
        self._new[key] = None

    def lower(self, key: JobKey, memory: int) -> None:
        """It was measured, and holds so many bytes from now on."""
        known = self._running.get(key)
        if known is not None:
            compute, _, cores = known.share
            self._running[key] = msgspec.structs.replace(known, share=(compute, memory, cores))
            self._new[key] = None

    def end(self, key: JobKey) -> None:
        """It ended, or never began."""
        self._running.pop(key, None)
        self._new.pop(key, None)

    def take(self) -> list[JobPlaced]:
        """What is new since this was asked last."""
        new, self._new = self._new, {}
        return [self._running[key] for key in new]
