"""Processes of an attempt: finds them, measures their memory, ends what was left running. Linux only.

While the zygote lives, it is a *subreaper*: every orphan below it becomes its child, in whatever session or group, so
killing its children until there are none ends all of them. If the zygote itself was killed, they are found by an
environment variable that the zygote was started with; a process that cleared it before exec is missed then.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import resource
import signal
import time
from collections.abc import Container
from pathlib import Path
from typing import NamedTuple

import psutil

from hpo_core.model.devices.inventory import Portion
from hpo_core.model.trial import Outcome

TAG_VARIABLE = "HPO_ZYGOTE"
"""Environment variable whose value is unique to each zygote and inherited by its descendants."""
_PR_SET_CHILD_SUBREAPER = 36
_MAX_SECONDS = 10.0
"""Seconds that a killed process is waited for; one that exists longer waits for a disk."""
_LISTS_CHILDREN = Path(f"/proc/self/task/{os.getpid()}/children").exists()
"""True if this kernel tells the children of a process; psutil reads all processes of the machine for that."""


def process_state(pid: int) -> str:
    """State of a process as psutil names it; empty where it is gone."""
    try:
        return str(psutil.Process(pid).status())
    except psutil.Error:
        return ""


def is_stopped(pid: int) -> bool:
    """True if a signal stopped the process."""
    return process_state(pid) in (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP)


def become_subreaper() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def children(pid: int) -> list[int]:
    """Ids of the processes whose parent is ``pid``, zombies included; empty where it is gone."""
    if not _LISTS_CHILDREN:
        return [one.pid for one in psutil.process_iter(["ppid"]) if one.info["ppid"] == pid]
    found: list[int] = []
    with contextlib.suppress(OSError):  # it ended meanwhile
        for task in os.listdir(f"/proc/{pid}/task"):  # noqa: PTH208 (half the time)
            with contextlib.suppress(OSError):  # the thread ended meanwhile
                found += map(int, Path(f"/proc/{pid}/task/{task}/children").read_text().split())
    return found


def descendants(root: int, without: Container[int] = ()) -> set[int]:
    """Ids of all processes below ``root``, except ``without`` and those below them."""
    found: set[int] = set()
    waiting = [root]
    while waiting:
        new = {pid for pid in children(waiting.pop()) if pid not in without} - found
        found |= new
        waiting += new
    return found


def reap(spare: Container[int] = ()) -> None:
    for pid in children(os.getpid()):
        if pid not in spare:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)


def kill_children(spare: Container[int] = ()) -> None:
    deadline = time.monotonic() + _MAX_SECONDS
    while (left := [pid for pid in children(os.getpid()) if pid not in spare]) and time.monotonic() < deadline:
        for pid in left:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        reap(spare)
        time.sleep(0.001)


def kill_tagged(tag: str) -> None:
    """Kill all processes on this machine whose :data:`TAG_VARIABLE` is ``tag``, until none is left."""
    deadline = time.monotonic() + _MAX_SECONDS
    while time.monotonic() < deadline:
        everybody = psutil.process_iter(["environ"], ad_value={})  # empty for zombies and other users' processes
        left = [one for one in everybody if one.info["environ"].get(TAG_VARIABLE) == tag and one.pid != os.getpid()]
        if not left:
            return
        for one in left:
            with contextlib.suppress(psutil.Error):
                one.kill()
        time.sleep(0.01)


def cpu_seconds(pid: int) -> float:
    """Processor time of a process and of its ended children that it waited for; 0.0 where it is gone."""
    try:
        return sum(psutil.Process(pid).cpu_times()[:4])
    except psutil.Error:
        return 0.0


def _bytes(file: str, *names: str) -> list[int | None]:
    """Sizes that the lines ``name: 12 kB`` of a file below ``/proc`` say; None: the kernel does not write that line.

    Raises:
        OSError: the process is gone, or another user's by now.
    """
    text = Path("/proc", file).read_bytes()  # bytes: a process may have any name
    starts = [text.find(b"\n%s:" % name.encode()) for name in names]
    return [
        None if at < 0 else int(text[at + len(name) + 2 : text.index(b"kB", at)]) * 1024
        for at, name in zip(starts, names, strict=True)
    ]


def _sum(*sizes: int | None) -> int:
    return sum(size or 0 for size in sizes)


def resident(pid: int | str, *, swap: bool = True) -> int:
    """Anonymous and shared memory that a process has mapped, in bytes; pages it shares with others count whole.

    Args:
        swap: whether memory on swap space counts.
    """
    return _sum(*_bytes(f"{pid}/status", "RssAnon", "RssShmem", *(["VmSwap"] if swap else [])))


def data_size() -> int:
    return _sum(*_bytes("self/status", "VmData"))


class Pages(NamedTuple):
    """Anonymous and shared memory of one process in bytes, that on swap space included; no mapped files."""

    held: int
    """Memory that it has mapped, whoever else has mapped it, too."""
    proportional: int
    """The same, with a page that n processes share counted as 1/n."""


def pages(pid: int | str) -> Pages:
    """Memory of a process.

    The kernel looks at each page: about 1 ms for 100 MB.

    Raises:
        OSError: it is gone.
    """
    names = ("Anonymous", "Pss_Anon", "Swap", "Pss_Shmem", "SwapPss")
    whole, part, swapped, *others = _bytes(f"{pid}/smaps_rollup", *names)
    return Pages(_sum(whole, swapped), _sum(part, *others))


def reset_peak() -> None:
    """Begin anew with the largest memory of this process, which the kernel keeps; best effort."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def page_faults() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


