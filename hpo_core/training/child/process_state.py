"""What a process was doing when it was found to hang, as the kernel sees it."""

from __future__ import annotations

from pathlib import Path

STOPPED = "was stopped by a signal"
AT_DISK = "waited for a disk"
COMPUTED = "was computing"
WAITED = "waited"
HANGING = (STOPPED, AT_DISK, COMPUTED, WAITED)
"""From what surely hangs to what may well wait for somebody else."""
_STATES = {"T": STOPPED, "t": STOPPED, "D": AT_DISK, "R": COMPUTED}


def process_state(pid: int) -> str:
    """What the main thread of a process does now; empty where it is gone."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return ""
    return _STATES.get(text.rpartition(")")[2].split()[0], WAITED)
