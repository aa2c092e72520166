"""AttemptProcess: a forked process leaves the zygote's state behind, waits for its request, trains, reports, ends.

Or it stays (``training.process: kept``): it puts settings back (:class:`KeptState`) and waits for another.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import faulthandler
import os
import resource
import signal
import sys
import threading
from collections.abc import Callable
from itertools import pairwise
from typing import Any, NoReturn

from hpo_core.model.devices.inventory import Portion
from hpo_core.model.trial import RESULTS, Report
from hpo_core.spec.assembly import THREAD_VARIABLES
from hpo_core.training.attempt import run_attempt
from hpo_core.training.child.child_process import MOST_ATTEMPTS, ChildProcess, KeptState, gpu_environment
from hpo_core.training.child.messages import Finished, MessageInbox, RunJob, Settled, send
from hpo_core.training.child.processes import data_size
from hpo_core.training.child.shared_progress import SharedProgress
from hpo_core.training.objective import cuda_still_works
from hpo_core.training.request import JobRequest
from hpo_core.training.user_code import exit_if_forked_copy, flush_streams, traceback_tail


class AttemptProcess:
    """Runs attempts in the process that was just forked.

    Args:
        function: the training function.
        process: the pipes to the zygote.
        progress: page shared with it.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        process: ChildProcess,
        progress: SharedProgress,
    ) -> None:
        self._function = function
        self._process = process
        self._progress = progress
        self._kept: KeptState | None = None
        self._attempts = 0
        self._is_over = False
        """True once the study ended the trial while the process waited within the training for its answer."""
        self._inbox = MessageInbox()

    def run(self, parent: int, spared: frozenset[int]) -> NoReturn:
        """Run an attempt once it is ordered, and those that follow where the process stays; then end.

        Args:
            parent: process id of the zygote; the child ends with it.
            spared: descriptors that the import of the objective opened.
        """
        pid = os.getpid()
        try:
            self._leave_zygote(parent, spared)
            while (request := self._next()) is not None and self._attempt(request, pid):
                pass
            os.close(self._process.result_in)
            threading._shutdown()  # type: ignore[attr-defined]
            atexit._run_exitfuncs()
            flush_streams()
        except BaseException as error:
            exit_if_forked_copy(pid, error)
            with contextlib.suppress(BaseException):
                sys.stderr.write(traceback_tail(error))
                sys.stderr.flush()
            os._exit(1)
        os._exit(0)

    def _leave_zygote(self, parent: int, spared: frozenset[int]) -> None:
        process = self._process
        os.setsid()
        if _prctl is not None:
            _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # the zygote died before prctl took effect
            os._exit(1)
        os.dup2(process.output_in, 1)
        os.dup2(process.output_in, 2)
        kept = sorted(spared | {0, 1, 2, process.result_in, process.orders})
        for before, after in pairwise([*kept, os.sysconf("SC_OPEN_MAX")]):
            os.closerange(before + 1, after)
        for descriptor, name in ((1, "stdout"), (2, "stderr")):
            stream: Any = getattr(sys, name)
            stream.reconfigure(line_buffering=True)
            if stream.seekable():  # the zygote's was a file, and its encoding cannot be changed on a pipe
                of_pipe = open(  # noqa: SIM115
                    descriptor, "w", buffering=1, encoding=stream.encoding, errors=stream.errors, closefd=False
                )
                setattr(sys, name, of_pipe)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        if process.stays:
            self._kept = KeptState()

    def _attempt(self, request: JobRequest, pid: int) -> bool:
        # Run one attempt and report; returns whether the process stays for the next one.
        signal.set_wakeup_fd(-1)
        if self._attempts and not cuda_still_works():
            os._exit(0)  # before it began: the zygote runs it in a new process
        faulthandler.enable(file=2)
        # SIGTERM still ends the process, but first writes the stack to the log: what a hung attempt was doing
        for number in _STACK_SIGNALS:
            faulthandler.unregister(number)
        faulthandler.register(signal.SIGTERM, file=2, chain=True)
        if not (self._process.stays or request.asks):
            os.close(self._process.orders)
        self._progress.start()
        if request.portion is not None:
            apply_portion(request.portion, request.setup.threads)
        whole: list[str] = []
        ask = self._ask if request.asks else None
        report = run_attempt(self._function, request, self._progress, log=whole.append, ask=ask)
        if self._is_over:
            return False
        self._progress.finish()
        flush_streams()
        exit_if_forked_copy(pid)
        send(self._process.result_in, Finished(report, "".join(whole)))
        if self._kept is None:
            return False
        before = self._cpu
        stays = self._settle(self._kept, request, report)
        self._cpu = _cpu_seconds()
        exit_if_forked_copy(pid)
        send(self._process.result_in, Settled(stays, self._cpu - before))
        return stays

    _cpu = 0.0

    def _ask(self, report: Report) -> JobRequest | None:
        # Report the end of a job within the training, and wait; the trial's next job, or None: it is over.
        self._progress.finish()
        flush_streams()
        send(self._process.result_in, Finished(report))
        before, self._cpu = self._cpu, _cpu_seconds()
        send(self._process.result_in, Settled(stays=True, asks=True, cpu=self._cpu - before))
        request = self._next()
        self._is_over = request is None
        if request is not None:
            self._progress.start()
            if request.portion is not None and request.portion.gpu:
                _limit_torch(request.portion)
        return request

    def _settle(self, kept: KeptState, request: JobRequest, report: Report) -> bool:
        self._attempts += 1
        if report.outcome not in RESULTS:
            return False
        clean = kept.put_back()
        flush_streams()
        _libc.fflush(None)
        return clean and self._attempts < MOST_ATTEMPTS and not kept.grew()

    def _next(self) -> JobRequest | None:
        while data := os.read(self._process.orders, 1 << 16):
            for message in self._inbox.feed(data):
                if isinstance(message, RunJob):
                    return message.request
        nothing = os.open(os.devnull, os.O_WRONLY)
        for descriptor in (1, 2):  # nobody reads what exit functions print
            os.dup2(nothing, descriptor)
        return None


