"""Processes that a training function started and left: found and ended with its attempt. Linux only.

While the zygote lives, every orphan below it becomes its child (it is a *subreaper*), in whatever session or group, so
ending its children again and again until there are none ends all. Where the zygote itself was killed, they are found
by an environment variable that the zygote was started with: whoever cleared that before exec is missed then.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import time
from collections.abc import Container
from pathlib import Path

MARK = "HPO_ZYGOTE"
"""Environment variable with a value of its own for each zygote."""
_PR_SET_CHILD_SUBREAPER = 36
_SECONDS = 10.0
"""A killed process that is still there by then waits for a disk; nobody can wait for it."""


def adopt_orphans() -> None:
    """From now on, orphans below this process become its children."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def children() -> list[int]:
    """Processes whose parent is this one, zombies included."""
    try:
        found = [path.read_text() for path in Path("/proc/self/task").glob("*/children")]
    except OSError:  # a thread ended meanwhile
        found = []
    if found:
        return [int(pid) for pid in " ".join(found).split()]
    return [pid for pid in _processes() if _parent(pid) == os.getpid()]  # a kernel without that file


def reap(spare: Container[int] = ()) -> None:
    """Take note of children that have ended, except some."""
    for pid in children():
        if pid not in spare:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)


def end_children(spare: Container[int] = ()) -> None:
    """Kill all children but some, and what becomes our child thereby, until there are none."""
    deadline = time.monotonic() + _SECONDS
    while (left := [pid for pid in children() if pid not in spare]) and time.monotonic() < deadline:
        for pid in left:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        reap(spare)
        time.sleep(0.001)


def end_marked(mark: str) -> None:
    """Kill all processes of this machine whose environment has this :data:`MARK`, until there are none."""
    wanted = f"{MARK}={mark}".encode()
    deadline = time.monotonic() + _SECONDS
    while time.monotonic() < deadline:
        left = [pid for pid in _processes() if wanted in _environment(pid)]
        if not left:
            return
        for pid in left:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)


def _processes() -> list[int]:
    found = [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]
    return [pid for pid in found if pid != os.getpid()]


def _environment(pid: int) -> list[bytes]:
    """Empty for zombies, and for processes of others."""
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return []


def _parent(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0
