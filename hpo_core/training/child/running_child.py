"""RunningChild: the zygote's view of the child that runs: its limits, its end, its report."""

from __future__ import annotations

import contextlib
import math
import os
import signal
import time
from pathlib import Path

import msgspec

from hpo_core.model.devices.usage import Usage
from hpo_core.model.stopwatch import Stopwatch
from hpo_core.model.trial import RESULTS, Outcome, Report
from hpo_core.training.child.attempt_log import AttemptLog
from hpo_core.training.child.exit_cause import oom_kills, outcome_of_exit
from hpo_core.training.child.messages import Done, Inbox, MalformedMessageError
from hpo_core.training.child.process_state import process_state
from hpo_core.training.child.shared_progress import SharedProgress
from hpo_core.training.request import JobRequest
from hpo_core.training.resources.meter import Meter
from hpo_core.training.resources.process_tree import ProcessTree
from hpo_core.training.resources.share_limits import exceeded, refused

_READS_PER_TURN = 16
"""Reads of 64 KiB from one descriptor before the limits are checked again: a child may write for ever."""
LIMIT_GRACE = 0.1
"""Seconds in which a process that takes too much memory may write its stack to its log; it goes on taking."""
LOOK_SECONDS = 1.0
"""Between two looks at the limits, at most; eight looks at the shortest one."""
_READS_TO_DRAIN = 256
"""Reads that empty any pipe, once nobody writes to it."""


def _look_seconds(*limits: float | None) -> float:
    return min([LOOK_SECONDS, *(limit / 8 for limit in limits if limit is not None)])


def _stopwatch(*limits: float | None) -> Stopwatch:
    """For limits of which one holds: a standstill of this process counts for as much as two looks take."""
    return Stopwatch(2 * _look_seconds(*limits), time.monotonic)


