"""ChildProcess: one process that the zygote forked, the pipes to it, and which attempts it may serve."""

from __future__ import annotations

import contextlib
import os
import signal
import time

import msgspec

from hpo_core.model.devices.inventory import Portion
from hpo_core.model.trial import Job
from hpo_core.training.child.messages import RunJob, send
from hpo_core.training.request import JobRequest

LEAST_PERCENT = 6
"""Least share of a GPU's multiprocessors under MPS: a job that computes 1 % of the time takes far longer on 1 %."""
MOST_ATTEMPTS = 200
"""Attempts that one process serves; it is replaced then."""
IDLE_SECONDS = 10.0
"""Seconds that a process waits for its next attempt. It holds memory of its device, and is a client of its MPS daemon,
which must outlive it."""
ANSWER_SECONDS = 60.0
"""Seconds that a process waits within a training for the study's answer. The study decides within milliseconds; a
controller that is gone never does."""


class ChildProcess:
    """A child of the zygote, from before its fork until it is reaped. It serves one attempt at a time.

    Args:
        request: of its first attempt; later ones are like it.
    """

    def __init__(self, request: JobRequest) -> None:
        self.pid = 0
        self.stays = request.process == "kept"
        """Whether it may stay for a further attempt."""
        self.asks = request.asks
        """Whether it may wait within the training for the trial's next job."""
        self.result, self.result_in = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self.output, self.output_in = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self.orders, self.orders_in = os.pipe2(os.O_CLOEXEC)
        """The end that the child reads its next request from, and the one that the zygote writes it to."""
        for descriptor in (self.result_in, self.output_in):
            os.set_blocking(descriptor, True)
        self.idle_since = 0.0
        self.last = (-1, -1)
        """The attempt (trial, attempt) that it served last, once it waits."""
        self.asks_for: Job | None = None
        """The job whose end it reported and within whose training it waits; None: it waits for any, or not at all."""
        self.cpu = 0.0
        """Processor seconds of its earlier attempts."""
        self._serves = demand_of(request)
        self._open = {self.result, self.output, self.orders, self.orders_in, self.result_in, self.output_in}

    def close_childs_ends(self) -> None:
        self._close(self.result_in, self.output_in, self.orders)

    def kill(self) -> None:
        """Send SIGKILL to the child and its process group (which it may not have created yet)."""
        for kill in (os.kill, os.killpg):
            with contextlib.suppress(ProcessLookupError, PermissionError):  # it may have become another user's
                kill(self.pid, signal.SIGKILL)

    def let_end(self) -> None:
        self._close(self.orders_in)

    def close(self) -> None:
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

    @property
    def waits_until(self) -> float:
        return self.idle_since + (IDLE_SECONDS if self.asks_for is None else ANSWER_SECONDS)

    def serves(self, request: JobRequest) -> bool:
        """True if it may begin the attempt now: it is like those before, and has not waited too long."""
        if self.asks_for is not None and not continues(self.asks_for, request):
            return False
        return time.monotonic() < self.waits_until and self._serves == demand_of(request)

    def wait_from_now(self) -> None:
        self.idle_since = time.monotonic()
        with contextlib.suppress(BlockingIOError):
            while os.read(self.output, 1 << 16):
                pass


def continues(job: Job, request: JobRequest) -> bool:
    """True if the request is for the trial's next job after this one, which its process can go on with."""
    following = request.job
    return following.trial == job.trial and following.attempt > job.attempt and following.target > job.target


def demand_of(request: JobRequest) -> tuple[object, ...]:
    """The settings that a process cannot change once it trained; its next attempt must have the same.

    The memory of its part of a device can be set anew, and so can the rendezvous of a gang; not what CUDA and libraries
    of threads read from the environment when they are first used, nor the devices that a rank opened.
    """
    portion, device = request.portion, None
    if portion is not None:
        device = gpu_environment(portion) if portion.gpu else max(1, portion.cores // 1000)
    gang = None if request.gang is None else msgspec.structs.replace(request.gang, store="")
    return request.study, request.folder, request.process, request.threads, device, gang


def device_of(request: JobRequest) -> str:
    """Name of the device that the attempt has a part of; empty: whatever its worker has."""
    return "" if request.portion is None else request.portion.device


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
        found["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] = str(min(100, max(LEAST_PERCENT, -(-portion.compute // 10))))
        found["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] = f"0={max(1, portion.allowed // 2**20)}M"
    return found
