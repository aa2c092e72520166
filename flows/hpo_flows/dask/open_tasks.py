"""Open tasks: Dask tasks on this worker that train several short jobs in turn. Runs on a Dask worker.

A task of its own costs a job about 10 ms of processor time in client, scheduler and worker. So a task that is younger
than :data:`OPEN_SECONDS` when its job ends stays open: it publishes the report at once and takes the next job by a
call from the controller. Dask's scheduler still knows of the task, with all that this means: the slot is taken, an
adaptive cluster keeps the worker, and the worker's death ends the task with an error.

The task's result is the report of its last job. So a report or a call that was lost on its way delays a job, by
``OPEN_SECONDS`` at most, and loses nothing.
"""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from collections.abc import Callable

from hpo_core.model.trial import RESULTS
from hpo_core.training.request import decode_report
from hpo_core.training.worker import train_job

OPEN_SECONDS = 1.0
"""Age at which a task takes no further job: studies that share a cluster wait for its slots at most so much longer."""

_Next = tuple[bytes, Callable[[bytes], None]]
"""A request, and what is to be called with the encoded report."""


class _OpenTask:
    """Takes requests from the worker's event loop, gives them to the task's thread."""

    def __init__(self, ends: float) -> None:
        self._ends = ends
        self._requests: queue.SimpleQueue[_Next | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._closed = False

    def offer(self, item: _Next) -> bool:
        """Hand over a request; False where the task takes no more."""
        with self._lock:
            if not self._closed:
                self._requests.put(item)
            return not self._closed

    def next(self) -> _Next | None:
        """Wait for the next request; None once there will be none."""
        try:
            return self._requests.get(timeout=max(0.0, self._ends - time.monotonic()))
        except queue.Empty:
            pass
        self.close()
        return self._requests.get()  # one that came in the last moment, or the end

    def close(self) -> None:
        """Take no further request; what was taken is trained."""
        with self._lock:
            if not self._closed:
                self._closed = True
                self._requests.put(None)


_open: dict[str, _OpenTask] = {}
"""Of this worker, by Dask's key."""


def train_in_turn(request: bytes, key: str, publish: Callable[[bytes], None]) -> bytes:
    """Train a job, then those that come while the task is open; return the report of the last.

    Args:
        publish: called with the report of the first job where the task stays open after it.
    """
    ends = time.monotonic() + OPEN_SECONDS
    report = train_job(request)
    if not _may_go_on(report, ends):
        return report
    task = _open[key] = _OpenTask(ends)
    try:
        publish(report)
        while (item := task.next()) is not None:
            request, answer = item
            report = train_job(request)
            answer(report)
            if not _may_go_on(report, ends):
                task.close()
    finally:
        task.close()
        del _open[key]
    return report


def _may_go_on(report: bytes, ends: float) -> bool:
    """After a failure the scheduler chooses anew where the next job runs."""
    return time.monotonic() < ends and decode_report(report).outcome in RESULTS


async def train_next(key: str, request: bytes) -> bytes | None:
    """Train a job in an open task; None where the task takes no more, or its own result will have the report."""
    task = _open.get(key)
    loop = asyncio.get_running_loop()
    report: asyncio.Future[bytes] = loop.create_future()

    def settle(encoded: bytes) -> None:
        if not report.done():
            report.set_result(encoded)

    if task is None or not task.offer((request, lambda encoded: _call_on(loop, settle, encoded))):
        return None
    try:
        return await asyncio.wait_for(report, OPEN_SECONDS)
    except TimeoutError:  # the task is older by now, and ends with this job
        return None


def _call_on(loop: asyncio.AbstractEventLoop, settle: Callable[[bytes], None], encoded: bytes) -> None:
    try:
        loop.call_soon_threadsafe(settle, encoded)
    except RuntimeError:  # the worker is closing, and its loop with it
        return


def close_open_tasks() -> None:
    """Let all end that wait for a job."""
    for task in list(_open.values()):
        task.close()
