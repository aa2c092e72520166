"""Zygote: the process that imports the objective once and forks a child per job.

One thread, one job at a time. It owns the child process: enforces its limits, ends it, reports how it ended. When the
trainer's end of the control socket closes (the worker died), it kills the child's process group and exits.
Started as ``python -m hpo_core.training.child.zygote DESCRIPTOR``. What a forked child does:
:mod:`attempt_process`. The next child is forked ahead, while the report of the last one is on its way; or a child that
ended an attempt well stays for the next attempt of the same demand. Either waits ten seconds at most.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import importlib
import os
import selectors
import signal
import sys
import time
import warnings
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any, NoReturn

import psutil
import safetensors.numpy  # noqa: F401  (before the fork, so that no child imports it)

from hpo_core.checkpoints.storage import import_filesystem
from hpo_core.model.errors import ObjectiveError, SpecError, StorageError
from hpo_core.model.trial import Outcome
from hpo_core.training.child.attempt_process import AttemptProcess, find_thread_pools, open_descriptors
from hpo_core.training.child.child_process import ChildProcess
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
    Settled,
    Started,
    send,
)
from hpo_core.training.child.processes import (
    become_subreaper,
    children,
    is_stopped,
    kill_children,
    process_state,
    reap,
)
from hpo_core.training.child.running_attempt import RunningAttempt
from hpo_core.training.child.shared_progress import SharedProgress
from hpo_core.training.objective import load_objective
from hpo_core.training.partition_data import is_loaded, partition_data
from hpo_core.training.request import JobRequest
from hpo_core.training.saved_state import capture_all, seed_all

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


_END_SECONDS = 2.0
"""Seconds that a process which waited may take to end."""


class Zygote:
    """The zygote's event loop.

    Args:
        control: descriptor of the socket to the trainer.
    """

    def __init__(self, control: int) -> None:
        self._control = control
        self._inbox = MessageInbox()
        self._function: Callable[..., Any] | None = None
        self._child: RunningAttempt | None = None
        self._waiting: ChildProcess | None = None
        """The process that stayed, or was forked ahead; one waits or runs, never both."""
        self._progress = SharedProgress()
        self._objective_descriptors: frozenset[int] = frozenset()
        self._objective_processes: frozenset[int] = frozenset()  # opened or started by its import
        become_subreaper()
        self._wakeup, wakeup_in = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wakeup_in)
        self._selector = selectors.PollSelector()  # no descriptor of its own that a fork would share
        self._selector.register(control, selectors.EVENT_READ, self._on_message)
        self._selector.register(self._wakeup, selectors.EVENT_READ)

    def serve(self) -> NoReturn:
        """Answer the trainer until it goes away; then exit."""
        while True:
            deadline = None if self._child is None else self._child.next_deadline()
            if self._waiting is not None:
                deadline = self._waiting.waits_until
            timeout = None if deadline is None else min(max(0.0, deadline - time.monotonic()), _MAX_WAIT_SECONDS)
            a_child_ended = False
            for key, _ in self._selector.select(timeout):
                if key.fileobj == self._wakeup:
                    a_child_ended = True
                elif not key.data():  # nothing more comes from there
                    self._selector.unregister(key.fileobj)
            if self._child is not None and (settled := self._child.settled) is not None and settled.stays:
                self._keep(self._child, settled)
            if a_child_ended:  # last: its pipes are closed then
                self._on_child_exit()
            if self._child is not None:
                if (usage := self._child.check()) is not None:
                    self._send(Measured(usage))
            elif self._waiting is not None and time.monotonic() >= self._waiting.waits_until:
                self._end_waiting()

    def _on_message(self) -> bool:
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
        return True

    def _tell_child(self, message: Cancel | Lower) -> None:
        child, key = self._child, (message.trial, message.attempt)
        last = None if self._waiting is None else self._waiting.last
        if last is not None and last.job.key == key and isinstance(message, Cancel):
            self._end_waiting()
        if child is None or child.request.job.key != key:
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
        if "torch" in sys.modules:
            # The first optimizer imports torch._dynamo, which takes a second in each child. Only import it here: a step
            # of an optimizer would initialize CUDA (it checks for graph capture), and then no child could use a GPU.
            importlib.import_module("torch._dynamo")
            importlib.import_module("safetensors.torch")
        seed_all(0)
        capture_all()
        find_thread_pools()
        self._objective_descriptors = open_descriptors() - own_descriptors
        self._objective_processes = frozenset(children(os.getpid()))
        clear_exit_functions()
        gc.collect()
        gc.freeze()  # a child's collector must not touch, and so copy, the pages it shares with us
        use_huge_pages()
        self._send(Ready())

    def _start(self, request: JobRequest) -> None:
        assert self._child is None
        unit = request.job.unit
        loaded = unit is None or not request.setup.load or is_loaded(request, unit.partition)
        waiting = self._waiting
        if waiting is not None and not (
            loaded and waiting.serves(request) and process_state(waiting.pid) and not is_stopped(waiting.pid)
        ):
            self._end_waiting()
        if not loaded:  # before the child's limits begin: it does not count as a step of training
            self._send(Loading())
            with contextlib.suppress(ObjectiveError, SpecError):  # the child tries again and tells
                partition_data(request, "" if unit is None else unit.partition)
            gc.freeze()  # as for what the objective's module holds
        import_filesystem(request.setup.checkpoint_base)  # s3fs takes a second of processor time
        process = self._waiting or self._fork(stays=request.setup.process == "kept")
        try:
            child = RunningAttempt(request, process, self._progress, self._objective_processes)
        except StorageError as error:
            process.wait_from_now()
            self._waiting = process
            self._send(Finished(request.report(Outcome.STORAGE, str(error))))
            return
        try:
            send(process.orders_in, RunJob(request))
        except BrokenPipeError:
            if process is self._waiting:  # it has just gone
                child.log.close()
                self._end_waiting()
                self._start(request)
                return
        self._waiting, process.asks = None, False
        self._child = child
        self._selector.register(process.result, selectors.EVENT_READ, child.read_result)
        self._selector.register(process.output, selectors.EVENT_READ, partial(child.log.copy, process.output))
        self._send(Started(process.pid))

    def _fork(self, *, stays: bool) -> ChildProcess:
        assert self._function is not None
        process, parent = ChildProcess(stays=stays), os.getpid()
        with warnings.catch_warnings():
            # Python 3.12 and newer: this process has threads. They are those of numerical libraries, which start them
            # at import and restart them after a fork.
            warnings.simplefilter("ignore", DeprecationWarning)
            process.pid = os.fork()
        if process.pid == 0:
            AttemptProcess(self._function, process, self._progress).run(parent, self._objective_descriptors)
        process.close(process.result_in, process.output_in, process.orders)  # the child's ends
        return process

    def _keep(self, child: RunningAttempt, settled: Settled) -> None:
        for descriptor in (child.process.result, child.process.output):
            with contextlib.suppress(KeyError):
                self._selector.unregister(descriptor)
        self._child, self._waiting = None, child.process
        child.process.last, child.process.asks = child.request, settled.asks
        if not settled.asks:  # else it is in the middle of its training
            kill_children({child.process.pid, *self._objective_processes})  # orphans of the attempt
        child.process.cpu += settled.cpu
        report = child.final_report(os.CLD_EXITED, 0, settled.cpu)
        child.log.close()
        child.process.wait_from_now()
        self._send(Finished(report, stays=child.process.pid, asks=settled.asks))

    def _end_waiting(self) -> None:
        process, self._waiting = self._waiting, None
        if process is None:
            return
        process.close(process.orders_in)  # at which it ends
        deadline = time.monotonic() + _END_SECONDS
        while os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
            if time.monotonic() >= deadline or is_stopped(process.pid):
                break
            time.sleep(0.001)
        process.kill()
        os.waitpid(process.pid, 0)
        kill_children(self._objective_processes)
        process.close()

    def _on_child_exit(self) -> None:
        # Reap the child once it has ended, and send its report to the trainer; called at each SIGCHLD.
        with contextlib.suppress(BlockingIOError):
            os.read(self._wakeup, 4096)
        child, waiting = self._child, self._waiting
        if child is None:
            if waiting is not None and os.waitid(os.P_PID, waiting.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT):
                self._end_waiting()
            return
        # it stays unreaped until its group is gone: until then no other process can get its number
        ended = os.waitid(os.P_PID, child.process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if ended is None:
            reap({child.process.pid, *self._objective_processes})  # orphans that became our children and ended
            return
        child.process.kill()
        spent = os.wait4(child.process.pid, 0)[2]
        kill_children(self._objective_processes)
        for descriptor in (child.process.result, child.process.output):
            with contextlib.suppress(KeyError):
                self._selector.unregister(descriptor)
        self._child = None
        if child.was_given_to_nobody:
            child.log.forget()
            child.log.close()
            child.process.close()
            self._start(child.request)
            return
        cpu = spent.ru_utime + spent.ru_stime - child.process.cpu
        done = Finished(child.final_report(ended.si_code, ended.si_status, cpu))
        child.log.close()
        child.process.close()
        self._send(done)
        self._waiting = self._fork(stays=child.process.stays)  # ahead of the next attempt, which need not wait for it
        self._waiting.wait_from_now()

    def _send(self, message: Ready | Loading | Started | Measured | Pong | Finished) -> None:
        try:
            send(self._control, message)
        except ConnectionError:
            self._exit()

    def _exit(self) -> NoReturn:
        if self._child is not None:
            self._child.process.kill()
            os.waitpid(self._child.process.pid, 0)
        self._end_waiting()
        kill_children()
        os._exit(0)


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