class RunningChild:
    """One child, from before its fork until it is reaped.

    Args:
        request: what it is to do.
        progress: page shared with it.
        tree: its processes, once it was forked.

    Raises:
        StorageError: the attempt's log cannot be written.
    """

    def __init__(self, request: JobRequest, progress: SharedProgress, tree: ProcessTree) -> None:
        self.request = request
        self.log = AttemptLog(Path(request.folder) / request.log_path, request.log_limit)
        self._progress = progress
        self.result, self.result_in = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self.output, self.output_in = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        for descriptor in (self.result_in, self.output_in):
            os.set_blocking(descriptor, True)
        self._inbox = Inbox()
        self._started = time.time()
        self._spent = _stopwatch(request.timeout)
        self._spent.reset(request.elapsed)
        self._still = _stopwatch(request.stall_timeout, request.storage_timeout)
        self._last_step = 0.0, False
        """When the child wrote its progress last, and whether it stores a checkpoint."""
        self._oom_kills = oom_kills()
        self._report: Report | None = None
        self._traceback = ""
        self._stop_reason: tuple[Outcome, str] | None = None
        self._grace: float | None = None
        """Seconds until it is killed, once it was told to end or has reported."""
        self._ending = _stopwatch(request.grace)
        self.pid = 0
        self.reaped = False
        self._start = request.job.checkpoint.resource if request.job.checkpoint else 0
        progress.begin(self._start)
        self._meter = Meter(request.share, progress.figures, tree)

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

    def stop(self, outcome: Outcome, message: str, *, grace: float | None = None) -> None:
        """Send SIGTERM now and SIGKILL after the grace period; the first call's reason counts."""
        if self._stop_reason is None and self._report is None:
            self._stop_reason = outcome, message
            self._end_within(self.request.grace if grace is None else grace)
            if self.reaped:  # the number may be somebody else's by now
                return
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(self.pid, signal.SIGTERM)

    def lower(self, memory: int) -> None:
        """Limit it to so many bytes of its device, if that is less than its share."""
        self._meter.lower(memory)

    def _end_within(self, grace: float) -> None:
        self._grace, self._ending = grace, _stopwatch(grace)

    @property
    def ending(self) -> bool:
        """Whether the child was told to end, or has reported and only has to exit."""
        return self._grace is not None

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
        self._report, self._traceback = message.report, message.traceback
        self._end_within(self.request.grace)  # its exit functions may take so long

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

    def next_deadline(self) -> float:
        """Monotonic time by which :meth:`check_limits` must be called again."""
        now, request = time.monotonic(), self.request
        if self._grace is not None:
            return now + min(self._grace - self._ending.elapsed(), _look_seconds(self._grace))
        limit = self._step_limit()
        left = [] if limit is None else [limit - self._still.elapsed()]
        if request.timeout is not None:
            left.append(request.timeout - self._spent.elapsed())
        # the child may switch from one limit to the other at any moment, without a message
        looks = _look_seconds(request.timeout, request.stall_timeout, request.storage_timeout)
        return min(self._meter.next_at, now + min([looks, *left]))

    def _step_limit(self) -> float | None:
        """Seconds that the step of training, or the checkpoint that is stored, may take."""
        return self.request.storage_timeout if self._last_step[1] else self.request.stall_timeout

    def _note_progress(self) -> tuple[int, bool]:
        """Steps done, and whether a checkpoint is stored; the stopwatch counts from the last change."""
        resource, when, storing = self._progress.read(self.request.job.target)
        if (when, storing) != self._last_step:
            self._last_step = when, storing
            self._still = _stopwatch(self.request.stall_timeout, self.request.storage_timeout)
            self._still.reset(min(time.monotonic() - when, self._still.max_gap))
        return resource, storing

    def check_limits(self) -> None:
        """Stop the child at its first exceeded limit; kill it once its grace period is over."""
        if self._grace is not None:
            if self._ending.elapsed() >= self._grace:
                self.kill()
                self._end_within(1.0)
            return
        resource, storing = self._note_progress()
        timeout, limit = self.request.timeout, self._step_limit()
        is_over = limit is not None and self._still.elapsed() >= limit
        where = f"it had done {resource} of {self.request.job.target} steps"
        if self._spent.elapsed() >= (math.inf if timeout is None else timeout):
            self.stop(
                Outcome.TIMEOUT,
                f"The attempt took longer than training.timeout = {timeout:g} s; {where}. Raise it.",
            )
        elif is_over and storing:
            self.stop(
                Outcome.STORAGE,
                f"A checkpoint took longer to write or read than "
                f"{self.request.storage_timeout:g} s; {where}. See to that disk or object store, then "
                "resume the study.",
            )
        elif is_over:
            self.stop(
                Outcome.HUNG,
                f"No step was finished within training.stall_timeout = {limit:g} s; {where}{self._state()}. The stack "
                "at that moment is in its log. Raise the limit if steps take that long.",
            )

    def _state(self) -> str:
        """Of a gang: what tells a rank that hangs from one that waits for it."""
        state = "" if self.request.gang is None else process_state(self.pid)
        return f", and its process {state}" if state else ""

    def measure(self) -> Usage | None:
        """Look at its processes if it is time to; what is new, once its profile is complete.

        A child whose memory exceeds its share is ended.
        """
        if self._grace is not None or time.monotonic() < self._meter.next_at:
            return None
        self._meter.sample()
        limit, share = self._meter.limit, self._meter.share
        if limit is not None and share is not None and self._meter.memory > limit:
            self.stop(Outcome.OUT_OF_MEMORY, exceeded(share, self._meter.memory), grace=LIMIT_GRACE)
        return self._meter.news(self._units())

    def _units(self) -> int:
        return self._progress.read(self.request.job.target)[0] - self._start

    def _usage(self, cpu: float) -> Usage:
        units = self._units()
        if self._report is not None and self._report.outcome in RESULTS:
            units = self.request.job.target - self._start
        return self._meter.usage(time.monotonic(), cpu=cpu, units=units)

    def final_report(self, code: int, status: int, cpu: float = 0.0) -> Report:
        """The report of a child that has ended: its own, or one made from its exit status; with what it used.

        Args:
            code: how it ended, as ``waitid`` says it.
            status: its exit code or signal.
            cpu: seconds of processor time that it took, with the processes that it waited for.
        """
        report = msgspec.structs.replace(self._judged_report(code, status), usage=self._usage(cpu))
        self._spent.elapsed()
        return report if not self._spent.stood_still else msgspec.structs.replace(
            report, stood_still=round(self._spent.stood_still, 3)
        )  # fmt: skip

    def _judged_report(self, code: int, status: int) -> Report:
        printed = self.log.tail()
        if self._report is not None and (self._stop_reason is None or self._report.outcome in RESULTS):
            if self._traceback:
                self.log.write(self._traceback.encode("utf-8", "replace"))
                return self._report
            if not self._report.detail:
                return self._report
            self.log.write(self._report.detail.encode("utf-8", "replace"))
            return msgspec.structs.replace(self._report, detail=f"{printed}\n{self._report.detail}".lstrip("\n"))
        if self._stop_reason is not None:
            outcome, message = self._stop_reason
        else:
            killed = oom_kills().since(self._oom_kills)
            outcome, message = outcome_of_exit(code, status=status, oom_kills=killed, printed=printed)
            if outcome is Outcome.OUT_OF_MEMORY and self.request.share is not None:
                message += refused(self.request.share)
        return Report(
            trial=self.request.job.trial,
            attempt=self.request.job.attempt,
            outcome=outcome,
            message=message,
            detail=printed,
            started=self._started,
            ended=time.time(),
        )
