"""Recognises lack of memory, and words it; each way ends an attempt as ``Outcome.OUT_OF_MEMORY``.

1. The training function raises: ``MemoryError``, CUDA's out-of-memory, ``RLIMIT_DATA`` (:func:`is_out_of_memory`).
2. A native library aborts and prints why (:func:`aborted_for_memory`).
3. The kernel kills the process: its counts of such kills tell (:func:`outcome_of_sigkill`).
4. The attempt takes more than its share of a device: the zygote ends it (:func:`exceeded`).

What follows is the study's decision: the job is retried as often as ``training.retries`` allows; where devices are
packed, the next attempt gets more memory (``AttemptJudge`` in ``placement/shared_room.py``).
"""

from __future__ import annotations

import contextlib
import errno
import signal
from pathlib import Path
from typing import NamedTuple

from hpo_core.model.devices.inventory import Portion
from hpo_core.model.trial import Outcome

_RAISED = (
    "out of memory",
    "can't allocate memory",
    "_STATUS_ALLOC_FAILED",  # cuBLAS and its kin, which make their workspace on first use
)
_PRINTED = ("std::bad_alloc", "cannot allocate memory", "out of memory")
"""What native libraries print before they abort, in small letters."""
_CGROUPS = Path("/sys/fs/cgroup")
MEMORY_CURE = "Use a smaller model or batch, fewer workers per machine, or more memory."


def is_out_of_memory(error: BaseException) -> bool:
    if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno == errno.ENOMEM):
        return True
    if any(kind.__name__ == "OutOfMemoryError" for kind in type(error).__mro__):
        return True
    return isinstance(error, RuntimeError) and any(words in str(error) for words in _RAISED)


def aborted_for_memory(status: int, printed: str) -> bool:
    return status == signal.SIGABRT and any(words in printed.lower() for words in _PRINTED)


class OomKills(NamedTuple):
    """Out-of-memory kills that the kernel has counted."""

    where: str
    count: int

    def since(self, before: OomKills | None) -> OomKills | None:
        """Those that came after; None where the two cannot be compared."""
        same = before is not None and before.where == self.where
        return OomKills(self.where, self.count - before.count) if before is not None and same else None


def oom_kills() -> OomKills | None:
    """Kills in the control group of this process (version 2), else on this machine; None: the kernel does not tell."""
    places = {"of this machine": Path("/proc/vmstat")}
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            if line.startswith("0::"):
                places = {"of its control group": _CGROUPS / line[3:].strip("/") / "memory.events", **places}
    for where, file in places.items():
        with contextlib.suppress(OSError, ValueError):
            return OomKills(where, int(file.read_bytes().rpartition(b"\noom_kill ")[2].split(maxsplit=1)[0]))
    return None


def outcome_of_sigkill(kills: OomKills | None) -> tuple[Outcome, str]:
    """Outcome and message for a process that SIGKILL ended: whoever may signal it can send one.

    Args:
        kills: the kernel's out-of-memory kills while the process ran.
    """
    if kills is not None and kills.count:
        return Outcome.OUT_OF_MEMORY, (
            f"The training process was killed by the kernel, for memory ran out: the kernel ended {kills.count} "
            f"process{'es' if kills.count != 1 else ''} {kills.where} for that while it ran. {MEMORY_CURE}"
        )
    if kills is None:
        evidence = "Whether memory ran out cannot be said: the kernel's counts of such kills cannot be read here."
    else:
        evidence = f"The kernel ended no process {kills.where} for lack of memory while it ran."
    return Outcome.CRASHED, (
        f"The training process was ended by SIGKILL (kill -9). {evidence} A person, a program that watches memory or "
        "time, or the training itself sent the signal."
    )


def exceeded(share: Portion, memory: int) -> str:
    given = share.allowed
    whose = f"all that jobs may use of {share.device}" if share.alone else f"its share of {share.device}"
    return (
        f"The attempt took {memory / 1e6:,.0f} MB of memory, and {given / 1e6:,.0f} MB is {whose}; it was ended for "
        "the sake of its neighbours. Use a smaller model or batch, or state its demand (packing.demand.memory)."
    )


def refused(share: Portion | None) -> str:
    """Addition to a library's message where memory was refused to an attempt; empty without a share."""
    if share is None:
        return ""
    if share.gpu:
        return f" (it may use {share.allowed / 1e6:,.0f} MB of {share.device})"
    return f" (jobs on {share.device} may use {share.capacity / 1e6:,.0f} MB together)"
