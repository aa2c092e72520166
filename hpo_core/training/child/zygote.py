"""Zygote: the process that imports the objective once and forks a child per job.

One thread, one job at a time. It owns the child process: enforces its limits, ends it, reports how it ended. When the
trainer's end of the control socket closes (the worker died), it kills the child's process group and exits.
Started as ``python -m hpo_core.training.child.zygote DESCRIPTOR``. What a forked child does is here, too: it leaves the
zygote's state behind, trains, reports, ends.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import faulthandler
import gc
import importlib
import os
import resource
import selectors
import signal
import sys
import threading
import time
import warnings
import weakref
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import psutil
import safetensors.numpy  # noqa: F401  (before the fork, so that no child imports it)

from hpo_core.model.devices.inventory import Portion
from hpo_core.model.errors import ObjectiveError, SpecError, StorageError
from hpo_core.model.thread_variables import THREAD_VARIABLES
from hpo_core.model.trial import Outcome
from hpo_core.training.attempt import run_attempt
from hpo_core.training.child.life_and_limits import RunningChild
from hpo_core.training.child.messages import (
    Cancel,
    Finished,
    Loading,
    Lower,
    MalformedMessageError,
    Measured,
    MessageInbox,
    Ping,
    Pong,
    Prepare,
    Ready,
    RunJob,
    Started,
    send,
)
from hpo_core.training.child.processes import become_subreaper, children, data_size, kill_children, reap
from hpo_core.training.child.shared_progress import SharedProgress
from hpo_core.training.objective import load_objective
from hpo_core.training.partition_data import is_loaded, partition_data
from hpo_core.training.request import JobRequest
from hpo_core.training.saved_state import capture_all, seed_all
from hpo_core.training.user_code import exit_if_forked_copy, flush_streams, traceback_tail

_HUGE_PAGE = 1 << 21
_MADV_COLLAPSE = 25  # Linux 6.1; anything older answers EINVAL and nothing changes


def use_huge_pages(max_seconds: float = 2.0) -> None:
    """Collapse resident anonymous memory into huge pages, best effort, for about ``max_seconds`` at most.

    A fork copies one page-table entry per huge page instead of 512. Measured with torch loaded: fork, first writes and
    exit of a child took 15 ms before and 7 ms after. An empty area (a stack) is left alone: collapsing would fill it.
    """
    try:
        madvise = ctypes.CDLL(None).madvise
        areas = psutil.Process().memory_maps(grouped=False)
    except (OSError, AttributeError, psutil.Error):
        return
    madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    deadline = time.monotonic() + max_seconds
    for area in areas:
        if area.perms != "rw-p" or area.path not in ("[anon]", "[heap]") or area.rss <= area.size // 2:
            continue
        low, high = (int(edge, 16) for edge in area.addr.split("-"))
        for start in range(-(-low // _HUGE_PAGE) * _HUGE_PAGE, high // _HUGE_PAGE * _HUGE_PAGE, _HUGE_PAGE):
            if time.monotonic() > deadline:
                return
            madvise(start, _HUGE_PAGE, _MADV_COLLAPSE)


_MAX_WAIT_SECONDS = 3600.0
"""Longest wait of one poll(): the user may set a limit whose milliseconds do not fit into its argument."""


class Zygote:
    """The zygote's event loop.

    Args:
        control: descriptor of the socket to the trainer.
    """

    def __init__(self, control: int) -> None:
        self._control = control
        self._inbox = MessageInbox()
        self._function: Callable[..., Any] | None = None
        self._child: RunningChild | None = None
        self._progress = SharedProgress()
        self._objective_descriptors: frozenset[int] = frozenset()
        self._objective_processes: frozenset[int] = frozenset()  # opened or started by its import
        become_subreaper()
        self._wakeup, wakeup_in = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wakeup_in)
        self._selector = selectors.PollSelector()  # no descriptor of its own that a fork would share
        self._selector.register(control, selectors.EVENT_READ, self._on_message)
        self._selector.register(self._wakeup, selectors.EVENT_READ, self._on_child_exit)

    def serve(self) -> NoReturn:
        """Answer the trainer until it goes away; then exit."""
        while True:
            deadline = None if self._child is None else self._child.next_deadline()
            timeout = None if deadline is None else min(max(0.0, deadline - time.monotonic()), _MAX_WAIT_SECONDS)
            for key, _ in self._selector.select(timeout):
                key.data()
            if self._child is not None:
                self._child.check_limits()
                if (usage := self._child.measure()) is not None:
                    self._send(Measured(usage))

    def _on_message(self) -> None:
        """Do what the trainer sent; exit where it is gone."""
        try:
            data = os.read(self._control, 1 << 16)
            messages = list(self._inbox.feed(data))
        except (ConnectionError, MalformedMessageError):
            data, messages = b"", []
        if not data:
            self._exit()
        for message in messages:
            match message:
                case Prepare():
                    self._prepare(message)
                case RunJob():
                    self._start(message.request)
                case Ping():
                    self._send(Pong(self._child is not None and self._child.ending))
                case Cancel() | Lower():
                    self._tell_child(message)

    def _tell_child(self, message: Cancel | Lower) -> None:
        child = self._child
        if child is None or (child.request.job.trial, child.request.job.attempt) != (message.trial, message.attempt):
            return
        if isinstance(message, Lower):
            child.lower(message.memory)
        elif message.exceeded:
            child.stop_for_memory(message.exceeded)
        else:
            child.stop(Outcome.PREEMPTED, "The attempt was ended on purpose (cancel or shutdown).")

    def _prepare(self, message: Prepare) -> None:
        own_descriptors = open_descriptors()
        try:
            self._function = load_objective(message.objective, message.pythonpath)
            if message.load:
                load_objective(message.load, message.pythonpath, setting="data.load")
        except (SpecError, ObjectiveError) as error:
            self._send(Ready(str(error), isinstance(error, SpecError)))
            self._exit()
        _import_for_children()
        self._objective_descriptors = open_descriptors() - own_descriptors
        self._objective_processes = frozenset(children(os.getpid()))
        clear_exit_functions()
        gc.collect()
        gc.freeze()  # a child's collector must not touch, and so copy, the pages it shares with us
        use_huge_pages()
        self._send(Ready())

    def _start(self, request: JobRequest) -> None:
        """Fork the child that trains this job, and tell the trainer."""
        assert self._function is not None and self._child is None
        if not is_loaded(request):  # before the child's limits begin: it does not count as a step of training
            self._send(Loading())
            with contextlib.suppress(ObjectiveError, SpecError):  # the child tries again and tells
                partition_data(request, request.job.unit.partition if request.job.unit is not None else "")
            gc.freeze()  # as for what the objective's module holds
        try:
            child = RunningChild(request, self._progress, self._objective_processes)
        except StorageError as error:
            self._send(Finished(request.report(Outcome.STORAGE, str(error))))
            return
        if request.portion is not None:
            find_thread_pools(request.portion, request.threads)
        parent = os.getpid()
        child.pid = _fork()
        if child.pid == 0:
            self._run_child(self._function, child, parent)
        os.close(child.result_in)
        os.close(child.output_in)
        self._child = child
        for descriptor, read in ((child.result, child.read_result), (child.output, child.read_output)):
            self._selector.register(descriptor, selectors.EVENT_READ, partial(self._read, child, descriptor, read))
        self._send(Started(child.pid))

    def _run_child(self, function: Callable[..., Any], child: RunningChild, parent: int) -> NoReturn:
        """Run one attempt in the process that was just forked, and end it.

        Args:
            parent: process id of the zygote; the child ends with it.
        """
        pid, request, progress = os.getpid(), child.request, self._progress
        try:
            os.setsid()
            if _prctl is not None:
                _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != parent:  # the zygote died before prctl took effect
                os._exit(1)
            signal.set_wakeup_fd(-1)
            os.dup2(child.output_in, 1)
            os.dup2(child.output_in, 2)
            for descriptor in open_descriptors() - self._objective_descriptors - {0, 1, 2, child.result_in}:
                with contextlib.suppress(OSError):
                    os.close(descriptor)
            for stream in (sys.stdout, sys.stderr):
                stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            faulthandler.enable(file=2)
            # SIGTERM still ends the process, but first writes the stack to the log: what a hung attempt was doing
            faulthandler.register(signal.SIGTERM, file=2, chain=True)
            progress.start()
            if request.portion is not None:
                apply_portion(request.portion, request.threads)
            whole: list[str] = []
            report = run_attempt(function, request, progress, log=whole.append)
            progress.finish()
            flush_streams()
            exit_if_forked_copy(pid)
            send(child.result_in, Finished(report, "".join(whole)))
            os.close(child.result_in)
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

    def _read(self, child: RunningChild, descriptor: int, read: Callable[[], bool]) -> None:
        if child is self._child and not read():  # it may have ended in this very turn
            self._selector.unregister(descriptor)

    def _on_child_exit(self) -> None:
        """Reap the child once it has ended, and send its report to the trainer; called at each SIGCHLD."""
        with contextlib.suppress(BlockingIOError):
            os.read(self._wakeup, 4096)
        child = self._child
        if child is None:
            return
        # it stays unreaped until its group is gone: until then no other process can get its number
        ended = os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if ended is None:
            reap({child.pid, *self._objective_processes})  # orphans that became our children and ended
            return
        child.kill()
        spent = os.wait4(child.pid, 0)[2]
        kill_children(self._objective_processes)
        child.end()
        for descriptor in (child.result, child.output):
            with contextlib.suppress(KeyError):
                self._selector.unregister(descriptor)
        self._child = None
        done = Finished(child.final_report(ended.si_code, ended.si_status, spent.ru_utime + spent.ru_stime))
        child.close()
        self._send(done)

    def _send(self, message: Ready | Loading | Started | Measured | Pong | Finished) -> None:
        try:
            send(self._control, message)
        except ConnectionError:
            self._exit()

    def _exit(self) -> NoReturn:
        if self._child is not None:
            self._child.kill()
            os.waitpid(self._child.pid, 0)
        kill_children()
        os._exit(0)


def _fork() -> int:
    """Fork without the warning of Python 3.12 and newer that this process has threads.

    They are those of numerical libraries, which start them at import and restart them after a fork.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()


