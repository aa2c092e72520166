"""How many CPU cores this process may use."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

_QUOTA = Path("/sys/fs/cgroup/cpu.max")


def available_cores() -> int:
    """CPU cores that this process may use: of its affinity, and of its container's limit."""
    cores = len(os.sched_getaffinity(0))
    with contextlib.suppress(OSError, ValueError):
        quota, _, period = _QUOTA.read_text().partition(" ")
        if quota != "max":
            cores = min(cores, max(1, int(quota) // int(period)))
    return cores
