"""The one child that runs, as the zygote sees it: its limits, how it is ended, how its end is judged."""

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
from hpo_core.training.child.exit_cause import LOG_TAIL, judge, oom_kill_count
from hpo_core.training.child.messages import Done, Inbox, MalformedMessageError
from hpo_core.training.child.progress_board import Board
from hpo_core.training.request import JobRequest

_AT_ONCE = 16
"""Reads of 64 KiB from one descriptor before the limits are looked at again: a child may write for ever."""
_LEFT = 256
"""Reads that empty any pipe, once nobody writes to it."""


class RunningChild:
    """From before its fork until it is reaped.

    Raises:
        StorageError: its log cannot be written.
    """

    def __init__(self, request: JobRequest, board: Board) -> None:
        self.request = request
        self.log = AttemptLog(Path(request.folder) / request.log_path, request.log_limit)
        self._board = board
        self.result, self.result_in = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self.output, self.output_in = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        for descriptor in (self.result_in, self.output_in):
            os.set_blocking(descriptor, True)
        self._inbox = Inbox()
        self._started = time.time()
        self._born = time.monotonic()
        self._oom_kills = oom_kill_count()
        self._report: Report | None = None
        self._ended_for: tuple[Outcome, str] | None = None
        self._kill_at: float | None = None
        self.pid = 0
        self.reaped = False
        board.begin(request.job.checkpoint.resource if request.job.checkpoint else 0)

    def close(self) -> None:
        """After the child was reaped."""
        for descriptor in (self.result, self.output):
            os.close(descriptor)
        self.log.close()

    def kill(self) -> None:
        """SIGKILL to the whole group (which the child may not have opened yet)."""
        with contextlib.suppress(ProcessLookupError, PermissionError):  # it may have become another user's
            os.kill(self.pid, signal.SIGKILL)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)

    def stop(self, outcome: Outcome, message: str) -> None:
        """SIGTERM now, SIGKILL after the grace; the first reason counts."""
        if self._ended_for is None and self._report is None:
            self._ended_for = outcome, message
            self._kill_at = time.monotonic() + self.request.grace
            if self.reaped:  # the number may be somebody else's by now
                return
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(self.pid, signal.SIGTERM)

    @property
    def ending(self) -> bool:
        """Whether it is being ended, or has reported and has nothing left to do."""
        return self._kill_at is not None

    def read_result(self, reads: int = _AT_ONCE) -> bool:
        """Take what the child wrote so far; False once nothing more can come, or matters."""
        for _ in range(reads):
            try:
                data = os.read(self.result, 1 << 16)
            except BlockingIOError:
                return True
            if not data or self._report is not None:  # what comes after the report is none of ours
                return False
            try:
                for message in self._inbox.feed(data):
                    self._take(message)
            except MalformedMessageError as error:
                self.stop(
                    Outcome.CRASHED,
                    f"The training process wrote to the descriptor its report goes through: {error}. Write to "
                    "descriptors that the training function opened, and close no others.",
                )
                return False
        return True

    def _take(self, message: object) -> None:
        job = self.request.job
        if not isinstance(message, Done):
            raise MalformedMessageError(f"a message {type(message).__name__}, where a report belongs")
        if (message.report.trial, message.report.attempt) != (job.trial, job.attempt):
            raise MalformedMessageError("the report of another attempt")
        self._report = message.report
        self._kill_at = time.monotonic() + self.request.grace  # its exit functions may take so long

    def read_output(self, reads: int = _AT_ONCE) -> bool:
        """Move what was printed so far into the log; False once nothing more can come."""
        for _ in range(reads):
            try:
                data = os.read(self.output, 1 << 16)
            except BlockingIOError:
                return True
            if not data:
                return False
            self.log.write(data)
        return True

    def read_rest(self) -> None:
        """Once all that could write are gone."""
        self.read_output(_LEFT)
        self.read_result(_LEFT)

    def next_deadline(self) -> float | None:
        """When :meth:`check_limits` must be called again at the latest."""
        if self._kill_at is not None:
            return self._kill_at
        limits = [] if self.request.timeout is None else [self._born + self.request.timeout]
        either = [limit for limit in (self.request.stall_timeout, self.request.storage_timeout) if limit is not None]
        if either:  # which of the two holds may change at any moment, and nobody tells
            limits += [self._stalls_at(), time.monotonic() + min(either) / 2]
        return min(limits, default=None)

    def _stalls_at(self) -> float:
        _, when, storing = self._board.read(self.request.job.target)
        limit = self.request.storage_timeout if storing else self.request.stall_timeout
        return math.inf if limit is None else when + limit

    def check_limits(self) -> None:
        """Kill or stop the child where its time is over."""
        now = time.monotonic()
        if self._kill_at is not None:
            if now >= self._kill_at:
                self.kill()
                self._kill_at = now + 1.0
            return
        resource, _, storing = self._board.read(self.request.job.target)
        timeout, stall = self.request.timeout, self.request.stall_timeout
        where = f"it had done {resource} of {self.request.job.target} steps"
        if timeout is not None and now >= self._born + timeout:
            self.stop(
                Outcome.TIMEOUT,
                f"The attempt took longer than training.timeout = {timeout:g} s; {where}. Raise it.",
            )
        elif storing and now >= self._stalls_at():
            self.stop(
                Outcome.STORAGE,
                f"A checkpoint took longer to write or read than training.storage_timeout = "
                f"{self.request.storage_timeout:g} s; {where}. See to that disk or object store, then "
                "resume the study.",
            )
        elif stall is not None and not storing and now >= self._stalls_at():
            self.stop(
                Outcome.HUNG,
                f"No step was finished within training.stall_timeout = {stall:g} s; {where}. The stack at that "
                "moment "
                "is in its log. Raise the limit if steps take that long.",
            )

    def judged(self, code: int, status: int) -> Report:
        """The report of a child that has ended, whether it wrote one or not."""
        printed = self.log.end(LOG_TAIL)
        if self._report is not None and (self._ended_for is None or self._report.outcome in RESULTS):
            if not self._report.detail:
                return self._report
            self.log.write(self._report.detail.encode("utf-8", "replace"))
            return msgspec.structs.replace(self._report, detail=f"{printed}\n{self._report.detail}".lstrip("\n"))
        if self._ended_for is not None:
            outcome, message = self._ended_for
        else:
            outcome, message = judge(code, status=status, oom_kills=oom_kill_count() - self._oom_kills)
        return Report(
            trial=self.request.job.trial,
            attempt=self.request.job.attempt,
            outcome=outcome,
            message=message,
            detail=printed,
            started=self._started,
            ended=time.time(),
        )
