"""PackedClaim: what a study whose jobs share devices claims of a pool, in whole devices."""

from __future__ import annotations

from hpo_core.placement.shared_devices import SharedDevices
from hpo_core.study import Study

MOST_JOBS = 10_000
"""So many jobs of one study are counted at most."""


class PackedClaim:
    """Counts devices where :class:`~hpo_core.study.Study` counts jobs.

    Args:
        study: grants the jobs.
        placer: knows how many of them a device holds.
    """

    job_slots = 1
    """A device at a time."""

    def __init__(self, study: Study, placer: SharedDevices) -> None:
        self._study = study
        self._placer = placer

    def demand(self, most: int) -> int:
        """Devices that it could use now, counted up to ``most``: an upper bound.

        Those on which jobs run, and those that all jobs would fill which it granted or could grant. Where fewer are
        used, for example because waiting jobs find room beside those that run, the pool notices that, and it claims
        less for a while.
        """
        packing = self._study.spec.packing
        each = 1 if packing is None else packing.most
        jobs = self._study.demand(min(MOST_JOBS, most * each))
        return min(most, self._placer.devices_for(jobs)) if jobs else 0

    def spare(self, most: int) -> int:
        """None: trials do not grow here."""
        return 0
