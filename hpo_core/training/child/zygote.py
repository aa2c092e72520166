"""The zygote: a small loop in its own process that imports the objective once and forks a child per job.

One thread, one job at a time. It owns the child's life: limits, ending it, judging how it ended. When the
trainer's end of the control socket closes (the worker died), it kills the child's group and exits.
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
from collections.abc import Callable
from typing import Any, NoReturn

import safetensors.numpy  # noqa: F401  (before the fork, so that no child imports it)

from hpo_core.model.errors import ObjectiveError, SpecError, StorageError
from hpo_core.model.trial import Outcome, Report
from hpo_core.training.child import child_process as process
from hpo_core.training.child.descendants import adopt_orphans, children, end_children, reap
from hpo_core.training.child.huge_pages import gather_memory
from hpo_core.training.child.messages import (
    Cancel,
    Done,
    Inbox,
    MalformedMessageError,
    Ping,
    Pong,
    Prepare,
    Ready,
    Run,
    Started,
    send,
)
from hpo_core.training.child.progress_board import Board
from hpo_core.training.child.running_child import RunningChild
from hpo_core.training.objective import load_objective
from hpo_core.training.random_state import capture_all, seed_all
from hpo_core.training.request import JobRequest

_LONGEST_WAIT = 3600.0
"""Seconds; poll() takes no larger number than fits into its milliseconds, a limit of the user's may be one."""


class Zygote:
    """The loop. ``control`` is the descriptor of the socket to the trainer."""

    def __init__(self, control: int) -> None:
        self._control = control
        self._inbox = Inbox()
        self._function: Callable[..., Any] | None = None
        self._child: RunningChild | None = None
        self._board = Board()
        self._theirs: frozenset[int] = frozenset()  # descriptors that the objective's module opened
        self._helpers: frozenset[int] = frozenset()  # processes that it started
        adopt_orphans()
        self._wakeup, wakeup_in = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wakeup_in)
        self._selector = selectors.PollSelector()  # no descriptor of its own that a fork would share
        self._selector.register(control, selectors.EVENT_READ, self._on_control)
        self._selector.register(self._wakeup, selectors.EVENT_READ, self._on_signal)

    def serve(self) -> NoReturn:
        """Until the trainer goes away."""
        while True:
            deadline = self._child.next_deadline() if self._child else None
            timeout = None if deadline is None else min(max(0.0, deadline - time.monotonic()), _LONGEST_WAIT)
            for key, _ in self._selector.select(timeout):
                key.data()
            if self._child is not None:
                self._child.check_limits()

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
                self._say(Pong(self._child is not None and self._child.ending))
            elif isinstance(message, Cancel) and self._child is not None:
                job = self._child.request.job
                if (job.trial, job.attempt) == (message.trial, message.attempt):
                    self._child.stop(Outcome.PREEMPTED, "The attempt was ended on purpose (cancel or shutdown).")

    def _prepare(self, message: Prepare) -> None:
        ours = process.open_descriptors()
        try:
            self._function = load_objective(message.objective, message.pythonpath)
        except (SpecError, ObjectiveError) as error:
            self._say(Ready(str(error), isinstance(error, SpecError)))
            self._exit()
        _warm_up()
        self._theirs = process.open_descriptors() - ours
        self._helpers = frozenset(children())
        process.forget_exit_functions()
        gc.collect()
        gc.freeze()  # a child's collector must not touch, and so copy, the pages it shares with us
        gather_memory()
        self._say(Ready())

    def _start(self, request: JobRequest) -> None:
        assert self._function is not None and self._child is None
        try:
            child = RunningChild(request, self._board)
        except StorageError as error:
            now = time.time()
            job = request.job
            self._say(
                Done(
                    Report(
                        trial=job.trial, attempt=job.attempt, outcome=Outcome.STORAGE, message=str(error),
                        started=now, ended=now,
                    )
                )
            )  # fmt: skip
            return
        parent = os.getpid()
        child.pid = os.fork()
        if child.pid == 0:
            process.live(
                self._function, request, result=child.result_in, output=child.output_in, board=self._board,
                parent=parent, theirs=self._theirs,
            )  # fmt: skip
        os.close(child.result_in)
        os.close(child.output_in)
        self._child = child
        self._selector.register(child.result, selectors.EVENT_READ, self._on_result)
        self._selector.register(child.output, selectors.EVENT_READ, self._on_output)
        self._say(Started(child.pid))

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
        # left unreaped until its group is gone: so long nobody else can get its number
        ended = os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if ended is None:
            reap({child.pid, *self._helpers})  # orphans that became our children and ended
            return
        child.kill()
        os.waitpid(child.pid, 0)
        child.reaped = True
        end_children(self._helpers)
        child.read_rest()
        for descriptor in (child.result, child.output):
            with contextlib.suppress(KeyError):
                self._selector.unregister(descriptor)
        self._child = None
        done = Done(child.judged(ended.si_code, ended.si_status))
        child.close()
        self._say(done)

    def _say(self, message: Ready | Started | Pong | Done) -> None:
        try:
            send(self._control, message)
        except (BrokenPipeError, ConnectionError):
            self._exit()

    def _exit(self) -> NoReturn:
        if self._child is not None:
            self._child.kill()
            os.waitpid(self._child.pid, 0)
        end_children()
        os._exit(0)


def _warm_up() -> None:
    """Import what every child would import for itself on first use."""
    if "torch" in sys.modules:
        # the first optimizer imports torch._dynamo: a second, in each child. A step of one would initialize CUDA
        # even for tensors on the CPU (it looks whether a graph is captured), and no child could use a GPU
        importlib.import_module("torch._dynamo")
        importlib.import_module("safetensors.torch")
    seed_all(0)
    capture_all()


if __name__ == "__main__":
    Zygote(int(sys.argv[1])).serve()
