"""What the soak breaks: the processes of a study, found by a marker in their environment, and what is done to them."""

from __future__ import annotations

import contextlib
import random
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import psutil

MARKER = "HPO_SOAK"
STOPPED_SECONDS = (20.0, 90.0)
"""How long a process is under SIGSTOP."""
DOWN_SECONDS = (2.0, 25.0)
"""How long a server that was killed stays away."""
REST_SECONDS = 45.0
"""For so long a kind of process is left alone after it was broken: else nothing would ever get up again."""
PARTITION = "partition"
PARTITION_REST_SECONDS = 10.0
"""The same of partitions, which are there again at once."""
IN_START = 0.15
"""How often a fault that falls into a controller's start is carried out."""


def marked(marker: str) -> list[psutil.Process]:
    """Live processes that were started, directly or not, with this marker."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get(MARKER) == marker and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def role(process: psutil.Process, controller: int) -> str:
    """What a process of a study is there for."""
    command = " ".join(process.cmdline())
    if process.pid == controller:
        return "controller"
    if "tracking.follow" in command:
        return "follower"
    if "prefect_server" in command or ("prefect" in command and "server" in command):
        return "prefect"
    if "hpo_core.training.child.zygote" in command:
        parent = process.parent()
        is_child = parent is not None and "hpo_core.training.child.zygote" in " ".join(parent.cmdline())
        return "child" if is_child else "zygote"
    if "multiprocessing" in command and "resource_tracker" not in command:
        return "worker"
    return "other"


@dataclass
class Fault:
    """One thing that was broken."""

    time: float
    lane: str
    study: str
    target: str
    action: str
    seconds: float = 0.0
    """How long it stayed stopped or away."""

    def kind(self) -> str:
        return f"{self.target} {self.action}"


@dataclass
class Saboteur:
    """Breaks something of one lane every now and then, in a thread of its own.

    Args:
        servers: by name and action, what takes a server away for so many seconds and brings it back.
    """

    lane: str
    marker: str
    random: random.Random
    every: tuple[float, float]
    servers: dict[tuple[str, str], Callable[[float], Any]]
    study: str = ""
    controller: int = 0
    started: bool = False
    """Whether the present controller has recorded anything yet."""
    faults: list[Fault] = field(default_factory=list)
    partitions: dict[str, Callable[[float], Any]] = field(default_factory=dict)
    """By action, what is done to a partition for so many seconds; only while models hop."""
    until: float = float("inf")
    """Monotonic time after which nothing is broken any more: what runs then ends in peace, and soon."""
    hopping: bool = False
    """Whether models of the present study hop."""
    _stopped: dict[int, float] = field(default_factory=dict)
    _rested: dict[str, float] = field(default_factory=dict)
    _end: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        due = time.monotonic() + self.random.uniform(*self.every)
        while not self._end.wait(0.5):
            self._wake(time.monotonic())
            if due <= time.monotonic() < self.until:
                self._break_something()
                due = time.monotonic() + self.random.uniform(*self.every)
        self._wake(float("inf"))

    def end(self) -> None:
        self._end.set()

    def _wake(self, now: float) -> None:
        for pid in [pid for pid, until in self._stopped.items() if until <= now]:
            del self._stopped[pid]
            with contextlib.suppress(psutil.Error):
                psutil.Process(pid).send_signal(signal.SIGCONT)

    def _break_something(self) -> None:
        if not self.study or (not self.started and self.random.random() > IN_START):
            return
        choices: list[tuple[str, str, int]] = [(*name, 0) for name in self.servers]
        choices += [(PARTITION, action, 0) for action in self.partitions] if self.hopping else []
        for process in marked(self.marker):
            with contextlib.suppress(psutil.Error):
                found = role(process, self.controller)
                if found == "other" or process.pid in self._stopped:
                    continue
                choices += [(found, "killed", process.pid), (found, "stopped", process.pid)]
                if found == "controller":
                    choices.append((found, "terminated", process.pid))
        now = time.monotonic()
        choices = [choice for choice in choices if self._rested.get(choice[0], 0.0) <= now]
        kinds = sorted({choice[:2] for choice in choices})
        if not kinds:
            return
        kind = self.random.choice(kinds)
        target, action, pid = self.random.choice([choice for choice in choices if choice[:2] == kind])
        self._do(target, action, pid)
        self._rested[target] = time.monotonic() + (PARTITION_REST_SECONDS if target == PARTITION else REST_SECONDS)

    def _do(self, target: str, action: str, pid: int) -> None:
        fault = Fault(time.time(), self.lane, self.study, target, action)
        if not pid:
            fault.seconds = self.random.uniform(*(STOPPED_SECONDS if action == "stopped" else DOWN_SECONDS))
            self.faults.append(fault)
            (self.partitions[action] if target == PARTITION else self.servers[target, action])(fault.seconds)
            return
        with contextlib.suppress(psutil.Error):
            process = psutil.Process(pid)
            if action == "stopped":
                fault.seconds = self.random.uniform(*STOPPED_SECONDS)
                process.send_signal(signal.SIGSTOP)
                self._stopped[pid] = time.monotonic() + fault.seconds
            else:
                process.send_signal(signal.SIGKILL if action == "killed" else signal.SIGTERM)
            self.faults.append(fault)
