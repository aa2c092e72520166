"""ChildProcess: one process that the zygote forked, the pipes to it, and which attempts it may serve."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path

import msgspec

from hpo_core.checkpoints.shared_state import SharedState
from hpo_core.training.child.messages import RunJob, send
from hpo_core.training.request import JobRequest

MOST_ATTEMPTS = 200
"""Attempts that one process serves; it is replaced then."""
IDLE_SECONDS = 60.0
"""Seconds that a process waits for its next attempt; it holds memory of its device."""


class ChildProcess:
    """A child of the zygote, from before its fork until it is reaped. It serves one attempt at a time.

    Args:
        request: of its first attempt; later ones are like it.
        shared: memory through which its worker gets states to write.
        stays: whether it may stay for a further attempt.
    """

    def __init__(self, request: JobRequest, shared: SharedState, *, stays: bool) -> None:
        self.shared = shared
        self.pid = 0
        self.stays = stays
        self.result, self.result_in = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self.output, self.output_in = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self.orders, self.orders_in = os.pipe2(os.O_CLOEXEC)
        """The end that the child reads its next request from, and the one that the zygote writes it to."""
        for descriptor in (self.result_in, self.output_in):
            os.set_blocking(descriptor, True)
        self.idle_since = 0.0
        self.cpu = 0.0
        """Processor seconds of its earlier attempts."""
        self._serves = _demand(request)
        self._open = {self.result, self.output, self.orders, self.orders_in, self.result_in, self.output_in}

    def close_childs_ends(self) -> None:
        """Close, in the zygote, what the child alone uses; call it after the fork."""
        self._close(self.result_in, self.output_in, self.orders)

    def kill(self) -> None:
        """Send SIGKILL to the child and its process group (which it may not have created yet)."""
        for kill in (os.kill, os.killpg):
            with contextlib.suppress(ProcessLookupError, PermissionError):  # it may have become another user's
                kill(self.pid, signal.SIGKILL)

    def let_end(self) -> None:
        """Tell a process that waits that nothing comes any more."""
        self._close(self.orders_in)

    def close(self) -> None:
        """Release all descriptors."""
        self._close(*self._open)

    def _close(self, *descriptors: int) -> None:
        for descriptor in descriptors:
            if descriptor in self._open:
                self._open.discard(descriptor)
                os.close(descriptor)

    def order(self, request: JobRequest) -> bool:
        """Give it a further attempt; False where it is gone."""
        try:
            send(self.orders_in, RunJob(request))
        except BrokenPipeError:
            return False
        return True

    def serves(self, request: JobRequest) -> bool:
        """Whether the attempt is one like those before: of the same study, with the same part of the same device."""
        return self._serves == _demand(request)

    def wait_from_now(self) -> None:
        """It waits for its next attempt, and what it printed meanwhile is nobody's."""
        self.idle_since = time.monotonic()
        with contextlib.suppress(BlockingIOError):
            while os.read(self.output, 1 << 16):
                pass


def may_stay(request: JobRequest) -> bool:
    """Whether the process of such an attempt may stay for the next one; with ``auto``, only where there is a GPU."""
    if request.process == "fresh" or request.gang is not None or request.parts:
        return False
    return request.process == "kept" or any(_DEVICE_FILES.glob("nvidia[0-9]*"))


_DEVICE_FILES = Path("/dev")


def _demand(request: JobRequest) -> tuple[object, ...]:
    portion = None if request.portion is None else msgspec.msgpack.encode(request.portion)
    return request.study, request.folder, portion, request.threads, request.mps, request.process, request.gang
