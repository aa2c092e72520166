"""The one child that runs, as the zygote sees it: its limits, how it is ended, how its end is judged."""

from __future__ import annotations

import contextlib
import mmap
import os
import signal
import time
from pathlib import Path

from hpo_core.training.ending import judge, log_tail, oom_kill_count
from hpo_core.training.messages import Done, Inbox
from hpo_core.training.process import note_progress, read_progress
from hpo_core.training.request import JobRequest
from hpo_core.trial import RESULTS, Outcome, Report


class RunningChild:
    """From before its fork until it is reaped."""

    def __init__(self, request: JobRequest, board: mmap.mmap) -> None:
        self.request = request
        self._board = board
        self.result, self.other_end = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        os.set_blocking(self.other_end, True)
        self._inbox = Inbox()
        self._started = time.time()
        self._born = time.monotonic()
        self._oom_kills = oom_kill_count()
        self._report: Report | None = None
        self._ended_for: tuple[Outcome, str] | None = None
        self._kill_at: float | None = None
        self.pid = 0
        note_progress(board, request.job.checkpoint.resource if request.job.checkpoint else 0)

    def kill(self) -> None:
        """SIGKILL to the whole group (which the child may not have opened yet)."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)

    def stop(self, outcome: Outcome, message: str) -> None:
        """SIGTERM now, SIGKILL after the grace; the first reason counts."""
        if self._ended_for is None and self._report is None:
            self._ended_for = outcome, message
            self._kill_at = time.monotonic() + self.request.grace
            os.kill(self.pid, signal.SIGTERM)

    @property
    def ending(self) -> bool:
        """Whether it is being ended, or has reported and has nothing left to do."""
        return self._kill_at is not None

    def read(self) -> bool:
        """Take what the child wrote so far; False once nothing more can come."""
        while True:
            try:
                data = os.read(self.result, 1 << 16)
            except BlockingIOError:
                return True
            if not data:
                return False
            for message in self._inbox.feed(data):
                if isinstance(message, Done):
                    self._report = message.report
                    self._kill_at = time.monotonic() + self.request.grace  # its exit functions may take so long

    def next_deadline(self) -> float | None:
        """When :meth:`check_limits` must be called again at the latest."""
        if self._kill_at is not None:
            return self._kill_at
        limits = []
        if self.request.timeout is not None:
            limits.append(self._born + self.request.timeout)
        if self.request.stall_timeout is not None:
            limits.append(read_progress(self._board)[1] + self.request.stall_timeout)
        return min(limits, default=None)

    def check_limits(self) -> None:
        """Kill or stop the child where its time is over."""
        now = time.monotonic()
        if self._kill_at is not None:
            if now >= self._kill_at:
                self.kill()
                self._kill_at = now + 1.0
            return
        resource, when = read_progress(self._board)
        timeout, stall = self.request.timeout, self.request.stall_timeout
        where = f"it had done {resource} of {self.request.job.target} steps"
        if timeout is not None and now >= self._born + timeout:
            self.stop(
                Outcome.TIMEOUT,
                f"The attempt took longer than training.timeout = {timeout:g} s; {where}. Raise it.",
            )
        elif stall is not None and now >= when + stall:
            self.stop(
                Outcome.HUNG,
                f"No step was finished within training.stall_timeout = {stall:g} s; {where}. The stack at that "
                "moment "
                "is in its log. Raise the limit if steps take that long.",
            )

    def judged(self, code: int, status: int) -> Report:
        """The report of a child that has ended, whether it wrote one or not."""
        if self._report is not None and (self._ended_for is None or self._report.outcome in RESULTS):
            return self._report
        if self._ended_for is not None:
            outcome, message = self._ended_for
        else:
            outcome, message = judge(code, status=status, oom_kills=oom_kill_count() - self._oom_kills)
        return Report(
            trial=self.request.job.trial,
            attempt=self.request.job.attempt,
            outcome=outcome,
            message=message,
            detail=log_tail(Path(self.request.folder) / self.request.log_path),
            started=self._started,
            ended=time.time(),
        )
