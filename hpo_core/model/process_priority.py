"""Priority of processes that work beside training."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

PAGES = 5
"""Niceness of what shows a study in Prefect: of a processor that trains, pages get a quarter while they have work."""


def step_back(niceness: int) -> None:
    """Let other processes go first.

    Linux weighs sessions against each other where its automatic groups are on, and ``nice`` counts only within one: so
    a process that leads a session needs the niceness of that session as well.
    """
    os.nice(niceness)
    if os.getsid(0) == os.getpid():
        with contextlib.suppress(OSError):  # another system, or groups of another kind
            Path("/proc/self/autogroup").write_text(str(os.getpriority(os.PRIO_PROCESS, 0)))
