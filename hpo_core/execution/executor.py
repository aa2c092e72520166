"""Executor: what the loop asks of the place where jobs run; and the other parts of one run."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from hpo_core.journal.protocol import Journal, Owner
from hpo_core.model.devices.inventory import Inventory, Slot
from hpo_core.model.trial import Job, JobKey, Report
from hpo_core.placement.placer import Placer, UsageMeter
from hpo_core.study import Study

OnReport = Callable[[Job, Report], None]
"""Called once for each job, with how its attempt ended; from any thread."""


class Inbox:
    """Reports on their way to the loop: put in by any thread, taken out by one."""

    def __init__(self) -> None:
        self.reports: deque[Report] = deque()
        """The oldest first."""
        self._arrived = threading.Event()
        self._awaited = False
        self._is_woken = False

    def __len__(self) -> int:
        return len(self.reports)

    def put(self, job: Job, report: Report) -> None:
        self.reports.append(report)
        if self._awaited:
            self._arrived.set()

    def wake(self) -> None:
        """End the wait for a report, or the next one: the executor has news for the loop."""
        self._is_woken = True
        if self._awaited:
            self._arrived.set()

    def wait(self, seconds: float) -> None:
        self._arrived.clear()
        self._awaited = True
        if not len(self) and not self._is_woken:  # what comes from here on sees that it is awaited
            self._arrived.wait(max(0.0, seconds))
        self._awaited = self._is_woken = False


class Executor(Protocol):
    """Runs jobs on slots and reports how each ended.

    Promises, judged by ``tests.contract_suites.executor_contract``:

    - every submitted job is reported exactly once, whatever happens to it;
    - a cancelled attempt is reported soon, as PREEMPTED unless it ended by itself first; an attempt that is not
      under way may be cancelled, and nothing happens;
    - a device that goes away takes its jobs along: they are reported LOST;
    - nothing but :meth:`wait` waits.
    """

    poll_seconds: float
    """Seconds between two checks of inventory and clock while nothing is reported; infinite: :meth:`wait` says when."""

    def inventory(self) -> Inventory: ...

    def submit(self, job: Job, slot: Slot, on_report: OnReport) -> None: ...

    def cancel(self, attempts: Iterable[JobKey]) -> None: ...

    def now(self) -> float: ...

    def wait(self, inbox: Inbox, until: float) -> bool:
        """Return once a report is in ``inbox``, the inventory changed, or the executor's clock says ``until``.

        Returns:
            False where nothing will happen any more, however long one waits.
        """
        ...


@dataclass(kw_only=True)
class RunParts:
    """The parts of one run. A feature is a function of them that adds its own where the study names it."""

    study: Study
    folder: Path
    """The study's folder."""
    journal: Journal
    owner: Owner
    """The controller."""
    tell: Callable[[str], None]
    """Shows a person a line."""
    executor: Executor
    meter: UsageMeter | None = None
    """Measures running jobs."""
    threads: Callable[[], Mapping[str, int]]
    """Slots of each worker, by its name."""
    placer: Placer = field(default_factory=Placer)
    ticks: list[Callable[[], None]] = field(default_factory=list)
    """Functions that the loop calls as time passes."""
    on_unit: Callable[[Callable[[Job, int], None]], None] | None = None
    """Takes a function to call as a unit of a job begins, with its epoch; from any thread, so it must not wait.
    None: jobs have no units."""
    after: list[Callable[[], None]] = field(default_factory=list)
    """Functions to call once the loop has ended without an error."""
    closing: list[Callable[[], None]] = field(default_factory=list)
    """Functions to call in the end, however it comes."""

    def news(self, news: Callable[[], str]) -> None:
        """Tell a person what this function says as time passes."""
        self.ticks.append(lambda: self.tell(news()))

    def close(self) -> None:
        for function in self.closing:
            function()
