"""Outcome and message for a training process that ended without a report."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path
from typing import NamedTuple

from hpo_core.model.trial import Outcome

_NO_MEMORY = ("std::bad_alloc", "cannot allocate memory", "out of memory")
"""What native libraries print before they abort, in small letters."""


_CGROUPS = Path("/sys/fs/cgroup")
_MEMORY_CURE = "Use a smaller model or batch, fewer workers per machine, or more memory."


class OomKills(NamedTuple):
    """Out-of-memory kills that the kernel has counted; None where it does not tell."""

    group: int | None = None
    """In the control group of this process."""
    machine: int | None = None

    def since(self, before: OomKills) -> OomKills:
        """How many came after an earlier look."""
        return OomKills(*(None if a is None or b is None else a - b for a, b in zip(self, before, strict=True)))


def outcome_of_exit(code: int, *, status: int, oom_kills: OomKills, printed: str = "") -> tuple[Outcome, str]:
    """Outcome and message for an exit as ``waitid`` describes it.

    A process that SIGKILL ended ran out of memory only where the kernel says so: whoever may signal it can send one.

    Args:
        code: ``si_code``.
        status: ``si_status``: exit code or signal number.
        oom_kills: the kernel's out-of-memory kills while the process ran.
        printed: the end of its output.
    """
    if code == os.CLD_EXITED:
        return Outcome.CRASHED, (
            f"The training process exited by itself with code {status} before it reported. Look for os._exit() "
            "or a "
            "library that ends the process; the end of its log is in the detail."
        )
    if status == signal.SIGKILL:
        return _outcome_of_sigkill(oom_kills)
    if status == signal.SIGABRT and any(words in printed.lower() for words in _NO_MEMORY):
        return Outcome.OUT_OF_MEMORY, (
            "A native library ended the training process, for it got no memory; the end of its log is in the detail. "
            + _MEMORY_CURE
        )
    try:
        name = f"signal {status} ({signal.Signals(status).name})"
    except ValueError:
        name = f"signal {status}"
    return Outcome.CRASHED, (
        f"The training process was killed by {name}. A native library crashed, or somebody ended it; "
        "the stack at that moment is in its log."
    )


def _outcome_of_sigkill(oom_kills: OomKills) -> tuple[Outcome, str]:
    in_group, on_machine = oom_kills
    if in_group or (in_group is None and on_machine):
        where = "of its control group" if in_group else "of this machine"
        count = in_group or on_machine
        return Outcome.OUT_OF_MEMORY, (
            f"The training process was killed by the kernel, for memory ran out: the kernel ended {count} "
            f"process{'es' if count != 1 else ''} {where} for that while it ran. {_MEMORY_CURE}"
        )
    if in_group is None and on_machine is None:
        evidence = "Whether memory ran out cannot be said: the kernel's counts of such kills cannot be read here."
    else:
        evidence = (
            f"The kernel ended no process {'of its control group' if in_group == 0 else 'of this machine'} for lack "
        )
        evidence += "of memory while it ran."
    return Outcome.CRASHED, (
        f"The training process was ended by SIGKILL (kill -9). {evidence} A person, a program that watches memory or "
        "time, or the training itself sent the signal."
    )


def oom_kills() -> OomKills:
    """The kernel's out-of-memory kills so far."""
    return OomKills(_count_in_group(), _count(Path("/proc/vmstat")))


def _count_in_group() -> int | None:
    """By version 2 of control groups (``memory.events``), or version 1 (``memory.oom_control``)."""
    with contextlib.suppress(OSError, ValueError):
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            number, controllers, path = line.split(":", 2)
            below = path.strip("/")
            if number == "0":
                files = [_CGROUPS / below / "memory.events"]
            elif "memory" in controllers.split(","):  # a container sees its own group as the topmost
                files = [_CGROUPS / "memory" / place / "memory.oom_control" for place in (below, "")]
            else:
                continue
            for file in files:
                if (count := _count(file)) is not None:
                    return count
    return None


def _count(file: Path) -> int | None:
    """The number behind ``oom_kill``."""
    with contextlib.suppress(OSError, ValueError):
        for line in file.read_text().splitlines():
            name, _, count = line.partition(" ")
            if name == "oom_kill":
                return int(count)
    return None
