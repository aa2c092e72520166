from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import psutil

T = TypeVar("T")
LIMIT = 600.0
"""Seconds far beyond what a busy machine needs."""


def eventually(
    condition: Callable[[], T], seconds: float = LIMIT, *, process: Any = None, said: Callable[[], Any] = str
) -> T:
    """What a condition tells once it holds; fails where it does not in time, or a process ends before.

    Args:
        said: what the process printed.
    """
    deadline = time.monotonic() + seconds
    while True:
        looked = time.monotonic()
        if found := condition():
            return found
        assert looked < deadline, f"not within {seconds:g} s: {said()}"
        assert process is None or process.poll() is None, f"the process ended: {said()}"
        time.sleep(max(0.01, time.monotonic() - looked))


def gone(pid: int | str) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except (FileNotFoundError, ProcessLookupError):  # it ended, or ends while it is read
        return True


def living(variable: str, value: str) -> list[psutil.Process]:
    """Processes that have this in their environment."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(variable) == value and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except psutil.Error:
            continue
    return found