_STACK_SIGNALS = signal.valid_signals() - {
    signal.SIGSEGV, signal.SIGFPE, signal.SIGABRT, signal.SIGBUS, signal.SIGILL,
}  # fmt: skip
"""Signals at which a training function may have stacks written."""


def _cpu_seconds() -> float:
    return sum(os.times()[:4])


_pools: Any = None
"""Controller of the libraries that the objective's import loaded; None: threadpoolctl is missing."""


def apply_portion(portion: Portion, threads: int | None) -> None:
    """Limit this process, and what it will start, to its portion of a device.

    A GPU is chosen through the environment. That has no effect on a library that initialized CUDA while the
    objective's module was imported, and such a library cannot use a GPU in a forked process anyway.

    Args:
        threads: to compute with, where the study says so; None: as many as the portion has cores.
    """
    if portion.gpu:
        os.environ.update(gpu_environment(portion))
        _limit_torch(portion)
        return
    wanted = max(1, portion.cores // 1000)
    if threads is None and os.environ.get(THREAD_VARIABLES[0], "") != str(wanted):  # which loaded libraries have read
        # Not reached: a library that is loaded later and asks for the number of processors, not for its variable's.
        os.environ.update(dict.fromkeys(THREAD_VARIABLES, str(wanted)))
        if (torch := sys.modules.get("torch")) is not None:
            torch.set_num_threads(wanted)
        if _pools is not None:
            _pools.limit(limits=wanted)
    most, hard = data_size() + portion.capacity, resource.getrlimit(resource.RLIMIT_DATA)[1]
    most = most if hard == resource.RLIM_INFINITY else min(most, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (most, most))


def _limit_torch(portion: Portion) -> None:
    cuda: Any = getattr(sys.modules.get("torch"), "cuda", None)

    def limit() -> None:
        total = cuda.get_device_properties(0).total_memory
        cuda.set_per_process_memory_fraction(min(1.0, portion.allowed / total), 0)

    if cuda is not None:
        cuda._lazy_call(limit)  # when torch first uses CUDA: initializing it here would cost jobs that do not


def find_thread_pools() -> None:
    """Look for loaded libraries once, in the zygote, and not in each child: it takes some 10 ms."""
    global _pools
    with contextlib.suppress(ImportError):
        from threadpoolctl import ThreadpoolController

        _pools = ThreadpoolController()


_PR_SET_PDEATHSIG = 1
_libc: Any = ctypes.CDLL(None)
_prctl = getattr(_libc, "prctl", None)  # looked up before the fork; Linux only


def open_descriptors() -> frozenset[int]:
    found = set()
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208 (a tenth of the time)
        with contextlib.suppress(OSError):  # the one for this listing, closed by now
            os.fstat(int(name))
            found.add(int(name))
    return frozenset(found)
