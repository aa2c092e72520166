"""Trainer: the worker's side of training in a child process. One zygote, one job at a time."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Sequence
from pathlib import Path

import msgspec

from hpo_core.model.devices.share import Share
from hpo_core.model.devices.usage import Usage
from hpo_core.model.errors import HpoError, ObjectiveError, SpecError
from hpo_core.model.stopwatch import Stopwatch
from hpo_core.model.trial import Outcome, Report
from hpo_core.security.credentials import without_private_settings
from hpo_core.security.masking import masked_report
from hpo_core.spec.threads import VARIABLES
from hpo_core.training.child.connection import Connection
from hpo_core.training.child.descendants import TAG_VARIABLE, kill_tagged
from hpo_core.training.child.messages import (
    Cancel,
    Done,
    Limit,
    Loading,
    Lower,
    Measured,
    Message,
    Ping,
    Pong,
    Prepare,
    Ready,
    Run,
    Started,
)
from hpo_core.training.repeat_runs import run_repeats
from hpo_core.training.request import JobRequest
from hpo_core.training.resources.gpu_meter import GpuMeter
from hpo_core.training.resources.share_limits import exceeded

_ENVIRONMENT = {
    **dict.fromkeys(VARIABLES, "1"),  # a forked child deadlocks in a thread pool that the zygote had started
    "PYTHONHASHSEED": "0",  # the order of sets of strings is a random state, too
    "PYTORCH_NVML_BASED_CUDA_CHECK": "1",  # torch.cuda.is_available() at import must not initialize CUDA
}
"""Defaults for the zygote; what the worker's environment sets already stays."""
PING_SECONDS = 5.0
"""Seconds between two pings to a zygote that sends nothing."""
_EXIT_SECONDS = 5.0
"""Seconds a zygote may take to exit before it is killed."""


