"""Zygote: the process that imports the objective once and forks a child per job.

One thread, one job at a time. It owns the child process: enforces its limits, ends it, reports how it ended. When the
trainer's end of the control socket closes (the worker died), it kills the child's process group and exits.
Started as ``python -m hpo_core.training.child.zygote DESCRIPTOR``.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import selectors
import signal
import sys
import time
import warnings
from collections.abc import Callable
from typing import Any, NoReturn

import safetensors.numpy  # noqa: F401  (before the fork, so that no child imports it)

from hpo_core.model.errors import ObjectiveError, SpecError, StorageError
from hpo_core.model.trial import Outcome, Report
from hpo_core.training.child import child_process as process
from hpo_core.training.child.descendants import become_subreaper, children, kill_children, reap
from hpo_core.training.child.huge_pages import use_huge_pages
from hpo_core.training.child.messages import (
    Cancel,
    Done,
    Inbox,
    Limit,
    Loading,
    Lower,
    MalformedMessageError,
    Measured,
    Ping,
    Pong,
    Prepare,
    Ready,
    Run,
    Started,
    send,
)
from hpo_core.training.child.running_child import LIMIT_GRACE, RunningChild
from hpo_core.training.child.shared_progress import SharedProgress
from hpo_core.training.objective import load_objective
from hpo_core.training.partitions.loaded_partitions import find_loader, is_loaded, partition_data
from hpo_core.training.random_state import capture_all, seed_all
from hpo_core.training.request import JobRequest
from hpo_core.training.resources.process_tree import ProcessTree
from hpo_core.training.resources.share_limits import find_thread_pools

_MAX_WAIT_SECONDS = 3600.0
"""Longest wait of one poll(): the user may set a limit whose milliseconds do not fit into its argument."""


class Zygote:
    """The zygote's event loop.

    Args:
        control: descriptor of the socket to the trainer.
    """

    def __init__(self, control: int) -> None:
        self._control = control
        self._inbox = Inbox()
        self._function: Callable[..., Any] | None = None
        self._child: RunningChild | None = None
        self._progress = SharedProgress()
        self._objective_descriptors: frozenset[int] = frozenset()
        self._objective_processes: frozenset[int] = frozenset()  # opened or started by its import
        self._tree = ProcessTree(os.getpid())
        become_subreaper()
        self._wakeup, wakeup_in = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wakeup_in)
        self._selector = selectors.PollSelector()  # no descriptor of its own that a fork would share
        self._selector.register(control, selectors.EVENT_READ, self._on_control)
        self._selector.register(self._wakeup, selectors.EVENT_READ, self._on_signal)

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

    def _on_control(self) -> None:
        try:
            data = os.read(self._control, 1 << 16)
        except ConnectionError:
            data = b""
        if not data:
            self._exit()
        try:
            messages = list(self._inbox.feed(data))
        except MalformedMessageError:
            self._exit()
        for message in messages:
            if isinstance(message, Prepare):
                self._prepare(message)
            elif isinstance(message, Run):
                self._start(message.request)
            elif isinstance(message, Ping):
                self._send(Pong(self._child is not None and self._child.ending))
            elif isinstance(message, Cancel | Limit | Lower) and self._child is not None:
                job = self._child.request.job
                if (job.trial, job.attempt) != (message.trial, message.attempt):
                    continue
                if isinstance(message, Limit):
                    self._child.stop(Outcome.OUT_OF_MEMORY, message.message, grace=LIMIT_GRACE)
                elif isinstance(message, Lower):
                    self._child.lower(message.memory)
                else:
                    self._child.stop(Outcome.PREEMPTED, "The attempt was ended on purpose (cancel or shutdown).")

    def _prepare(self, message: Prepare) -> None:
        own_descriptors = process.open_descriptors()
        try:
            self._function = load_objective(message.objective, message.pythonpath)
            if message.load:
                find_loader(message.load, message.pythonpath)
        except (SpecError, ObjectiveError) as error:
            self._send(Ready(str(error), isinstance(error, SpecError)))
            self._exit()
        _import_for_children()
        self._objective_descriptors = process.open_descriptors() - own_descriptors
        self._objective_processes = frozenset(children())
        self._tree = ProcessTree(os.getpid(), self._objective_processes)
        process.clear_exit_functions()
        gc.collect()
        gc.freeze()  # a child's collector must not touch, and so copy, the pages it shares with us
        use_huge_pages()
        self._send(Ready())

    def _start(self, request: JobRequest) -> None:
        assert self._function is not None and self._child is None
        if not is_loaded(request):  # before the child's limits begin: it does not count as a step of training
            self._send(Loading())
            self._load_partition(request)
        try:
            child = RunningChild(request, self._progress, self._tree)
        except StorageError as error:
            self._send(Done(_storage_report(request, error)))
            return
        if request.share is not None:
            find_thread_pools(request.share, request.threads)
        parent = os.getpid()
        child.pid = _fork()
        if child.pid == 0:
            process.run_child(
                self._function,
                request,
                result=child.result_in,
                output=child.output_in,
                progress=self._progress,
                parent=parent,
                keep_open=self._objective_descriptors,
            )
        os.close(child.result_in)
        os.close(child.output_in)
        self._tree.add(child.pid)
        self._child = child
        self._selector.register(child.result, selectors.EVENT_READ, self._on_result)
        self._selector.register(child.output, selectors.EVENT_READ, self._on_output)
        self._send(Started(child.pid))

    def _load_partition(self, request: JobRequest) -> None:
        with contextlib.suppress(ObjectiveError, SpecError):  # the child tries again and tells
            partition_data(request, request.job.unit.partition if request.job.unit is not None else "")
        gc.freeze()  # as for what the objective's module holds

    def _on_result(self) -> None:
        if self._child is not None and not self._child.read_result():
            self._selector.unregister(self._child.result)

    def _on_output(self) -> None:
        if self._child is not None and not self._child.read_output():
            self._selector.unregister(self._child.output)

    def _on_signal(self) -> None:
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
        child.reaped = True
        kill_children(self._objective_processes)
        child.drain()
        for descriptor in (child.result, child.output):
            with contextlib.suppress(KeyError):
                self._selector.unregister(descriptor)
        self._child = None
        done = Done(child.final_report(ended.si_code, ended.si_status, spent.ru_utime + spent.ru_stime))
        child.close()
        self._send(done)

    def _send(self, message: Ready | Loading | Started | Measured | Pong | Done) -> None:
        try:
            send(self._control, message)
        except (BrokenPipeError, ConnectionError):
            self._exit()

    def _exit(self) -> NoReturn:
        if self._child is not None:
            self._child.kill()
            os.waitpid(self._child.pid, 0)
        kill_children()
        os._exit(0)


def _fork() -> int:
    """As ``os.fork()``, but without the warning of Python 3.12 and newer that this process has threads.

    They are those of numerical libraries, which start them at import and restart them after a fork.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()


def _storage_report(request: JobRequest, error: StorageError) -> Report:
    """Report of an attempt whose log cannot be written; no child is forked for it."""
    now = time.time()
    return Report(
        trial=request.job.trial,
        attempt=request.job.attempt,
        outcome=Outcome.STORAGE,
        message=str(error),
        started=now,
        ended=now,
    )


def _import_for_children() -> None:
    """Import what every child would otherwise import for itself on first use."""
    if "torch" in sys.modules:
        # The first optimizer imports torch._dynamo, which takes a second in each child. Only import it here: a step
        # of an optimizer would initialize CUDA (it checks for graph capture), and then no child could use a GPU.
        importlib.import_module("torch._dynamo")
        importlib.import_module("safetensors.torch")
    seed_all(0)
    capture_all()


if __name__ == "__main__":
    Zygote(int(sys.argv[1])).serve()
