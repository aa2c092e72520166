"""CheckpointWriter: the worker's side of a state that is written while its process trains the next attempt."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import msgspec

from hpo_core.checkpoints.files import write_chunks
from hpo_core.checkpoints.shared_state import SharedState
from hpo_core.model.errors import HpoError
from hpo_core.model.stopwatch import Stopwatch
from hpo_core.model.trial import Outcome, Report
from hpo_core.training.child.life_and_limits import LOOK_SECONDS, storage_took_too_long
from hpo_core.training.request import JobRequest


class _EndedError(Exception):
    """The file is not wanted any more."""


class CheckpointWriter:
    """Writes the checkpoint of one attempt from shared memory. Nobody is told of a result before it is durable.

    A file system that hangs is left alone with the thread that called it. What it may finish later is named by no
    report, and is removed with the other files that nothing needs.

    Args:
        request: of the attempt.
        report: its result, whose checkpoint has no digest yet.
        memory: where its state lies, locked.
    """

    def __init__(self, request: JobRequest, report: Report, memory: SharedState) -> None:
        self._request = request
        self._report = report
        self._memory = memory
        self._ended = threading.Event()
        self._result: Report | None = None
        self._error: Exception | None = None
        self._cancelled = False
        self.heartbeats = 0
        """Grows while :meth:`run` is active."""

    def run(self, on_free: Callable[[CheckpointWriter], None] | None = None) -> Report:
        """Write it; returns the report with the checkpoint, or why there is none.

        Args:
            on_free: called before, with this object.
        """
        limit = self._request.storage_timeout
        look = LOOK_SECONDS if limit is None else min(LOOK_SECONDS, limit / 8)
        spent = Stopwatch(2 * look, time.monotonic)
        try:
            if on_free is not None:
                on_free(self)
            threading.Thread(target=self._write, name="hpo-checkpoint-writer", daemon=True).start()
            while not self._ended.wait(look):
                self.heartbeats += 1
                if self._cancelled:
                    break
                if limit is not None and spent.elapsed() >= limit:
                    self._cancelled = True
                    target = self._request.job.target
                    return self._failed(Outcome.STORAGE, storage_took_too_long(limit, target, target))
            if self._result is not None:
                return self._result
            if isinstance(self._error, HpoError):
                return self._failed(Outcome.STORAGE, str(self._error))
            if self._error is not None and not self._cancelled:
                why = f"Its state could not be written: {type(self._error).__name__}: {self._error}."
                return self._failed(Outcome.CRASHED, why)
            why = "The attempt was ended on purpose (cancel or shutdown) while its checkpoint was written."
            return self._failed(Outcome.PREEMPTED, why)
        finally:
            self._memory.unlock()

    def cancel(self) -> None:
        """End it; it reports PREEMPTED, unless the file is complete already."""
        self._cancelled = True

    def _write(self) -> None:
        request, report = self._request, self._report
        assert report.checkpoint is not None
        parent = request.job.checkpoint
        try:
            checkpoint = write_chunks(
                request.folder,
                request.checkpoint_path,
                self._memory.read(report.checkpoint.size, self._check),
                resource=request.job.target,
                parent=parent.uri if parent else None,
            )
            self._result = msgspec.structs.replace(report, checkpoint=checkpoint)
        except Exception as error:
            self._error = error
        finally:
            self._ended.set()

    def _check(self) -> None:
        if self._cancelled:
            raise _EndedError

    def _failed(self, outcome: Outcome, message: str) -> Report:
        report = self._report
        return self._request.report(
            outcome, message, started=report.started, usage=report.usage, unrestored=report.unrestored
        )
