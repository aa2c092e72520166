"""What a hopping study asks of the place where its units run."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Protocol

from hpo_core.execution.executor import Executor
from hpo_core.model.trial import Job


class UnitExecutor(Executor, Protocol):
    """An executor whose inventory has a device for each worker, and that knows which partitions lie there.

    A job runs on the worker that its slot names, or is lost.
    """

    def holdings(self) -> Mapping[str, Iterable[str]]:
        """By name of a device: names of the partitions that its jobs can read."""
        ...

    def announcing(self) -> bool:
        """Whether a worker is there that has not said yet what it holds, or reads a partition again: it may have to
        compute digests first."""
        ...

    def problems(self) -> Mapping[str, str]:
        """By name of a partition that is on a worker and does not count: a sentence that says why."""
        ...


class WorkerPool(Protocol):
    """Workers that several studies share: an executor of units that lets them run on those that the study holds."""

    useful: Callable[[Mapping[str, Iterable[str]]], list[str]]
    """Given the partitions of each worker, those that have work for the study now; set by who runs the units."""

    def elsewhere(self) -> Collection[str]:
        """Names of partitions on workers that the study does not hold now: they are not missing."""
        ...

    def workers_due(self) -> int:
        """Workers that the study's share gives it, whichever it holds now."""
        ...

    def is_withdrawn(self, unit: Job) -> bool:
        """Whether the unit was ended, or not begun, because another study has its worker."""
        ...