def _import_for_children() -> None:
    """Import what every child would otherwise import for itself on first use."""
    if "torch" in sys.modules:
        # The first optimizer imports torch._dynamo, which takes a second in each child. Only import it here: a step
        # of an optimizer would initialize CUDA (it checks for graph capture), and then no child could use a GPU.
        importlib.import_module("torch._dynamo")
        importlib.import_module("safetensors.torch")
    seed_all(0)
    capture_all()


_pools: Any = None
"""Controller of the libraries that the objective's import loaded; None: threadpoolctl is missing or not needed."""


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
    if (wanted := _threads_to_set(portion, threads)) is not None:
        _limit_threads(wanted)
    _limit_data(portion)


def gpu_environment(portion: Portion) -> dict[str, str]:
    """Variables that CUDA reads when it is first used.

    Under MPS the driver itself keeps a process to its portion: of compute, rounded up to a percent (with
    oversubscription those of all jobs add up to more than 100, as MPS allows), and of memory, CUDA's own included.

    >>> gpu_environment(Portion(device="GPU-1", architecture="A100", compute=333, memory=1, cores=1000, capacity=2))
    {'CUDA_VISIBLE_DEVICES': 'GPU-1'}
    """
    found = {"CUDA_VISIBLE_DEVICES": portion.device}
    if portion.mps:
        found["CUDA_MPS_PIPE_DIRECTORY"] = portion.mps
    if portion.mps and not portion.alone:
        found["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] = str(min(100, max(1, -(-portion.compute // 10))))
        found["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] = f"0={max(1, portion.allowed // 2**20)}M"
    return found


def _limit_torch(portion: Portion) -> None:
    """Torch's allocator refuses what is beyond the portion. Another library's allocator is not reached."""
    cuda: Any = getattr(sys.modules.get("torch"), "cuda", None)

    def limit() -> None:
        total = cuda.get_device_properties(0).total_memory
        cuda.set_per_process_memory_fraction(min(1.0, portion.allowed / total), 0)

    if cuda is not None:
        cuda._lazy_call(limit)  # when torch first uses CUDA: initializing it here would cost jobs that do not


def _threads_to_set(portion: Portion, threads: int | None) -> int | None:
    """The number of threads; None where the study says how many, or the loaded libraries have read that number."""
    wanted = max(1, portion.cores // 1000)
    return None if threads is not None or os.environ.get(THREAD_VARIABLES[0], "") == str(wanted) else wanted


def find_thread_pools(portion: Portion, threads: int | None) -> None:
    """Look for loaded libraries once, in the zygote before the fork, and not in each child.

    It takes some 10 ms; no child does without it whose cores are not what the zygote's libraries were loaded with.
    """
    global _pools
    if portion.gpu or _pools is not None or _threads_to_set(portion, threads) is None:
        return
    with contextlib.suppress(ImportError):
        from threadpoolctl import ThreadpoolController

        _pools = ThreadpoolController()


def _limit_threads(threads: int) -> None:
    """Limit the threads of torch, of loaded OpenMP and BLAS libraries, and of programs that are started.

    Not reached: a library that is loaded later and asks for the number of processors, not for its variable's value.
    """
    os.environ.update(dict.fromkeys(THREAD_VARIABLES, str(threads)))
    if (torch := sys.modules.get("torch")) is not None:
        torch.set_num_threads(threads)
    if _pools is not None:
        _pools.limit(limits=threads)


def _limit_data(portion: Portion) -> None:
    """One process cannot get more private memory than jobs may use together, beyond what it inherited."""
    most, hard = data_size() + portion.capacity, resource.getrlimit(resource.RLIMIT_DATA)[1]
    most = most if hard == resource.RLIM_INFINITY else min(most, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (most, most))


_PR_SET_PDEATHSIG = 1
_prctl = getattr(ctypes.CDLL(None), "prctl", None)  # looked up before the fork; Linux only


def open_descriptors() -> frozenset[int]:
    """Numbers of the file descriptors that are open in this process."""
    listed = [path.name for path in Path("/proc/self/fd").iterdir()]  # and the one for this listing, closed by now
    return frozenset(int(name) for name in listed if Path("/proc/self/fd", name).is_symlink())


def clear_exit_functions() -> None:
    """Remove the exit functions and finalizers that the zygote's imports registered.

    Otherwise the first child to end would, for example, delete a temporary folder of the objective's module.
    """
    atexit._clear()
    weakref.finalize._registry.clear()  # type: ignore[attr-defined]
    atexit.register(weakref.finalize._exitfunc)  # type: ignore[attr-defined]
    util = sys.modules.get("multiprocessing.util")
    if util is not None:
        util._finalizer_registry.clear()
        atexit.register(util._exit_function)


if __name__ == "__main__":
    Zygote(int(sys.argv[1])).serve()
