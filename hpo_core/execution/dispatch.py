"""How a job gets to its executor: directly, or shown as something on the way (a Prefect task run)."""

from __future__ import annotations

from typing import Protocol

from hpo_core.execution.executor import Executor, OnReport
from hpo_core.model.devices.inventory import Slot
from hpo_core.model.trial import Job


class Dispatcher(Protocol):
    """Submits jobs to an executor."""

    @property
    def task_runs(self) -> int:
        """Task runs started so far."""
        ...

    def dispatch(self, job: Job, slot: Slot, on_report: OnReport) -> None:
        """Submit a job; ``on_report`` is called once with its report."""
        ...

    def close(self) -> None:
        """Wait until everything that shows a job has its final state."""
        ...


class DirectDispatcher:
    """Submits jobs as they are."""

    task_runs = 0

    def __init__(self, executor: Executor) -> None:
        self._executor = executor

    def dispatch(self, job: Job, slot: Slot, on_report: OnReport) -> None:
        self._executor.submit(job, slot, on_report)

    def close(self) -> None:
        """Nothing is open."""
