"""Units of training on virtual workers that hold partitions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from hpo_core.execution.executor import Inbox
from hpo_core.execution.virtual import Attempt, VirtualClock, VirtualExecutor
from hpo_core.model.devices.inventory import Slot
from hpo_core.model.trial import Job, Metrics, Report


class VirtualUnits(VirtualExecutor):
    """Runs the units of a :class:`~hpo_core.execution.hopping.hopping_executor.HoppingExecutor` in virtual time.

    An epoch's time is divided among its partitions by their sizes. Metrics come with its last unit.

    Args:
        clock: moved forward by :meth:`wait`; the study's own.
        holdings: by name of a worker (``worker-0``, ...): names of the partitions that lie there.
        sizes: by name of a partition: its size, in any unit; evaluation on it takes a tenth of what training takes.
        more: as of the virtual executor; ``seconds`` and ``train`` are asked for an epoch each time.
    """

    def __init__(
        self, clock: VirtualClock, *, holdings: Mapping[str, Iterable[str]], sizes: Mapping[str, float], **more: Any
    ) -> None:
        super().__init__(clock, **more)
        self._held = {worker: list(names) for worker, names in holdings.items()}
        self._sizes = dict(sizes)
        self._trained_on: dict[str, None] = {}

    def holdings(self) -> Mapping[str, Iterable[str]]:
        return self._held

    def wait(self, inbox: Inbox, until: float) -> bool:
        """Ends of units are no news for the loop; it is woken by reports, joins, leaves and ``until``."""
        before = self._inventory
        while super().wait(inbox, until):
            if inbox.reports or self._inventory is not before or self.clock.now >= until:
                return True
        return False

    def _duration(self, job: Job, slot: Slot) -> float:
        unit = job.unit
        assert unit is not None
        share = self._sizes[unit.partition] / unit.size_of_epoch
        return self._seconds(job) * share * (1.0 if unit.trains else EVALUATION)

    def _metrics(self, job: Job) -> Metrics:
        return {}

    def _result(self, attempt: Attempt) -> Report:
        unit = attempt.job.unit
        assert unit is not None
        if unit.ends_epoch:
            return msgspec.structs.replace(super()._result(attempt), curve=())
        raise NotImplementedError


EVALUATION = 0.1
