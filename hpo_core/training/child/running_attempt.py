"""The zygote's view of an attempt that a child trains: its output and report, its limits and its end.

::

    TRAINING ── stop(): a limit, its share, a cancel ──▶ STOPPING ─┐  SIGTERM; after the grace period SIGKILL,
        │                                                          ├─▶ and again every second
        ├────── its report came ─────────────────────▶ REPORTED ───┘
        └────── the process ended by itself ──────────────────────▶ ENDED: reaped; final_report() says how

The limits hold while it is TRAINING: ``timeout`` for the whole job, ``storage_timeout`` while a checkpoint is written
or read, ``stall_timeout`` for a step otherwise, and the memory of its share. A standstill of the zygote itself
(SIGSTOP, a suspended machine) counts for none of them; its seconds are told as ``Report.stood_still``.
"""

from __future__ import annotations

import contextlib
import math
import os
import signal
import time
from collections.abc import Container
from pathlib import Path

import msgspec

from hpo_core.checkpoints.storage import log_path
from hpo_core.model.devices.measurement import Usage
from hpo_core.model.errors import StorageError
from hpo_core.model.stopwatch import Stopwatch
from hpo_core.model.trial import RESULTS, Outcome, Report
from hpo_core.training.child.child_process import ChildProcess
from hpo_core.training.child.messages import Finished, MalformedMessageError, MessageInbox, Settled
from hpo_core.training.child.meter import AttemptMeter
from hpo_core.training.child.processes import (
    exceeded,
    is_stopped,
    oom_kills,
    outcome_of_exit,
    process_state,
    refused,
)
from hpo_core.training.child.shared_progress import SharedProgress
from hpo_core.training.request import JobRequest

LOG_TAIL_BYTES = 4096
"""Bytes from the end of an attempt's output that its report repeats."""
_READS_PER_TURN = 16
"""Reads of 64 KiB from one descriptor before the limits are checked again: a child may write for ever."""
_READS_TO_DRAIN = 256
"""Reads that empty any pipe, once nobody writes to it."""


class AttemptLog:
    """A log of at most ``limit`` bytes: the first ones, a line that counts those left out, the last 4 KiB.

    An existing file is continued: attempts of one number have one log.

    Raises:
        StorageError: the file cannot be opened.
    """

    def __init__(self, path: Path, limit: int) -> None:
        self._most = limit - 2 * LOG_TAIL_BYTES
        self._end = b""
        """The latest bytes."""
        self._dropped = 0
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            self._size = self._began = os.lseek(self._file, 0, os.SEEK_END)
        except OSError as error:
            raise StorageError(
                f"Log {path} cannot be written: {error.strerror or error}. Free space on that disk or make the folder "
                "writable, then resume the study."
            ) from error

    def write(self, data: bytes) -> None:
        """Append. Output that a full disk refuses is lost without an error: saving the checkpoint will raise it."""
        self._end = (self._end + data)[-LOG_TAIL_BYTES:]
        with contextlib.suppress(OSError):
            written = os.pwrite(self._file, data[: max(0, self._most - self._size)], self._size)
            self._size += written
            self._dropped += len(data) - written

    def copy(self, descriptor: int, reads: int = _READS_PER_TURN) -> bool:
        """Append what a pipe holds so far; False once nothing more can come."""
        for _ in range(reads):
            try:
                data = os.read(descriptor, 1 << 16)
            except BlockingIOError:
                return True
            if not data:
                return False
            self.write(data)
        return True

    def tail(self) -> str:
        return self._end.decode("utf-8", "replace")

    def forget(self) -> None:
        """Remove what was written."""
        with contextlib.suppress(OSError):
            os.ftruncate(self._file, self._began)
        self._size, self._dropped, self._end = self._began, 0, b""

    def close(self) -> None:
        with contextlib.suppress(OSError):
            if self._dropped:
                end = self._end[-self._dropped :]
                between = self._dropped - len(end)
                line = f"\n[... {between:,} bytes of output were dropped here ...]\n" if between else ""
                os.pwrite(self._file, line.encode() + end, self._size)
        os.close(self._file)


_LIMIT_GRACE = 0.1
"""Seconds in which a process that takes too much memory may write its stack to its log; it goes on taking."""
SETTLE_SECONDS = 10.0
"""Seconds, beside the grace period, in which a process that reported may put back what the attempt changed."""
LOOK_SECONDS = 1.0
"""Longest time between two looks at the limits; an eighth of the shortest limit where that is less."""


def _look_seconds(*limits: float | None) -> float:
    return min([LOOK_SECONDS, *(limit / 8 for limit in limits if limit is not None)])


def _stopwatch(*limits: float | None) -> Stopwatch:
    # A stopwatch for limits of which one holds: a standstill of this process counts for two looks at most.
    return Stopwatch(2 * _look_seconds(*limits), time.monotonic)


