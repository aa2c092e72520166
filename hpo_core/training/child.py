"""Trainer: the worker's side of training in a child process. One zygote, one job at a time."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from hpo_core.errors import HpoError, ObjectiveError, SpecError
from hpo_core.masking import masked_report
from hpo_core.training.messages import Cancel, Done, Inbox, Message, Prepare, Ready, Run, Started, send
from hpo_core.training.request import JobRequest
from hpo_core.trial import Outcome, Report

_ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",  # a forked child deadlocks in a thread pool that the zygote had started
    "MKL_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "PYTHONHASHSEED": "0",  # the order of sets of strings is a random state, too
    "PYTORCH_NVML_BASED_CUDA_CHECK": "1",  # torch.cuda.is_available() at import must not initialize CUDA
}
"""Defaults for the zygote; what the worker's environment sets already stays."""


class Trainer:
    """Runs jobs of one objective, each in a fresh process forked from a zygote that imported it once.

    ``run`` is called from one thread; ``cancel`` and ``close`` from any.
    """

    def __init__(self, objective: str, pythonpath: Sequence[str] = (), *, import_timeout: float = 600.0) -> None:
        self.objective = objective
        self.pythonpath = tuple(pythonpath)
        self._import_timeout = import_timeout
        self._zygote: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None
        self._messages: Iterator[Message] = iter(())
        self._lock = threading.Lock()
        self._cancelled: tuple[int, int] | None = None
        self.closed = False

    def prepare(self) -> None:
        """Start the zygote and import the objective; nothing to do where that was done.

        Raises:
            SpecError: there is no such module or function.
            ObjectiveError: the import raised, crashed, or took longer than ``import_timeout``.
        """
        if self._zygote is not None and self._zygote.poll() is None:
            return
        self._end_zygote()
        started = time.monotonic()
        ours, theirs = socket.socketpair()
        package_root = str(Path(__file__).parents[2])
        environment = {**_ENVIRONMENT, **os.environ}
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, [package_root, os.environ.get("PYTHONPATH")]))
        with theirs:
            zygote = subprocess.Popen(
                [sys.executable, "-m", "hpo_core.training.zygote", str(theirs.fileno())],
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                env=environment,
                start_new_session=True,  # Ctrl-C is for the controller; it tells us what to do
            )
        with self._lock:
            self._zygote, self._socket = zygote, ours
            if self.closed:
                return
        self._messages = _receive(ours, started + self._import_timeout)
        self._say(Prepare(self.objective, self.pythonpath))
        try:
            answer = next(self._messages, None)
        except TimeoutError:
            zygote.kill()
            answer = Ready(
                f"objective = {self.objective!r}: its import took longer than {self._import_timeout:g} s. Move "
                "what "
                "takes so long into the training function, or raise the limit."
            )
        self._messages = _receive(ours, None)
        if isinstance(answer, Ready) and not answer.error:
            return
        self._end_zygote()
        if isinstance(answer, Ready):
            raise (SpecError if answer.spec else ObjectiveError)(answer.error)
        raise ObjectiveError(
            f"objective = {self.objective!r}: the process that imports it ended with {_exit_text(zygote)}. Its "
            "output "
            "is in the worker's; try `python -c 'import ...'` in the worker's environment."
        )

    def run(self, request: JobRequest) -> Report:
        """Train, and report whatever happens; raises only for a request that is not this trainer's.

        A zygote that died is replaced before the next job; the attempt it died under is lost.
        """
        try:
            return masked_report(self._run(request))  # here the secrets are known; the child is not given them
        finally:
            self._cancelled = None  # the next study may well have an attempt of the same number

    def _run(self, request: JobRequest) -> Report:
        if (request.objective, request.pythonpath) != (self.objective, self.pythonpath):
            raise ValueError(
                f"Trainer of {self.objective!r} (pythonpath {self.pythonpath}) got a request for "
                f"{request.objective!r} (pythonpath {request.pythonpath}); make one trainer for each."
            )
        started = time.time()
        try:
            self.prepare()
        except HpoError as error:
            # this worker's fault, not the trial's: another one may be able to import it
            return self._stamped(_ended(request, Outcome.LOST, f"{type(error).__name__}: {error}", started))
        fence = (request.job.trial, request.job.attempt)
        self._say(Run(request))
        if self._cancelled == fence:
            self._say(Cancel(*fence))
        group = 0
        for message in self._messages:
            if isinstance(message, Started):
                group = message.pid
            elif isinstance(message, Done):
                return self._stamped(message.report)
        if group:
            # the child died with the zygote (Linux); this is for its own children
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(group, signal.SIGKILL)
        if self.closed:
            text = "The trainer was closed while the attempt ran."
            return self._stamped(_ended(request, Outcome.PREEMPTED, text, started))
        zygote = self._zygote
        how = _exit_text(zygote) if zygote else "an unknown code"
        text = f"The zygote process ended with {how}; it is started anew for the next job."
        self._end_zygote()
        return self._stamped(_ended(request, Outcome.LOST, text, started))

    def cancel(self, trial: int, attempt: int) -> None:
        """End that attempt if it runs here (SIGTERM, grace, SIGKILL) or is about to; its report is PREEMPTED."""
        self._cancelled = (trial, attempt)
        self._say(Cancel(trial, attempt))

    def close(self) -> None:
        """End the zygote and whatever it runs. The trainer cannot be used again."""
        self.closed = True
        self._end_zygote()

    def _say(self, message: Message) -> None:
        # a zygote that has died shows where its answer is awaited
        with self._lock, contextlib.suppress(OSError):
            if self._socket is not None:
                send(self._socket.fileno(), message)

    def _end_zygote(self) -> None:
        with self._lock:
            zygote, ours = self._zygote, self._socket
            self._zygote = self._socket = None
        if ours is not None:
            with contextlib.suppress(OSError):
                ours.shutdown(socket.SHUT_RDWR)  # wakes a thread that reads it, which close() alone does not
            ours.close()
        if zygote is not None:
            try:
                zygote.wait(5.0)
            except subprocess.TimeoutExpired:
                zygote.kill()
                zygote.wait()

    @staticmethod
    def _stamped(report: Report) -> Report:
        return msgspec.structs.replace(report, worker=f"{socket.gethostname()}:{os.getpid()}")


def _receive(ours: socket.socket, deadline: float | None) -> Iterator[Message]:
    inbox = Inbox()
    while True:
        if deadline is not None:
            ready = select.poll()
            ready.register(ours, select.POLLIN)
            if not ready.poll(max(0.0, deadline - time.monotonic()) * 1000):
                raise TimeoutError
        try:
            data = ours.recv(1 << 16)
        except OSError:
            return
        if not data:
            return
        yield from inbox.feed(data)


def _ended(request: JobRequest, outcome: Outcome, message: str, started: float) -> Report:
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
