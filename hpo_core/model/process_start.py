"""When a process started, to tell it from a later one of the same number."""

from __future__ import annotations

import psutil


def started(pid: int | None = None) -> float:
    """Seconds from the start of this computer to that of a process; None: this one.

    Setting the clock changes the time of day at which a process is said to have started, not this.

    Raises:
        psutil.Error: there is no such process.
    """
    boot = psutil.boot_time()  # read first: psutil below 7 computes with the one that was read last
    return float(psutil.Process(pid).create_time() - boot)


def lives(pid: int, born: float) -> bool:
    """True if the process that started at this moment (:func:`started`) is there and is no zombie."""
    try:
        return abs(started(pid) - born) < 1.0 and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False
