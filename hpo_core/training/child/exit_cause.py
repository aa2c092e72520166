"""Outcome and message for a training process that ended without a report."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from hpo_core.model.trial import Outcome

_NO_MEMORY = ("std::bad_alloc", "cannot allocate memory", "out of memory")
"""What native libraries print before they abort, in small letters."""


def outcome_of_exit(code: int, *, status: int, oom_kills: int, printed: str = "") -> tuple[Outcome, str]:
    """Outcome and message for an exit as ``waitid`` describes it.

    Args:
        code: ``si_code``.
        status: ``si_status``: exit code or signal number.
        oom_kills: the kernel's out-of-memory kills in our control group while the process ran.
        printed: the end of its output.
    """
    if code == os.CLD_EXITED:
        return Outcome.CRASHED, (
            f"The training process exited by itself with code {status} before it reported. Look for os._exit() "
            "or a "
            "library that ends the process; the end of its log is in the detail."
        )
    if status == signal.SIGKILL:
        by = "the kernel, for memory ran out" if oom_kills else "signal 9, probably out of memory"
        return Outcome.OUT_OF_MEMORY, (
            f"The training process was killed by {by}. Use a smaller model or batch, fewer workers per machine, "
            "or more memory."
        )
    if status == signal.SIGABRT and any(words in printed.lower() for words in _NO_MEMORY):
        return Outcome.OUT_OF_MEMORY, (
            "A native library ended the training process, for it got no memory; the end of its log is in the detail. "
            "Use a smaller model or batch, fewer workers per machine, or more memory."
        )
    try:
        name = f"signal {status} ({signal.Signals(status).name})"
    except ValueError:
        name = f"signal {status}"
    return Outcome.CRASHED, (
        f"The training process was killed by {name}. A native library crashed, or somebody ended it; "
        "the stack at that moment is in its log."
    )


def oom_kill_count() -> int:
    """Out-of-memory kills in our control group so far; 0 where the kernel does not tell."""
    try:
        group = Path("/proc/self/cgroup").read_text().rpartition("0::")[2].split("\n", 1)[0].strip("/")
        events = Path("/sys/fs/cgroup", group, "memory.events").read_text()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in events.splitlines() if line.startswith("oom_kill ")), 0)