def own_growth(before: int, faults: int) -> tuple[int, int]:
    """Memory of this process that it did not inherit, now and at most, in bytes.

    Files that were mapped at the time of the peak, and are not now, are in it: the kernel keeps one number.

    Args:
        before: what :func:`resident` said at its start.
        faults: page faults of a short attempt: it wrote to at most one inherited page for each. Memory that is freed
            and taken again faults each time, so these are far too many after a while; 0 then.
    """
    largest, files, *held = _bytes("self/status", "VmHWM", "RssFile", "RssAnon", "RssShmem", "VmSwap")
    now = max(0, _sum(*held) - before)
    peak = max(now, _sum(largest) - _sum(files) - before)
    return now, max(peak, min(faults * resource.getpagesize(), peak + before))


_RAISED = (
    "out of memory",
    "can't allocate memory",
    "_STATUS_ALLOC_FAILED",  # cuBLAS and its kin, which make their workspace on first use
)
_PRINTED = ("std::bad_alloc", "cannot allocate memory", "out of memory")
"""Words that native libraries print before they abort, in small letters."""
MEMORY_CURE = "Use a smaller model or batch, fewer workers per machine, or more memory."


def is_out_of_memory(error: BaseException) -> bool:
    if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno == errno.ENOMEM):
        return True
    if any(kind.__name__ == "OutOfMemoryError" for kind in type(error).__mro__):
        return True
    return isinstance(error, RuntimeError) and any(words in str(error) for words in _RAISED)


def oom_kills() -> int | None:
    """Out-of-memory kills that the kernel of this machine has counted; None: it does not tell."""
    with contextlib.suppress(OSError, ValueError):
        text = Path("/proc/vmstat").read_bytes()
        return int(text.rpartition(b"\noom_kill ")[2].split(maxsplit=1)[0])
    return None


def outcome_of_sigkill(kills: int | None) -> tuple[Outcome, str]:
    """Outcome and message for a process that SIGKILL ended: whoever may signal it can send one.

    Args:
        kills: out-of-memory kills on this machine while the process ran; None: not known.
    """
    if kills:
        return Outcome.OUT_OF_MEMORY, (
            f"The training process was killed while the kernel ended {kills} process{'es' if kills != 1 else ''} of "
            f"this machine for lack of memory. {MEMORY_CURE}"
        )
    evidence = "The kernel ended no process of this machine for lack of memory while it ran."
    if kills is None:
        evidence = "Whether memory ran out cannot be said: the kernel's count of such kills cannot be read here."
    return Outcome.CRASHED, (
        f"The training process was ended by SIGKILL (kill -9). {evidence} A person, a program that watches memory or "
        "time, or the training itself sent the signal."
    )


def outcome_of_exit(code: int, *, status: int, oom_kills: int | None, printed: str = "") -> tuple[Outcome, str]:
    """Outcome and message for the exit, as ``waitid`` describes it, of a process that did not report.

    Args:
        code: ``si_code``.
        status: ``si_status``: exit code or signal number.
        oom_kills: the kernel's out-of-memory kills while the process ran.
        printed: the end of its output.
    """
    if code == os.CLD_EXITED:
        return Outcome.CRASHED, (
            f"The training process exited by itself with code {status} before it reported. Look for os._exit() or a "
            "library that ends the process; the end of its log is in the detail."
        )
    if status == signal.SIGKILL:
        return outcome_of_sigkill(oom_kills)
    if status == signal.SIGABRT and any(words in printed.lower() for words in _PRINTED):
        return Outcome.OUT_OF_MEMORY, (
            "A native library ended the training process, for it got no memory; the end of its log is in the detail. "
            + MEMORY_CURE
        )
    try:
        name = f"signal {status} ({signal.Signals(status).name})"
    except ValueError:
        name = f"signal {status}"
    return Outcome.CRASHED, (
        f"The training process was killed by {name}. A native library crashed, or somebody ended it; "
        "the stack at that moment is in its log."
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
