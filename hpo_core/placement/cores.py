"""How many CPU cores this process may use."""

from __future__ import annotations

import contextlib
import os

from hpo_core.placement.control_group import control_groups


def available_cores() -> int:
    """CPU cores that this process may use: of its affinity, and of the limits of its control groups."""
    cores = len(os.sched_getaffinity(0))
    for group in control_groups():
        with contextlib.suppress(OSError, ValueError):
            quota, _, period = (group / "cpu.max").read_text().partition(" ")
            if quota != "max":
                cores = min(cores, max(1, int(quota) // int(period)))
    return cores
