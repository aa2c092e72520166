"""Trainer: the worker's side of training in a child process. One zygote, one job at a time."""

from __future__ import annotations

import contextlib
import math
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
import uuid
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from hpo_core.model.devices.measurement import Usage
from hpo_core.model.errors import HpoError, ObjectiveError, SpecError
from hpo_core.model.stopwatch import Stopwatch
from hpo_core.model.trial import Job, Outcome, Report
from hpo_core.security.masking import masked_report, without_private_settings
from hpo_core.spec.assembly import THREAD_VARIABLES
from hpo_core.training.child.child_process import ANSWER_SECONDS, continues, demand_of
from hpo_core.training.child.messages import (
    Cancel,
    Finished,
    Loading,
    Lower,
    Measured,
    Message,
    MessageInbox,
    Ping,
    Pong,
    Prepare,
    Ready,
    RunJob,
    Started,
    frame,
)
from hpo_core.training.child.meter import GpuMeter
from hpo_core.training.child.processes import TAG_VARIABLE, kill_tagged
from hpo_core.training.request import JobRequest

ENVIRONMENT = {
    **dict.fromkeys(THREAD_VARIABLES, "1"),  # a forked child deadlocks in a thread pool that the zygote had started
    "PYTHONHASHSEED": "0",  # the order of sets of strings is a random state, too
    "TORCH_CPP_LOG_LEVEL": "ERROR",  # torch advises against find_unused_parameters, which keeps resumes exact
    "PYTORCH_NVML_BASED_CUDA_CHECK": "1",  # torch.cuda.is_available() at import must not initialize CUDA
}
"""Defaults for the zygote; what the worker's environment sets already stays."""
PING_SECONDS = 5.0
"""Seconds between two pings to a zygote that sends nothing."""
SEND_SECONDS = 60.0
"""Seconds that a zygote may take to read a message; it reads between any two things it does."""
IMPORT_SECONDS = 600.0
"""Seconds that the import of the objective may take."""
_EXIT_SECONDS = 5.0
"""Seconds a zygote may take to exit before it is killed."""


def _kill_group(group: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGKILL)


class WaitingProcess(NamedTuple):
    """The process that stayed after an attempt."""

    pid: int
    last: JobRequest
    """The request of that attempt."""
    asks_until: float | None
    """Monotonic time until which it waits within a training, for the next job of its trial alone. None: it waits for
    any attempt like its last one."""