class Trainer:
    """Runs jobs of one objective, each in a fresh process forked from a zygote.

    The zygote imports the objective once. ``run`` is called from one thread; ``cancel`` and ``close`` from any. The
    zygote enforces an attempt's limits. The trainer watches the zygote: one that does not answer, or cannot get rid
    of its child, is killed.

    Args:
        objective: training function as ``package.module:function``.
        pythonpath: folders put in front of ``sys.path`` before the import.
        threads: threads that its jobs compute with; None: as this process's environment says, or 1.
        import_timeout: seconds that the import of the objective may take.
    """

    def __init__(
        self,
        objective: str,
        pythonpath: Sequence[str] = (),
        *,
        threads: int | None = None,
        import_timeout: float = 600.0,
    ) -> None:
        self.objective = objective
        self.threads = threads
        self.pythonpath = tuple(pythonpath)
        self._import_timeout = import_timeout
        self._zygote: subprocess.Popen[bytes] | None = None
        self._connection: Connection | None = None
        self._child_group = 0
        self._lock = threading.Lock()
        self._cancelled: tuple[int, int] | None = None
        self._lowered: tuple[tuple[int, int], int] | None = None
        self._measured: Usage | None = None
        self._gpu_meter: GpuMeter | None = None
        self._tag = uuid.uuid4().hex
        self.closed = False
        self.heartbeats = 0
        """Grows every few seconds while ``run`` is active; a constant value means that its thread hangs."""

    @property
    def child(self) -> int:
        """Process id of the attempt that runs; 0: none does."""
        return self._child_group

    def prepare(self, load: str = "") -> None:
        """Start the zygote and import the objective, unless a running zygote has done so.

        Args:
            load: ``data.load`` of the study, which must be there, too.

        Raises:
            SpecError: there is no such module or function.
            ObjectiveError: the import raised, crashed, or took longer than ``import_timeout``.
        """
        if self._zygote is not None and self._zygote.poll() is None:
            return
        self._end_zygote()
        zygote, connection = self._spawn_zygote()
        connection.send(Prepare(self.objective, self.pythonpath, load))
        try:
            answer = self._wait_until_imported(connection)
        except TimeoutError:
            _kill(zygote)
            answer = Ready(
                f"objective = {self.objective!r}: its import took longer than {self._import_timeout:g} s. Move what "
                "takes so long into the training function, or raise the limit."
            )
        if isinstance(answer, Ready) and not answer.error:
            return
        self._end_zygote()
        if isinstance(answer, Ready):
            raise (SpecError if answer.spec else ObjectiveError)(answer.error)
        raise ObjectiveError(
            f"objective = {self.objective!r}: the process that imports it ended with {_exit_text(zygote)}. Its output "
            "is in the worker's; try `python -c 'import ...'` in the worker's environment."
        )

    def _spawn_zygote(self) -> tuple[subprocess.Popen[bytes], Connection]:
        own_end, zygote_end = socket.socketpair()
        package_root = str(Path(__file__).parents[3])
        environment = {**_ENVIRONMENT, **without_private_settings(os.environ), TAG_VARIABLE: self._tag}
        if self.threads is not None:
            environment |= dict.fromkeys(VARIABLES, str(self.threads))
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, [package_root, os.environ.get("PYTHONPATH")]))
        with zygote_end:
            zygote = subprocess.Popen(
                [sys.executable, "-m", "hpo_core.training.child.zygote", str(zygote_end.fileno())],
                pass_fds=(zygote_end.fileno(),),
                stdin=subprocess.DEVNULL,
                env=environment,
                start_new_session=True,  # Ctrl-C is for the controller, which tells the trainers what to do
            )
        connection = Connection(own_end)
        with self._lock:
            self._zygote, self._connection = zygote, connection
            closed = self.closed
        if closed:  # close() ran before there was a zygote that it could end
            self._end_zygote()
        return zygote, connection

    def _wait_until_imported(self, connection: Connection) -> Message | None:
        """Return the zygote's first message; it cannot answer before the import has ended.

        Raises:
            TimeoutError: the import takes longer than ``import_timeout``.
        """
        timer = Stopwatch(2 * PING_SECONDS, time.monotonic)
        while (left := self._import_timeout - timer.elapsed()) > 0:
            self.heartbeats += 1
            with contextlib.suppress(TimeoutError):
                return connection.read(min(1.0, left))
        raise TimeoutError

    def run(self, request: JobRequest) -> Report:
        """Train, and report whatever happens.

        A zygote that died is replaced before the next job; the attempt during which it died is LOST.

        Raises:
            ValueError: the request is for another objective or ``pythonpath`` than this trainer's.
        """
        self._lowered = None
        try:
            # masked here, where the secrets are known; the child is not given them
            return masked_report(run_repeats(self._run, request))
        finally:
            self._measured = None
            self._cancelled = None  # the next study may well have an attempt of the same number

    def _run(self, request: JobRequest) -> Report:
        asked = (request.objective, request.pythonpath, request.threads)
        if asked != (self.objective, self.pythonpath, self.threads):
            raise ValueError(
                f"Trainer of {self.objective!r} (pythonpath {self.pythonpath}, threads {self.threads}) got a request "
                f"for {request.objective!r} (pythonpath {request.pythonpath}, threads {request.threads}); make one "
                "trainer for each."
            )
        started = time.time()
        try:
            self.prepare()
        except HpoError as error:
            # a fault of this worker, not of the trial: another one may be able to import the objective
            message = f"{type(error).__name__}: {error}"
            return _with_worker_name(_report_without_child(request, Outcome.LOST, message, started=started))
        attempt = (request.job.trial, request.job.attempt)
        self._child_group = 0
        self._measured = None
        if self._lowered is not None and self._lowered[0] == attempt and request.share is not None:
            # another repeat of the same attempt, which is limited from its start
            lowered = request.share.lowered(self._lowered[1])
            request = msgspec.structs.replace(request, share=lowered)
        self._send(Run(request))
        if self._cancelled == attempt:
            self._send(Cancel(*attempt))
        try:
            report, reason = self._wait_for_report(request)
        finally:
            measured, meter = self.usage, self._gpu_meter
            self._gpu_meter = None
            if meter is not None:
                meter.close()
        if report is not None:
            if meter is not None and isinstance(report.usage, Usage):
                report = msgspec.structs.replace(report, usage=meter.with_gpu(report.usage))
            return _with_worker_name(report)
        self._kill_child_group()
        if self.closed:
            message = "The trainer was closed while the attempt ran."
            return _with_worker_name(_report_without_child(request, Outcome.PREEMPTED, message, started=started))
        zygote = self._zygote
        exit_text = _exit_text(zygote) if zygote else "an unknown code"
        reason = reason or f"The zygote process ended with {exit_text}"
        self._end_zygote()
        message = f"{reason}; it is started anew for the next job."
        report = _report_without_child(request, Outcome.LOST, message, started=started)
        return _with_worker_name(msgspec.structs.replace(report, usage=measured or msgspec.UNSET))

    def _wait_for_report(self, request: JobRequest) -> tuple[Report | None, str]:
        """The child's report; or None and why the zygote was killed (empty: it ended by itself)."""
        attempt = (request.job.trial, request.job.attempt)
        ping_seconds = min(PING_SECONDS, request.zygote_timeout / 4)
        since_answer = Stopwatch(2 * ping_seconds, time.monotonic)
        since_stop = Stopwatch(2 * ping_seconds, time.monotonic)
        loading = False
        while (connection := self._connection) is not None:
            self.heartbeats += 1
            try:
                message = connection.read(ping_seconds)
            except TimeoutError:
                limit = max(request.zygote_timeout, self._import_timeout) if loading else request.zygote_timeout
                if since_answer.elapsed() >= limit:
                    self._kill_zygote()
                    return None, f"The zygote process did not answer for {limit:g} s and was killed"
                connection.send(Ping())
                continue
            since_answer.reset()
            loading = isinstance(message, Loading)
            if isinstance(message, Done):
                if (message.report.trial, message.report.attempt) != attempt:
                    continue  # user code wrote it
                self._child_group = 0
                return message.report, ""
            if isinstance(message, Started):
                self._child_group = message.pid
                self._watch_gpu(request)
            elif isinstance(message, Measured):
                self._measured = message.usage
            elif isinstance(message, Pong):
                if not message.ending:
                    since_stop.reset()
                elif since_stop.elapsed() >= request.grace + request.zygote_timeout:
                    self._kill_zygote()
                    return None, "The training process outlived its SIGKILL; the zygote process was killed, too"
            elif loading:
                continue
            else:
                break
        return None, ""

    def _watch_gpu(self, request: JobRequest) -> None:
        share, job, zygote = request.share, request.job, self._zygote
        if share is None or not share.gpu or zygote is None:
            return

        def on_exceeded(share: Share, memory: int) -> None:
            self._send(Limit(job.trial, job.attempt, exceeded(share, memory)))

        self._gpu_meter = GpuMeter(share, zygote.pid, on_exceeded)

    @property
    def usage(self) -> Usage | None:
        """What the attempt that runs has used so far; None until its profile is complete, and between attempts."""
        measured, meter = self._measured, self._gpu_meter
        return measured if measured is None or meter is None else meter.with_gpu(measured)

    def _kill_zygote(self) -> None:
        with self._lock:
            zygote = self._zygote
        if zygote is not None and zygote.poll() is None:
            _kill(zygote)

    def cancel(self, trial: int, attempt: int) -> None:
        """End that attempt (SIGTERM, grace period, SIGKILL) if it runs here or is about to; it reports PREEMPTED."""
        self._cancelled = (trial, attempt)
        self._send(Cancel(trial, attempt))

    def limit(self, trial: int, attempt: int, memory: int) -> None:
        """Let an attempt that runs here take no more than so many bytes of its device, or what it has taken already.

        It never gets more than its share by that. What was set in the child at its start stays: the part of torch's
        allocator, and MPS.
        """
        meter = self._gpu_meter
        if meter is not None:
            memory = meter.lower(memory)
        self._lowered = (trial, attempt), memory
        self._send(Lower(trial, attempt, memory))

    def close(self) -> None:
        """End the zygote and whatever it runs. The trainer cannot be used again."""
        self.closed = True
        self._end_zygote()

    def _send(self, message: Message) -> None:
        with self._lock:
            connection = self._connection
        if connection is not None:
            connection.send(message)

    def _end_zygote(self) -> None:
        with self._lock:
            zygote, connection = self._zygote, self._connection
            self._zygote = self._connection = None
        if connection is not None:
            connection.close()
        if zygote is None:
            return
        try:
            zygote.wait(_EXIT_SECONDS)
        except subprocess.TimeoutExpired:
            self._kill_child_group()
            _kill(zygote)
            with contextlib.suppress(subprocess.TimeoutExpired):  # in a system call that SIGKILL cannot interrupt
                zygote.wait(_EXIT_SECONDS)
        kill_tagged(self._tag)

    def _kill_child_group(self) -> None:
        """Kill what the child started. The child itself dies with the zygote (Linux)."""
        if self._child_group:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._child_group, signal.SIGKILL)


def _with_worker_name(report: Report) -> Report:
    return msgspec.structs.replace(report, worker=f"{socket.gethostname()}:{os.getpid()}")


def _kill(zygote: subprocess.Popen[bytes]) -> None:
    """Send SIGKILL to the zygote, stopped or not, and to what its import of the objective started."""
    zygote.kill()
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(zygote.pid, signal.SIGKILL)


def _report_without_child(request: JobRequest, outcome: Outcome, message: str, *, started: float) -> Report:
    """Report of an attempt whose child sent none; the message's first line is its summary."""
    first, _, rest = message.partition("\n")
    return Report(
        trial=request.job.trial,
        attempt=request.job.attempt,
        outcome=outcome,
        message=first,
        detail=rest,
        started=started,
        ended=time.time(),
    )


def _exit_text(process: subprocess.Popen[bytes]) -> str:
    try:
        code = process.wait(5.0)
    except subprocess.TimeoutExpired:
        return "no exit code yet"
    return f"signal {-code}" if code < 0 else f"exit code {code}"
