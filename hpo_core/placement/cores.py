"""How many CPU cores this process may use."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

_ROOT = Path("/sys/fs/cgroup")
_MEMBERSHIP = Path("/proc/self/cgroup")


def control_groups() -> list[Path]:
    """Folders of the group of this process and of those above it, up to the root that is seen here."""
    try:
        line = _MEMBERSHIP.read_text().rpartition("0::")[2].split("\n", 1)[0]
    except OSError:
        return [_ROOT]
    parts = [part for part in line.split("/") if part]
    if ".." in parts:  # the group lies outside what this container sees
        parts = []
    return [_ROOT.joinpath(*parts[:count]) for count in range(len(parts), -1, -1)]


def available_cores() -> int:
    """CPU cores that this process may use: of its affinity, and of the limits of its control groups."""
    cores = len(os.sched_getaffinity(0))
    for group in control_groups():
        with contextlib.suppress(OSError, ValueError):
            quota, _, period = (group / "cpu.max").read_text().partition(" ")
            if quota != "max":
                cores = min(cores, max(1, int(quota) // int(period)))
    return cores
