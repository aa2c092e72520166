"""RunningChild: the zygote's view of the child that runs: its limits, its end, its report."""

from __future__ import annotations

import contextlib
import math
import os
import signal
import time
from pathlib import Path

import msgspec

from hpo_core.model.trial import RESULTS, Outcome, Report
from hpo_core.training.child.attempt_log import AttemptLog
from hpo_core.training.child.exit_cause import oom_kill_count, outcome_of_exit
from hpo_core.training.child.messages import Done, Inbox, MalformedMessageError
from hpo_core.training.child.shared_progress import SharedProgress
from hpo_core.training.request import JobRequest

_READS_PER_TURN = 16
"""Reads of 64 KiB from one descriptor before the limits are checked again: a child may write for ever."""
_READS_TO_DRAIN = 256
"""Reads that empty any pipe, once nobody writes to it."""


class RunningChild:
    """One child, from before its fork until it is reaped.

    Raises:
        StorageError: the attempt's log cannot be written.
    """

    def __init__(self, request: JobRequest, progress: SharedProgress) -> None:
        self.request = request
        self.log = AttemptLog(Path(request.folder) / request.log_path, request.log_limit)
        self._progress = progress
        self.result, self.result_in = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self.output, self.output_in = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        for descriptor in (self.result_in, self.output_in):
            os.set_blocking(descriptor, True)
        self._inbox = Inbox()
        self._started = time.time()
        self._started_monotonic = time.monotonic() - request.elapsed
        self._oom_kills = oom_kill_count()
        self._report: Report | None = None
        self._stop_reason: tuple[Outcome, str] | None = None
        self._kill_at: float | None = None
        self.pid = 0
        self.reaped = False
        progress.begin(request.job.checkpoint.resource if request.job.checkpoint else 0)

    def close(self) -> None:
        """Release descriptors and log; call it after the child was reaped."""
        for descriptor in (self.result, self.output):
            os.close(descriptor)
        self.log.close()

    def kill(self) -> None:
        """Send SIGKILL to the child and its process group (which it may not have created yet)."""
        with contextlib.suppress(ProcessLookupError, PermissionError):  # it may have become another user's
            os.kill(self.pid, signal.SIGKILL)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)

    def stop(self, outcome: Outcome, message: str) -> None:
        """Send SIGTERM now and SIGKILL after the grace period; the first call's reason counts."""
        if self._stop_reason is None and self._report is None:
            self._stop_reason = outcome, message
            self._kill_at = time.monotonic() + self.request.grace
            if self.reaped:  # the number may be somebody else's by now
                return
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(self.pid, signal.SIGTERM)

    @property
    def ending(self) -> bool:
        """Whether the child was told to end, or has reported and only has to exit."""
        return self._kill_at is not None

    def read_result(self, reads: int = _READS_PER_TURN) -> bool:
        """Read what the child wrote so far; False once nothing more can come or matter."""
        for _ in range(reads):
            try:
                data = os.read(self.result, 1 << 16)
            except BlockingIOError:
                return True
            if not data or self._report is not None:  # anything after the report is ignored
                return False
            try:
                for message in self._inbox.feed(data):
                    self._accept(message)
            except MalformedMessageError as error:
                self.stop(
                    Outcome.CRASHED,
                    f"The training process wrote to the descriptor its report goes through: {error}. Write to "
                    "descriptors that the training function opened, and close no others.",
                )
                return False
        return True

    def _accept(self, message: object) -> None:
        job = self.request.job
        if not isinstance(message, Done):
            raise MalformedMessageError(f"a message {type(message).__name__}, where a report belongs")
        if (message.report.trial, message.report.attempt) != (job.trial, job.attempt):
            raise MalformedMessageError("the report of another attempt")
        self._report = message.report
        self._kill_at = time.monotonic() + self.request.grace  # its exit functions may take so long

    def read_output(self, reads: int = _READS_PER_TURN) -> bool:
        """Copy what was printed so far into the log; False once nothing more can come."""
        for _ in range(reads):
            try:
                data = os.read(self.output, 1 << 16)
            except BlockingIOError:
                return True
            if not data:
                return False
            self.log.write(data)
        return True

    def drain(self) -> None:
        """Read what is left in both pipes, once every process that could write is gone."""
        self.read_output(_READS_TO_DRAIN)
        self.read_result(_READS_TO_DRAIN)

    def next_deadline(self) -> float | None:
        """Monotonic time by which :meth:`check_limits` must be called again; None: no limit is set."""
        if self._kill_at is not None:
            return self._kill_at
        limits = [] if self.request.timeout is None else [self._started_monotonic + self.request.timeout]
        either = [limit for limit in (self.request.stall_timeout, self.request.storage_timeout) if limit is not None]
        if either:  # the child may switch from one to the other at any moment, without a message
            limits += [self._stall_deadline(), time.monotonic() + min(either) / 2]
        return min(limits, default=None)

    def _stall_deadline(self) -> float:
        _, when, storing = self._progress.read(self.request.job.target)
        limit = self.request.storage_timeout if storing else self.request.stall_timeout
        return math.inf if limit is None else when + limit

    def check_limits(self) -> None:
        """Stop the child at its first exceeded limit; kill it once its grace period is over."""
        now = time.monotonic()
        if self._kill_at is not None:
            if now >= self._kill_at:
                self.kill()
                self._kill_at = now + 1.0
            return
        resource, _, storing = self._progress.read(self.request.job.target)
        timeout, stall = self.request.timeout, self.request.stall_timeout
        where = f"it had done {resource} of {self.request.job.target} steps"
        if timeout is not None and now >= self._started_monotonic + timeout:
            self.stop(
                Outcome.TIMEOUT,
                f"The attempt took longer than training.timeout = {timeout:g} s; {where}. Raise it.",
            )
        elif storing and now >= self._stall_deadline():
            self.stop(
                Outcome.STORAGE,
                f"A checkpoint took longer to write or read than training.storage_timeout = "
                f"{self.request.storage_timeout:g} s; {where}. See to that disk or object store, then "
                "resume the study.",
            )
        elif stall is not None and not storing and now >= self._stall_deadline():
            self.stop(
                Outcome.HUNG,
                f"No step was finished within training.stall_timeout = {stall:g} s; {where}. The stack at that "
                "moment "
                "is in its log. Raise the limit if steps take that long.",
            )

    def final_report(self, code: int, status: int) -> Report:
        """The report of a child that has ended: its own, or one made from its exit status."""
        printed = self.log.tail()
        if self._report is not None and (self._stop_reason is None or self._report.outcome in RESULTS):
            if not self._report.detail:
                return self._report
            self.log.write(self._report.detail.encode("utf-8", "replace"))
            return msgspec.structs.replace(self._report, detail=f"{printed}\n{self._report.detail}".lstrip("\n"))
        if self._stop_reason is not None:
            outcome, message = self._stop_reason
        else:
            outcome, message = outcome_of_exit(code, status=status, oom_kills=oom_kill_count() - self._oom_kills)
        return Report(
            trial=self.request.job.trial,
            attempt=self.request.job.attempt,
            outcome=outcome,
            message=message,
            detail=printed,
            started=self._started,
            ended=time.time(),
        )
