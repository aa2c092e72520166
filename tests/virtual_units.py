"""A simulated study whose models hop: partitions on virtual workers, beside a full copy of the data on each."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from hpo_core.execution.executor import Inbox
from hpo_core.execution.virtual import VirtualAttempt, VirtualClock, VirtualExecutor
from hpo_core.model.devices.inventory import Device, HeldPartitions, Slot
from hpo_core.model.trial import Checkpoint, Job, Metrics, Outcome, Report, Unit

EVALUATION = 0.1
"""Time of an evaluation on an example, as a part of that of training on it."""


class VirtualUnits(VirtualExecutor):
    """Runs the units of :class:`~hpo_core.execution.hopping.hopping_executor.HoppingExecutor` in virtual time.

    The time of an epoch is divided among its partitions by their sizes; metrics come with its last unit.

    Args:
        clock: moved forward by :meth:`wait`; the study's own.
        sizes: of the partitions, those of validation at the end, in any unit.
        trained_on: so many of them are trained on.
        holdings: by name of a worker (``worker-0``, ...): names of the partitions that lie there.
        state: bytes of a model's state.
        more: as of the virtual executor; ``train`` and ``seconds`` are asked for one epoch at a time.
    """

    def __init__(
        self,
        clock: VirtualClock,
        *,
        sizes: Sequence[float],
        trained_on: int,
        holdings: Mapping[str, Iterable[str]],
        state: int = 0,
        **more: Any,
    ) -> None:
        super().__init__(clock, **more)
        self._sizes = list(sizes)
        self._epoch = sum(self._sizes[:trained_on])
        self._devices = [
            Device(device.name, partitions=HeldPartitions(frozenset(holdings.get(device.name, ()))))
            for device in self._devices
        ]
        self._state = state
        self._lost = False
        self.evaluate: Callable[[Job], Metrics] = lambda job: {}
        """What an evaluation on a partition gives."""

    def wait(self, inbox: Inbox, until: float) -> bool:
        """The end of a unit alone is no news for the loop: it starts others by itself."""
        while super().wait(inbox, until):
            if inbox.reports or self._inventory is None or self._lost or self.clock.now >= until:
                self._lost = False
                return True
        return False

    def _report(self, attempt: VirtualAttempt, report: Report) -> None:
        self._lost = self._lost or report.outcome is Outcome.LOST  # its worker is used again once it was looked at
        super()._report(attempt, report)

    def _duration(self, job: Job, slot: Slot) -> float:
        unit = job.unit
        assert unit is not None, "a whole job has no place to run"
        part = self._sizes[unit.index] / self._epoch
        if unit.trains or job.checkpoint is None:
            return self._seconds(job) * part
        begin = msgspec.structs.replace(job.checkpoint, resource=job.target - 1)
        return self._seconds(msgspec.structs.replace(job, checkpoint=begin)) * part * EVALUATION

    def _result(self, attempt: VirtualAttempt) -> Report:
        job, unit = attempt.job, attempt.job.unit
        assert unit is not None
        if unit.ends_epoch:
            report = super()._result(attempt)
            if report.outcome not in (Outcome.COMPLETED, Outcome.DIVERGED):
                return report
        else:
            report = self._without_result(attempt, unit)
        if not unit.trains or report.outcome is not Outcome.COMPLETED:
            return report
        origin = job.checkpoint.uri if job.checkpoint else None
        return msgspec.structs.replace(report, checkpoint=Checkpoint(unit.state, "", job.target, self._state, origin))

    def _without_result(self, attempt: VirtualAttempt, unit: Unit) -> Report:
        return Report(
            trial=attempt.job.trial,
            attempt=attempt.job.attempt,
            outcome=Outcome.COMPLETED,
            metrics={} if unit.trains else self.evaluate(attempt.job),
            worker=self._devices[attempt.worker].name,
            started=attempt.begin,
            ended=self.clock.now,
        )
