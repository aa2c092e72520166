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

from hpo_core.model.errors import HpoError, ObjectiveError, SpecError
from hpo_core.model.trial import Outcome, Report
from hpo_core.security.credentials import without_private_settings
from hpo_core.security.masking import masked_report
from hpo_core.training.child.connection import Connection
from hpo_core.training.child.descendants import MARK, end_marked
from hpo_core.training.child.heartbeat import Silence
from hpo_core.training.child.messages import Cancel, Done, Message, Ping, Pong, Prepare, Ready, Run, Started
from hpo_core.training.request import JobRequest

_ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",  # a forked child deadlocks in a thread pool that the zygote had started
    "MKL_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "PYTHONHASHSEED": "0",  # the order of sets of strings is a random state, too
    "PYTORCH_NVML_BASED_CUDA_CHECK": "1",  # torch.cuda.is_available() at import must not initialize CUDA
}
"""Defaults for the zygote; what the worker's environment sets already stays."""
PING_SECONDS = 5.0
"""A zygote that says nothing is asked so often whether it answers."""
_END_SECONDS = 5.0


class Trainer:
    """Runs jobs of one objective, each in a fresh process forked from a zygote that imported it once.

    ``run`` is called from one thread; ``cancel`` and ``close`` from any. The zygote enforces an attempt's limits, and
    the trainer that the zygote does: one that does not answer, or cannot get rid of its child, is killed.
    """

    def __init__(self, objective: str, pythonpath: Sequence[str] = (), *, import_timeout: float = 600.0) -> None:
        self.objective = objective
        self.pythonpath = tuple(pythonpath)
        self._import_timeout = import_timeout
        self._zygote: subprocess.Popen[bytes] | None = None
        self._connection: Connection | None = None
        self._group = 0
        self._lock = threading.Lock()
        self._cancelled: tuple[int, int] | None = None
        self._mark = uuid.uuid4().hex
        self.closed = False
        self.beats = 0
        """Grows every few seconds while ``run`` goes on; one that stays as it is says that its thread hangs."""

    def prepare(self) -> None:
        """Start the zygote and import the objective; nothing to do where that was done.

        Raises:
            SpecError: there is no such module or function.
            ObjectiveError: the import raised, crashed, or took longer than ``import_timeout``.
        """
        if self._zygote is not None and self._zygote.poll() is None:
            return
        self._end_zygote()
        ours, theirs = socket.socketpair()
        package_root = str(Path(__file__).parents[3])
        environment = {**_ENVIRONMENT, **without_private_settings(os.environ), MARK: self._mark}
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, [package_root, os.environ.get("PYTHONPATH")]))
        with theirs:
            zygote = subprocess.Popen(
                [sys.executable, "-m", "hpo_core.training.child.zygote", str(theirs.fileno())],
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                env=environment,
                start_new_session=True,  # Ctrl-C is for the controller; it tells us what to do
            )
        connection = Connection(ours)
        with self._lock:
            self._zygote, self._connection = zygote, connection
            closed = self.closed
        if closed:  # by somebody who found no zygote to end yet
            self._end_zygote()
        connection.say(Prepare(self.objective, self.pythonpath))
        try:
            answer = self._answer(connection)
        except TimeoutError:
            _kill(zygote)
            answer = Ready(
                f"objective = {self.objective!r}: its import took longer than {self._import_timeout:g} s. Move "
                "what "
                "takes so long into the training function, or raise the limit."
            )
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

    def _answer(self, connection: Connection) -> Message | None:
        """What the zygote says once it has imported; it can answer nothing before.

        Raises:
            TimeoutError: it takes longer than ``import_timeout``.
        """
        waited = Silence(longest=2 * PING_SECONDS)
        while (left := self._import_timeout - waited.look()) > 0:
            self.beats += 1
            with contextlib.suppress(TimeoutError):
                return connection.read(min(1.0, left))
        raise TimeoutError

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
        self._group = 0
        self._say(Run(request))
        if self._cancelled == fence:
            self._say(Cancel(*fence))
        report, why = self._wait(request)
        if report is not None:
            return self._stamped(report)
        self._kill_group()
        if self.closed:
            text = "The trainer was closed while the attempt ran."
            return self._stamped(_ended(request, Outcome.PREEMPTED, text, started))
        zygote = self._zygote
        how = _exit_text(zygote) if zygote else "an unknown code"
        text = f"{why or f'The zygote process ended with {how}'}; it is started anew for the next job."
        self._end_zygote()
        return self._stamped(_ended(request, Outcome.LOST, text, started))

    def _wait(self, request: JobRequest) -> tuple[Report | None, str]:
        """The child's report; or None, and why the zygote was killed (nothing: it ended by itself)."""
        fence = (request.job.trial, request.job.attempt)
        ping = min(PING_SECONDS, request.patience / 4)
        silence, ending = Silence(longest=2 * ping), Silence(longest=2 * ping)
        while (connection := self._connection) is not None:
            self.beats += 1
            try:
                message = connection.read(ping)
            except TimeoutError:
                if silence.look() >= request.patience:
                    self._kill_zygote()
                    return None, f"The zygote process did not answer for {request.patience:g} s and was killed"
                connection.say(Ping())
                continue
            silence.end()
            if isinstance(message, Done):
                if (message.report.trial, message.report.attempt) != fence:
                    continue  # user code wrote it
                self._group = 0
                return message.report, ""
            if isinstance(message, Started):
                self._group = message.pid
            elif isinstance(message, Pong):
                if not message.ending:
                    ending.end()
                elif ending.look() >= request.grace + request.patience:
                    self._kill_zygote()
                    return None, "The training process outlived its SIGKILL; the zygote process was killed, too"
            else:
                break
        return None, ""

    def _kill_zygote(self) -> None:
        with self._lock:
            zygote = self._zygote
        if zygote is not None and zygote.poll() is None:
            _kill(zygote)

    def cancel(self, trial: int, attempt: int) -> None:
        """End that attempt if it runs here (SIGTERM, grace, SIGKILL) or is about to; its report is PREEMPTED."""
        self._cancelled = (trial, attempt)
        self._say(Cancel(trial, attempt))

    def close(self) -> None:
        """End the zygote and whatever it runs. The trainer cannot be used again."""
        self.closed = True
        self._end_zygote()

    def _say(self, message: Message) -> None:
        with self._lock:
            connection = self._connection
        if connection is not None:
            connection.say(message)

    def _end_zygote(self) -> None:
        with self._lock:
            zygote, connection = self._zygote, self._connection
            self._zygote = self._connection = None
        if connection is not None:
            connection.close()
        if zygote is None:
            return
        try:
            zygote.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            self._kill_group()
            _kill(zygote)
            with contextlib.suppress(subprocess.TimeoutExpired):  # in a system call that SIGKILL cannot interrupt
                zygote.wait(_END_SECONDS)
        end_marked(self._mark)

    def _kill_group(self) -> None:
        """The child dies with the zygote (Linux); this is for its own children."""
        if self._group:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._group, signal.SIGKILL)

    @staticmethod
    def _stamped(report: Report) -> Report:
        return msgspec.structs.replace(report, worker=f"{socket.gethostname()}:{os.getpid()}")


def _kill(zygote: subprocess.Popen[bytes]) -> None:
    """SIGKILL to it, stopped or not, and to what its import of the objective started."""
    zygote.kill()
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(zygote.pid, signal.SIGKILL)


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
