"""Finds and ends processes that a training function started and left running. Linux only.

While the zygote lives, it is a *subreaper*: every orphan below it becomes its child, in whatever session or group, so
killing its children until there are none ends all of them. If the zygote itself was killed, they are found by an
environment variable that the zygote was started with; a process that cleared it before exec is missed then.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import time
from collections.abc import Container
from pathlib import Path

TAG_VARIABLE = "HPO_ZYGOTE"
"""Environment variable whose value is unique to each zygote and inherited by its descendants."""
_PR_SET_CHILD_SUBREAPER = 36
_MAX_SECONDS = 10.0
"""A killed process that still exists after that waits for a disk; nobody can wait for it."""


def become_subreaper() -> None:
    """Make orphans below this process its children from now on."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def children() -> list[int]:
    """Ids of the processes whose parent is this one, zombies included."""
    try:
        found = [path.read_text() for path in Path("/proc/self/task").glob("*/children")]
    except OSError:  # a thread ended meanwhile
        found = []
    if found:
        return [int(pid) for pid in " ".join(found).split()]
    return [pid for pid in _processes() if _parent(pid) == os.getpid()]  # a kernel without that file


def reap(spare: Container[int] = ()) -> None:
    """Collect the exit status of children that have ended, except ``spare``."""
    for pid in children():
        if pid not in spare:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)


def kill_children(spare: Container[int] = ()) -> None:
    """Kill all children except ``spare``, and the orphans that become children thereby, until none is left."""
    deadline = time.monotonic() + _MAX_SECONDS
    while (left := [pid for pid in children() if pid not in spare]) and time.monotonic() < deadline:
        for pid in left:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        reap(spare)
        time.sleep(0.001)


def kill_tagged(tag: str) -> None:
    """Kill all processes on this machine whose :data:`TAG_VARIABLE` is ``tag``, until none is left."""
    wanted = f"{TAG_VARIABLE}={tag}".encode()
    deadline = time.monotonic() + _MAX_SECONDS
    while time.monotonic() < deadline:
        left = [pid for pid in _processes() if wanted in _environment(pid)]
        if not left:
            return
        for pid in left:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)


def _processes() -> list[int]:
    """Ids of all processes of this machine but this one."""
    found = [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]
    return [pid for pid in found if pid != os.getpid()]


def _environment(pid: int) -> list[bytes]:
    """Environment entries of a process; empty for zombies and for processes of other users."""
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return []


def _parent(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0
