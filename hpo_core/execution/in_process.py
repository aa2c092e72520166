"""In-process executor: trains here, one job at a time, where a debugger and a profiler see it."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from hpo_core.execution.executor import Inbox, OnReport
from hpo_core.execution.requests import JobRequests
from hpo_core.model.devices.inventory import Inventory, Slot
from hpo_core.model.errors import SpecError
from hpo_core.model.trial import Job, Outcome, Report
from hpo_core.spec import StudySpec
from hpo_core.training.attempt import run_attempt
from hpo_core.training.objective import load_objective


class InProcessExecutor:
    """Runs attempts in this process and thread, with the code that child processes run.

    No limit of ``training`` is enforced (timeouts, memory), and an objective that ends its process ends this one.
    Ctrl-C is the user's and no failure of a trial: its attempt is preempted, and :meth:`wait` raises it::

        study = Study.create(load_spec("study.yaml"))
        Loop(study, InProcessExecutor(study.spec, "runs/debug")).run()

    Args:
        spec: the study's.
        folder: of the study, for checkpoints and logs; made where it is missing.
        objective: the training function; default: the one ``spec.objective`` names.

    Raises:
        SpecError: the study trains in gangs, which need a process for each rank.
    """

    poll_seconds = 1.0

    def __init__(self, spec: StudySpec, folder: str | Path, objective: Callable[..., Any] | None = None) -> None:
        if spec.gangs:
            raise SpecError(
                f"Study {spec.study!r}: training.gang = {spec.training.gang} needs a process for each rank, and this "
                "executor trains in one; set training.gang to 1 here: the same function trains alone."
            )
        root = Path(folder).resolve()
        for part in ("checkpoints", "logs"):
            (root / part).mkdir(parents=True, exist_ok=True)
        if objective is not None:
            spec = spec.model_copy(update={"objective": f"{objective.__module__}:{objective.__qualname__}"})
        self._requests = JobRequests(spec, str(root))
        self._objective = objective or load_objective(self._requests.objective, spec.pythonpath)
        if spec.loader:
            load_objective(spec.loader, spec.pythonpath, setting="data.load")
        self._jobs: deque[tuple[Job, OnReport]] = deque()

    def inventory(self) -> Inventory:
        """One slot."""
        return Inventory.of(1, "in-process")

    def submit(self, job: Job, slot: Slot, on_report: OnReport) -> None:
        """Train it at the next :meth:`wait`."""
        self._jobs.append((job, on_report))

    def cancel(self, attempts: Iterable[tuple[int, int]]) -> None:
        """End attempts that have not begun. One that trains holds this thread, so nobody can ask for its end."""
        keys = set(attempts)
        waiting, self._jobs = self._jobs, deque()
        for job, on_report in waiting:
            if job.key in keys:
                on_report(job, Report(trial=job.trial, attempt=job.attempt, outcome=Outcome.PREEMPTED))
            else:
                self._jobs.append((job, on_report))

    def now(self) -> float:
        return time.monotonic()

    def wait(self, inbox: Inbox, until: float) -> bool:
        """Train the oldest job to its end, whatever ``until`` says.

        Raises:
            KeyboardInterrupt: while it trained; it was reported as preempted.
        """
        if not self._jobs:
            return len(inbox) > 0
        job, on_report = self._jobs.popleft()
        try:
            report = run_attempt(self._objective, self._requests.of(job), raised=(KeyboardInterrupt,))
        except KeyboardInterrupt:
            on_report(job, Report(trial=job.trial, attempt=job.attempt, outcome=Outcome.PREEMPTED))
            raise
        on_report(job, report)
        return True