class Trainer:
    """A zygote and the socket to it: runs jobs of one objective, each in a process that the zygote forked.

    The zygote imports the objective once. ``run`` is called from one thread; ``cancel`` and ``close`` from any. The
    zygote enforces an attempt's limits. The trainer watches the zygote: one that does not answer, or cannot get rid
    of its child, is killed, and the next job has a new one. Every call has a time limit.

    Args:
        objective: training function as ``package.module:function``.
        pythonpath: folders put in front of ``sys.path`` before the import.
        threads: threads that its jobs compute with; None: as this process's environment says, or 1.
        gpu: the one that its jobs see, as ``CUDA_VISIBLE_DEVICES`` names it; empty: those that this process sees.
    """

    def __init__(
        self, objective: str, pythonpath: Sequence[str] = (), *, threads: int | None = None, gpu: str = ""
    ) -> None:
        self.key = objective, tuple(pythonpath), threads, gpu
        self.gpu = gpu
        self.child = 0
        """Process id, and process group, of the attempt that runs; 0: none does."""
        self._zygote: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None
        self._tag = ""
        """Value of ``TAG_VARIABLE`` for the zygote and all below it."""
        self._inbox = MessageInbox()
        self._received: deque[Message] = deque()
        self._sending, self._ending = threading.Lock(), threading.Lock()
        self._importing = threading.Lock()
        """Held while the objective is imported: the first job may come before it is."""
        self._cancelled: tuple[int, int] | None = None
        self._lowered: tuple[tuple[int, int], int] | None = None
        self._measured: Usage | None = None
        self._gpu_meter: GpuMeter | None = None
        self.closed = False
        self.waiting: WaitingProcess | None = None
        """The process that stayed, which may have ended by now; its pool sets it to None where it ends that process."""
        self.study_folder = ""
        """Folder of the study that its last attempt is of, by which cancels name it; its pool sets it."""
        self.heartbeats = 0
        """Grows every few seconds while ``run`` is active; a constant value means that its thread hangs."""

    @property
    def pid(self) -> int:
        """Process id of the zygote; 0: there is none."""
        return 0 if (zygote := self._zygote) is None else zygote.pid

    @property
    def usage(self) -> Usage | None:
        """The usage of the running attempt; None until its profile is complete, and between attempts."""
        measured, meter = self._measured, self._gpu_meter
        return measured if measured is None or meter is None else meter.with_gpu(measured)

    def asks_for(self, folder: str = "") -> Job | None:
        """The job at whose end its process waits within the training for the study's answer; None: none does.

        Args:
            folder: only of the study in this folder; empty: of any.
        """
        waiting = self.waiting
        if waiting is None or waiting.asks_until is None or time.monotonic() >= waiting.asks_until:
            return None
        return waiting.last.job if folder in ("", self.study_folder) else None

    def let_go(self) -> None:
        """End the process that waits for the study's answer, if there is one; any job may begin in its place."""
        if (job := self.asks_for()) is not None:
            self.waiting = None
            self._send(Cancel(*job.key))

    def distance(self, request: JobRequest) -> float:
        """The distance from serving an attempt; the nearest trainer takes it.

        0: a process waits for such an attempt; 1: none stayed; 2: one waits that must end first; infinite: one waits
        for the next job of another trial.
        """
        asked, waiting = self.asks_for(), self.waiting
        if waiting is None:
            return 1
        last = waiting.last
        if asked is not None:
            return 0 if last.setup.folder == request.setup.folder and continues(asked, request) else math.inf
        return 0 if demand_of(last) == demand_of(request) else 2

    def prepare(self, load: str = "") -> None:
        """Start the zygote and import the objective, unless a running zygote has done so.

        Args:
            load: ``data.load`` of the study, which must be there, too.

        Raises:
            SpecError: there is no such module or function.
            ObjectiveError: the import raised, crashed, or took longer than ``IMPORT_SECONDS``.
        """
        with self._importing:
            if self._zygote is None or self._zygote.poll() is not None:
                self._start_zygote(load)

    def _start_zygote(self, load: str) -> None:
        self._end_zygote()
        environment = {**ENVIRONMENT, **without_private_settings(os.environ)}
        objective, pythonpath, threads, gpu = self.key
        if threads is not None:
            environment |= dict.fromkeys(THREAD_VARIABLES, str(threads))
        if gpu:  # here, not in the child: torch may look at the GPUs when it is imported
            environment |= {"CUDA_VISIBLE_DEVICES": gpu, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}  # the driver's numbers
        ours, zygotes = socket.socketpair()
        ours.settimeout(SEND_SECONDS)
        path = os.pathsep.join(filter(None, [str(Path(__file__).parents[3]), os.environ.get("PYTHONPATH")]))
        tag = uuid.uuid4().hex
        with zygotes:
            zygote = subprocess.Popen(
                [sys.executable, "-m", "hpo_core.training.child.zygote", str(zygotes.fileno())],
                pass_fds=[zygotes.fileno()],
                stdin=subprocess.DEVNULL,
                env={**environment, TAG_VARIABLE: tag, "PYTHONPATH": path},
                start_new_session=True,  # Ctrl-C is for the controller, which tells the trainers what to do
            )
        with self._ending:
            self._inbox, self._received, self.child = MessageInbox(), deque(), 0
            self._zygote, self._socket, self._tag = zygote, ours, tag
        if self.closed:  # close() ran before there was a zygote that it could end
            self._end_zygote()
        self._send(Prepare(objective, pythonpath, load))
        timer, answer = Stopwatch(2 * PING_SECONDS, time.monotonic), None
        while (left := IMPORT_SECONDS - timer.elapsed()) > 0:
            self.heartbeats += 1
            with contextlib.suppress(TimeoutError):
                answer = self.read(min(1.0, left))  # it cannot answer before the import has ended
                break
        else:
            self.kill()
            answer = Ready(
                f"objective = {objective!r}: its import took longer than {IMPORT_SECONDS:g} s. Move what takes "
                "so long into the training function."
            )
        if isinstance(answer, Ready) and not answer.error:
            return
        self._end_zygote()
        if isinstance(answer, Ready):
            raise (SpecError if answer.spec else ObjectiveError)(answer.error)
        raise ObjectiveError(
            f"objective = {objective!r}: the process that imports it ended with {_exit_text(zygote)}. Its output is in "
            "the worker's; try `python -c 'import ...'` in the worker's environment."
        )

    def run(self, request: JobRequest) -> Report:
        """Train, and report whatever happens.

        A zygote that died is replaced before the next job; the attempt during which it died is LOST.
        """
        self._measured = None
        started, attempt, measured = time.time(), request.job.key, None
        report, outcome, reason = None, Outcome.PREEMPTED, "The trainer was closed while the attempt ran."
        try:
            self.prepare()
            if (zygote := self._zygote) is not None:  # else it was closed meanwhile
                if self._lowered is not None and self._lowered[0] == attempt and request.portion is not None:
                    # it was lowered before it began
                    request = msgspec.structs.replace(request, portion=request.portion.lowered(self._lowered[1]))
                self.child = 0
                self._send(RunJob(request))
                if self._cancelled == attempt:
                    self._send(Cancel(*attempt))
                try:
                    report, why = self._wait_for_report(request)
                finally:
                    measured, meter, self._gpu_meter = self.usage, self._gpu_meter, None
                    if meter is not None:
                        meter.close()
                if report is None:
                    if child := self.child:
                        _kill_group(child)
                    if not self.closed:
                        outcome, why = Outcome.LOST, why or f"The zygote process ended with {_exit_text(zygote)}"
                        reason = f"{why}; it is started anew for the next job."
                        self._end_zygote()
                elif meter is not None and isinstance(report.usage, Usage):
                    report = msgspec.structs.replace(report, usage=meter.with_gpu(report.usage))
        except HpoError as error:
            if not self.closed:  # during the import, which then fails
                # a fault of this worker, not of the trial: another one may be able to import the objective
                outcome, reason = Outcome.LOST, f"{type(error).__name__}: {error}"
        finally:
            self._measured = self._lowered = None
            self._cancelled = None  # the next study may well have an attempt of the same number
        if report is None:
            first, _, rest = reason.partition("\n")
            report = request.report(outcome, first, detail=rest, started=started, usage=measured or msgspec.UNSET)
        # masked here, where the secrets are known; the child is not given them
        return masked_report(msgspec.structs.replace(report, worker=f"{socket.gethostname()}:{os.getpid()}"))

    def _wait_for_report(self, request: JobRequest) -> tuple[Report | None, str]:
        # The child's report; or None and why the zygote was killed (empty: it ended by itself).
        ping_seconds = min(PING_SECONDS, request.setup.zygote_timeout / 4)
        since_answer = Stopwatch(2 * ping_seconds, time.monotonic)
        since_stop = Stopwatch(2 * ping_seconds, time.monotonic)
        loading, attempt = False, request.job.key
        self.waiting = None

        def on_exceeded(reason: str) -> None:
            self._send(Cancel(request.job.trial, request.job.attempt, reason))

        while True:
            self.heartbeats += 1
            try:
                message = self.read(ping_seconds)
            except TimeoutError:
                limit = max(request.setup.zygote_timeout, IMPORT_SECONDS) if loading else request.setup.zygote_timeout
                if since_answer.elapsed() >= limit:
                    self.kill()
                    return None, f"The zygote process did not answer for {limit:g} s and was killed"
                self._send(Ping())
                continue
            since_answer.reset()
            loading = isinstance(message, Loading)
            match message:
                case None:
                    return None, ""
                case Finished(report, stays=stays, asks=asks) if (report.trial, report.attempt) == attempt:
                    self.child = 0  # a report of another attempt was written by user code
                    if stays:
                        is_asking = asks and self._cancelled != attempt
                        until = time.monotonic() + ANSWER_SECONDS if is_asking else None
                        self.waiting = WaitingProcess(stays, request, until)
                    return report, ""
                case Started(pid):
                    self.child = pid
                    if request.portion is not None and request.portion.gpu:
                        self._gpu_meter = GpuMeter(request.portion, self.pid, on_exceeded)
                case Measured(usage):
                    self._measured = usage
                case Pong(ending=False):
                    since_stop.reset()
                case Pong() if since_stop.elapsed() >= request.setup.grace + request.setup.zygote_timeout:
                    self.kill()
                    return None, "The training process outlived its SIGKILL; the zygote process was killed, too"

    def cancel(self, trial: int, attempt: int) -> None:
        self._cancelled = (trial, attempt)
        if (asked := self.asks_for()) is not None and asked.key == (trial, attempt):
            self.let_go()
        else:
            self._send(Cancel(trial, attempt))

    def limit(self, trial: int, attempt: int, memory: int) -> None:
        """Lower the memory limit of an attempt that runs here; it keeps what it has taken already.

        What was set in the child at its start stays: the part of torch's allocator, and MPS.

        Args:
            memory: bytes of its device, which count where they are less than its share.
        """
        meter = self._gpu_meter
        if meter is not None:
            memory = meter.lower(memory)
        self._lowered = (trial, attempt), memory
        self._send(Lower(trial, attempt, memory))

    def close(self) -> None:
        self.closed = True
        self._end_zygote()

    def kill(self) -> None:
        """Send SIGKILL to the zygote, stopped or not, and to what its import of the objective started."""
        if (zygote := self._zygote) is not None and zygote.poll() is None:
            zygote.kill()
            _kill_group(zygote.pid)

    def _send(self, message: Message) -> None:
        # A dead or blocked zygote raises nothing here: reading will notice it.
        with self._sending:
            if (ours := self._socket) is None:
                return
            try:
                ours.sendall(frame(message))
            except TimeoutError:
                _shut_down(ours)  # half a message may be on its way, and nothing can follow it
            except OSError:
                pass

    def read(self, seconds: float) -> Message | None:
        """The next message, or None once no further one can come; for the thread of :meth:`run` alone.

        Raises:
            TimeoutError: no message came within ``seconds``.
        """
        deadline = time.monotonic() + seconds
        while not self._received:
            try:
                ready = select.poll()
                if (ours := self._socket) is None:
                    return None
                ready.register(ours, select.POLLIN)
                if not ready.poll(max(0.0, deadline - time.monotonic()) * 1000):
                    raise TimeoutError
                data = ours.recv(1 << 16)
                self._received.extend(self._inbox.feed(data))
            except TimeoutError:
                raise
            except (OSError, ValueError):  # closed meanwhile by another thread, or no message: nothing can follow it
                return None
            if not data:
                return None
        return self._received.popleft()

    def _end_zygote(self) -> None:
        # Close the socket, at which the zygote ends itself and whatever it runs; kill it where it does not.
        with self._ending:
            zygote, self._zygote = self._zygote, None
            ours, self._socket = self._socket, None
        if zygote is None or ours is None:
            return
        _shut_down(ours)
        ours.close()
        try:
            zygote.wait(_EXIT_SECONDS)
        except subprocess.TimeoutExpired:
            for group in filter(None, (self.child, zygote.pid)):
                _kill_group(group)
            zygote.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):  # in a system call that SIGKILL cannot interrupt
                zygote.wait(_EXIT_SECONDS)
        kill_tagged(self._tag)


def _shut_down(ours: socket.socket) -> None:
    with contextlib.suppress(OSError):
        ours.shutdown(socket.SHUT_RDWR)


def _exit_text(zygote: subprocess.Popen[bytes]) -> str:
    try:
        code = zygote.wait(_EXIT_SECONDS)
    except subprocess.TimeoutExpired:
        return "no exit code yet"
    return f"signal {-code}" if code < 0 else f"exit code {code}"