class RunningAttempt:
    """One attempt in a child process, from before its order until the child is reaped, or waits for the next one.

    It ends the child at the first limit that it exceeds.

    Args:
        request: of the attempt; names the limits.
        process: that trains it.
        progress: page shared with it.
        without: process ids of children of the zygote that do not belong to the attempt.

    Raises:
        StorageError: the attempt's log cannot be written.
    """

    def __init__(
        self, request: JobRequest, process: ChildProcess, progress: SharedProgress, without: Container[int] = ()
    ) -> None:
        self.request, self.process, self._progress = request, process, progress
        self._setup, self._target = request.setup, request.job.target
        place = log_path(request.job.trial, request.job.attempt, request.gang.rank)
        self.log = AttemptLog(Path(self._setup.folder) / place, self._setup.log_limit)
        self.settled: Settled | None = None
        """Message of the child after its report, where its process may stay for the next attempt."""
        self.ending = self.has_ended = False
        """The child was told to end, or has reported and only has to exit; it was reaped."""
        self.stopped_for: tuple[Outcome, str] | None = None
        """Outcome and message of the attempt that was stopped here; None: it was not."""
        self._inbox = MessageInbox()
        self._started = time.time()
        self._oom_kills = oom_kills()
        self._done: Finished | None = None
        self._meter = AttemptMeter(request.portion, progress, without, cpu_before=process.cpu)
        self._spent = _stopwatch(self._setup.timeout)
        self._spent.reset(0.0 if request.job.unit is None else request.job.unit.elapsed)
        self._still = _stopwatch(self._setup.stall_timeout, self._setup.storage_timeout)
        self._limits = {False: self._setup.stall_timeout, True: self._setup.storage_timeout}
        """Seconds that a step may take, and one that stores a checkpoint."""
        self._last_step = 0.0, False
        """Time of the child's last progress, and True if it stores a checkpoint."""
        self.end_within(self._setup.grace)
        self._start = request.job.checkpoint.resource if request.job.checkpoint else 0
        if process.asks and process.last is not None:  # it stands there, with or without a checkpoint
            self._start = process.last.job.target
        progress.begin(self._start)

    @property
    def was_given_to_nobody(self) -> bool:
        return self.process.idle_since > 0 and not self._progress.begun and self.stopped_for is None

    def stop(self, outcome: Outcome, message: str, *, grace: float | None = None) -> None:
        """Send SIGTERM now and SIGKILL after the grace period; the first reason counts, and none after a report."""
        if self.stopped_for is not None or self._done is not None:
            return
        self.stopped_for = outcome, message
        if self.has_ended:  # the number may be somebody else's by now
            return
        self.ending = True
        self.end_within(self._setup.grace if grace is None else grace)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(self.process.pid, signal.SIGTERM)

    def stop_for_memory(self, message: str) -> None:
        self.stop(Outcome.OUT_OF_MEMORY, message, grace=_LIMIT_GRACE)

    def lower(self, memory: int) -> None:
        """Lower its limit to ``memory`` bytes of its device, if that is less than its share."""
        self._meter.lower(memory)

    def end_within(self, grace: float) -> None:
        self._grace, self._ending = grace, _stopwatch(grace)

    def next_deadline(self) -> float:
        now, setup = time.monotonic(), self._setup
        if self.ending:
            return now + min(self._grace - self._ending.elapsed(), _look_seconds(self._grace))
        limit = self._limits[self._last_step[1]]
        left = [] if limit is None else [limit - self._still.elapsed()]
        if setup.timeout is not None:
            left.append(setup.timeout - self._spent.elapsed())
        # the child may switch from one limit to the other at any moment, without a message
        looks = _look_seconds(setup.timeout, setup.stall_timeout, setup.storage_timeout)
        return min(self._meter.next_at, now + min([looks, *left]))

    def check(self) -> Usage | None:
        """Stop the child at its first exceeded limit; kill it once its grace period is over.

        Returns:
            What is new of its use, once its profile is complete; None: nothing.
        """
        if self.was_given_to_nobody and is_stopped(self.process.pid):
            self.process.kill()
        if self.ending:
            if self._ending.elapsed() >= self._grace:
                self.process.kill()
                self.end_within(1.0)
            return None
        resource, when, storing = self._progress.read(self._target)
        if (when, storing) != self._last_step:  # the stopwatch counts from the last change
            self._last_step = when, storing
            self._still = _stopwatch(self._setup.stall_timeout, self._setup.storage_timeout)
            self._still.reset(min(time.monotonic() - when, self._still.max_gap))
        timeout, limit = self._setup.timeout, self._limits[storing]
        where = f"it had done {resource} of {self._target} steps"
        if self._spent.elapsed() >= (math.inf if timeout is None else timeout):
            message = f"The attempt took longer than training.timeout = {timeout:g} s; {where}. Raise it."
            self.stop(Outcome.TIMEOUT, message)
        elif limit is not None and self._still.elapsed() >= limit and storing:
            self.stop(
                Outcome.STORAGE,
                f"A checkpoint took longer to write or read than {limit:g} s; {where}. See to that disk or object "
                "store, then resume the study.",
            )
        elif limit is not None and self._still.elapsed() >= limit:
            # of a gang: a rank that waits for one that hangs sleeps
            state = process_state(self.process.pid) if self.request.gang.size > 1 else ""
            self.stop(
                Outcome.HUNG,
                f"No step was finished within training.stall_timeout = {limit:g} s; {where}"
                f"{f', and its process was {state}' if state else ''}. The stack at that moment is in its log. "
                "Raise the limit if steps take that long.",
            )
        if self.ending or time.monotonic() < self._meter.next_at:
            return None
        self._meter.sample()
        most, share = self._meter.limit, self._meter.share
        if most is not None and share is not None and self._meter.memory > most:
            self.stop_for_memory(exceeded(share, self._meter.memory))
        return self._meter.news(self._progress.read(self._target)[0] - self._start)

    def read_result(self, reads: int = _READS_PER_TURN) -> bool:
        """Read what the child wrote so far; False once nothing more can come or matter."""
        for _ in range(reads):
            try:
                data = os.read(self.process.result, 1 << 16)
            except BlockingIOError:
                return True
            if not data or self.settled is not None:  # anything after the last message is ignored
                return False
            try:
                for message in self._inbox.feed(data):
                    self._accept(message)
            except MalformedMessageError as error:
                if self._done is not None:  # its result counts, and the process is ended
                    self.end_within(self._setup.grace)
                    return False
                self.stop(
                    Outcome.CRASHED,
                    f"The training process wrote to the descriptor its report goes through: {error}. Write to "
                    "descriptors that the training function opened, and close no others.",
                )
                return False
        return True

    def _accept(self, message: object) -> None:
        if isinstance(message, Settled) and self._done is not None:
            self.settled = message
            if not message.stays:
                self.end_within(self._setup.grace)  # its exit functions may take so long
            return
        if not isinstance(message, Finished) or self._done is not None:
            raise MalformedMessageError(f"a message {type(message).__name__}, where a report belongs")
        job = self.request.job
        if (message.report.trial, message.report.attempt) != (job.trial, job.attempt):
            raise MalformedMessageError("the report of another attempt")
        self._done = message
        if not self.has_ended:  # it has the grace period to end, or to put back what the attempt changed
            self.ending = True
            settle = min(SETTLE_SECONDS, self._setup.zygote_timeout / 2) if self.process.stays else 0.0
            self.end_within(self._setup.grace + settle)

    def final_report(self, code: int, status: int, cpu: float = 0.0) -> Report:
        """The report of a child that has ended: its own, or one made from its exit status; with what it used.

        Call it once the child was reaped, and all that could write into its pipes is gone; or once it has settled.

        Args:
            code: how it ended, as ``waitid`` says it.
            status: its exit code or signal.
            cpu: seconds of processor time that it took, with the processes that it waited for.
        """
        self.ending = self.has_ended = True
        self.log.copy(self.process.output, _READS_TO_DRAIN)
        self.read_result(_READS_TO_DRAIN)
        printed, done, reason = self.log.tail(), self._done, self.stopped_for
        if done is not None and (reason is None or done.report.outcome in RESULTS):
            report = done.report
            self.log.write((done.traceback or report.detail).encode("utf-8", "replace"))
            if report.detail and not done.traceback:
                report = msgspec.structs.replace(report, detail=f"{printed}\n{report.detail}".lstrip("\n"))
        else:
            if reason is None:
                before, now = self._oom_kills, oom_kills()
                killed = None if before is None or now is None else now - before
                reason = outcome_of_exit(code, status=status, oom_kills=killed, printed=printed)
                if reason[0] is Outcome.OUT_OF_MEMORY:
                    reason = reason[0], reason[1] + refused(self.request.portion)
            report = self.request.report(*reason, detail=printed, started=self._started)
        has_result = self._done is not None and self._done.report.outcome in RESULTS
        resource = self._target if has_result else self._progress.read(self._target)[0]
        usage = self._meter.usage(time.monotonic(), cpu=cpu, units=resource - self._start)
        self._spent.elapsed()
        stood_still = self._spent.stood_still
        still = round(stood_still, 3) if stood_still else report.stood_still
        return msgspec.structs.replace(report, usage=usage, stood_still=still)
