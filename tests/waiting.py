from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")
LIMIT = 600.0
"""Seconds far beyond what a busy machine needs."""


def eventually(condition: Callable[[], T], seconds: float = LIMIT) -> T:
    """What a condition tells once it holds; fails where it does not in time."""
    deadline = time.monotonic() + seconds
    while not (found := condition()) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert found, f"not within {seconds:g} s"
    return found


def gone(pid: int | str) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except (FileNotFoundError, ProcessLookupError):  # it ended, or ends while it is read
        return True
